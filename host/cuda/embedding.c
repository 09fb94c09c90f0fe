/* Looking rows and entries up by number, and the gradients that put them back, on a CUDA device. */
#include "kernels/embedding.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

static pk_embedding_job job_of(const pk_tensor *ids, const pk_tensor *rows) {
  return (pk_embedding_job){.ids = rows_of(ids),
                            .rows = rows_of(rows),
                            .workers = ids->shape[0],
                            .count = pk_tensor_inner(ids),
                            .width = rows->shape[rows->rank - 1],
                            .element_bytes = pk_dtype_size(rows->dtype)};
}

pk_status pk_cuda_embedding(const pk_call *call) {
  const pk_tensor *weight = call->inputs[0];
  pk_embedding_job job = job_of(call->inputs[1], call->outputs[0]);
  job.table = rows_of(weight);
  job.vocabulary = weight->shape[1];
  if (call->outputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_embedding(&job, pk_cuda_of(call)->stream));
}

int64_t pk_cuda_workspace_embedding_grad(const pk_call *call) {
  pk_embedding_job job = job_of(call->inputs[1], call->inputs[0]);
  job.vocabulary = call->attributes.integers[0];
  return pk_embedding_grad_workspace(&job);
}

pk_status pk_cuda_embedding_grad(const pk_call *call) {
  const pk_tensor *weight_grad = call->outputs[0];
  pk_embedding_job job = job_of(call->inputs[1], call->inputs[0]);
  job.table = rows_of(weight_grad);
  job.vocabulary = call->attributes.integers[0];
  job.workspace = call->workspace;
  if (job.count > PK_EMBEDDING_MOST)
    return pk_fail(PK_UNSUPPORTED,
                   "embedding_grad: %lld ids of a worker; on a CUDA device there are at most %d",
                   (long long)job.count, PK_EMBEDDING_MOST);
  if (!call->attributes.accumulate) {
    pk_block block = pk_block_of(weight_grad);
    pk_status status = pk_cuda_fill_block(call, &block, 0);
    if (status != PK_OK) return status;
  }
  if (call->inputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_embedding_grad(&job, pk_cuda_of(call)->stream));
}

static pk_status run_entries(const pk_call *call, const pk_tensor *wide, const pk_tensor *narrow,
                             cudaError_t (*launch)(const pk_entries_job *, cudaStream_t)) {
  const pk_tensor *index = call->inputs[1];
  pk_entries_job job = {.wide = rows_of(wide),
                        .narrow = rows_of(narrow),
                        .index = rows_of(index),
                        .workers = wide->shape[0],
                        .rows = wide->shape[1],
                        .vocabulary = wide->shape[2],
                        .ignored = PK_IGNORED,
                        .element_bytes = pk_dtype_size(wide->dtype)};
  if (narrow->numel == 0) return PK_OK;
  return pk_cuda_launched(call, launch(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_pick(const pk_call *call) {
  return run_entries(call, call->inputs[0], call->outputs[0], pk_launch_pick);
}

pk_status pk_cuda_unpick(const pk_call *call) {
  return run_entries(call, call->outputs[0], call->inputs[0], pk_launch_unpick);
}
