/* Launchers of swiglu.cu: silu(gate) * up, and its gradients. */
#ifndef PK_KERNELS_SWIGLU_H
#define PK_KERNELS_SWIGLU_H

#include <cuda_runtime_api.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each of shape [workers, inner]. Results may be in the memory of operands of their dtype. Where
 * row is not 0, gate and up are halves of rows twice as long: `row` elements of gate, then as many
 * of up, which are behind gate.at by that much; their gradients alike. */
typedef struct pk_swiglu_job {
  pk_rows gate, up, y;
  pk_rows g, gate_grad, up_grad; /* the gradients', which have no y */
  int64_t workers, inner, row;
  int dtype, y_dtype; /* results may be bf16 where operands are f32 */
} pk_swiglu_job;

cudaError_t pk_launch_swiglu(const pk_swiglu_job *job, cudaStream_t stream);
cudaError_t pk_launch_swiglu_grad(const pk_swiglu_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
