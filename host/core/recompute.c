/* The choice of what to compute again, and the rewriting of the list. */
#include "core/recompute.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"

/* A result waits long when so many operations run between two of its uses. */
enum { LONG_WAIT = 24, MOST_DEPTH = 3 };

/* An operation to be run again, before operation `before` of the list. */
typedef struct repeat {
  pk_recorded *entry;
  int64_t before;
} repeat;

typedef struct pass {
  pk_recorded **list;
  int64_t count;
  repeat *repeats;
  int64_t n_repeats, room;
} pass;

static bool is_cheap(int op) {
  return op == PK_OP_rmsnorm || op == PK_OP_swiglu || op == PK_OP_cast;
}

static bool reads(const pk_recorded *entry, const pk_storage *storage) {
  for (int i = 0; i < entry->call.n_inputs; i++)
    if (entry->tensors[i].storage == storage) return true;
  return false;
}

static bool writes(const pk_recorded *entry, const pk_storage *storage) {
  const pk_op_info *info = pk_op_describe(entry->call.op);
  for (int o = 0; o < entry->call.n_outputs; o++)
    if (entry->tensors[PK_MAX_INPUTS + o].storage == storage) return true;
  for (int i = 0; i < entry->call.n_inputs; i++)
    if (entry->tensors[i].storage == storage && pk_recorded_writes_input(info, i)) return true;
  return false;
}

/* Whether an operation in from .. to-1 writes the storage. */
static bool written_between(const pass *self, const pk_storage *storage, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++)
    if (writes(self->list[i], storage)) return true;
  return false;
}

/* The last operation that reads the storage, repeats included by where they stand; -1 if none does.
 */
static int64_t last_read(const pass *self, const pk_storage *storage) {
  int64_t last = -1;
  for (int64_t i = self->count - 1; i >= 0 && last < 0; i--)
    if (reads(self->list[i], storage)) last = i;
  for (int64_t r = 0; r < self->n_repeats; r++) {
    if (self->repeats[r].before > last && reads(self->repeats[r].entry, storage))
      last = self->repeats[r].before;
  }
  return last;
}

/* The only operation that writes the storage, or -1. */
static int64_t only_writer(const pass *self, const pk_storage *storage) {
  int64_t writer = -1;
  for (int64_t i = 0; i < self->count; i++) {
    if (!writes(self->list[i], storage)) continue;
    if (writer >= 0) return -1;
    writer = i;
  }
  return writer;
}

/* The first use after a long wait, among the reads of the storage that `writer` writes; -1 if there
 * is none. */
static int64_t late_use(const pass *self, const pk_storage *storage, int64_t writer) {
  int64_t before = writer;
  for (int64_t i = writer + 1; i < self->count; i++) {
    if (!reads(self->list[i], storage)) continue;
    if (i - before > LONG_WAIT) return i;
    before = i;
  }
  return -1;
}

static bool can_repeat(const pass *self, int64_t writer, int64_t before, int depth);

/* Whether the input of an operation is, or can be made, what it was, right before `before`. */
static bool can_read(const pass *self, const pk_storage *storage, int64_t reader, int64_t before,
                     int depth) {
  if (written_between(self, storage, reader, before)) return false;
  if (!storage->planned || last_read(self, storage) >= before) return true;
  int64_t writer = only_writer(self, storage);
  return writer >= 0 && can_repeat(self, writer, before, depth + 1);
}

static bool can_repeat(const pass *self, int64_t writer, int64_t before, int depth) {
  const pk_recorded *entry = self->list[writer];
  if (depth > MOST_DEPTH || !is_cheap(entry->call.op)) return false;
  for (int o = 0; o < entry->call.n_outputs; o++) {
    const pk_storage *storage = entry->tensors[PK_MAX_INPUTS + o].storage;
    if (!storage->planned || only_writer(self, storage) != writer) return false;
  }
  for (int i = 0; i < entry->call.n_inputs; i++) {
    const pk_storage *storage = entry->tensors[i].storage;
    if (storage && !can_read(self, storage, writer, before, depth)) return false;
  }
  return true;
}

/* Makes entry's tensors that share `from` share `to` instead. */
static void redirect(pk_recorded *entry, pk_storage *from, pk_storage *to) {
  for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
    if (entry->tensors[t].storage != from) continue;
    to->references++;
    entry->tensors[t].storage = to;
    pk_storage_release(from);
  }
}

/* A planned storage like another. */
static pk_status storage_like(const pk_storage *storage, pk_storage **created) {
  *created = calloc(1, sizeof **created);
  if (!*created) return pk_fail(PK_NO_MEMORY, "no host memory for a tensor");
  **created = (pk_storage){.context = storage->context,
                           .bytes = storage->bytes,
                           .references = 1,
                           .category = storage->category,
                           .planned = true,
                           .span = -1};
  pk_context_retain(storage->context);
  return PK_OK;
}

static pk_status repeat_before(pass *self, int64_t writer, int64_t before);

/* Has a repeated operation read inputs that are kept, repeating those that are not. */
static pk_status provide_inputs(pass *self, pk_recorded *copy, int64_t before) {
  for (int i = 0; i < copy->call.n_inputs; i++) {
    pk_storage *storage = copy->tensors[i].storage;
    if (!storage || !storage->planned || last_read(self, storage) >= before) continue;
    pk_status status = repeat_before(self, only_writer(self, storage), before);
    if (status != PK_OK) return status;
    /* Its results are those of the repeat that was just added. */
    pk_recorded *made = self->repeats[self->n_repeats - 1].entry;
    const pk_recorded *original = self->list[only_writer(self, storage)];
    for (int o = 0; o < made->call.n_outputs; o++) {
      if (original->tensors[PK_MAX_INPUTS + o].storage == storage)
        redirect(copy, storage, made->tensors[PK_MAX_INPUTS + o].storage);
    }
  }
  return PK_OK;
}

/* Gives the copy's outputs storages of their own, which uses from `before` on read instead. */
static pk_status renew_outputs(pass *self, pk_recorded *copy, int64_t before) {
  for (int o = 0; o < copy->call.n_outputs; o++) {
    pk_storage *old = copy->tensors[PK_MAX_INPUTS + o].storage, *new;
    pk_status status = storage_like(old, &new);
    if (status != PK_OK) return status;
    old->references++; /* the list's own entry still writes it, but keep it while it is compared
                          with */
    redirect(copy, old, new);
    for (int64_t i = before; i < self->count; i++) redirect(self->list[i], old, new);
    pk_storage_release(old);
    pk_storage_release(new);
  }
  return PK_OK;
}

static pk_status add_repeat(pass *self, pk_recorded *copy, int64_t before) {
  if (self->n_repeats == self->room) {
    int64_t room = self->room ? 2 * self->room : 64;
    repeat *repeats = realloc(self->repeats, (size_t)room * sizeof *repeats);
    if (!repeats) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
    self->repeats = repeats;
    self->room = room;
  }
  self->repeats[self->n_repeats++] = (repeat){.entry = copy, .before = before};
  return PK_OK;
}

static pk_status repeat_before(pass *self, int64_t writer, int64_t before) {
  pk_recorded *copy;
  pk_status status = pk_recorded_create(&self->list[writer]->call, &copy);
  if (status != PK_OK) return status;
  copy->live = true;
  copy->call.phase = self->list[before]->call.phase;
  status = provide_inputs(self, copy, before);
  if (status == PK_OK) status = renew_outputs(self, copy, before);
  if (status == PK_OK) status = add_repeat(self, copy, before);
  if (status != PK_OK) pk_recorded_free(copy);
  return status;
}

/* The late use of any result of operation i that can be computed again; -1 if there is none. */
static int64_t worth_repeating(const pass *self, int64_t i) {
  const pk_recorded *entry = self->list[i];
  if (!is_cheap(entry->call.op)) return -1;
  const pk_storage *result = entry->tensors[PK_MAX_INPUTS].storage;
  if (!result->planned || result->kept) return -1;
  int64_t before = late_use(self, result, i);
  return before >= 0 && can_repeat(self, i, before, 0) ? before : -1;
}

/* The list with the repeats in their places, those added later for the same place after those
 * before. */
static pk_status merge(pass *self, pk_recorded ***list, int64_t *count) {
  int64_t total = self->count + self->n_repeats, at = 0;
  pk_recorded **merged = malloc((size_t)(total + 1) * sizeof *merged);
  if (!merged) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  for (int64_t i = 0; i <= self->count; i++) {
    for (int64_t r = 0; r < self->n_repeats; r++)
      if (self->repeats[r].before == i) merged[at++] = self->repeats[r].entry;
    if (i < self->count) merged[at++] = self->list[i];
  }
  free(*list);
  *list = merged;
  *count = total;
  return PK_OK;
}

pk_status pk_recompute(pk_recorded ***list, int64_t *count, int64_t *recomputed) {
  pass self = {.list = *list, .count = *count};
  pk_status status = PK_OK;
  for (int64_t i = 0; i < self.count && status == PK_OK; i++) {
    int64_t before = worth_repeating(&self, i);
    if (before >= 0) status = repeat_before(&self, i, before);
  }
  if (status == PK_OK) status = merge(&self, list, count);
  if (status != PK_OK)
    for (int64_t r = 0; r < self.n_repeats; r++) pk_recorded_free(self.repeats[r].entry);
  *recomputed = self.n_repeats;
  free(self.repeats);
  return status;
}
