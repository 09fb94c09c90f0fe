/* A queue from which the best entry is taken first. */
#ifndef PK_QUEUE_H
#define PK_QUEUE_H

#include "pack.h"

typedef struct pk_queued {
  double value;   /* the largest is best, */
  int64_t bytes;  /* then the largest of these, */
  int64_t number; /* then the smallest of these */
  int64_t version;
  double operations;
} pk_queued;

typedef struct pk_queue {
  pk_queued *entries;
  int64_t count, room;
} pk_queue;

pk_status pk_queue_push(pk_queue *queue, const pk_queued *entry);

/* Takes the best entry; false if there is none. */
int pk_queue_pop(pk_queue *queue, pk_queued *entry);
void pk_queue_free(pk_queue *queue);

#endif
