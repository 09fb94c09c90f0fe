/* The search for casts and additions that a neighbour can take over. */
#include "program/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"

/* Operations that can write bf16: how many of their first outputs, and which integer attribute asks
 * for it. */
static const struct {
  int op, outputs, attribute;
} bf16_writers[] = {
    {PK_OP_rmsnorm, 1, 0},      {PK_OP_rope, 1, 1},
    {PK_OP_rope_split, 3, 1},   {PK_OP_rope_join, 1, 1},
    {PK_OP_swiglu, 1, 0},       {PK_OP_swiglu_grad, 2, 0},
    {PK_OP_swiglu_split, 1, 0}, {PK_OP_swiglu_split_grad, 1, 0},
};

/* Who has to do with a storage. */
typedef struct meetings {
  int64_t count; /* of entries */
  int64_t first, last;
} meetings;

/* Notes of each storage, by its number, which entries read it or write to it. */
static pk_status find_meetings(const pk_recorded_list *list, meetings **found) {
  int64_t count = pk_recorded_number_storages(list);
  *found = calloc((size_t)count + 1, sizeof **found);
  if (!*found) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  for (int64_t i = 0; i < list->count; i++) {
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      const pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (!storage) continue;
      meetings *own = &(*found)[storage->span];
      if (own->count && own->last == i) continue;
      if (own->count++ == 0) own->first = i;
      own->last = i;
    }
  }
  return PK_OK;
}

/* The only entry but `writer` that has to do with the storage, or -1. */
static int64_t only_other(const meetings *own, int64_t writer) {
  if (own->count != 2) return -1;
  return own->first == writer ? own->last : own->first;
}

/* Whether the tensor is all of its storage, which is the program's own. */
static bool is_whole(const pk_tensor *tensor) {
  const pk_storage *storage = tensor->storage;
  return pk_storage_is_planned(storage) &&
         storage->bytes == tensor->numel * pk_dtype_size(tensor->dtype);
}

/* The cast to bf16 that alone uses output o of entry i, or -1. */
static int64_t find_cast(const pk_recorded_list *list, const meetings *found, int64_t i, int o) {
  const pk_tensor *output = &list->entries[i]->tensors[PK_MAX_INPUTS + o];
  if (!is_whole(output) || output->storage->kept || output->dtype != PK_F32) return -1;
  int64_t reader = only_other(&found[output->storage->span], i);
  if (reader < i || list->entries[reader]->call.op != PK_OP_cast) return -1;
  const pk_recorded *cast = list->entries[reader];
  const pk_tensor *rounded = &cast->tensors[PK_MAX_INPUTS];
  bool fits =
      rounded->dtype == PK_BF16 && is_whole(rounded) && cast->tensors[0].numel == output->numel;
  return fits ? reader : -1;
}

/* Has entry i write bf16, if all of its outputs that can be are only cast. Casts become NULL. */
static void write_bf16(pk_recorded_list *list, const meetings *found, int64_t i, int outputs,
                       int attribute, int64_t *fused) {
  int64_t casts[PK_MAX_OUTPUTS];
  pk_recorded *entry = list->entries[i];
  for (int o = 0; o < outputs; o++) {
    casts[o] = find_cast(list, found, i, o);
    if (casts[o] < 0 || entry->call.attributes.accumulate) return;
  }
  entry->call.attributes.integers[attribute] = 1;
  for (int o = 0; o < outputs; o++) {
    pk_recorded *cast = list->entries[casts[o]];
    entry->tensors[PK_MAX_INPUTS + o].storage->span = -1; /* it leaves the list */
    pk_recorded_redirect(entry, PK_MAX_INPUTS + o, cast->tensors[PK_MAX_INPUTS].storage);
    entry->tensors[PK_MAX_INPUTS + o].dtype = PK_BF16;
    pk_recorded_free(cast);
    list->entries[casts[o]] = NULL;
    ++*fused;
  }
}

/* Closes the gaps in the list. */
static void compact(pk_recorded_list *list) {
  int64_t kept = 0;
  for (int64_t i = 0; i < list->count; i++)
    if (list->entries[i]) list->entries[kept++] = list->entries[i];
  list->count = kept;
}

pk_status pk_fuse_casts(pk_recorded_list *list, int64_t *fused) {
  meetings *found;
  pk_status status = find_meetings(list, &found);
  for (int64_t i = 0; i < list->count && status == PK_OK; i++) {
    for (size_t h = 0; list->entries[i] && h < sizeof bf16_writers / sizeof *bf16_writers; h++)
      if (list->entries[i]->call.op == bf16_writers[h].op)
        write_bf16(list, found, i, bf16_writers[h].outputs, bf16_writers[h].attribute, fused);
  }
  free(found);
  pk_recorded_forget_numbers(list);
  compact(list);
  return status;
}

/* Whether two tensors are the same elements in the same order, and one worker's of both the same.
 */
static bool same_memory(const pk_tensor *a, const pk_tensor *b) {
  return a->storage == b->storage && a->offset == b->offset && a->numel == b->numel &&
         a->shape[0] == b->shape[0] && a->stride == b->stride;
}

/* Whether the norm writes to what the addition reads: one operation cannot do both. */
static bool writes_operand(const pk_recorded *norm, const pk_recorded *addition) {
  for (int i = 0; i < addition->call.n_inputs; i++)
    if (pk_recorded_writes(norm, addition->tensors[i].storage)) return true;
  return false;
}

/* The addition whose sum entry i, an rmsnorm, reads, and that can be moved to it; -1 if there is
 * none. */
static int64_t find_addition(const pk_recorded_list *list, int64_t i) {
  const pk_tensor *x = &list->entries[i]->tensors[0];
  for (int64_t k = i - 1; k >= 0; k--) {
    const pk_recorded *entry = list->entries[k];
    if (!entry) continue;
    const pk_tensor *sum = &entry->tensors[PK_MAX_INPUTS];
    if (entry->call.op == PK_OP_add && same_memory(sum, x) && entry->tensors[0].numel == x->numel &&
        entry->tensors[1].numel == x->numel) {
      for (int64_t between = k + 1; between < i; between++)
        if (list->entries[between] && pk_recorded_conflict(entry, list->entries[between]))
          return -1;
      return writes_operand(list->entries[i], entry) ? -1 : k;
    }
    if (pk_recorded_writes(entry, x->storage)) return -1;
  }
  return -1;
}

/* The one operation in the place of an addition and an rmsnorm. */
static pk_status join(const pk_recorded *addition, const pk_recorded *norm, pk_recorded **joined) {
  const pk_tensor *x = norm->call.inputs[0];
  pk_call call = norm->call;
  call.op = PK_OP_add_rmsnorm;
  call.n_inputs = 3;
  call.n_outputs = 3;
  call.inputs[2] = norm->call.inputs[1];
  pk_tensor operands[2];
  for (int i = 0; i < 2; i++) {
    operands[i] = *addition->call.inputs[i];
    memcpy(operands[i].shape, x->shape, sizeof x->shape);
    operands[i].rank = x->rank;
    call.inputs[i] = &operands[i];
  }
  pk_tensor sum = *x;
  call.outputs[0] = &sum;
  for (int o = 0; o < 2; o++) call.outputs[1 + o] = norm->call.outputs[o];
  return pk_recorded_create(&call, joined);
}

pk_status pk_fuse_additions(const pk_context *context, pk_recorded_list *list, int64_t *fused) {
  pk_status status = PK_OK;
  if (!pk_op_available(context, PK_OP_add_rmsnorm)) return PK_OK;
  for (int64_t i = 0; i < list->count && status == PK_OK; i++) {
    if (list->entries[i]->call.op != PK_OP_rmsnorm) continue;
    int64_t addition = find_addition(list, i);
    if (addition < 0) continue;
    pk_recorded *joined;
    status = join(list->entries[addition], list->entries[i], &joined);
    if (status != PK_OK) break;
    pk_recorded_free(list->entries[addition]);
    pk_recorded_free(list->entries[i]);
    list->entries[addition] = NULL;
    list->entries[i] = joined;
    ++*fused;
  }
  compact(list);
  return status;
}
