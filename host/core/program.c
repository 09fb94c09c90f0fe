/* Recorded programs: a list of operations with their memory planned, replayed without the
 * interpreter.
 *
 * While a context records, operations are checked and noted, not run; new tensors get storages
 * without memory. At the end, operations whose results nobody reads are dropped, and every buffer
 * gets a place in one slab by its lifetime. Replaying calls the kernels in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/plan.h"
#include "core/program.h"
#include "core/recompute.h"
#include "core/trace.h"

struct pk_program {
  pk_context *context;
  bool recording, failed;
  pk_recorded **list;
  int64_t count, room;
  pk_tensor *results; /* shares of the storages that stay readable */
  int64_t n_results;
  pk_storage *slab; /* NULL until the first run */
  int64_t commit;   /* the first operation that writes state: from there on a run is finished */
  pk_program_plan plan;
};

/* --- recording --- */

pk_status pk_program_begin(pk_context *context, pk_program **program) {
  if (context->recording) return pk_fail(PK_INVALID, "a program is being recorded already");
  pk_program *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a program");
  created->context = context;
  created->recording = true;
  pk_context_retain(context);
  context->recording = created;
  *program = created;
  return PK_OK;
}

static pk_status make_room(pk_program *program) {
  if (program->count < program->room) return PK_OK;
  int64_t room = program->room ? 2 * program->room : 256;
  pk_recorded **list = realloc(program->list, (size_t)room * sizeof *list);
  if (!list) return pk_fail(PK_NO_MEMORY, "no host memory for a program of %lld", (long long)room);
  program->list = list;
  program->room = room;
  return PK_OK;
}

const pk_tensor *pk_recorded_share(pk_tensor *place, const pk_tensor *tensor) {
  if (!tensor) return NULL;
  *place = *tensor;
  place->storage->references++;
  return place;
}

pk_status pk_recorded_create(const pk_call *call, pk_recorded **created) {
  pk_recorded *entry = calloc(1, sizeof *entry);
  if (!entry) return pk_fail(PK_NO_MEMORY, "no host memory to record an operation");
  entry->call = *call;
  for (int i = 0; i < call->n_inputs; i++)
    entry->call.inputs[i] = pk_recorded_share(&entry->tensors[i], call->inputs[i]);
  for (int o = 0; o < call->n_outputs; o++) {
    pk_tensor *place = &entry->tensors[PK_MAX_INPUTS + o];
    pk_recorded_share(place, call->outputs[o]);
    entry->call.outputs[o] = place;
  }
  pk_workspace_rule rule = call->context->device->workspaces[call->op];
  entry->workspace_bytes = rule ? rule(&entry->call) : 0;
  *created = entry;
  return PK_OK;
}

void pk_recorded_free(pk_recorded *entry) {
  for (int t = 0; t < PK_RECORDED_TENSORS; t++) pk_tensor_release(&entry->tensors[t]);
  free(entry);
}

pk_status pk_program_record(pk_program *program, const pk_call *call) {
  pk_status status = make_room(program);
  if (status == PK_OK) status = pk_recorded_create(call, &program->list[program->count]);
  if (status == PK_OK) {
    program->count++;
  } else {
    program->failed = true;
  }
  return status;
}

/* --- planning --- */

bool pk_recorded_writes_input(const pk_op_info *info, int index) {
  const char *names = info->inputs;
  for (int i = 0; i < index; i++) {
    names = strchr(names, ' ');
    if (!names) return false;
    names++;
  }
  return memchr(names, '!', strcspn(names, " ")) != NULL;
}

static bool writes_outside(const pk_tensor *tensor) {
  return tensor->storage && !tensor->storage->planned;
}

/* Whether an operation changes what a later run or a reader may count on: gradients are made anew
 * by every run, all else from outside is state. */
static bool writes_state(const pk_recorded *entry) {
  const pk_call *call = &entry->call;
  const pk_op_info *info = pk_op_describe(call->op);
  for (int o = 0; o < call->n_outputs; o++) {
    if (writes_outside(call->outputs[o]) && call->outputs[o]->storage->category != PK_GRADIENTS)
      return true;
  }
  for (int i = 0; i < call->n_inputs; i++) {
    if (call->inputs[i] && pk_recorded_writes_input(info, i) && writes_outside(call->inputs[i]))
      return true;
  }
  return false;
}

/* The operation up to which a run can be interrupted. */
static int64_t find_commit(const pk_program *program) {
  int64_t i = 0;
  while (i < program->count && !writes_state(program->list[i])) i++;
  return i;
}

/* An operation is live if it writes memory from outside the program, or a buffer that a live one
 * reads. */
static bool is_needed(const pk_recorded *entry) {
  const pk_call *call = &entry->call;
  const pk_op_info *info = pk_op_describe(call->op);
  for (int o = 0; o < call->n_outputs; o++) {
    const pk_storage *storage = call->outputs[o]->storage;
    if (writes_outside(call->outputs[o]) || storage->needed) return true;
  }
  for (int i = 0; i < call->n_inputs; i++) {
    if (!call->inputs[i] || !pk_recorded_writes_input(info, i)) continue;
    if (writes_outside(call->inputs[i]) || call->inputs[i]->storage->needed) return true;
  }
  return false;
}

static void mark_live(pk_program *program) {
  for (int64_t r = 0; r < program->n_results; r++) {
    program->results[r].storage->needed = true;
    program->results[r].storage->kept = true;
  }
  for (int64_t i = program->count - 1; i >= 0; i--) {
    pk_recorded *entry = program->list[i];
    entry->live = is_needed(entry);
    for (int t = 0; entry->live && t < PK_RECORDED_TENSORS; t++)
      if (entry->tensors[t].storage) entry->tensors[t].storage->needed = true;
  }
}

static void drop_dead(pk_program *program) {
  int64_t kept = 0;
  for (int64_t i = 0; i < program->count; i++) {
    if (program->list[i]->live) {
      program->list[kept++] = program->list[i];
    } else {
      pk_recorded_free(program->list[i]);
    }
  }
  program->plan.dropped = program->count - kept;
  program->count = kept;
}

/* Numbers the storages of the program's own and notes their lifetimes in spans. Returns their
 * number. */
static int64_t find_lifetimes(pk_program *program, pk_span *spans) {
  int64_t count = 0;
  for (int64_t i = 0; i < program->count; i++) {
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = program->list[i]->tensors[t].storage;
      if (!storage || !storage->planned) continue;
      if (storage->span < 0) {
        storage->span = count;
        spans[count++] = (pk_span){.bytes = storage->bytes, .first = i};
      }
      spans[storage->span].last = i;
    }
  }
  for (int64_t r = 0; r < program->n_results; r++) {
    const pk_storage *storage = program->results[r].storage;
    if (storage->planned && storage->span >= 0) spans[storage->span].last = program->count;
  }
  return count;
}

/* The largest sum of bytes in use at one time. */
static int64_t largest_sum(const pk_program *program, const pk_span *spans, int64_t count) {
  int64_t *change = calloc((size_t)program->count + 2, sizeof *change), largest = 0, sum = 0;
  if (!change) return 0;
  for (int64_t s = 0; s < count; s++) {
    change[spans[s].first] += spans[s].bytes;
    change[spans[s].last + 1] -= spans[s].bytes;
  }
  for (int64_t i = 0; i <= program->count; i++) {
    sum += change[i];
    if (sum > largest) largest = sum;
  }
  free(change);
  return largest;
}

/* Gives every buffer and workspace its place in the slab. */
static pk_status place(pk_program *program) {
  int64_t most = program->count * (PK_RECORDED_TENSORS + 1) + 1;
  pk_span *spans = malloc((size_t)most * sizeof *spans);
  if (!spans) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  int64_t buffers = find_lifetimes(program, spans), count = buffers;
  program->plan.activations = largest_sum(program, spans, buffers);
  program->plan.buffers = buffers;
  for (int64_t i = 0; i < program->count; i++) {
    int64_t bytes = program->list[i]->workspace_bytes;
    if (bytes > program->plan.workspace) program->plan.workspace = bytes;
    spans[count++] = (pk_span){.bytes = bytes, .first = i, .last = i};
  }
  pk_status status = pk_plan_offsets(spans, count, &program->plan.slab);
  for (int64_t i = 0; i < program->count && status == PK_OK; i++) {
    program->list[i]->workspace_offset = spans[buffers + i].offset;
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = program->list[i]->tensors[t].storage;
      if (storage && storage->planned) storage->slab_offset = spans[storage->span].offset;
    }
  }
  free(spans);
  return status;
}

static pk_status keep_results(pk_program *program, const pk_tensor *const *results,
                              int64_t n_results) {
  program->results = calloc((size_t)n_results + 1, sizeof *program->results);
  if (!program->results) return pk_fail(PK_NO_MEMORY, "no host memory for a program's results");
  for (int64_t r = 0; r < n_results; r++) {
    if (!results[r]->storage) return pk_fail(PK_INVALID, "result %lld was freed", (long long)r + 1);
    pk_recorded_share(&program->results[program->n_results++], results[r]);
  }
  return PK_OK;
}

static void stop_recording(pk_program *program) {
  if (program->recording) program->context->recording = NULL;
  program->recording = false;
}

pk_status pk_program_end(pk_program *program, const pk_tensor *const *results, int64_t n_results) {
  if (!program->recording) return pk_fail(PK_INVALID, "the program is not being recorded");
  stop_recording(program);
  if (program->failed) return pk_fail(PK_INVALID, "the program was not recorded whole");
  program->plan.recorded = program->count;
  pk_status status = keep_results(program, results, n_results);
  if (status != PK_OK) return status;
  mark_live(program);
  drop_dead(program);
  status = pk_recompute(&program->list, &program->count, &program->plan.recomputed);
  if (status != PK_OK) return status;
  program->room = program->count;
  program->plan.operations = program->count;
  program->commit = find_commit(program);
  return place(program);
}

/* --- running --- */

/* Takes the slab and gives the program's storages their memory in it. */
static pk_status take_slab(pk_program *program) {
  if (program->slab) return PK_OK;
  pk_status status =
      pk_storage_create(program->context, program->plan.slab, PK_ACTIVATIONS, &program->slab);
  if (status != PK_OK) return pk_fail_within(status, "the slab of a recorded program");
  for (int64_t i = 0; i < program->count; i++) {
    pk_recorded *entry = program->list[i];
    entry->call.workspace = (char *)program->slab->memory + entry->workspace_offset;
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = entry->tensors[t].storage;
      if (storage && storage->planned) pk_storage_place(storage, program->slab);
    }
  }
  return PK_OK;
}

pk_status pk_program_run(pk_program *program) {
  if (program->recording) return pk_fail(PK_INVALID, "the program is still being recorded");
  if (program->context->recording) {
    return pk_fail(PK_INVALID, "a program cannot be run while another is recorded");
  }
  pk_status status = take_slab(program);
  if (program->context->forecast && !program->context->trace) return status;
  for (int64_t i = 0; i < program->count && status == PK_OK; i++) {
    const pk_call *call = &program->list[i]->call;
    if (i <= program->commit) status = pk_interrupt_check();
    if (status != PK_OK) break;
    status = pk_call_run(call);
    if (status != PK_OK)
      pk_fail_within(status, "operation %lld of a recorded program", (long long)i + 1);
  }
  return status;
}

void pk_program_free(pk_program *program) {
  if (!program) return;
  stop_recording(program);
  for (int64_t i = 0; i < program->count; i++) pk_recorded_free(program->list[i]);
  for (int64_t r = 0; r < program->n_results; r++) pk_tensor_release(&program->results[r]);
  free(program->list);
  free(program->results);
  if (program->slab) pk_storage_release(program->slab);
  pk_context_release(program->context);
  free(program);
}

/* --- looking --- */

void pk_program_read_plan(const pk_program *program, pk_program_plan *plan) {
  *plan = program->plan;
}

/* Appends " f32 [2, 3] @offset" of a tensor. */
static int describe_tensor(char *text, int size, const pk_tensor *tensor) {
  char shape[PK_SHAPE_TEXT], place[40] = "outside";
  if (tensor->storage->planned) {
    snprintf(place, sizeof place, "%lld", (long long)tensor->storage->slab_offset);
  }
  return snprintf(text, (size_t)size, " %s %s @%s", pk_dtype_name(tensor->dtype),
                  pk_shape_text(shape, tensor->rank, tensor->shape), place);
}

pk_status pk_program_describe(const pk_program *program, int64_t index, char *text, int64_t size) {
  if (index < 0 || index >= program->count) {
    return pk_fail(PK_INVALID, "operation %lld of a program of %lld", (long long)index,
                   (long long)program->count);
  }
  const pk_call *call = &program->list[index]->call;
  int room = size > INT32_MAX ? INT32_MAX : (int)size;
  int used = snprintf(text, (size_t)room, "%s:", pk_op_describe(call->op)->name);
  for (int i = 0; i < call->n_inputs && used < room; i++)
    if (call->inputs[i]) used += describe_tensor(text + used, room - used, call->inputs[i]);
  if (used < room) used += snprintf(text + used, (size_t)(room - used), " ->");
  for (int o = 0; o < call->n_outputs && used < room; o++)
    used += describe_tensor(text + used, room - used, call->outputs[o]);
  return PK_OK;
}
