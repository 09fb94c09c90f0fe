/* The queue as a binary heap. */
#include "program/queue.h"

#include <stdlib.h>

#include "core/core.h"

static bool is_better(const pk_queued *a, const pk_queued *b) {
  if (a->value != b->value) return a->value > b->value;
  if (a->bytes != b->bytes) return a->bytes > b->bytes;
  return a->number < b->number;
}

static void swap(pk_queued *a, pk_queued *b) {
  pk_queued held = *a;
  *a = *b;
  *b = held;
}

pk_status pk_queue_push(pk_queue *queue, const pk_queued *entry) {
  if (queue->count == queue->room) {
    int64_t room = queue->room ? 2 * queue->room : 256;
    pk_queued *entries = realloc(queue->entries, (size_t)room * sizeof *entries);
    if (!entries) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
    queue->entries = entries;
    queue->room = room;
  }
  int64_t at = queue->count++;
  queue->entries[at] = *entry;
  for (; at > 0 && is_better(&queue->entries[at], &queue->entries[(at - 1) / 2]); at = (at - 1) / 2)
    swap(&queue->entries[at], &queue->entries[(at - 1) / 2]);
  return PK_OK;
}

int pk_queue_pop(pk_queue *queue, pk_queued *entry) {
  if (queue->count == 0) return 0;
  pk_queued *entries = queue->entries;
  *entry = entries[0];
  entries[0] = entries[--queue->count];
  for (int64_t at = 0;;) {
    int64_t best = at;
    for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < queue->count; child++)
      if (is_better(&entries[child], &entries[best])) best = child;
    if (best == at) return 1;
    swap(&entries[at], &entries[best]);
    at = best;
  }
}

void pk_queue_free(pk_queue *queue) {
  free(queue->entries);
}
