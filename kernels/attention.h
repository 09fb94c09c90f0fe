/* Launchers of causal attention and its gradients. */
#ifndef PK_KERNELS_ATTENTION_H
#define PK_KERNELS_ATTENTION_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call: shapes, and tensors. bf16 operands have f32 results; f32 and f64 results of their own
 * type. */
typedef struct pk_attention_job {
  pk_rows q, k, v, o, g, q_grad, k_grad, v_grad; /* [N, B, T, H, K] */
  void *lse;                                     /* [N, B, H, T] */
  int64_t lse_stride;
  int64_t workers, sequences, length, heads, width;
  double scale;
  int dtype;       /* of q, k and v: a pk_dtype */
  void *workspace; /* of the gradients: pk_attention_grad_workspace bytes */
} pk_attention_job;

/* The largest K that is served. */
enum { PK_ATTENTION_WIDEST = 256 };

int64_t pk_attention_grad_workspace(const pk_attention_job *job);

/* o and lse. */
cudaError_t pk_launch_attention(const pk_attention_job *job, cudaStream_t stream);

/* q_grad, k_grad and v_grad. */
cudaError_t pk_launch_attention_grad(const pk_attention_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
