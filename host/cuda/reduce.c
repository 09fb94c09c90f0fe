/* Sums, means and largest values over axes on a CUDA device. */
#include "kernels/reduce.h"

#include "cuda/cuda.h"
#include "cuda/strided.h"

typedef struct blocks {
  pk_block y, kept, reduced; /* y and kept have the same extents */
} blocks;

static blocks blocks_of(const pk_block *x, const pk_block *y) {
  const pk_block none_x = {.data = x->data, .size = x->size};
  const pk_block none_y = {.data = y->data, .size = y->size};
  return (blocks){.y = none_y, .kept = none_x, .reduced = none_x};
}

/* Sorts dimension d of x into kept, as dimension y_dimension of y, or reduced. */
static void sort_dimension(blocks *parts, const pk_block *x, const pk_block *y, int d, bool reduced,
                           int y_dimension) {
  pk_block *to = reduced ? &parts->reduced : &parts->kept;
  to->extents[to->rank] = x->extents[d];
  to->strides[to->rank++] = x->strides[d];
  if (reduced) return;
  parts->y.extents[parts->y.rank] = x->extents[d];
  parts->y.strides[parts->y.rank++] = y->strides[y_dimension];
}

/* False if there are no results. */
static bool plan(const pk_call *call, const blocks *parts, pk_reduction *job) {
  const pk_block kept[2] = {parts->y, parts->kept};
  job->largest = call->op == PK_OP_max;
  job->accumulate = call->attributes.accumulate != 0;
  job->dtype = call->outputs[0]->dtype;
  job->partial = call->workspace;
  if (!pk_cuda_strided(&job->kept, 2, kept)) return false;
  if (!pk_cuda_strided(&job->reduced, 1, &parts->reduced)) job->reduced = (pk_strided){.rank = 1};
  job->columns = job->kept.count > 1 && job->kept.strides[1][job->kept.rank - 1] == 1;
  pk_plan_reduction(job);
  return true;
}

static bool over_axes(const pk_call *call, pk_reduction *job) {
  const pk_attributes *attributes = &call->attributes;
  pk_block x = pk_block_of(call->inputs[0]), y = pk_block_of(call->outputs[0]);
  blocks parts = blocks_of(&x, &y);
  *job = (pk_reduction){.divisor = 1};
  for (int d = 0, next = 0; d < x.rank; d++) {
    bool reduced = attributes->list_count == 0;
    for (int i = 0; i < attributes->list_count; i++) reduced |= attributes->list[i] == d;
    sort_dimension(&parts, &x, &y, d, reduced, next);
    next += !reduced || attributes->integers[0];
    if (reduced && call->op == PK_OP_mean) job->divisor *= (double)x.extents[d];
  }
  return plan(call, &parts, job);
}

/* *any says whether anything is summed at all. */
static bool to_shape(const pk_call *call, pk_reduction *job, bool *any) {
  pk_block x = pk_block_of(call->inputs[0]), y = pk_block_of(call->outputs[0]);
  blocks parts = blocks_of(&x, &y);
  *job = (pk_reduction){.divisor = 1};
  *any = false;
  for (int d = 0; d < x.rank; d++) {
    int target = d - (x.rank - y.rank);
    bool reduced = target < 0 || (y.extents[target] == 1 && x.extents[d] != 1);
    *any |= reduced;
    sort_dimension(&parts, &x, &y, d, reduced, target);
  }
  return plan(call, &parts, job);
}

static pk_status run(const pk_call *call, const pk_reduction *job) {
  void *y = pk_tensor_data(call->outputs[0]);
  const void *x = pk_tensor_data(call->inputs[0]);
  return pk_cuda_launched(call, pk_launch_reduction(job, y, x, pk_cuda_of(call)->stream));
}

static int64_t partial_bytes(const pk_reduction *job) {
  return job->chunks > 1 ? job->chunks * job->kept.count * (int64_t)sizeof(double) : 0;
}

static pk_status run_over_axes(const pk_call *call) {
  pk_reduction job;
  return over_axes(call, &job) ? run(call, &job) : PK_OK;
}

static int64_t workspace_over_axes(const pk_call *call) {
  pk_reduction job;
  return over_axes(call, &job) ? partial_bytes(&job) : 0;
}

pk_status pk_cuda_sum(const pk_call *call) {
  return run_over_axes(call);
}

pk_status pk_cuda_mean(const pk_call *call) {
  return run_over_axes(call);
}

pk_status pk_cuda_max(const pk_call *call) {
  return run_over_axes(call);
}

int64_t pk_cuda_workspace_sum(const pk_call *call) {
  return workspace_over_axes(call);
}

int64_t pk_cuda_workspace_mean(const pk_call *call) {
  return workspace_over_axes(call);
}

int64_t pk_cuda_workspace_max(const pk_call *call) {
  return workspace_over_axes(call);
}

pk_status pk_cuda_sum_to(const pk_call *call) {
  pk_reduction job;
  bool any;
  if (!to_shape(call, &job, &any)) return PK_OK;
  return any ? run(call, &job) : pk_cuda_copy(call);
}

int64_t pk_cuda_workspace_sum_to(const pk_call *call) {
  pk_reduction job;
  bool any;
  return to_shape(call, &job, &any) && any ? partial_bytes(&job) : 0;
}
