/* SwiGLU and its gradients on a CUDA device. */
#include "kernels/swiglu.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->rank > 0 ? tensor->stride : 1};
}

static pk_swiglu_job job_of(const pk_call *call, int gate) {
  const pk_tensor *first = call->inputs[gate];
  return (pk_swiglu_job){.gate = rows_of(first),
                         .up = rows_of(call->inputs[gate + 1]),
                         .workers = first->rank > 0 ? first->shape[0] : 1,
                         .inner = pk_tensor_inner(first),
                         .dtype = first->dtype,
                         .y_dtype = call->outputs[0]->dtype};
}

pk_status pk_cuda_swiglu(const pk_call *call) {
  pk_swiglu_job job = job_of(call, 0);
  job.y = rows_of(call->outputs[0]);
  if (call->inputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_swiglu(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_swiglu_grad(const pk_call *call) {
  pk_swiglu_job job = job_of(call, 1);
  job.g = rows_of(call->inputs[0]);
  job.gate_grad = rows_of(call->outputs[0]);
  job.up_grad = rows_of(call->outputs[1]);
  if (call->inputs[1]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_swiglu_grad(&job, pk_cuda_of(call)->stream));
}
