/* The choice of results to drop and make again, and the list with these operations in it.
 *
 * A result is worth dropping where many operations lie between two of its uses, as between the
 * forward and the backward pass. Its chain is what has to run again to make it: its own operation,
 * and those of inputs that are gone by then. Results whose chains have no product are dropped
 * first; then those that save most bytes for each operation of their chain's products. */
#include "program/recompute.h"

#include <math.h>
#include <stdlib.h>

#include "core/context.h"
#include "program/queue.h"

enum {
  LONG_WAIT = 6,  /* operations between two uses */
  MOST_EARLY = 8, /* how much earlier than it has to a dropped result may be made, for another */
  MOST_DEPTH = 8  /* of a chain */
};

/* What the products of a program may grow by with PK_RECOMPUTE_AUTO. */
static const double AUTO_SHARE = 0.05;

/* What the pass knows of a storage, of which it has a share: a list that cannot be made for want of
 * memory loses entries. */
typedef struct record {
  pk_storage *storage;
  int64_t writer; /* the operation that makes it, or -1: none, or several */
  int64_t first_write, last_write;
  int64_t last_use;
  int64_t early, late; /* the uses before and after the longest wait; late is -1 if none is long */
  int64_t needed;      /* where the first chain of a dropped result reads it */
  bool dropped;
  int64_t version;     /* how often it was assessed */
  int64_t assessments; /* those that looked at it: a list of links, -1 ends it */
  pk_storage *copy;    /* while the list is made: what takes its place, */
  int64_t copied;      /* and the operation before which it was made */
} record;

/* The assessment of a record that looked at another. */
typedef struct link {
  int64_t record, version, next;
} link;

typedef struct pass {
  pk_recorded_list *list, made;
  record *records;
  int64_t n_records;
  double budget; /* operations of products that may still be added */
  bool products; /* may run again at all */
  pk_queue candidates;
  record *assessed; /* what is being assessed */
  link *links;
  int64_t n_links, room;
  record **changed; /* what the last choice changed: each once, then itself */
  int64_t n_changed;
  bool failed; /* for want of memory */
} pass;

/* --- looking at the list --- */

static record *record_of(const pass *self, const pk_storage *storage) {
  return storage ? &self->records[storage->span] : NULL;
}

static void note_use(record *one, int64_t i) {
  int64_t longest = one->late < 0 ? LONG_WAIT : one->late - one->early;
  if (one->last_use >= 0 && i - one->last_use > longest) {
    one->early = one->last_use;
    one->late = i;
  }
  one->last_use = i;
}

static void note_write(record *one, int64_t i) {
  one->writer = one->first_write < 0 ? i : -1;
  if (one->first_write < 0) one->first_write = i;
  one->last_write = i;
}

/* Numbers all storages (in span) and notes who uses them. */
static pk_status look(pass *self) {
  const pk_recorded_list *list = self->list;
  self->records = calloc((size_t)(list->count * PK_RECORDED_TENSORS + 1), sizeof *self->records);
  if (!self->records) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  for (int64_t i = 0; i < list->count; i++) {
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = list->entries[i]->tensors[t].storage;
      if (!storage) continue;
      if (storage->span < 0) {
        storage->span = self->n_records;
        storage->references++;
        self->records[self->n_records++] = (record){.storage = storage,
                                                    .writer = -1,
                                                    .first_write = -1,
                                                    .last_write = -1,
                                                    .last_use = -1,
                                                    .late = -1,
                                                    .needed = list->count,
                                                    .assessments = -1};
      }
      record *one = record_of(self, storage);
      if (one->last_use != i) note_use(one, i);
      if (one->last_write != i && pk_recorded_writes(list->entries[i], storage)) note_write(one, i);
    }
  }
  self->changed = malloc((size_t)(self->n_records + 1) * sizeof *self->changed);
  return self->changed ? PK_OK : pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
}

/* Floating-point operations of an operation's products with weights. */
static double operations_of(const pk_call *call) {
  const pk_tensor *a = call->inputs[0], *x = call->inputs[1];
  switch (call->op) {
  case PK_OP_matmul:
    return 2.0 * (double)call->outputs[0]->numel *
           (double)a->shape[a->rank - (call->attributes.integers[0] ? 2 : 1)];
  case PK_OP_linear_cross_entropy:
    return 2.0 * (double)a->numel * (double)call->inputs[1]->shape[1];
  case PK_OP_linear_cross_entropy_grad:
  case PK_OP_linear_cross_entropy_step:
    return 6.0 * (double)x->numel * (double)call->inputs[2]->shape[1];
  default:
    return 0;
  }
}

/* Whether the operation may run again, given its inputs: it makes nothing but results of its own.
 */
static bool may_repeat(const pass *self, int64_t i) {
  const pk_recorded *entry = self->list->entries[i];
  switch (entry->call.op) {
  case PK_OP_add:
  case PK_OP_cast:
  case PK_OP_rmsnorm:
  case PK_OP_rope:
  case PK_OP_rope_split:
  case PK_OP_swiglu:
  case PK_OP_swiglu_split:
    break;
  case PK_OP_matmul:
    if (self->products) break;
    return false;
  default:
    return false;
  }
  for (int o = 0; o < entry->call.n_outputs; o++) {
    const record *output = record_of(self, entry->tensors[PK_MAX_INPUTS + o].storage);
    if (!pk_storage_is_planned(output->storage) || output->writer != i) return false;
  }
  return true;
}

/* --- choosing --- */

/* Whether the storage holds, right before operation `at`, what it held at operation `reader`. */
static bool is_there(const record *one, int64_t reader, int64_t at) {
  if (one->last_write > reader && one->first_write < at) return false;
  return !pk_storage_is_planned(one->storage) || one->storage->kept ||
         (!one->dropped && one->last_use >= at);
}

/* Where a dropped result is made again: before its late use, or before another's chain needs it. */
static int64_t made_at(const record *one) {
  return one->needed < one->late ? one->needed : one->late;
}

/* Whether anything of a record that assessments look at can change. */
static bool can_change(const record *one) {
  return one->late >= 0 && pk_storage_is_planned(one->storage) && !one->storage->kept;
}

/* Notes that the present assessment looks at a record. */
static void note_dependence(pass *self, record *one) {
  if (!self->assessed || !can_change(one) || self->failed) return;
  if (self->n_links == self->room) {
    int64_t room = self->room ? 2 * self->room : 1024;
    link *links = realloc(self->links, (size_t)room * sizeof *links);
    self->failed = !links;
    if (!links) return;
    self->links = links;
    self->room = room;
  }
  self->links[self->n_links] = (link){.record = self->assessed - self->records,
                                      .version = self->assessed->version,
                                      .next = one->assessments};
  one->assessments = self->n_links++;
}

static void note_change(pass *self, record *one) {
  if (can_change(one)) self->changed[self->n_changed++] = one;
}

static bool follow(pass *self, const record *one, int64_t at, int depth, bool choose,
                   double *operations);

/* Whether a dropped result is made again by `at`, or can be: its own chain then runs earlier. */
static bool can_be_made(pass *self, const record *one, int64_t at, int depth, bool choose) {
  double already_counted = 0;
  if (!one->dropped || one->late - at > MOST_EARLY) return false;
  return made_at(one) <= at || follow(self, one, at, depth, choose, &already_counted);
}

/* Follows the chain that makes a storage again right before `at`, and adds up its products'
 * operations; to choose it, it notes what the chain reads. False if there is no such chain. */
static bool follow(pass *self, const record *one, int64_t at, int depth, bool choose,
                   double *operations) {
  if (depth > MOST_DEPTH || one->writer < 0 || !may_repeat(self, one->writer)) return false;
  const pk_recorded *entry = self->list->entries[one->writer];
  *operations += operations_of(&entry->call);
  for (int i = 0; i < entry->call.n_inputs; i++) {
    record *input = record_of(self, entry->tensors[i].storage);
    if (!input) continue;
    note_dependence(self, input);
    if (!is_there(input, one->writer, at) && !can_be_made(self, input, at, depth + 1, choose) &&
        (input->dropped || !follow(self, input, at, depth + 1, choose, operations)))
      return false;
    if (!choose || at >= input->needed) continue;
    input->needed = at;
    note_change(self, input);
  }
  return true;
}

/* Whether a result can be dropped; its bytes for each operation that makes it again. */
static bool can_drop(pass *self, const record *one, double *operations) {
  const pk_storage *storage = one->storage;
  if (one->late < 0 || one->dropped || !pk_storage_is_planned(storage) || storage->kept)
    return false;
  if (one->late - one->needed > MOST_EARLY) return false;
  *operations = 0;
  return follow(self, one, made_at(one), 0, false, operations);
}

/* Assesses whether a result is worth dropping, and if so queues it. A later assessment replaces
 * this. */
static pk_status assess(pass *self, record *one) {
  double operations;
  one->version++;
  self->assessed = one;
  note_dependence(self, one);
  bool good = can_drop(self, one, &operations);
  self->assessed = NULL;
  if (self->failed) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  if (!good || (operations > 0 && one->storage->bytes == 0)) return PK_OK;
  pk_queued candidate = {.value =
                             operations > 0 ? (double)one->storage->bytes / operations : INFINITY,
                         .bytes = one->storage->bytes,
                         .number = one - self->records,
                         .version = one->version,
                         .operations = operations};
  return pk_queue_push(&self->candidates, &candidate);
}

/* Drops a result, and judges anew what looked at something that this changes. */
static pk_status drop(pass *self, record *one) {
  double operations = 0;
  self->n_changed = 0;
  follow(self, one, made_at(one), 0, true, &operations);
  self->budget -= operations;
  one->dropped = true;
  note_change(self, one);
  for (int64_t c = 0; c < self->n_changed; c++) {
    int64_t at = self->changed[c]->assessments;
    self->changed[c]->assessments = -1;
    while (at >= 0) {
      link looked = self->links[at];
      record *assessed = &self->records[looked.record];
      pk_status status = assessed->version == looked.version ? assess(self, assessed) : PK_OK;
      if (status != PK_OK) return status;
      at = looked.next;
    }
  }
  return PK_OK;
}

/* Drops what is best dropped next, as long as there is something. */
static pk_status choose_all(pass *self) {
  pk_status status = PK_OK;
  for (int64_t r = 0; r < self->n_records && status == PK_OK; r++)
    if (can_change(&self->records[r])) status = assess(self, &self->records[r]);
  pk_queued best;
  while (status == PK_OK && pk_queue_pop(&self->candidates, &best)) {
    record *one = &self->records[best.number];
    if (one->version == best.version && best.operations <= self->budget) status = drop(self, one);
  }
  return status;
}

/* --- making the list --- */

/* A planned storage like another. */
static pk_status storage_like(const pk_storage *storage, pk_storage **created) {
  *created = calloc(1, sizeof **created);
  if (!*created) return pk_fail(PK_NO_MEMORY, "no host memory for a tensor");
  **created = (pk_storage){.context = storage->context,
                           .bytes = storage->bytes,
                           .references = 1,
                           .category = storage->category,
                           .recording = storage->recording,
                           .span = storage->span};
  pk_context_retain(storage->context);
  return PK_OK;
}

/* Gives the outputs of a repeated operation, right before operation `at`, storages of their own. */
static pk_status renew_outputs(pass *self, pk_recorded *entry, int64_t at) {
  for (int o = 0; o < entry->call.n_outputs; o++) {
    int t = PK_MAX_INPUTS + o;
    record *output = record_of(self, entry->tensors[t].storage);
    pk_storage *copy;
    pk_status status = storage_like(output->storage, &copy);
    if (status != PK_OK) return status;
    if (output->copy) pk_storage_release(output->copy);
    output->copy = copy;
    output->copied = at;
    pk_recorded_redirect(entry, t, copy);
  }
  return PK_OK;
}

static pk_status append(pass *self, pk_recorded *entry, int64_t at);

/* Has the copy of a storage made, unless it was: a dropped result's serves all later uses, what a
 * chain passes through only that chain. */
static pk_status make_again(pass *self, const record *one, int64_t at) {
  if (one->copy && (one->dropped || one->copied == at)) return PK_OK;
  pk_recorded *entry;
  pk_status status = pk_recorded_create(&self->list->entries[one->writer]->call, &entry);
  if (status != PK_OK) return status;
  entry->call.phase = self->list->entries[at]->call.phase;
  entry->call.again = true;
  status = append(self, entry, at);
  return status == PK_OK ? renew_outputs(self, entry, at) : status;
}

/* Appends an entry that runs at or right before operation `at`, after what makes its inputs. */
static pk_status append(pass *self, pk_recorded *entry, int64_t at) {
  for (int i = 0; i < entry->call.n_inputs; i++) {
    record *input = record_of(self, entry->tensors[i].storage);
    if (!input || !pk_storage_is_planned(input->storage) || input->storage->kept) continue;
    if (input->dropped ? at <= input->early : input->last_use >= at) continue;
    pk_status status = make_again(self, input, at);
    if (status != PK_OK) {
      pk_recorded_free(entry);
      return status;
    }
    pk_recorded_redirect(entry, i, input->copy);
  }
  return pk_recorded_append(&self->made, entry);
}

/* Makes the new list, to which the old one's entries go. */
static pk_status make_list(pass *self) {
  pk_recorded_list *list = self->list;
  pk_status status = PK_OK;
  for (int64_t i = 0; i < list->count; i++) {
    if (status == PK_OK)
      status = append(self, list->entries[i], i);
    else
      pk_recorded_free(list->entries[i]);
  }
  free(list->entries);
  *list = self->made;
  return status;
}

/* Gives the shares back, and the numbers: those of copies in the list, of which a record knows the
 * last one only, too. */
static void forget(pass *self) {
  for (int64_t i = 0; i < self->list->count; i++) {
    for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
      pk_storage *storage = self->list->entries[i]->tensors[t].storage;
      if (storage) storage->span = -1;
    }
  }
  for (int64_t r = 0; r < self->n_records; r++) {
    self->records[r].storage->span = -1;
    pk_storage_release(self->records[r].storage);
    if (!self->records[r].copy) continue;
    self->records[r].copy->span = -1;
    pk_storage_release(self->records[r].copy);
  }
  free(self->records);
  free(self->changed);
  free(self->links);
  pk_queue_free(&self->candidates);
}

pk_status pk_recompute_results(pk_recorded_list *list, int level, int64_t *recomputed) {
  if (level == PK_RECOMPUTE_NONE) return PK_OK;
  int64_t before = list->count;
  pass self = {.list = list, .products = level != PK_RECOMPUTE_CHEAP, .budget = INFINITY};
  if (level == PK_RECOMPUTE_AUTO) self.budget = 0;
  for (int64_t i = 0; i < list->count && level == PK_RECOMPUTE_AUTO; i++)
    self.budget += AUTO_SHARE * operations_of(&list->entries[i]->call);
  pk_status status = look(&self);
  if (status == PK_OK) status = choose_all(&self);
  if (status == PK_OK) status = make_list(&self);
  forget(&self);
  *recomputed = list->count - before;
  return status;
}
