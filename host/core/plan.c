/* The placement of buffers by lifetime. */
#include "core/plan.h"

#include <stdlib.h>

#include "core/core.h"

static int larger_first(const void *a, const void *b) {
  const pk_span *x = *(const pk_span *const *)a, *y = *(const pk_span *const *)b;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return (x->first > y->first) - (x->first < y->first);
}

static bool meet(const pk_span *a, const pk_span *b) {
  return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which span is clear of those among placed (sorted by offset) that it meets.
 */
static int64_t lowest_place(const pk_span *span, pk_span *const *placed, int64_t count) {
  int64_t offset = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!meet(span, placed[i])) continue;
    if (placed[i]->offset >= offset + span->bytes) break;
    int64_t end = placed[i]->offset + pk_aligned(placed[i]->bytes);
    if (end > offset) offset = end;
  }
  return offset;
}

pk_status pk_plan_offsets(pk_span *spans, int64_t count, int64_t *bytes) {
  pk_span **order = malloc((size_t)(2 * count + 1) * sizeof *order);
  if (!order) return pk_fail(PK_NO_MEMORY, "no host memory to plan %lld buffers", (long long)count);
  pk_span **placed = order + count;
  for (int64_t i = 0; i < count; i++) order[i] = &spans[i];
  qsort(order, (size_t)count, sizeof *order, larger_first);
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) {
    pk_span *span = order[i];
    span->offset = lowest_place(span, placed, i);
    int64_t at = i;
    for (; at > 0 && placed[at - 1]->offset > span->offset; at--) placed[at] = placed[at - 1];
    placed[at] = span;
    if (span->offset + span->bytes > total) total = span->offset + span->bytes;
  }
  free(order);
  *bytes = pk_aligned(total);
  return PK_OK;
}
