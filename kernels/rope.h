/* Launcher of rope.cu: rotary position embedding. */
#ifndef PK_KERNELS_ROPE_H
#define PK_KERNELS_ROPE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x [N, rows, heads, 2 half], whose row r is at position r mod length; y may be in x's memory
 * if it is of its dtype. */
typedef struct pk_rope_job {
  pk_rows x, y;
  int64_t workers, rows, length, heads, half;
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
