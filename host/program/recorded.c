/* Recorded operations: copies of calls, and what they read and write. */
#include "program/recorded.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"

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

pk_status pk_recorded_append(pk_recorded_list *list, pk_recorded *entry) {
  if (list->count == list->room) {
    int64_t room = list->room ? 2 * list->room : 256;
    pk_recorded **entries = realloc(list->entries, (size_t)room * sizeof *entries);
    if (!entries) {
      pk_recorded_free(entry);
      return pk_fail(PK_NO_MEMORY, "no host memory for a program of %lld", (long long)room);
    }
    list->entries = entries;
    list->room = room;
  }
  list->entries[list->count++] = entry;
  return PK_OK;
}

void pk_recorded_list_free(pk_recorded_list *list) {
  for (int64_t i = 0; i < list->count; i++) pk_recorded_free(list->entries[i]);
  free(list->entries);
  *list = (pk_recorded_list){0};
}

bool pk_recorded_writes_input(const pk_op_info *info, int index) {
  const char *names = info->inputs;
  for (int i = 0; i < index; i++) {
    names = strchr(names, ' ');
    if (!names) return false;
    names++;
  }
  return memchr(names, '!', strcspn(names, " ")) != NULL;
}

bool pk_recorded_reads(const pk_recorded *entry, const pk_storage *storage) {
  const pk_call *call = &entry->call;
  for (int i = 0; i < call->n_inputs; i++)
    if (entry->tensors[i].storage == storage) return true;
  for (int o = 0; o < call->n_outputs; o++) {
    bool adds = call->attributes.accumulate >> o & 1;
    if (adds && entry->tensors[PK_MAX_INPUTS + o].storage == storage) return true;
  }
  return false;
}

bool pk_recorded_writes(const pk_recorded *entry, const pk_storage *storage) {
  const pk_op_info *info = pk_op_describe(entry->call.op);
  for (int o = 0; o < entry->call.n_outputs; o++)
    if (entry->tensors[PK_MAX_INPUTS + o].storage == storage) return true;
  for (int i = 0; i < entry->call.n_inputs; i++)
    if (entry->tensors[i].storage == storage && pk_recorded_writes_input(info, i)) return true;
  return false;
}

bool pk_recorded_conflict(const pk_recorded *a, const pk_recorded *b) {
  for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
    const pk_storage *of_a = a->tensors[t].storage, *of_b = b->tensors[t].storage;
    if (of_a && pk_recorded_writes(a, of_a)) {
      if (pk_recorded_reads(b, of_a) || pk_recorded_writes(b, of_a)) return true;
    }
    if (of_b && pk_recorded_writes(b, of_b) && pk_recorded_reads(a, of_b)) return true;
  }
  return false;
}

void pk_recorded_redirect(pk_recorded *entry, int t, pk_storage *storage) {
  pk_storage *old = entry->tensors[t].storage;
  storage->references++;
  entry->tensors[t].storage = storage;
  pk_storage_release(old);
}

int64_t pk_recorded_number_storages(const pk_recorded_list *list) {
  int64_t count = 0;
  for (int64_t i = 0; i < list->count; i++) {
    for (int t = 0; list->entries[i] && t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (storage && storage->span < 0) storage->span = count++;
    }
  }
  return count;
}

void pk_recorded_forget_numbers(const pk_recorded_list *list) {
  for (int64_t i = 0; i < list->count; i++) {
    for (int t = 0; list->entries[i] && t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (storage) storage->span = -1;
    }
  }
}
