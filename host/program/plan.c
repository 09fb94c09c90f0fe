/* The placement of buffers by lifetime.
 *
 * A buffer is compared with those alone whose lives meet its own, which a tree over the steps
 * finds, so that the time is about in proportion to the buffers of a long program. */
#include "program/plan.h"

#include <stdlib.h>

#include "core/core.h"

static int larger_first(const void *a, const void *b) {
  const pk_span *x = *(const pk_span *const *)a, *y = *(const pk_span *const *)b;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return (x->first > y->first) - (x->first < y->first);
}

/* A place in a list of spans: an index into links, -1 ends the list. */
typedef struct link {
  pk_span *span;
  int64_t next;
} link;

/* The spans that have their places, to be found by the steps of their lives. */
typedef struct placed {
  int64_t steps;     /* a power of two */
  int64_t *covering; /* [2 * steps]: of each node of a tree over the steps, the spans that live in
                        all of its steps, and not in all of its parent's */
  int64_t *starting; /* [steps]: the spans whose lives start there */
  link *links;
  int64_t n_links, room;
  pk_span **met; /* what the last search found */
} placed;

static pk_status create_placed(placed *self, int64_t spans, int64_t last) {
  self->steps = 1;
  while (self->steps <= last) self->steps *= 2;
  self->covering = malloc((size_t)(3 * self->steps) * sizeof *self->covering);
  self->met = malloc((size_t)(spans + 1) * sizeof *self->met);
  if (!self->covering || !self->met)
    return pk_fail(PK_NO_MEMORY, "no host memory to plan %lld buffers", (long long)spans);
  self->starting = self->covering + 2 * self->steps;
  for (int64_t i = 0; i < 3 * self->steps; i++) self->covering[i] = -1;
  return PK_OK;
}

static void free_placed(placed *self) {
  free(self->covering);
  free(self->met);
  free(self->links);
}

static pk_status add_link(placed *self, int64_t *list, pk_span *span) {
  if (self->n_links == self->room) {
    int64_t room = self->room ? 2 * self->room : 1024;
    link *links = realloc(self->links, (size_t)room * sizeof *links);
    if (!links) return pk_fail(PK_NO_MEMORY, "no host memory to plan a program");
    self->links = links;
    self->room = room;
  }
  self->links[self->n_links] = (link){.span = span, .next = *list};
  *list = self->n_links++;
  return PK_OK;
}

/* Adds a span to the nodes that make up its life. */
static pk_status add_placed(placed *self, pk_span *span) {
  pk_status status = add_link(self, &self->starting[span->first], span);
  int64_t low = span->first + self->steps, high = span->last + self->steps + 1;
  for (; low < high && status == PK_OK; low /= 2, high /= 2) {
    if (low % 2) status = add_link(self, &self->covering[low++], span);
    if (high % 2 && status == PK_OK) status = add_link(self, &self->covering[--high], span);
  }
  return status;
}

static int64_t collect(placed *self, int64_t list, int64_t count) {
  for (; list >= 0; list = self->links[list].next) self->met[count++] = self->links[list].span;
  return count;
}

static int lower_first(const void *a, const void *b) {
  const pk_span *x = *(const pk_span *const *)a, *y = *(const pk_span *const *)b;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Finds the spans that share a step with this one, by offset; returns how many: those that live in
 * its first step, and those that start in a later one. */
static int64_t find_met(placed *self, const pk_span *span) {
  int64_t count = 0;
  for (int64_t node = span->first + self->steps; node >= 1; node /= 2)
    count = collect(self, self->covering[node], count);
  for (int64_t step = span->first + 1; step <= span->last; step++)
    count = collect(self, self->starting[step], count);
  qsort(self->met, (size_t)count, sizeof *self->met, lower_first);
  return count;
}

/* The lowest offset at which span is clear of those that it meets. */
static int64_t lowest_place(placed *self, const pk_span *span) {
  int64_t offset = 0, count = find_met(self, span);
  for (int64_t i = 0; i < count; i++) {
    if (self->met[i]->offset >= offset + span->bytes) break;
    int64_t end = self->met[i]->offset + pk_aligned(self->met[i]->bytes);
    if (end > offset) offset = end;
  }
  return offset;
}

/* Places the spans in their order. Those without bytes are at the start. */
static pk_status place_all(placed *self, pk_span *const *order, int64_t count, int64_t *bytes) {
  const int64_t most = (int64_t)1 << 60; /* so that no sum leaves 64 bits */
  *bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    pk_span *span = order[i];
    span->offset = 0;
    if (span->bytes == 0) continue;
    span->offset = lowest_place(self, span);
    int64_t end = span->offset + span->bytes;
    if (end > most)
      return pk_fail(PK_NO_MEMORY, "a program that takes more than %lld bytes", (long long)most);
    if (end > *bytes) *bytes = end;
    pk_status status = add_placed(self, span);
    if (status != PK_OK) return status;
  }
  *bytes = pk_aligned(*bytes);
  return PK_OK;
}

pk_status pk_plan_offsets(pk_span *spans, int64_t count, int64_t *bytes) {
  placed self = {0};
  int64_t last = 0;
  pk_span **order = malloc((size_t)(count + 1) * sizeof *order);
  for (int64_t i = 0; i < count; i++)
    if (spans[i].last > last) last = spans[i].last;
  pk_status status = create_placed(&self, count, last);
  if (status == PK_OK && !order)
    status = pk_fail(PK_NO_MEMORY, "no host memory to plan %lld buffers", (long long)count);
  if (status == PK_OK) {
    for (int64_t i = 0; i < count; i++) order[i] = &spans[i];
    qsort(order, (size_t)count, sizeof *order, larger_first);
    status = place_all(&self, order, count, bytes);
  }
  free_placed(&self);
  free(order);
  return status;
}
