/* RMSNorm and its gradients on a CUDA device. */
#include "kernels/norm.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

/* y and rstd are outputs `to` and the one after. */
static pk_status run_norm(const pk_call *call, pk_norm_job *job, int to) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[to];
  job->x = rows_of(x);
  job->y = rows_of(y);
  job->rstd = rows_of(call->outputs[to + 1]);
  job->workers = x->shape[0];
  job->rows = x->shape[1];
  job->width = x->shape[2];
  job->eps = call->attributes.numbers[0];
  job->dtype = x->dtype;
  job->y_dtype = y->dtype;
  if (job->workers * job->rows == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_norm(job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_rmsnorm(const pk_call *call) {
  pk_norm_job job = {.weight = rows_of(call->inputs[1])};
  return run_norm(call, &job, 0);
}

pk_status pk_cuda_add_rmsnorm(const pk_call *call) {
  pk_norm_job job = {.b = rows_of(call->inputs[1]),
                     .sum = rows_of(call->outputs[0]),
                     .weight = rows_of(call->inputs[2])};
  return run_norm(call, &job, 1);
}

int64_t pk_cuda_workspace_rmsnorm_grad(const pk_call *call) {
  const pk_tensor *x = call->inputs[1];
  return pk_norm_grad_workspace(x->shape[0], x->shape[1], x->shape[2]) * pk_dtype_size(x->dtype);
}

pk_status pk_cuda_rmsnorm_grad(const pk_call *call) {
  const pk_tensor *x = call->inputs[1];
  pk_norm_grad_job job = {.g = rows_of(call->inputs[0]),
                          .x = rows_of(x),
                          .weight = rows_of(call->inputs[2]),
                          .rstd = rows_of(call->inputs[3]),
                          .x_grad = rows_of(call->outputs[0]),
                          .weight_grad = rows_of(call->outputs[1]),
                          .workers = x->shape[0],
                          .rows = x->shape[1],
                          .width = x->shape[2],
                          .accumulate_x = call->attributes.accumulate & 1,
                          .accumulate_weight = call->attributes.accumulate & 2,
                          .dtype = x->dtype,
                          .partials = call->workspace};
  if (job.workers * job.width == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_norm_grad(&job, pk_cuda_of(call)->stream));
}
