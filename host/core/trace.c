/* Traces: what a context's operations were, when they ran, and on which lanes. */
#include "core/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Texts by number, each once. */
typedef struct name_list {
  char **texts;
  int count;
} name_list;

struct pk_trace {
  pk_context *context;
  bool running, waits;
  int64_t origin, capacity, dropped, operations;
  pk_trace_event *events; /* [capacity] */
  int64_t count;
  pk_trace_form *forms;
  int64_t n_forms, form_room;
  int64_t *buckets; /* [n_buckets] numbers of forms, or -1: open addressing */
  int64_t n_buckets;
  int32_t step;
  name_list lanes;      /* from number 1 on */
  name_list activities; /* what lanes did */
  char note[2048];
};

enum { FIRST_FORMS = 64, NAMES_STEP = 32 };

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
                          .name = -1,
                          .lane = lane};
  add_event(trace, &event);
}

/* An operation's event, which gets its number; times are still to come. */
static pk_trace_event number_operation(pk_trace *trace, const pk_call *call) {
  int64_t form = find_form(trace, call);
  return (pk_trace_event){.operation = trace->operations++,
                          .form = form,
                          .phase = call->phase,
                          .step = trace->step,
                          .name = -1};
}

static void add_operation(pk_trace *trace, pk_trace_event *event) {
  event->memory = trace->context->memory.total;
  if (event->form < 0) {
    trace->dropped++;
  } else {
    add_event(trace, event);
  }
}

pk_status pk_trace_run(pk_trace *trace, const pk_call *call) {
  pk_context *context = trace->context;
  pk_device *device = context->device;
  pk_trace_event event = number_operation(trace, call);
  if (device->trace_before) device->trace_before(device, event.operation);
  event.start = pk_nanoseconds() - trace->origin;
  pk_status status = context->forecast ? PK_OK : device->kernels[call->op](call);
  if (status == PK_OK && trace->waits) status = device->synchronize(device);
  event.end = pk_nanoseconds() - trace->origin;
  add_operation(trace, &event);
  if (device->trace_after) device->trace_after(device, trace, event.operation);
  return status;
}

int64_t pk_trace_next(const pk_trace *trace) {
  return trace->operations;
}

void pk_trace_add_operation(pk_trace *trace, const pk_call *call, int64_t launched) {
  pk_trace_event event = number_operation(trace, call);
  event.start = event.end = launched - trace->origin;
  add_operation(trace, &event);
}

/* --- what devices do that have names for it --- */

/* The number of a text, which is added if it is new; -1 without memory. */
static int number_of(name_list *names, const char *text) {
  for (int n = 0; n < names->count; n++)
    if (strcmp(names->texts[n], text) == 0) return n;
  if (names->count % NAMES_STEP == 0) {
    size_t room = (size_t)names->count + NAMES_STEP;
    char **texts = realloc(names->texts, room * sizeof *texts);
    if (!texts) return -1;
    names->texts = texts;
  }
  char *copy = strdup(text);
  if (!copy) return -1;
  names->texts[names->count] = copy;
  return names->count++;
}

static void free_names(name_list *names) {
  for (int n = 0; n < names->count; n++) free(names->texts[n]);
  free(names->texts);
}

void pk_trace_name_lane(pk_trace *trace, const char *lane) {
  number_of(&trace->lanes, lane);
}

void pk_trace_add_activity(pk_trace *trace, const pk_activity *activity) {
  int lane = number_of(&trace->lanes, activity->lane);
  int name = number_of(&trace->activities, activity->name);
  pk_trace_event event = {.start = activity->start - trace->origin,
                          .end = activity->end - trace->origin,
                          .busy = activity->end - activity->start,
                          .memory = activity->bytes,
                          .operation = activity->operation,
                          .form = -1,
                          .name = name,
                          .lane = lane + 1};
  if (lane < 0 || name < 0) {
    trace->dropped++;
  } else {
    add_event(trace, &event);
  }
}

/* Shows a launch as an activity of its own. */
static void add_launch(pk_trace *trace, const pk_trace_event *event) {
  const pk_trace_form *form = &trace->forms[event->form];
  pk_activity launch = {.start = event->start + trace->origin,
                        .end = event->end + trace->origin,
                        .operation = event->operation,
                        .lane = PK_TRACE_LAUNCHES,
                        .name = pk_op_describe(form->op)->name};
  if (event->end > event->start) pk_trace_add_activity(trace, &launch);
}

/* Operations come one after the other: one of which nothing is known takes no time, behind the one
 * before it. */
void pk_trace_set_times(pk_trace *trace, const pk_busy *times, int64_t count) {
  int64_t last = 0, events = trace->count;
  for (int64_t e = 0; e < events; e++) {
    pk_trace_event *event = &trace->events[e];
    if (event->form < 0) continue;
    add_launch(trace, event);
    bool known = event->operation < count && times[event->operation].end > 0;
    int64_t start = known ? times[event->operation].start - trace->origin : last;
    int64_t end = known ? times[event->operation].end - trace->origin : last;
    event->start = start > last ? start : last;
    event->end = end > event->start ? end : event->start;
    last = event->end;
  }
}

void pk_trace_wait(pk_trace *trace) {
  trace->waits = true;
}

void pk_trace_lose(pk_trace *trace, int64_t count) {
  trace->dropped += count;
}

void pk_trace_remark(pk_trace *trace, const char *format, ...) {
  size_t used = strlen(trace->note);
  if (used > 0 && used + 1 < sizeof trace->note) trace->note[used++] = ' ';
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(trace->note + used, sizeof trace->note - used, format, arguments);
  va_end(arguments);
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
  pk_device *device = context->device;
  pk_status status = device->trace_begin ? device->trace_begin(device, created) : PK_OK;
  if (status != PK_OK) {
    free(events);
    free(created);
    return status;
  }
  created->origin = pk_nanoseconds();
  created->running = true;
  pk_context_retain(context);
  context->trace = created;
  context->watched = true;
  *trace = created;
  return PK_OK;
}

void pk_trace_end(pk_trace *trace) {
  if (!trace->running) return;
  pk_device *device = trace->context->device;
  if (device->trace_end) device->trace_end(device, trace);
  trace->running = false;
  trace->context->trace = NULL;
  trace->context->watched = device->range_push != NULL;
  pk_context_release(trace->context);
}

void pk_trace_free(pk_trace *trace) {
  if (!trace) return;
  pk_trace_end(trace);
  free(trace->events);
  free(trace->forms);
  free(trace->buckets);
  free_names(&trace->lanes);
  free_names(&trace->activities);
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

const char *pk_trace_lane(const pk_trace *trace, int lane) {
  return lane >= 1 && lane <= trace->lanes.count ? trace->lanes.texts[lane - 1] : NULL;
}

const char *pk_trace_name(const pk_trace *trace, int name) {
  return name >= 0 && name < trace->activities.count ? trace->activities.texts[name] : NULL;
}

const char *pk_trace_note(const pk_trace *trace) {
  return trace->note;
}

int pk_phase_enter(pk_context *context, int phase) {
  int before = context->phase;
  context->phase = phase;
  return before;
}
