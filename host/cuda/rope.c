/* Rotary position embedding on a CUDA device. */
#include "kernels/rope.h"

#include "cuda/cuda.h"

int64_t pk_cuda_workspace_rope(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return x->shape[2] * x->shape[4] * pk_dtype_size(x->dtype);
}

pk_status pk_cuda_rope(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (x->numel == 0) return PK_OK;
  pk_rope_job job = {.x = {pk_tensor_data(x), x->stride},
                     .y = {pk_tensor_data(y), y->stride},
                     .workers = x->shape[0],
                     .rows = x->shape[1] * x->shape[2],
                     .length = x->shape[2],
                     .heads = x->shape[3],
                     .half = x->shape[4] / 2,
                     .theta = call->attributes.numbers[0],
                     .inverse = call->attributes.integers[0],
                     .dtype = x->dtype,
                     .y_dtype = y->dtype,
                     .table = call->workspace};
  return pk_cuda_launched(call, pk_launch_rope(&job, pk_cuda_of(call)->stream));
}
