/* Launcher of rope.cu: rotary position embedding. */
#ifndef PK_KERNELS_ROPE_H
#define PK_KERNELS_ROPE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads in one tensor [N, rows, heads, 2 half], or one after the other in three of them. */
typedef struct pk_rope_side {
  pk_rows parts[3]; /* those that there are; the others are NULL */
  unsigned heads;   /* of each */
} pk_rope_side;

/* y = x [N, rows, heads, 2 half], whose row r is at position r mod length, the first `turned` heads
 * turned and the others as they are; y may be in x's memory if both are one tensor of one dtype. */
typedef struct pk_rope_job {
  pk_rope_side x, y;
  int64_t workers, rows, length, heads, turned, half;
  double theta;
  bool inverse;
  int dtype, y_dtype; /* y may be bf16 where x is f32 */
  void *table;        /* cosines and sines [2, length, half] in x's dtype */
} pk_rope_job;

cudaError_t pk_launch_rope(const pk_rope_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
