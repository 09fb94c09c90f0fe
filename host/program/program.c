/* Recorded programs: a list of operations with their memory planned, replayed without the
 * interpreter.
 *
 * While a context records, operations are checked and noted, not run; new tensors get storages
 * without memory. At the end, operations whose results nobody reads are dropped, passes of their
 * own rewrite the list (merge.c, fuse.c, recompute.c), and every buffer gets a place in one slab
 * (place.c). Replaying calls the kernels in order, or launches the device's graph of them
 * (replay.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "program/fuse.h"
#include "program/merge.h"
#include "program/place.h"
#include "program/recompute.h"
#include "program/replay.h"

struct pk_program {
  pk_context *context;
  int64_t number; /* of the context's recordings */
  bool recording;
  pk_recorded_list list;
  pk_tensor *results; /* shares of the storages that stay readable */
  int64_t n_results;
  pk_storage **written; /* those from outside that a run writes to; its entries have shares */
  int64_t n_written;
  pk_storage *slab; /* NULL until the first run */
  pk_replay replay;
  int64_t commit; /* the first operation that writes state: from there on a run is finished */
  pk_program_plan plan;
};

/* --- recording --- */

/* The context's pk_recorder. */
static pk_status record(pk_program *program, const pk_call *call) {
  pk_recorded *entry;
  pk_status status = pk_recorded_create(call, &entry);
  return status == PK_OK ? pk_recorded_append(&program->list, entry) : status;
}

pk_status pk_program_begin(pk_context *context, pk_program **program) {
  if (context->recording) return pk_fail(PK_INVALID, "a program is being recorded already");
  pk_program *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a program");
  created->context = context;
  created->recording = true;
  pk_context_retain(context);
  context->recording = created;
  created->number = ++context->recordings;
  context->record = record;
  *program = created;
  return PK_OK;
}

/* --- planning --- */

static bool writes_outside(const pk_tensor *tensor) {
  return tensor->storage && !pk_storage_is_planned(tensor->storage);
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
  while (i < program->list.count && !writes_state(program->list.entries[i])) i++;
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

/* Drops the operations that are not needed. */
static void drop_dead(pk_program *program) {
  pk_recorded_list *list = &program->list;
  int64_t first = list->count; /* of those kept, which gather at the end */
  for (int64_t i = list->count - 1; i >= 0; i--) {
    pk_recorded *entry = list->entries[i];
    if (!is_needed(entry)) {
      pk_recorded_free(entry);
      continue;
    }
    for (int t = 0; t < PK_RECORDED_TENSORS; t++)
      if (entry->tensors[t].storage) entry->tensors[t].storage->needed = true;
    list->entries[--first] = entry;
  }
  program->plan.dropped = first;
  list->count -= first;
  if (list->count == 0) return;
  memmove(list->entries, list->entries + first, (size_t)list->count * sizeof *list->entries);
}

static pk_status keep_results(pk_program *program, const pk_tensor *const *results,
                              int64_t n_results) {
  program->results = calloc((size_t)n_results + 1, sizeof *program->results);
  if (!program->results) return pk_fail(PK_NO_MEMORY, "no host memory for a program's results");
  for (int64_t r = 0; r < n_results; r++) {
    const pk_tensor *result = results[r];
    bool own = result->storage && pk_storage_is_planned(result->storage);
    const char *trouble = own ? NULL : pk_tensor_trouble(result);
    if (trouble) return pk_fail(PK_INVALID, "result %lld %s", (long long)r + 1, trouble);
    if (result->context != program->context)
      return pk_fail(PK_INVALID, "result %lld belongs to another device context", (long long)r + 1);
    pk_recorded_share(&program->results[program->n_results++], result);
    result->storage->needed = true;
    result->storage->kept = true;
  }
  return PK_OK;
}

static void stop_recording(pk_program *program) {
  if (program->recording) program->context->recording = NULL;
  program->recording = false;
}

/* Lists the storages from outside that a run writes to. */
static pk_status find_written(pk_program *program) {
  for (int64_t i = 0; i < program->list.count; i++) {
    const pk_recorded *entry = program->list.entries[i];
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = entry->tensors[t].storage;
      if (!storage || pk_storage_is_planned(storage) || !pk_recorded_writes(entry, storage))
        continue;
      int64_t w = 0;
      while (w < program->n_written && program->written[w] != storage) w++;
      if (w < program->n_written) continue;
      size_t bytes = (size_t)(program->n_written + 1) * sizeof *program->written;
      pk_storage **written = realloc(program->written, bytes);
      if (!written) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
      program->written = written;
      program->written[program->n_written++] = storage;
    }
  }
  return PK_OK;
}

pk_status pk_program_end(pk_program *program, const pk_tensor *const *results, int64_t n_results,
                         int recompute) {
  if (!program->recording) return pk_fail(PK_INVALID, "the program is not being recorded");
  stop_recording(program);
  if (recompute < PK_RECOMPUTE_NONE || recompute > PK_RECOMPUTE_PRODUCTS)
    return pk_fail(PK_INVALID, "recompute %d is not a level", recompute);
  pk_program_plan *plan = &program->plan;
  pk_recorded_list *list = &program->list;
  plan->recorded = list->count;
  pk_status status = keep_results(program, results, n_results);
  if (status != PK_OK) return status;
  drop_dead(program);
  /* Passes over a long list take a while: between them a request to stop is met. */
  status = pk_merge_gradients(program->context, list, &plan->merged);
  if (status == PK_OK) status = pk_interrupt_check();
  if (status == PK_OK) status = pk_fuse_casts(list, &plan->fused);
  if (status == PK_OK) status = pk_recompute_results(list, recompute, &plan->recomputed);
  if (status == PK_OK) status = pk_interrupt_check();
  if (status == PK_OK) status = pk_fuse_additions(program->context, list, &plan->fused);
  plan->operations = list->count;
  program->commit = find_commit(program);
  if (status == PK_OK) status = pk_interrupt_check();
  if (status == PK_OK) status = find_written(program);
  return status == PK_OK ? pk_place_buffers(list, plan) : status;
}

/* --- running --- */

/* Gives the program's storages their memory in a slab, of which it takes a share. */
static void use_slab(pk_program *program, pk_storage *slab) {
  slab->references++;
  program->slab = slab;
  for (int64_t i = 0; i < program->list.count; i++) {
    pk_recorded *entry = program->list.entries[i];
    entry->call.workspace = (char *)program->slab->memory + entry->workspace_offset;
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = entry->tensors[t].storage;
      if (storage && storage->recording == program->number) pk_storage_place(storage, slab);
    }
  }
}

static pk_status check_ready(const pk_program *program) {
  if (program->recording) return pk_fail(PK_INVALID, "the program is still being recorded");
  if (program->context->recording) {
    return pk_fail(PK_INVALID, "a program cannot be run while another is recorded");
  }
  return PK_OK;
}

pk_status pk_programs_prepare(pk_program *const *programs, int64_t count) {
  int64_t bytes = 0;
  for (int64_t p = 0; p < count; p++) {
    pk_status status = check_ready(programs[p]);
    if (status != PK_OK) return status;
    if (programs[p]->context != programs[0]->context || programs[p]->slab)
      return pk_fail(PK_INVALID, "program %lld cannot share memory: it %s", (long long)p + 1,
                     programs[p]->slab ? "has its own" : "belongs to another device context");
    if (programs[p]->plan.slab > bytes) bytes = programs[p]->plan.slab;
  }
  if (count == 0) return PK_OK;
  pk_storage *slab;
  pk_status status = pk_storage_create(programs[0]->context, bytes, PK_ACTIVATIONS, &slab);
  if (status != PK_OK) return pk_fail_within(status, "the slab of a recorded program");
  for (int64_t p = 0; p < count; p++) use_slab(programs[p], slab);
  pk_storage_release(slab);
  return PK_OK;
}

pk_status pk_program_prepare(pk_program *program) {
  pk_status status = check_ready(program);
  return status != PK_OK || program->slab ? status : pk_programs_prepare(&program, 1);
}

pk_status pk_program_run(pk_program *program) {
  pk_status status = pk_program_prepare(program);
  if (status != PK_OK) return status;
  for (int64_t w = 0; w < program->n_written; w++) program->written[w]->writes++;
  program->slab->writes++;
  if (!program->context->forecast || program->context->trace)
    status = pk_replay_run(&program->replay, program->context, program->list.entries,
                           program->list.count, program->commit);
  program->slab->holds = status == PK_OK ? program->number : 0;
  return status;
}

const char *pk_program_remark(const pk_program *program) {
  return program->replay.remark;
}

void pk_program_free(pk_program *program) {
  if (!program) return;
  stop_recording(program);
  pk_replay_free(&program->replay, program->context);
  for (int64_t r = 0; r < program->n_results; r++) pk_tensor_release(&program->results[r]);
  pk_recorded_list_free(&program->list);
  free(program->results);
  free(program->written);
  if (program->slab) pk_storage_release(program->slab);
  pk_context_release(program->context);
  free(program);
}

/* --- looking --- */

void pk_program_read_plan(const pk_program *program, pk_program_plan *plan) {
  *plan = program->plan;
}

/* Appends " f32 [2, 3] @offset" of a tensor. */
static int describe_tensor(const pk_program *program, char *text, int size,
                           const pk_tensor *tensor) {
  char shape[PK_SHAPE_TEXT], place[40] = "outside";
  if (tensor->storage->recording == program->number) {
    snprintf(place, sizeof place, "%lld", (long long)tensor->storage->slab_offset);
  }
  return snprintf(text, (size_t)size, " %s %s @%s", pk_dtype_name(tensor->dtype),
                  pk_shape_text(shape, tensor->rank, tensor->shape), place);
}

pk_status pk_program_describe(const pk_program *program, int64_t index, char *text, int64_t size) {
  if (index < 0 || index >= program->list.count) {
    return pk_fail(PK_INVALID, "operation %lld of a program of %lld", (long long)index,
                   (long long)program->list.count);
  }
  const pk_call *call = &program->list.entries[index]->call;
  int room = size > INT32_MAX ? INT32_MAX : (int)size;
  int used = snprintf(text, (size_t)room, "%s:", pk_op_describe(call->op)->name);
  for (int i = 0; i < call->n_inputs && used < room; i++)
    if (call->inputs[i])
      used += describe_tensor(program, text + used, room - used, call->inputs[i]);
  if (used < room) used += snprintf(text + used, (size_t)(room - used), " ->");
  for (int o = 0; o < call->n_outputs && used < room; o++)
    used += describe_tensor(program, text + used, room - used, call->outputs[o]);
  return PK_OK;
}
