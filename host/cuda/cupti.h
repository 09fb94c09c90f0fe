/* What CUPTI tells of the device's work: kernels, copies and fills, when they ran, on which stream,
 * and for which operation.
 *
 * An operation that launches its kernels by itself is known by external correlation: CUPTI notes
 * with each call of the runtime or the driver the number that was pushed before, and with each
 * kernel the call that launched it. A launched graph is one call for all operations. Its number is
 * that of the first of them, and a kernel is told from the others by the node that it was: while
 * the graph is captured, a callback learns of each node as it is made, for the operation whose turn
 * it is, and of its copy in the executable graph, whose id the kernel's record has. So the
 * operation of a kernel is the number of the call plus the place of the node in the graph, 0
 * outside of graphs. */
#ifndef PK_CUPTI_H
#define PK_CUPTI_H

#include <cuda_runtime_api.h>

#include "core/core.h"
#include "cuda/table.h"

typedef struct pk_cupti_record {
  int64_t start, end; /* pk_nanoseconds */
  int64_t bytes;      /* of a copy or fill */
  int64_t operation;  /* or -1; from the end on */
  uint64_t node;      /* of a graph, or 0 */
  uint32_t call;      /* that launched it */
  uint32_t stream;
  const char *name; /* of the driver: as long as the kernel is loaded */
} pk_cupti_record;

typedef struct pk_cupti_log {
  pk_cupti_record *records;
  int64_t count, room;
  int64_t lost;      /* records, for whatever reason */
  int64_t strange;   /* records of graphs whose node nobody knows */
  pk_table calls;    /* operation by call */
  pk_table nodes;    /* place in its graph by node, for as long as the device lives */
  int64_t capturing; /* the place of the operation that is captured, or -1 */
  void *subscriber;
} pk_cupti_log;

/* Begins to fill the log, which is empty but for nodes. Fails, and says why, where there is no
 * CUPTI or it refuses. One log at a time in a process, as CUPTI's callbacks know no more. */
pk_status pk_cupti_begin(pk_cupti_log *log);

/* Ends it, once the device has done all: the log has all records in order of their start. */
void pk_cupti_end(pk_cupti_log *log);

void pk_cupti_log_free(pk_cupti_log *log);

/* What this thread launches from push to pop is for the operation. */
void pk_cupti_push(int64_t operation);
void pk_cupti_pop(void);

/* The number by which records name a stream; false if CUPTI does not know. */
bool pk_cupti_stream(cudaStream_t stream, uint32_t *number);

#endif
