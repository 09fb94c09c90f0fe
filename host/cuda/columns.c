/* Columns of arenas: the largest, some of them, and random numbers for all, on a CUDA device. */
#include "kernels/columns.h"

#include "core/random.h"
#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

static pk_columns_job job_of(const pk_tensor *x, const pk_tensor *index, const pk_tensor *values) {
  return (pk_columns_job){.x = rows_of(x),
                          .values = rows_of(values),
                          .index = pk_tensor_data(index),
                          .index_stride = index->stride,
                          .rows = x->shape[0],
                          .columns = x->shape[1],
                          .count = index->shape[0],
                          .dtype = x->dtype};
}

pk_status pk_cuda_gather_columns(const pk_call *call) {
  pk_columns_job job = job_of(call->inputs[0], call->inputs[1], call->outputs[0]);
  if (job.rows * job.count == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_gather_columns(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_scatter_columns(const pk_call *call) {
  const pk_tensor *values = call->inputs[2], *guard = call->inputs[3];
  pk_columns_job job = job_of(call->inputs[0], call->inputs[1], values);
  if (job.rows * job.count == 0) return PK_OK;
  if (values->shape[0] == 1) job.values.stride = 0;
  if (guard)
    job.stopped = (const int32_t *)pk_tensor_data(guard) + PK_GUARD_STOPPED * guard->stride;
  return pk_cuda_launched(call, pk_launch_scatter_columns(&job, pk_cuda_of(call)->stream));
}

int64_t pk_cuda_workspace_topk_mask(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return pk_topk_workspace(x->shape[0], x->shape[1]);
}

pk_status pk_cuda_topk_mask(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (x->numel == 0) return PK_OK;
  return pk_cuda_launched(call,
                          pk_launch_topk_mask(rows_of(x), rows_of(y), x->shape[0], x->shape[1],
                                              call->attributes.integers[0], x->dtype,
                                              call->workspace, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_random_columns(const pk_call *call) {
  const pk_tensor *y = call->outputs[0];
  uint32_t key[2];
  if (y->numel == 0) return PK_OK;
  pk_random_key((uint64_t)call->attributes.integers[1], "", key);
  return pk_cuda_launched(call, pk_launch_random_columns(pk_tensor_data(y), y->numel, y->dtype, key,
                                                         pk_tensor_data(call->inputs[0]),
                                                         pk_cuda_of(call)->stream));
}
