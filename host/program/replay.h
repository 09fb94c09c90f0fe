/* Running recorded operations again and again. */
#ifndef PK_REPLAY_H
#define PK_REPLAY_H

#include "program/recorded.h"

/* How a program is run: all zero before its first run. */
typedef struct pk_replay {
  bool ran;        /* once, operation by operation */
  bool refused;    /* no graph could be made, for the reason in remark */
  bool traced;     /* a trace was taken when the graph was made */
  pk_graph *graph; /* NULL: there is none */
  char remark[1024];
} pk_replay;

/* Runs operations, in order: the first time one by one, so that what is chosen when a form is met
 * first is chosen, from the second on as one graph of the device, if it has graphs. Where no graph
 * can be made they go on one by one, and while a trace is taken of a device that cannot tell what
 * in a graph is whose. A run can be interrupted until operation number `commit` begins. */
pk_status pk_replay_run(pk_replay *replay, pk_context *context, pk_recorded *const *operations,
                        int64_t count, int64_t commit);

void pk_replay_free(pk_replay *replay, pk_context *context);

#endif
