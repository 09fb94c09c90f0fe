/* Traces: what a context's operations were, when they ran, and on which lanes. */
#include "core/trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pk_trace {
  pk_context *context;
  bool running;
  int64_t origin, capacity, dropped, operations;
  pk_trace_event *events; /* [capacity] */
  int64_t count;
  pk_trace_form *forms;
  int64_t n_forms, form_room;
  int64_t *buckets; /* [n_buckets] numbers of forms, or -1: open addressing */
  int64_t n_buckets;
  int32_t step;
};

enum { FIRST_FORMS = 64 };

int64_t pk_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- forms: every call of the same operation, shapes, dtypes and attributes is of one --- */

static pk_trace_tensor look_of(const pk_tensor *tensor) {
  pk_trace_tensor look = {.dtype = -1};
  if (!tensor) return look;
  look.dtype = tensor->dtype;
  look.rank = tensor->rank;
  for (int d = 0; d < tensor->rank; d++) look.shape[d] = tensor->shape[d];
  return look;
}

/* Forms have no padding, so that their bytes can be compared. */
_Static_assert(sizeof(pk_trace_form) ==
                   sizeof(pk_attributes) + 16 +
                       sizeof(pk_trace_tensor) * (PK_MAX_INPUTS + PK_MAX_OUTPUTS),
               "pk_trace_form has padding");

static pk_trace_form form_of(const pk_call *call) {
  pk_trace_form form = {.op = call->op,
                        .n_inputs = call->n_inputs,
                        .n_outputs = call->n_outputs,
                        .again = call->again,
                        .attributes = call->attributes};
  for (int i = 0; i < call->n_inputs; i++) form.inputs[i] = look_of(call->inputs[i]);
  for (int o = 0; o < call->n_outputs; o++) form.outputs[o] = look_of(call->outputs[o]);
  return form;
}

/* FNV-1a by words of eight bytes, as a form has a thousand bytes. */
static uint64_t hash_of(const pk_trace_form *form) {
  const char *bytes = (const char *)form;
  uint64_t hash = 0xcbf29ce484222325, word;
  for (size_t at = 0; at < sizeof *form; at += sizeof word) {
    memcpy(&word, bytes + at, sizeof word);
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash ^ hash >> 32; /* what is left of the upper bytes of words is in the upper bytes */
}

/* The place of a form in the buckets: where it is, or where it would go. */
static int64_t bucket_of(const pk_trace *trace, const pk_trace_form *form) {
  int64_t at = (int64_t)(hash_of(form) % (uint64_t)trace->n_buckets);
  for (; trace->buckets[at] >= 0; at = (at + 1) % trace->n_buckets) {
    const pk_trace_form *other = &trace->forms[trace->buckets[at]];
    /* Numbers of the same bits are meant. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    if (memcmp(other, form, sizeof *form) == 0) break;
  }
  return at;
}

/* Doubles the room for forms. */
static bool grow_forms(pk_trace *trace) {
  int64_t room = trace->form_room ? 2 * trace->form_room : FIRST_FORMS;
  pk_trace_form *forms = realloc(trace->forms, (size_t)room * sizeof *forms);
  if (forms) trace->forms = forms;
  int64_t *buckets = forms ? malloc((size_t)(2 * room) * sizeof *buckets) : NULL;
  if (!buckets) return false;
  for (int64_t b = 0; b < 2 * room; b++) buckets[b] = -1;
  free(trace->buckets);
  trace->buckets = buckets;
  trace->n_buckets = 2 * room;
  trace->form_room = room;
  for (int64_t f = 0; f < trace->n_forms; f++) buckets[bucket_of(trace, &forms[f])] = f;
  return true;
}

/* The number of the call's form, or -1 without memory for another one. */
static int64_t find_form(pk_trace *trace, const pk_call *call) {
  if (trace->n_forms == trace->form_room && !grow_forms(trace)) return -1;
  pk_trace_form form = form_of(call);
  int64_t at = bucket_of(trace, &form);
  if (trace->buckets[at] < 0) {
    trace->forms[trace->n_forms] = form;
    trace->buckets[at] = trace->n_forms++;
  }
  return trace->buckets[at];
}

/* --- events --- */

static void add_event(pk_trace *trace, const pk_trace_event *event) {
  if (trace->count == trace->capacity) {
    trace->dropped++;
  } else {
    trace->events[trace->count++] = *event;
  }
}

void pk_trace_add_lane(pk_trace *trace, int lane, int64_t operation, const pk_busy *busy) {
  pk_trace_event event = {.start = busy->start - trace->origin,
                          .end = busy->end - trace->origin,
                          .busy = busy->busy,
                          .pieces = busy->pieces,
                          .operation = operation,
                          .form = -1,
                          .lane = lane};
  add_event(trace, &event);
}

pk_status pk_trace_run(pk_trace *trace, const pk_call *call) {
  pk_context *context = trace->context;
  pk_device *device = context->device;
  int64_t form = find_form(trace, call);
  pk_trace_event event = {
      .operation = trace->operations++, .form = form, .phase = call->phase, .step = trace->step};
  event.start = pk_nanoseconds() - trace->origin;
  pk_status status = context->forecast ? PK_OK : device->kernels[call->op](call);
  event.end = pk_nanoseconds() - trace->origin;
  event.memory = context->memory.total;
  if (form < 0) {
    trace->dropped++;
  } else {
    add_event(trace, &event);
  }
  if (device->trace_after) device->trace_after(device, trace, event.operation);
  return status;
}

/* --- beginning and ending --- */

pk_status pk_trace_begin(pk_context *context, int64_t capacity, pk_trace **trace) {
  if (context->trace) return pk_fail(PK_INVALID, "the context is being traced already");
  if (capacity < 1 || capacity > INT64_MAX / (int64_t)sizeof(pk_trace_event)) {
    return pk_fail(PK_INVALID, "a trace of %lld events is not possible", (long long)capacity);
  }
  pk_trace *created = calloc(1, sizeof *created);
  pk_trace_event *events = malloc((size_t)capacity * sizeof *events);
  if (!created || !events) {
    free(created);
    free(events);
    return pk_fail(PK_NO_MEMORY, "no host memory for a trace of %lld events", (long long)capacity);
  }
  created->context = context;
  created->capacity = capacity;
  created->events = events;
  created->origin = pk_nanoseconds();
  pk_device *device = context->device;
  pk_status status = device->trace_begin ? device->trace_begin(device) : PK_OK;
  if (status != PK_OK) {
    free(events);
    free(created);
    return status;
  }
  created->running = true;
  pk_context_retain(context);
  context->trace = created;
  *trace = created;
  return PK_OK;
}

void pk_trace_end(pk_trace *trace) {
  if (!trace->running) return;
  pk_device *device = trace->context->device;
  if (device->trace_end) device->trace_end(device, trace);
  trace->running = false;
  trace->context->trace = NULL;
  pk_context_release(trace->context);
}

void pk_trace_free(pk_trace *trace) {
  if (!trace) return;
  pk_trace_end(trace);
  free(trace->events);
  free(trace->forms);
  free(trace->buckets);
  free(trace);
}

void pk_trace_step(pk_trace *trace) {
  trace->step++;
}

const pk_trace_event *pk_trace_events(const pk_trace *trace, int64_t *count) {
  *count = trace->count;
  return trace->events;
}

const pk_trace_form *pk_trace_forms(const pk_trace *trace, int64_t *count) {
  *count = trace->n_forms;
  return trace->forms;
}

int64_t pk_trace_dropped(const pk_trace *trace) {
  return trace->dropped;
}

int pk_phase_enter(pk_context *context, int phase) {
  int before = context->phase;
  context->phase = phase;
  return before;
}
