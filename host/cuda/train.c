/* The operations of a training step, and what is read over the workers, on a CUDA device. */
#include "kernels/train.h"

#include "cuda/cuda.h"

static pk_rows rows_of(const pk_tensor *tensor) {
  if (!tensor) return (pk_rows){NULL, 0};
  return (pk_rows){pk_tensor_data(tensor), tensor->stride};
}

static pk_vector vector_of(const pk_tensor *tensor) {
  return (pk_vector){pk_tensor_data(tensor), tensor->stride};
}

static pk_guard guard_of(const pk_tensor *tensor) {
  return (pk_guard){pk_tensor_data(tensor), tensor->stride};
}

/* Each worker's learning rate, or the one of all. */
static pk_rates rates_of(const pk_tensor *scalars) {
  bool own = scalars->shape[0] > PK_SCALARS_SIZE;
  return (pk_rates){.first = own ? PK_SCALARS_SIZE : PK_SCALAR_LR, .step = own};
}

pk_status pk_cuda_inverse_count(const pk_call *call) {
  const pk_tensor *count = call->inputs[0];
  if (count->numel == 0) return PK_OK;
  return pk_cuda_launched(call,
                          pk_launch_inverse_count(vector_of(call->outputs[0]), vector_of(count),
                                                  count->numel, pk_cuda_of(call)->stream));
}

/* --- gradient_norm and sum_squares --- */

int64_t pk_cuda_workspace_gradient_norm(const pk_call *call) {
  const pk_tensor *g = call->inputs[0];
  return pk_gradient_norm_workspace(g->shape[0], pk_tensor_inner(g));
}

pk_status pk_cuda_gradient_norm(const pk_call *call) {
  const pk_tensor *g = call->inputs[0];
  if (g->shape[0] == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_gradient_norm(rows_of(g), vector_of(call->inputs[1]),
                                                        vector_of(call->outputs[0]), g->shape[0],
                                                        pk_tensor_inner(g), g->dtype,
                                                        call->workspace, pk_cuda_of(call)->stream));
}

int64_t pk_cuda_workspace_sum_squares(const pk_call *call) {
  return pk_sum_squares_workspace(call->inputs[0]->shape[0], pk_tensor_inner(call->inputs[0]));
}

pk_status pk_cuda_sum_squares(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  if (x->shape[0] == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_sum_squares(rows_of(x), vector_of(call->outputs[0]),
                                                      x->shape[0], pk_tensor_inner(x), x->dtype,
                                                      call->workspace, pk_cuda_of(call)->stream));
}

/* --- check_arena, check_finite and clip --- */

int64_t pk_cuda_workspace_check_arena(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return pk_check_arena_workspace(x->shape[0], pk_tensor_inner(x));
}

pk_status pk_cuda_check_arena(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  if (x->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_check_arena(rows_of(x), vector_of(call->inputs[1]),
                                                      guard_of(call->inputs[2]), x->shape[0],
                                                      pk_tensor_inner(x), x->dtype,
                                                      (int)call->attributes.integers[0],
                                                      call->workspace, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_check_finite(const pk_call *call) {
  const pk_tensor *loss = call->inputs[0];
  return pk_cuda_launched(
      call,
      pk_launch_check_finite(rows_of(loss), loss->dtype, vector_of(call->inputs[1]),
                             vector_of(call->inputs[2]), guard_of(call->inputs[3]), loss->shape[0],
                             call->attributes.numbers[0], pk_cuda_of(call)->stream));
}

pk_status pk_cuda_clip(const pk_call *call) {
  const pk_tensor *g = call->inputs[0];
  if (g->numel == 0) return PK_OK;
  return pk_cuda_launched(
      call, pk_launch_clip(rows_of(g), vector_of(call->inputs[1]), vector_of(call->inputs[2]),
                           vector_of(call->inputs[3]), guard_of(call->inputs[4]), g->shape[0],
                           pk_tensor_inner(g), g->dtype, pk_cuda_of(call)->stream));
}

/* --- mix, adamw and update --- */

/* Launches a step; one with mixing holds a matrix of all workers in a block's memory. */
static pk_status run_step(const pk_call *call, pk_step_job *job) {
  const pk_tensor *x = call->inputs[0];
  job->x = rows_of(x);
  job->workers = x->shape[0];
  job->columns = pk_tensor_inner(x);
  job->dtype = x->dtype;
  if (job->workers > PK_STEP_WORKERS) {
    return pk_fail(PK_UNSUPPORTED, "%s: %lld workers; on a CUDA device there are at most %d",
                   pk_op_describe(call->op)->name, (long long)job->workers, PK_STEP_WORKERS);
  }
  return pk_cuda_launched(call, pk_launch_step(job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_mix(const pk_call *call) {
  pk_step_job job = {.mixing = vector_of(call->inputs[1]),
                     .scalars = vector_of(call->inputs[2]),
                     .guard = guard_of(call->inputs[3]),
                     .mixes_first = true};
  return run_step(call, &job);
}

pk_status pk_cuda_adamw(const pk_call *call) {
  const pk_tensor *blocks = call->inputs[4];
  pk_step_job job = {.g = rows_of(call->inputs[1]),
                     .m = rows_of(call->inputs[2]),
                     .v = rows_of(call->inputs[3]),
                     .blocks = pk_tensor_data(blocks),
                     .blocks_stride = blocks->stride,
                     .scalars = vector_of(call->inputs[5]),
                     .rates = rates_of(call->inputs[5]),
                     .guard = guard_of(call->inputs[6]),
                     .adapts = true};
  return run_step(call, &job);
}

pk_status pk_cuda_update(const pk_call *call) {
  const pk_tensor *blocks = call->inputs[7];
  bool last = call->attributes.integers[0] != 0;
  pk_step_job job = {.g = rows_of(call->inputs[1]),
                     .m = rows_of(call->inputs[2]),
                     .v = rows_of(call->inputs[3]),
                     .scale = vector_of(call->inputs[4]),
                     .norm = vector_of(call->inputs[5]),
                     .mixing = vector_of(call->inputs[6]),
                     .blocks = pk_tensor_data(blocks),
                     .blocks_stride = blocks->stride,
                     .scalars = vector_of(call->inputs[8]),
                     .rates = rates_of(call->inputs[8]),
                     .guard = guard_of(call->inputs[9]),
                     .bf16 = rows_of(call->inputs[10]),
                     .clips = true,
                     .adapts = true,
                     .mixes_first = !last,
                     .mixes_last = last};
  return run_step(call, &job);
}

/* --- sgd and blend --- */

pk_status pk_cuda_sgd(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *blocks = call->inputs[3];
  if (x->numel == 0) return PK_OK;
  pk_sgd_job job = {.x = rows_of(x),
                    .g = rows_of(call->inputs[1]),
                    .m = rows_of(call->inputs[2]),
                    .blocks = pk_tensor_data(blocks),
                    .blocks_stride = blocks->stride,
                    .scalars = vector_of(call->inputs[4]),
                    .rates = rates_of(call->inputs[4]),
                    .guard = guard_of(call->inputs[5]),
                    .workers = x->shape[0],
                    .columns = pk_tensor_inner(x),
                    .dtype = x->dtype,
                    .nesterov = call->attributes.integers[0] != 0};
  return pk_cuda_launched(call, pk_launch_sgd(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_blend(const pk_call *call) {
  const pk_tensor *y = call->inputs[0], *x = call->inputs[1], *factor = call->inputs[3];
  if (y->numel == 0) return PK_OK;
  pk_blend_job job = {.y = rows_of(y),
                      .x = rows_of(x),
                      .factor = factor ? vector_of(factor) : (pk_vector){NULL, 0},
                      .guard = guard_of(call->inputs[2]),
                      .rows = y->shape[0],
                      .columns = pk_tensor_inner(y),
                      .dtype = y->dtype,
                      .own = call->attributes.numbers[0],
                      .scale = call->attributes.numbers[1],
                      .lerps = call->attributes.integers[0] != 0};
  if (x->shape[0] == 1) job.x.stride = 0;
  if (factor && factor->numel == 1) job.factor.stride = 0;
  return pk_cuda_launched(call, pk_launch_blend(&job, pk_cuda_of(call)->stream));
}

/* --- average and consensus_distance --- */

pk_status pk_cuda_average(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  if (call->outputs[0]->numel == 0) return PK_OK;
  return pk_cuda_launched(call, pk_launch_average(rows_of(x), pk_tensor_data(call->outputs[0]),
                                                  x->shape[0], pk_tensor_inner(x), x->dtype,
                                                  pk_cuda_of(call)->stream));
}

int64_t pk_cuda_workspace_consensus_distance(const pk_call *call) {
  return pk_consensus_workspace(pk_tensor_inner(call->inputs[0]));
}

pk_status pk_cuda_consensus_distance(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return pk_cuda_launched(call,
                          pk_launch_consensus_distance(rows_of(x), pk_tensor_data(call->outputs[0]),
                                                       x->shape[0], pk_tensor_inner(x), x->dtype,
                                                       call->workspace, pk_cuda_of(call)->stream));
}
