/* Placing buffers of known lifetimes in one block of memory. */
#ifndef PK_PLAN_H
#define PK_PLAN_H

#include <stdint.h>

#include "pack.h"

/* A buffer: bytes that are in use from step first to step last, both included; offset is the
 * answer. */
typedef struct pk_span {
  int64_t bytes;
  int64_t first, last;
  int64_t offset;
} pk_span;

/* Sets offsets, multiples of 64, so that spans in use at the same time do not meet; *bytes becomes
 * the size of the block. Largest first, each at the lowest place that is free for its whole life.
 */
pk_status pk_plan_offsets(pk_span *spans, int64_t count, int64_t *bytes);

#endif
