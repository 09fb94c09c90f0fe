/* The search for an operation and its gradient, and the move of what the gradient waits for.
 *
 * An operation has inputs X and outputs Y; its gradient takes g, X and some of Y and gives G; their
 * common form takes g and X and gives Y and G, all in this order. */
#include "program/merge.h"

#include <stdlib.h>
#include <string.h>

#include "core/context.h"

static const struct {
  int forward, gradient, both;
} forms[] = {
    {PK_OP_linear_cross_entropy, PK_OP_linear_cross_entropy_grad, PK_OP_linear_cross_entropy_step},
};

static bool same_tensor(const pk_tensor *a, const pk_tensor *b) {
  return a->storage == b->storage && a->offset == b->offset && a->stride == b->stride &&
         a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static bool is_output(const pk_recorded *entry, const pk_tensor *tensor) {
  for (int o = 0; o < entry->call.n_outputs; o++)
    if (same_tensor(&entry->tensors[PK_MAX_INPUTS + o], tensor)) return true;
  return false;
}

/* Whether gradient is that of forward: its inputs after g are forward's inputs and outputs. */
static bool belongs_to(const pk_recorded *gradient, const pk_recorded *forward) {
  int n = forward->call.n_inputs;
  for (int i = 1; i < gradient->call.n_inputs; i++) {
    const pk_tensor *input = &gradient->tensors[i];
    if (i <= n ? !same_tensor(input, &forward->tensors[i - 1]) : !is_output(forward, input))
      return false;
  }
  return true;
}

/* The gradient of entry number i of the list, or -1. */
static int64_t find_gradient(const pk_recorded_list *list, int64_t i, int gradient) {
  for (int64_t j = i + 1; j < list->count; j++) {
    if (list->entries[j]->call.op == gradient && belongs_to(list->entries[j], list->entries[i]))
      return j;
  }
  return -1;
}

/* Whether `later` is given something by `earlier`. */
static bool gives(const pk_recorded *earlier, const pk_recorded *later) {
  for (int t = 0; t < PK_RECORDED_TENSORS; t++) {
    const pk_storage *storage = later->tensors[t].storage;
    if (storage && pk_recorded_reads(later, storage) && pk_recorded_writes(earlier, storage))
      return true;
  }
  return false;
}

/* Marks what between forward (first) and its gradient (last) leads to the gradient, and so has to
 * come before both. False if that is not possible. */
static bool can_precede(const pk_recorded_list *list, int64_t first, int64_t last, bool *leads) {
  pk_recorded *const *entries = list->entries;
  for (int64_t k = last - 1; k > first; k--) {
    leads[k - first] = gives(entries[k], entries[last]);
    for (int64_t n = k + 1; n < last && !leads[k - first]; n++)
      leads[k - first] = leads[n - first] && gives(entries[k], entries[n]);
    if (leads[k - first] && pk_recorded_conflict(entries[first], entries[k])) return false;
  }
  for (int64_t k = first + 1; k < last; k++) {
    if (leads[k - first]) continue;
    for (int64_t n = k + 1; n <= last; n++)
      if ((n == last || leads[n - first]) && pk_recorded_conflict(entries[k], entries[n]))
        return false;
  }
  return true;
}

/* The common form of forward and gradient. */
static pk_status join(int both, const pk_recorded *forward, const pk_recorded *gradient,
                      pk_recorded **joined) {
  pk_call call = gradient->call;
  call.op = both;
  call.n_inputs = forward->call.n_inputs + 1;
  call.n_outputs = 0;
  call.attributes.accumulate <<= forward->call.n_outputs;
  for (int o = 0; o < forward->call.n_outputs; o++)
    call.outputs[call.n_outputs++] = forward->call.outputs[o];
  for (int o = 0; o < gradient->call.n_outputs; o++)
    call.outputs[call.n_outputs++] = gradient->call.outputs[o];
  return pk_recorded_create(&call, joined);
}

/* Puts joined in the place of entries first and last, after what leads to it and before the rest.
 */
static void reorder(pk_recorded_list *list, int64_t first, int64_t last, const bool *leads,
                    pk_recorded *joined, pk_recorded **rest) {
  pk_recorded **entries = list->entries;
  int64_t at = first, n_rest = 0;
  pk_recorded_free(entries[first]);
  pk_recorded_free(entries[last]);
  for (int64_t k = first + 1; k < last; k++) {
    if (leads[k - first])
      entries[at++] = entries[k];
    else
      rest[n_rest++] = entries[k];
  }
  entries[at++] = joined;
  memcpy(entries + at, rest, (size_t)n_rest * sizeof *rest);
  memmove(entries + last, entries + last + 1, (size_t)(list->count - last - 1) * sizeof *entries);
  list->count--;
}

static pk_status merge_pair(pk_recorded_list *list, int64_t first, int64_t last, int both,
                            int64_t *merged) {
  bool *leads = calloc((size_t)(last - first + 1), sizeof *leads);
  pk_recorded **rest = malloc((size_t)(last - first + 1) * sizeof *rest);
  pk_status status = PK_OK;
  if (!leads || !rest) {
    status = pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
  } else if (can_precede(list, first, last, leads)) {
    pk_recorded *joined;
    status = join(both, list->entries[first], list->entries[last], &joined);
    if (status == PK_OK) {
      reorder(list, first, last, leads, joined, rest);
      ++*merged;
    }
  }
  free(leads);
  free(rest);
  return status;
}

pk_status pk_merge_gradients(const pk_context *context, pk_recorded_list *list, int64_t *merged) {
  pk_status status = PK_OK;
  for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
    if (!pk_op_available(context, forms[f].both)) continue;
    for (int64_t i = 0; i < list->count && status == PK_OK; i++) {
      if (list->entries[i]->call.op != forms[f].forward) continue;
      int64_t last = find_gradient(list, i, forms[f].gradient);
      if (last >= 0) status = merge_pair(list, i, last, forms[f].both, merged);
    }
  }
  return status;
}
