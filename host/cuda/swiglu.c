/* SwiGLU and its gradients on a CUDA device. */
#include "kernels/swiglu.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->rank > 0 ? tensor->stride : 1};
}

/* The second half of rows. */
static pk_rows half_of(const pk_tensor *tensor) {
  pk_rows rows = rows_of(tensor);
  rows.at = (char *)rows.at + tensor->shape[tensor->rank - 1] / 2 * pk_dtype_size(tensor->dtype);
  return rows;
}

/* A job of y, or g, like this tensor. */
static pk_swiglu_job job_of(const pk_call *call, const pk_tensor *like) {
  return (pk_swiglu_job){.workers = like->rank > 0 ? like->shape[0] : 1,
                         .inner = pk_tensor_inner(like),
                         .dtype = call->inputs[0]->dtype,
                         .y_dtype = call->outputs[0]->dtype};
}

static pk_status forward(const pk_call *call, const pk_swiglu_job *job) {
  if (call->outputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_swiglu(job, pk_cuda_of(call)->stream));
}

static pk_status backward(const pk_call *call, const pk_swiglu_job *job) {
  if (call->outputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_swiglu_grad(job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_swiglu(const pk_call *call) {
  pk_swiglu_job job = job_of(call, call->outputs[0]);
  job.gate = rows_of(call->inputs[0]);
  job.up = rows_of(call->inputs[1]);
  job.y = rows_of(call->outputs[0]);
  return forward(call, &job);
}

pk_status pk_cuda_swiglu_grad(const pk_call *call) {
  pk_swiglu_job job = job_of(call, call->inputs[0]);
  job.g = rows_of(call->inputs[0]);
  job.gate = rows_of(call->inputs[1]);
  job.up = rows_of(call->inputs[2]);
  job.gate_grad = rows_of(call->outputs[0]);
  job.up_grad = rows_of(call->outputs[1]);
  return backward(call, &job);
}

pk_status pk_cuda_swiglu_split(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  pk_swiglu_job job = job_of(call, y);
  job.row = y->shape[y->rank - 1];
  job.gate = rows_of(x);
  job.up = half_of(x);
  job.y = rows_of(y);
  return forward(call, &job);
}

pk_status pk_cuda_swiglu_split_grad(const pk_call *call) {
  const pk_tensor *g = call->inputs[0], *x = call->inputs[1], *grad = call->outputs[0];
  pk_swiglu_job job = job_of(call, g);
  job.row = g->shape[g->rank - 1];
  job.g = rows_of(g);
  job.gate = rows_of(x);
  job.up = half_of(x);
  job.gate_grad = rows_of(grad);
  job.up_grad = half_of(grad);
  return backward(call, &job);
}
