/* Shape rules of the model's fused pieces and of the losses. */
#include "core/shapes.h"

#include <string.h>

/* Output of this shape in the dtype of input 0, or in bf16 where the attribute bf16 (an integer)
 * asks for it. */
static pk_status set_or_bf16(const pk_call *call, pk_shape *output, int bf16, int rank,
                             const int64_t *shape) {
  int dtype = call->inputs[0]->dtype;
  if (!call->attributes.integers[bf16]) return pk_shape_set(call, output, dtype, rank, shape);
  if (dtype != PK_F32)
    return pk_shape_refuse(call, "bf16 results are of f32, not of %s", pk_dtype_name(dtype));
  return pk_shape_set(call, output, PK_BF16, rank, shape);
}

/* The same with the shape of input 0. */
static pk_status like_or_bf16(const pk_call *call, pk_shape *output, int bf16) {
  return set_or_bf16(call, output, bf16, call->inputs[0]->rank, call->inputs[0]->shape);
}

/* x [N, R, d], input 0, has a norm with weight [N, d], input i, of its dtype. */
static pk_status expect_norm(const pk_call *call, int i, const char *from) {
  const pk_tensor *x = call->inputs[0];
  double eps = call->attributes.numbers[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_same_dtype(call, 0, i);
  if (!status) status = pk_shape_expect_rank(call, 0, 3, "[N, R, d]");
  if (status) return status;
  int64_t weight[2] = {x->shape[0], x->shape[2]};
  status = pk_shape_expect(call, i, 2, weight, from);
  if (!status && !(eps >= 0 && eps < 1e300))
    return pk_shape_refuse(call, "eps %g is not a number >= 0", eps);
  return status;
}

pk_status pk_shape_rmsnorm(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_norm(call, 1, "x [N, R, d]");
  if (!status) status = like_or_bf16(call, &outputs[0], 0);
  return status ? status : pk_shape_set(call, &outputs[1], x->dtype, 2, x->shape);
}

pk_status pk_shape_add_rmsnorm(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *a = call->inputs[0];
  pk_status status = expect_norm(call, 2, "a [N, R, d]");
  if (!status) status = pk_shape_expect_same_dtype(call, 0, 1);
  if (!status) status = pk_shape_expect(call, 1, 3, a->shape, "a");
  if (!status) status = pk_shape_like(call, &outputs[0], 0);
  if (!status) status = like_or_bf16(call, &outputs[1], 0);
  return status ? status : pk_shape_set(call, &outputs[2], a->dtype, 2, a->shape);
}

pk_status pk_shape_rmsnorm_grad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[1];
  pk_status status = pk_shape_expect_dtype(call, 1, PK_ARITHMETIC);
  for (int i = 0; !status && i < 4; i++) status = pk_shape_expect_same_dtype(call, 1, i);
  if (!status) status = pk_shape_expect_rank(call, 1, 3, "[N, R, d]");
  if (status) return status;
  int64_t weight[2] = {x->shape[0], x->shape[2]};
  status = pk_shape_expect(call, 0, 3, x->shape, "x");
  if (!status) status = pk_shape_expect(call, 2, 2, weight, "x [N, R, d]");
  if (!status) status = pk_shape_expect(call, 3, 2, x->shape, "x [N, R, d]");
  if (!status) status = pk_shape_like(call, &outputs[0], 1);
  return status ? status : pk_shape_like(call, &outputs[1], 2);
}

/* Input 0 has heads that can be turned: [N, B, T, H, K]. */
static pk_status expect_turned(const pk_call *call, const char *shape) {
  const pk_tensor *x = call->inputs[0];
  double theta = call->attributes.numbers[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_rank(call, 0, 5, shape);
  if (status) return status;
  if (x->shape[4] % 2)
    return pk_shape_refuse(call, "the head dimension %lld is odd", (long long)x->shape[4]);
  if (!(theta > 0 && theta < 1e300))
    return pk_shape_refuse(call, "theta %g is not a number > 0", theta);
  return PK_OK;
}

pk_status pk_shape_rope(const pk_call *call, pk_shape *outputs) {
  pk_status status = expect_turned(call, "[N, B, T, H, K]");
  return status ? status : like_or_bf16(call, outputs, 1);
}

pk_status pk_shape_rope_split(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_turned(call, "[N, B, T, 3H, K]");
  if (status) return status;
  if (x->shape[3] % 3)
    return pk_shape_refuse(call, "%lld heads are not those of q, k and v", (long long)x->shape[3]);
  int64_t part[5] = {x->shape[0], x->shape[1], x->shape[2], x->shape[3] / 3, x->shape[4]};
  for (int o = 0; !status && o < 3; o++) status = set_or_bf16(call, &outputs[o], 1, 5, part);
  return status;
}

pk_status pk_shape_rope_join(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *q = call->inputs[0];
  pk_status status = expect_turned(call, "[N, B, T, H, K]");
  for (int i = 1; !status && i < 3; i++) {
    status = pk_shape_expect_same_dtype(call, 0, i);
    if (!status) status = pk_shape_expect(call, i, 5, q->shape, "q");
  }
  if (status) return status;
  int64_t whole[5] = {q->shape[0], q->shape[1], q->shape[2], 3 * q->shape[3], q->shape[4]};
  return set_or_bf16(call, outputs, 1, 5, whole);
}

/* The first count inputs are floats of one dtype and shape. */
static pk_status expect_alike(const pk_call *call, int count, const char *from) {
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  for (int i = 1; !status && i < count; i++) {
    status = pk_shape_expect_same_dtype(call, 0, i);
    if (!status)
      status = pk_shape_expect(call, i, call->inputs[0]->rank, call->inputs[0]->shape, from);
  }
  return status;
}

pk_status pk_shape_swiglu(const pk_call *call, pk_shape *outputs) {
  pk_status status = expect_alike(call, 2, "gate");
  return status ? status : like_or_bf16(call, outputs, 0);
}

pk_status pk_shape_swiglu_grad(const pk_call *call, pk_shape *outputs) {
  pk_status status = expect_alike(call, 3, "g");
  if (!status) status = like_or_bf16(call, &outputs[0], 0);
  return status ? status : like_or_bf16(call, &outputs[1], 0);
}

/* Input i has halves along its last axis, after the worker's; half is its shape with one of them.
 */
static pk_status halve(const pk_call *call, int i, int64_t *half) {
  const pk_tensor *x = call->inputs[i];
  pk_status status = pk_shape_expect_dtype(call, i, PK_ARITHMETIC);
  if (status) return status;
  if (x->rank < 2 || x->shape[x->rank - 1] % 2)
    return pk_shape_refuse(call, "x is not [N, ..., 2f]: gate and up are its halves");
  memcpy(half, x->shape, sizeof x->shape);
  half[x->rank - 1] /= 2;
  return PK_OK;
}

pk_status pk_shape_swiglu_split(const pk_call *call, pk_shape *outputs) {
  int64_t half[PK_MAX_RANK];
  pk_status status = halve(call, 0, half);
  return status ? status : set_or_bf16(call, outputs, 0, call->inputs[0]->rank, half);
}

pk_status pk_shape_swiglu_split_grad(const pk_call *call, pk_shape *outputs) {
  int64_t half[PK_MAX_RANK];
  const pk_tensor *x = call->inputs[1];
  pk_status status = halve(call, 1, half);
  if (!status) status = pk_shape_expect_same_dtype(call, 1, 0);
  if (!status) status = pk_shape_expect(call, 0, x->rank, half, "x [N, ..., 2f]");
  return status ? status : set_or_bf16(call, outputs, 0, x->rank, x->shape);
}

/* q, k and v, from input first on, have one dtype and the same shape [N, B, T, H, K]. */
static pk_status expect_heads(const pk_call *call, int first) {
  const pk_tensor *q = call->inputs[first];
  double scale = call->attributes.numbers[0];
  pk_status status = pk_shape_expect_dtype(call, first, PK_REALS);
  if (!status) status = pk_shape_expect_rank(call, first, 5, "[N, B, T, H, K]");
  for (int i = first + 1; !status && i < first + 3; i++) {
    status = pk_shape_expect_same_dtype(call, first, i);
    if (!status) status = pk_shape_expect(call, i, 5, q->shape, "q");
  }
  if (status) return status;
  if (!(scale > -1e300 && scale < 1e300))
    return pk_shape_refuse(call, "scale %g is not finite", scale);
  return PK_OK;
}

/* Input i has this dtype: what the operands' products have. */
static pk_status expect_product(const pk_call *call, int i, int operand_dtype) {
  return pk_shape_expect_dtype(call, i, 1 << pk_shape_product_dtype(operand_dtype));
}

static void lse_of_heads(const pk_tensor *q, int64_t lse[4]) {
  lse[0] = q->shape[0];
  lse[1] = q->shape[1];
  lse[2] = q->shape[3];
  lse[3] = q->shape[2];
}

pk_status pk_shape_attention(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *q = call->inputs[0];
  pk_status status = expect_heads(call, 0);
  if (status) return status;
  int64_t lse[4];
  lse_of_heads(q, lse);
  int dtype = pk_shape_product_dtype(q->dtype);
  status = pk_shape_set(call, &outputs[0], dtype, 5, q->shape);
  return status ? status : pk_shape_set(call, &outputs[1], dtype, 4, lse);
}

pk_status pk_shape_attention_grad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *q = call->inputs[1];
  pk_status status = expect_heads(call, 1);
  if (status) return status;
  int64_t lse[4];
  lse_of_heads(q, lse);
  const int floats[3] = {0, 4, 5}; /* g, o, lse */
  for (int i = 0; !status && i < 3; i++) status = expect_product(call, floats[i], q->dtype);
  if (!status) status = pk_shape_expect(call, 0, 5, q->shape, "q");
  if (!status) status = pk_shape_expect(call, 4, 5, q->shape, "q");
  if (!status) status = pk_shape_expect(call, 5, 4, lse, "q [N, B, T, H, K]");
  for (int o = 0; !status && o < 3; o++)
    status = pk_shape_set(call, &outputs[o], pk_shape_product_dtype(q->dtype), 5, q->shape);
  return status;
}

/* loss [N], count [N] in f64 and lse [N, R] of a loss over rows [N, R, ...]. */
static pk_status loss_outputs(const pk_call *call, const pk_tensor *rows, pk_shape *outputs) {
  int dtype = pk_shape_product_dtype(rows->dtype);
  pk_status status = pk_shape_set(call, &outputs[0], dtype, 1, rows->shape);
  if (!status) status = pk_shape_set(call, &outputs[1], PK_F64, 1, rows->shape);
  return status ? status : pk_shape_set(call, &outputs[2], dtype, 2, rows->shape);
}

/* targets, input i, are i32 [N, R] for rows [N, R, ...]. */
static pk_status expect_targets(const pk_call *call, int i, const pk_tensor *rows,
                                const char *from) {
  pk_status status = pk_shape_expect_dtype(call, i, PK_INDICES);
  return status ? status : pk_shape_expect(call, i, 2, rows->shape, from);
}

pk_status pk_shape_cross_entropy(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *logits = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_rank(call, 0, 3, "[N, R, V]");
  if (!status) status = expect_targets(call, 1, logits, "logits");
  return status ? status : loss_outputs(call, logits, outputs);
}

pk_status pk_shape_cross_entropy_grad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *logits = call->inputs[1];
  pk_status status = pk_shape_expect_dtype(call, 1, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_rank(call, 1, 3, "[N, R, V]");
  if (!status) status = pk_shape_expect_same_dtype(call, 1, 0);
  if (!status) status = pk_shape_expect_same_dtype(call, 1, 3);
  if (!status) status = pk_shape_expect(call, 0, 1, logits->shape, "logits");
  if (!status) status = expect_targets(call, 2, logits, "logits");
  if (!status) status = pk_shape_expect(call, 3, 2, logits->shape, "logits");
  return status ? status : pk_shape_like(call, outputs, 1);
}

/* x [N, R, d] and weight [N, V, d], from input first on, of one dtype. */
static pk_status expect_linear(const pk_call *call, int first) {
  const pk_tensor *x = call->inputs[first], *weight = call->inputs[first + 1];
  pk_status status = pk_shape_expect_dtype(call, first, PK_REALS);
  if (!status) status = pk_shape_expect_same_dtype(call, first, first + 1);
  if (!status) status = pk_shape_expect_rank(call, first, 3, "[N, R, d]");
  if (!status) status = pk_shape_expect_rank(call, first + 1, 3, "[N, V, d]");
  if (status) return status;
  int64_t extents[3] = {x->shape[0], weight->shape[1], x->shape[2]};
  return pk_shape_expect(call, first + 1, 3, extents, "x [N, R, d]");
}

pk_status pk_shape_linear_cross_entropy(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = expect_linear(call, 0);
  if (!status) status = expect_targets(call, 2, x, "x");
  return status ? status : loss_outputs(call, x, outputs);
}

/* The gradients of x and weight, inputs 1 and 2. */
static pk_status linear_gradients(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[1], *weight = call->inputs[2];
  int dtype = pk_shape_product_dtype(x->dtype);
  pk_status status = pk_shape_set(call, &outputs[0], dtype, 3, x->shape);
  return status ? status : pk_shape_set(call, &outputs[1], dtype, 3, weight->shape);
}

/* g, x, weight, targets. */
static pk_status expect_linear_backward(const pk_call *call) {
  const pk_tensor *x = call->inputs[1];
  pk_status status = expect_linear(call, 1);
  if (!status) status = expect_product(call, 0, x->dtype);
  if (!status) status = pk_shape_expect(call, 0, 1, x->shape, "x");
  return status ? status : expect_targets(call, 3, x, "x");
}

pk_status pk_shape_linear_cross_entropy_grad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[1];
  pk_status status = expect_linear_backward(call);
  if (!status) status = expect_product(call, 4, x->dtype);
  if (!status) status = pk_shape_expect(call, 4, 2, x->shape, "x");
  return status ? status : linear_gradients(call, outputs);
}

pk_status pk_shape_linear_cross_entropy_step(const pk_call *call, pk_shape *outputs) {
  pk_status status = expect_linear_backward(call);
  if (!status && call->attributes.accumulate & 7)
    return pk_shape_refuse(call, "loss, count and lse cannot be added to");
  if (!status) status = loss_outputs(call, call->inputs[1], outputs);
  return status ? status : linear_gradients(call, outputs + 3);
}
