/* Shape rules of the training step and of what reads the workers. */
#include "core/shapes.h"

/* Input i is an arena or part of one, [N, ...] in f32 or f64. */
static pk_status expect_workers(const pk_call *call, int i) {
  const pk_tensor *x = call->inputs[i];
  pk_status status = pk_shape_expect_dtype(call, i, PK_ARITHMETIC);
  if (status || x->rank >= 2) return status;
  return pk_shape_expect_rank(call, i, 2, "[N, D]");
}

/* Input i is a vector of length count. */
static pk_status expect_vector(const pk_call *call, int i, int dtype, int64_t count,
                               const char *from) {
  pk_status status = pk_shape_expect_dtype(call, i, 1 << dtype);
  return status ? status : pk_shape_expect(call, i, 1, &count, from);
}

/* The scalars of a step, perhaps with a learning rate for each worker behind them. */
static pk_status expect_scalars(const pk_call *call, int i) {
  const pk_tensor *scalars = call->inputs[i];
  pk_status status = pk_shape_expect_dtype(call, i, 1 << PK_F64);
  if (!status) status = pk_shape_expect_rank(call, i, 1, "[12] or [12 + N]");
  if (status || scalars->shape[0] >= PK_SCALARS_SIZE) return status;
  return pk_shape_refuse(call, "the %lld scalars are less than %d", (long long)scalars->shape[0],
                         PK_SCALARS_SIZE);
}

/* The same of an update of x, the first input, whose workers' learning rates it takes. */
static pk_status expect_rates(const pk_call *call, int i) {
  int64_t count = call->inputs[i]->shape[0], workers = call->inputs[0]->shape[0];
  if (count == PK_SCALARS_SIZE || count == PK_SCALARS_SIZE + workers) return PK_OK;
  return pk_shape_refuse(
      call, "the %lld scalars are neither %d nor %d and a rate for each of %lld workers",
      (long long)count, PK_SCALARS_SIZE, PK_SCALARS_SIZE, (long long)workers);
}

static pk_status expect_guard(const pk_call *call, int i) {
  pk_status status = pk_shape_expect_dtype(call, i, 1 << PK_I32);
  int64_t length = PK_GUARD_SIZE;
  return status ? status : pk_shape_expect(call, i, 1, &length, NULL);
}

static pk_status expect_mixing(const pk_call *call, int i, int64_t workers) {
  int64_t extents[2] = {workers, workers};
  pk_status status = pk_shape_expect_dtype(call, i, 1 << PK_F64);
  return status ? status : pk_shape_expect(call, i, 2, extents, "x");
}

/* x [N, D], the first input, and the next ones, of which count are there in all, are arenas of one
 * layout. */
static pk_status expect_arenas(const pk_call *call, int count) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_rank(call, 0, 2, "[N, D]");
  for (int i = 1; !status && i < count; i++) {
    if (!call->inputs[i]) continue;
    status = pk_shape_expect_same_dtype(call, 0, i);
    if (!status) status = pk_shape_expect(call, i, 2, x->shape, "x");
  }
  if (status) return status;
  if (x->shape[1] % PK_ARENA_ALIGNMENT)
    return pk_shape_refuse(call, "the %lld columns of x are not a multiple of %d",
                           (long long)x->shape[1], PK_ARENA_ALIGNMENT);
  return PK_OK;
}

/* blocks has one entry for each PK_ARENA_ALIGNMENT columns of x. */
static pk_status expect_blocks(const pk_call *call, int i) {
  int64_t count = call->inputs[0]->shape[1] / PK_ARENA_ALIGNMENT;
  pk_status status = pk_shape_expect_dtype(call, i, 1 << PK_I32);
  return status ? status : pk_shape_expect(call, i, 1, &count, "x [N, 64 * blocks]");
}

pk_status pk_shape_inverse_count(const pk_call *call, pk_shape *outputs) {
  pk_status status = pk_shape_expect_dtype(call, 0, 1 << PK_F64);
  if (!status) status = pk_shape_expect_rank(call, 0, 1, "[N]");
  return status ? status : pk_shape_like(call, outputs, 0);
}

pk_status pk_shape_gradient_norm(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *g = call->inputs[0];
  pk_status status = expect_workers(call, 0);
  if (!status) status = expect_vector(call, 1, PK_F64, g->shape[0], "g");
  return status ? status : pk_shape_set(call, outputs, PK_F64, 1, g->shape);
}

pk_status pk_shape_sum_squares(const pk_call *call, pk_shape *outputs) {
  pk_status status = expect_workers(call, 0);
  return status ? status : pk_shape_set(call, outputs, PK_F64, 1, call->inputs[0]->shape);
}

pk_status pk_shape_check_arena(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  pk_status status = expect_workers(call, 0);
  if (!status) status = expect_scalars(call, 1);
  return status ? status : expect_guard(call, 2);
}

pk_status pk_shape_check_finite(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  const pk_tensor *loss = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_rank(call, 0, 1, "[N]");
  if (!status) status = expect_vector(call, 1, PK_F64, loss->shape[0], "loss");
  if (!status) status = expect_scalars(call, 2);
  return status ? status : expect_guard(call, 3);
}

pk_status pk_shape_clip(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  const pk_tensor *g = call->inputs[0];
  pk_status status = expect_workers(call, 0);
  if (!status) status = expect_vector(call, 1, PK_F64, g->shape[0], "g");
  if (!status) status = expect_vector(call, 2, PK_F64, g->shape[0], "g");
  if (!status) status = expect_scalars(call, 3);
  return status ? status : expect_guard(call, 4);
}

pk_status pk_shape_mix(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  pk_status status = expect_workers(call, 0);
  if (!status) status = expect_mixing(call, 1, call->inputs[0]->shape[0]);
  if (!status) status = expect_scalars(call, 2);
  return status ? status : expect_guard(call, 3);
}

pk_status pk_shape_adamw(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  pk_status status = expect_arenas(call, 4);
  if (!status) status = expect_blocks(call, 4);
  if (!status) status = expect_scalars(call, 5);
  if (!status) status = expect_rates(call, 5);
  return status ? status : expect_guard(call, 6);
}

pk_status pk_shape_sgd(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  pk_status status = expect_arenas(call, 3);
  if (!status) status = expect_blocks(call, 3);
  if (!status) status = expect_scalars(call, 4);
  if (!status) status = expect_rates(call, 4);
  return status ? status : expect_guard(call, 5);
}

pk_status pk_shape_blend(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  const pk_tensor *y = call->inputs[0], *x = call->inputs[1], *factor = call->inputs[3];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_same_dtype(call, 0, 1);
  if (!status && y->rank == 0) status = pk_shape_expect_rank(call, 0, 1, "[M, ...]");
  int64_t extents[PK_MAX_RANK];
  for (int d = 0; d < y->rank; d++) extents[d] = y->shape[d];
  if (!status && x->rank == y->rank && x->shape[0] == 1) extents[0] = 1;
  if (!status) status = pk_shape_expect(call, 1, y->rank, extents, "y");
  if (!status) status = expect_guard(call, 2);
  if (status || !factor) return status;
  status = pk_shape_expect_dtype(call, 3, 1 << PK_F64);
  int64_t column[2] = {y->shape[0], 1};
  if (status || factor->numel == 1) return status;
  return pk_shape_expect(call, 3, factor->rank == 2 ? 2 : 1, column, "y");
}

pk_status pk_shape_update(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_arenas(call, 4);
  if (!status) status = expect_vector(call, 4, PK_F64, x->shape[0], "x");
  if (!status) status = expect_vector(call, 5, PK_F64, x->shape[0], "x");
  if (!status) status = expect_mixing(call, 6, x->shape[0]);
  if (!status) status = expect_blocks(call, 7);
  if (!status) status = expect_scalars(call, 8);
  if (!status) status = expect_rates(call, 8);
  if (!status) status = expect_guard(call, 9);
  if (status || !call->inputs[10]) return status;
  status = pk_shape_expect_dtype(call, 10, 1 << PK_BF16);
  return status ? status : pk_shape_expect(call, 10, 2, x->shape, "x");
}

pk_status pk_shape_average(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_workers(call, 0);
  if (status) return status;
  int64_t extents[PK_MAX_RANK] = {1};
  for (int d = 1; d < x->rank; d++) extents[d] = x->shape[d];
  return pk_shape_set(call, outputs, x->dtype, x->rank, extents);
}

pk_status pk_shape_consensus_distance(const pk_call *call, pk_shape *outputs) {
  int64_t one = 1;
  pk_status status = expect_workers(call, 0);
  return status ? status : pk_shape_set(call, outputs, PK_F64, 1, &one);
}
