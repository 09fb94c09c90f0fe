/* Cross-entropy of whole logits on a CUDA device. */
#include "kernels/loss.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

static pk_loss_job job_of(const pk_tensor *logits, const pk_tensor *targets, const pk_tensor *lse) {
  return (pk_loss_job){.logits = rows_of(logits),
                       .targets = rows_of(targets),
                       .lse = rows_of(lse),
                       .workers = logits->shape[0],
                       .rows = logits->shape[1],
                       .vocabulary = logits->shape[2],
                       .ignored = PK_IGNORED,
                       .dtype = logits->dtype};
}

pk_status pk_cuda_cross_entropy(const pk_call *call) {
  pk_loss_job job = job_of(call->inputs[0], call->inputs[1], call->outputs[2]);
  job.loss = rows_of(call->outputs[0]);
  job.count = rows_of(call->outputs[1]);
  if (job.workers == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_cross_entropy(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_cross_entropy_grad(const pk_call *call) {
  pk_loss_job job = job_of(call->inputs[1], call->inputs[2], call->inputs[3]);
  job.g = rows_of(call->inputs[0]);
  job.grad = rows_of(call->outputs[0]);
  if (call->inputs[1]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_cross_entropy_grad(&job, pk_cuda_of(call)->stream));
}
