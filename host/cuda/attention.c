/* Causal attention and its gradients on a CUDA device: by cuDNN where it takes a call, else by the
 * kernels of kernels/attention.cu and attention_mma.cu. */
#include "kernels/attention.h"

#include "cuda/cudnn_attention.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

/* The job of operands q, k and v, inputs first .. first + 2. */
static pk_attention_job job_of(const pk_call *call, int first) {
  const pk_tensor *q = call->inputs[first];
  return (pk_attention_job){.q = rows_of(q),
                            .k = rows_of(call->inputs[first + 1]),
                            .v = rows_of(call->inputs[first + 2]),
                            .workers = q->shape[0],
                            .sequences = q->shape[1],
                            .length = q->shape[2],
                            .heads = q->shape[3],
                            .width = q->shape[4],
                            .scale = call->attributes.numbers[0],
                            .dtype = q->dtype,
                            .workspace = call->workspace};
}

/* Refuses heads whose tiles no block's shared memory could hold. */
static pk_status check(const pk_call *call, const pk_attention_job *job) {
  if (job->width <= PK_ATTENTION_WIDEST) return PK_OK;
  return pk_fail(PK_UNSUPPORTED,
                 "%s: heads of width %lld; on a CUDA device they have at most %d "
                 "(runtime.attention = reference has no bound)",
                 pk_op_describe(call->op)->name, (long long)job->width, PK_ATTENTION_WIDEST);
}

int64_t pk_cuda_workspace_attention(const pk_call *call) {
  const pk_cuda_device *cuda = pk_cuda_of(call);
  bool by_cudnn = pk_cuda_cudnn_takes(cuda, call->inputs[0]);
  return by_cudnn ? pk_cuda_cudnn_workspace(cuda, call->inputs[0], false) : 0;
}

pk_status pk_cuda_attention(const pk_call *call) {
  if (pk_cuda_cudnn_takes(pk_cuda_of(call), call->inputs[0])) {
    bool done = false;
    pk_status status = pk_cuda_cudnn_attention(call, &done);
    if (status != PK_OK || done) return status;
  }
  pk_attention_job job = job_of(call, 0);
  job.o = rows_of(call->outputs[0]);
  job.lse = pk_tensor_data(call->outputs[1]);
  job.lse_stride = call->outputs[1]->stride;
  pk_status status = check(call, &job);
  if (status || call->inputs[0]->numel == 0) return status;
  return pk_cuda_launched(call, pk_launch_attention(&job, pk_cuda_of(call)->stream));
}

int64_t pk_cuda_workspace_attention_grad(const pk_call *call) {
  const pk_cuda_device *cuda = pk_cuda_of(call);
  pk_attention_job job = job_of(call, 1);
  int64_t own = pk_attention_grad_workspace(&job);
  if (!pk_cuda_cudnn_takes(cuda, call->inputs[1])) return own;
  int64_t other = pk_cuda_cudnn_workspace(cuda, call->inputs[1], true);
  return other > own ? other : own;
}

pk_status pk_cuda_attention_grad(const pk_call *call) {
  if (pk_cuda_cudnn_takes(pk_cuda_of(call), call->inputs[1])) {
    bool done = false;
    pk_status status = pk_cuda_cudnn_attention_grad(call, &done);
    if (status != PK_OK || done) return status;
  }
  pk_attention_job job = job_of(call, 1);
  job.g = rows_of(call->inputs[0]);
  job.o = rows_of(call->inputs[4]);
  job.lse = pk_tensor_data(call->inputs[5]);
  job.lse_stride = call->inputs[5]->stride;
  job.q_grad = rows_of(call->outputs[0]);
  job.k_grad = rows_of(call->outputs[1]);
  job.v_grad = rows_of(call->outputs[2]);
  pk_status status = check(call, &job);
  if (status || call->inputs[1]->numel == 0) return status;
  return pk_cuda_launched(call, pk_launch_attention_grad(&job, pk_cuda_of(call)->stream));
}
