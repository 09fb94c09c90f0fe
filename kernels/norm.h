/* Launchers of norm.cu: RMSNorm and its gradients. */
#ifndef PK_KERNELS_NORM_H
#define PK_KERNELS_NORM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y [N, R, d] and rstd [N, R] of x, or of x + b, which is then kept in sum and may be in the memory
 * of either. */
typedef struct pk_norm_job {
  pk_rows x, weight, y, rstd;
  pk_rows b, sum; /* or NULL */
  int64_t workers, rows, width;
  double eps;
  int dtype, y_dtype; /* y may be bf16 where x is f32 */
} pk_norm_job;

cudaError_t pk_launch_norm(const pk_norm_job *job, cudaStream_t stream);

typedef struct pk_norm_grad_job {
  pk_rows g, x, weight, rstd, x_grad, weight_grad;
  int64_t workers, rows, width;
  bool accumulate_x, accumulate_weight;
  int dtype;
  void *partials; /* pk_norm_grad_workspace elements */
} pk_norm_grad_job;

int64_t pk_norm_grad_workspace(int64_t workers, int64_t rows, int64_t width);

cudaError_t pk_launch_norm_grad(const pk_norm_grad_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
