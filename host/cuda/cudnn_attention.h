/* Attention by cuDNN, where it is there and takes a call; else the device's own kernels run. */
#ifndef PK_CUDNN_ATTENTION_H
#define PK_CUDNN_ATTENTION_H

#include "cuda/cuda.h"

/* Sets cuda->cudnn if the library can be opened and is new enough. */
pk_status pk_cuda_cudnn_find(pk_cuda_device *cuda);
void pk_cuda_cudnn_free(pk_cuda_cudnn *cudnn);

/* Whether a call with this q is cuDNN's: its dtype and width, and what the device was opened for.
 */
bool pk_cuda_cudnn_takes(const pk_cuda_device *cuda, const pk_tensor *q);

/* Bytes of workspace for a call that it takes. */
int64_t pk_cuda_cudnn_workspace(const pk_cuda_device *cuda, const pk_tensor *q, bool backward);

/* The operations; *done is false where there turned out to be no plan and nothing was computed. */
pk_status pk_cuda_cudnn_attention(const pk_call *call, bool *done);
pk_status pk_cuda_cudnn_attention_grad(const pk_call *call, bool *done);

#endif
