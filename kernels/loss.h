/* Launchers of loss.cu: cross-entropy of whole logits, and the sums that its chunked form shares.
 */
#ifndef PK_KERNELS_LOSS_H
#define PK_KERNELS_LOSS_H

#include <cuda_runtime_api.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logits [N, R, V], targets [N, R] i32 and so on, of f32 or f64. A target that is neither a row's
 * entry nor ignored makes the loss NaN. */
typedef struct pk_loss_job {
  pk_rows logits, targets, lse;
  pk_rows loss, count; /* forward */
  pk_rows g, grad;     /* backward */
  int64_t workers, rows, vocabulary;
  int32_t ignored; /* the target of rows that do not count */
  int dtype;
} pk_loss_job;

/* lse, then loss and count in f64 as numbers of their dtypes. */
cudaError_t pk_launch_cross_entropy(const pk_loss_job *job, cudaStream_t stream);

cudaError_t pk_launch_cross_entropy_grad(const pk_loss_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
