/* Launcher of reduce.cu: sums and largest values over axes. */
#ifndef PK_KERNELS_REDUCE_H
#define PK_KERNELS_REDUCE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "strided.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The elements of result r are at kept's operand 1 plus reduced's operand 0; y is kept's
 * operand 0. Results that are few and long are cut into chunks, reduced once more at the end. */
typedef struct pk_reduction {
  pk_strided kept;    /* count: results, at least 1 */
  pk_strided reduced; /* count: elements of each, perhaps 0 */
  int64_t chunks, chunk_length;
  bool columns; /* neighbouring elements belong to different results */
  bool largest; /* the largest instead of the sum */
  bool accumulate;
  double divisor;
  int dtype;       /* of x and y, f32 or f64 */
  double *partial; /* [chunks, results] if there is more than one */
} pk_reduction;

/* Sets chunks and their length. */
void pk_plan_reduction(pk_reduction *job);

cudaError_t pk_launch_reduction(const pk_reduction *job, void *y, const void *x,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
