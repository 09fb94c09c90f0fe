/* Shape rules of operations that choose columns of arenas [N, D]. */
#include "core/shapes.h"

/* Input i is an arena: rank 2, of f32 or f64. */
static pk_status expect_columns(const pk_call *call, int i) {
  pk_status status = pk_shape_expect_dtype(call, i, PK_ARITHMETIC);
  return status ? status : pk_shape_expect_rank(call, i, 2, "[N, D]");
}

/* Input i has indices of columns. */
static pk_status expect_index(const pk_call *call, int i) {
  pk_status status = pk_shape_expect_dtype(call, i, PK_INDICES);
  return status ? status : pk_shape_expect_rank(call, i, 1, "[K]");
}

pk_status pk_shape_gather_columns(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_columns(call, 0);
  if (!status) status = expect_index(call, 1);
  if (status) return status;
  int64_t extents[2] = {x->shape[0], call->inputs[1]->shape[0]};
  return pk_shape_set(call, outputs, x->dtype, 2, extents);
}

pk_status pk_shape_scatter_columns(const pk_call *call, pk_shape *outputs) {
  (void)outputs;
  const pk_tensor *x = call->inputs[0], *values = call->inputs[2];
  pk_status status = expect_columns(call, 0);
  if (!status) status = expect_index(call, 1);
  if (!status) status = pk_shape_expect_same_dtype(call, 0, 2);
  if (status) return status;
  bool one_for_all = values->rank == 2 && values->shape[0] == 1;
  int64_t extents[2] = {one_for_all ? 1 : x->shape[0], call->inputs[1]->shape[0]};
  status = pk_shape_expect(call, 2, 2, extents, "x and index");
  if (status || !call->inputs[3]) return status;
  int64_t length = PK_GUARD_SIZE;
  status = pk_shape_expect_dtype(call, 3, PK_INDICES);
  return status ? status : pk_shape_expect(call, 3, 1, &length, NULL);
}

pk_status pk_shape_topk_mask(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  int64_t count = call->attributes.integers[0];
  pk_status status = expect_columns(call, 0);
  if (status) return status;
  if (count < 0 || count > x->shape[1])
    return pk_shape_refuse(call, "the %lld largest of %lld columns", (long long)count,
                           (long long)x->shape[1]);
  return pk_shape_like(call, outputs, 0);
}

pk_status pk_shape_random_columns(const pk_call *call, pk_shape *outputs) {
  int64_t dtype = call->attributes.integers[0], columns = call->attributes.integers[2];
  pk_status status = pk_shape_expect_dtype(call, 0, 1 << PK_F64);
  if (status) return status;
  if (call->inputs[0]->numel != 1) {
    char text[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "counter %s is not one number",
                           pk_shape_text(text, call->inputs[0]->rank, call->inputs[0]->shape));
  }
  if (dtype != PK_F32 && dtype != PK_F64)
    return pk_shape_refuse(call, "random columns are f32 or f64");
  if (columns < 0) return pk_shape_refuse(call, "%lld columns", (long long)columns);
  int64_t extents[2] = {1, columns};
  return pk_shape_set(call, outputs, (int)dtype, 2, extents);
}
