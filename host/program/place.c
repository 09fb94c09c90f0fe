/* Lifetimes of a program's buffers, which of them share a place, and the slab's size. */
#include "program/place.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "program/plan.h"

typedef struct places {
  pk_recorded_list *list;
  pk_span *spans;     /* of buffers, then of each operation's workspace */
  int64_t *joined_to; /* the span that a buffer's place is part of; itself at first */
  int64_t count;
} places;

static int64_t owner_of(const places *self, int64_t span) {
  while (self->joined_to[span] != span) span = self->joined_to[span];
  return span;
}

/* Numbers the storages of the program's own and notes their lifetimes. */
static void find_lifetimes(places *self) {
  const pk_recorded_list *list = self->list;
  for (int64_t i = 0; i < list->count; i++) {
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (!storage || !pk_storage_is_planned(storage)) continue;
      if (storage->span < 0) {
        storage->span = self->count;
        self->joined_to[self->count] = self->count;
        self->spans[self->count++] = (pk_span){.bytes = storage->bytes, .first = i};
      }
      self->spans[storage->span].last = storage->kept ? list->count : i;
    }
  }
}

/* The tensor's whole storage, if it is the program's own. */
static const pk_storage *whole(const pk_tensor *tensor) {
  const pk_storage *storage = tensor->storage;
  if (!storage || !pk_storage_is_planned(storage)) return NULL;
  return tensor->numel * pk_dtype_size(tensor->dtype) == storage->bytes ? storage : NULL;
}

/* Whether the entry sees all of the storage wherever it reads it, so element for element. */
static bool reads_whole(const pk_recorded *entry, const pk_storage *storage) {
  for (int t = 0; t < entry->call.n_inputs; t++)
    if (entry->tensors[t].storage == storage && !whole(&entry->tensors[t])) return false;
  return true;
}

static bool same_shape(const pk_tensor *a, const pk_tensor *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
}

/* Whether an output of operation i before output o has the place of the span already. */
static bool is_given(const places *self, int64_t i, int o, int64_t owner) {
  const pk_recorded *entry = self->list->entries[i];
  for (int other = 0; other < o; other++) {
    const pk_storage *storage = entry->tensors[PK_MAX_INPUTS + other].storage;
    if (pk_storage_is_planned(storage) && owner_of(self, storage->span) == owner) return true;
  }
  return false;
}

/* The span of an input of operation i that ends there and can hold output o; -1 if there is none.
 */
static int64_t used_up(const places *self, int64_t i, int o) {
  const pk_recorded *entry = self->list->entries[i];
  const pk_tensor *output = &entry->tensors[PK_MAX_INPUTS + o];
  const pk_storage *made = whole(output);
  if (!made || self->spans[made->span].first != i) return -1;
  /* Rows are those of the first output. Others, and weights, are of other shapes, by rank. */
  if (!same_shape(output, &entry->tensors[PK_MAX_INPUTS])) return -1;
  for (int t = 0; t < entry->call.n_inputs; t++) {
    const pk_tensor *input = &entry->tensors[t];
    const pk_storage *storage = whole(input);
    if (!storage || input->dtype != output->dtype || !same_shape(input, output)) continue;
    if (!reads_whole(entry, storage)) continue;
    int64_t owner = owner_of(self, storage->span);
    bool ends = self->spans[storage->span].last == i && self->spans[owner].last == i;
    if (ends && !is_given(self, i, o, owner)) return owner;
  }
  return -1;
}

/* Lets outputs take the places of inputs that are used up. */
static void share_places(places *self) {
  for (int64_t i = 0; i < self->list->count; i++) {
    const pk_recorded *entry = self->list->entries[i];
    if (!(pk_op_describe(entry->call.op)->flags & PK_OP_REUSES)) continue;
    for (int o = 0; o < entry->call.n_outputs; o++) {
      int64_t owner = used_up(self, i, o);
      if (owner < 0) continue;
      int64_t joined = entry->tensors[PK_MAX_INPUTS + o].storage->span;
      self->joined_to[joined] = owner;
      self->spans[owner].last = self->spans[joined].last;
      self->spans[joined].bytes = 0;
    }
  }
}

/* The largest sum of bytes in use at one time. */
static int64_t largest_sum(const places *self) {
  int64_t *change = calloc((size_t)self->list->count + 2, sizeof *change), largest = 0, sum = 0;
  if (!change) return 0;
  for (int64_t s = 0; s < self->count; s++) {
    change[self->spans[s].first] += self->spans[s].bytes;
    change[self->spans[s].last + 1] -= self->spans[s].bytes;
  }
  for (int64_t i = 0; i <= self->list->count; i++) {
    sum += change[i];
    if (sum > largest) largest = sum;
  }
  free(change);
  return largest;
}

static pk_status find_places(places *self, pk_program_plan *plan) {
  const pk_recorded_list *list = self->list;
  find_lifetimes(self);
  share_places(self);
  plan->buffers = self->count;
  pk_span *workspaces = self->spans + self->count;
  for (int64_t i = 0; i < list->count; i++) {
    int64_t bytes = list->entries[i]->workspace_bytes;
    if (bytes > plan->workspace) plan->workspace = bytes;
    workspaces[i] = (pk_span){.bytes = bytes, .first = i, .last = i};
  }
  pk_status status = pk_plan_offsets(self->spans, self->count + list->count, &plan->slab);
  if (status == PK_OK) plan->activations = largest_sum(self); /* no more than fit in a slab */
  for (int64_t i = 0; i < list->count && status == PK_OK; i++) {
    list->entries[i]->workspace_offset = workspaces[i].offset;
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (storage && pk_storage_is_planned(storage))
        storage->slab_offset = self->spans[owner_of(self, storage->span)].offset;
    }
  }
  return status;
}

pk_status pk_place_buffers(pk_recorded_list *list, pk_program_plan *plan) {
  int64_t most = list->count * (PK_RECORDED_TENSORS + 1) + 1;
  places self = {.list = list};
  self.spans = malloc((size_t)most * sizeof *self.spans);
  self.joined_to = malloc((size_t)most * sizeof *self.joined_to);
  pk_status status = PK_OK;
  if (!self.spans || !self.joined_to)
    status = pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  else
    status = find_places(&self, plan);
  pk_recorded_forget_numbers(list);
  free(self.spans);
  free(self.joined_to);
  return status;
}
