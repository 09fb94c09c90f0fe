/* Shape rules of the operations that move, make, look up and multiply. */
#include "core/shapes.h"

pk_status pk_shape_reshape(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  const pk_attributes *attributes = &call->attributes;
  int rank = attributes->list_count, open = -1;
  int64_t extents[PK_MAX_RANK], known = 1;
  char from[PK_SHAPE_TEXT], to[PK_SHAPE_TEXT];
  pk_shape_text(from, x->rank, x->shape);
  pk_shape_text(to, rank, attributes->list);
  for (int d = 0; d < rank; d++) {
    int64_t extent = extents[d] = attributes->list[d];
    if (extent < -1) return pk_shape_refuse(call, "a negative extent in shape %s", to);
    if (extent == -1 && open >= 0) return pk_shape_refuse(call, "more than one -1 in shape %s", to);
    if (extent == -1)
      open = d;
    else if (__builtin_mul_overflow(known, extent, &known))
      return pk_shape_refuse(call, "shape %s is too large", to);
  }
  if (open >= 0 && known > 0 && x->numel % known == 0) {
    extents[open] = x->numel / known;
    known = x->numel;
  } else if (open >= 0) {
    known = -1;
  }
  if (known != x->numel)
    return pk_shape_refuse(call, "x %s has %lld elements, which do not fill shape %s", from,
                           (long long)x->numel, to);
  return pk_shape_set(call, outputs, x->dtype, rank, extents);
}

pk_status pk_shape_transpose(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  const pk_attributes *attributes = &call->attributes;
  char from[PK_SHAPE_TEXT], permutation[PK_SHAPE_TEXT];
  bool valid = attributes->list_count == x->rank, seen[PK_MAX_RANK] = {false};
  int64_t extents[PK_MAX_RANK];
  for (int d = 0; valid && d < x->rank; d++) {
    int64_t source = attributes->list[d];
    valid = source >= 0 && source < x->rank && !seen[source];
    if (!valid) break;
    seen[source] = true;
    extents[d] = x->shape[source];
  }
  if (!valid)
    return pk_shape_refuse(call, "%s is not a permutation of the %d dimensions of x %s",
                           pk_shape_text(permutation, attributes->list_count, attributes->list),
                           x->rank, pk_shape_text(from, x->rank, x->shape));
  return pk_shape_set(call, outputs, x->dtype, x->rank, extents);
}

pk_status pk_shape_slice(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  int64_t axis = call->attributes.integers[0], start = call->attributes.integers[1],
          count = call->attributes.integers[2];
  pk_status status = pk_shape_expect_axis(call, 0, axis);
  if (status) return status;
  if (start < 0 || count < 0 || start > x->shape[axis] || count > x->shape[axis] - start) {
    char text[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "%lld entries from %lld are not within axis %lld of x %s",
                           (long long)count, (long long)start, (long long)axis,
                           pk_shape_text(text, x->rank, x->shape));
  }
  status = pk_shape_like(call, outputs, 0);
  outputs->extents[axis] = count;
  return status;
}

pk_status pk_shape_pad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  int64_t axis = call->attributes.integers[0], before = call->attributes.integers[1],
          after = call->attributes.integers[2];
  pk_status status = pk_shape_expect_axis(call, 0, axis);
  if (status) return status;
  int64_t extents[PK_MAX_RANK];
  for (int d = 0; d < x->rank; d++) extents[d] = x->shape[d];
  if (before < 0 || after < 0 || __builtin_add_overflow(extents[axis], before, &extents[axis]) ||
      __builtin_add_overflow(extents[axis], after, &extents[axis]))
    return pk_shape_refuse(call, "cannot pad by %lld before and %lld after", (long long)before,
                           (long long)after);
  return pk_shape_set(call, outputs, x->dtype, x->rank, extents);
}

pk_status pk_shape_concat(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *first = call->inputs[0];
  int64_t axis = call->attributes.integers[0];
  pk_status status = pk_shape_expect_axis(call, 0, axis);
  if (status) return status;
  int64_t extents[PK_MAX_RANK];
  for (int d = 0; d < first->rank; d++) extents[d] = first->shape[d];
  for (int i = 1; i < call->n_inputs; i++) {
    const pk_tensor *x = call->inputs[i];
    status = pk_shape_expect_same_dtype(call, 0, i);
    if (status) return status;
    bool fits = x->rank == first->rank;
    for (int d = 0; fits && d < x->rank; d++) fits = d == axis || x->shape[d] == first->shape[d];
    fits = fits && !__builtin_add_overflow(extents[axis], x->shape[axis], &extents[axis]);
    if (!fits) {
      char text[PK_SHAPE_TEXT], other[PK_SHAPE_TEXT];
      return pk_shape_refuse(call, "input %d %s does not continue input 0 %s along axis %lld", i,
                             pk_shape_text(text, x->rank, x->shape),
                             pk_shape_text(other, first->rank, first->shape), (long long)axis);
    }
  }
  return pk_shape_set(call, outputs, first->dtype, first->rank, extents);
}

pk_status pk_shape_expand(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  const pk_attributes *attributes = &call->attributes;
  int rank = attributes->list_count;
  bool fits = rank >= x->rank;
  for (int d = 0; fits && d < x->rank; d++)
    fits = x->shape[d] == 1 || x->shape[d] == attributes->list[rank - x->rank + d];
  if (!fits) {
    char from[PK_SHAPE_TEXT], to[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "x %s does not broadcast to shape %s",
                           pk_shape_text(from, x->rank, x->shape),
                           pk_shape_text(to, rank, attributes->list));
  }
  return pk_shape_set(call, outputs, x->dtype, rank, attributes->list);
}

pk_status pk_shape_causal_mask(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (status) return status;
  if (x->rank < 2 || x->shape[x->rank - 1] != x->shape[x->rank - 2]) {
    char text[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "x %s must be [..., T, T]",
                           pk_shape_text(text, x->rank, x->shape));
  }
  return pk_shape_like(call, outputs, 0);
}

static pk_status made(const pk_call *call, pk_shape *outputs, int set) {
  const pk_attributes *attributes = &call->attributes;
  int64_t dtype = attributes->integers[0];
  if (dtype < PK_F64 || dtype > PK_I32)
    return pk_shape_refuse(call, "%lld is not the number of a dtype", (long long)dtype);
  if (!(set >> dtype & 1))
    return pk_shape_refuse(call, "%s cannot be made: f64, f32 or bf16 is wanted",
                           pk_dtype_name((int)dtype));
  return pk_shape_set(call, outputs, (int)dtype, attributes->list_count, attributes->list);
}

pk_status pk_shape_fill(const pk_call *call, pk_shape *outputs) {
  double value = call->attributes.numbers[0];
  if (call->attributes.integers[0] == PK_I32 &&
      !(value >= INT32_MIN && value <= INT32_MAX && value == (double)(int32_t)value))
    return pk_shape_refuse(call, "%.17g is not an i32", value);
  return made(call, outputs, PK_ANY_DTYPE);
}

pk_status pk_shape_random(const pk_call *call, pk_shape *outputs) {
  return made(call, outputs, PK_REALS);
}

pk_status pk_shape_matmul(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *a = call->inputs[0], *b = call->inputs[1];
  bool transpose_a = call->attributes.integers[0], transpose_b = call->attributes.integers[1];
  char text_a[PK_SHAPE_TEXT], text_b[PK_SHAPE_TEXT];
  pk_shape_text(text_a, a->rank, a->shape);
  pk_shape_text(text_b, b->rank, b->shape);
  pk_status status = pk_shape_expect_dtype(call, 0, PK_REALS);
  if (!status) status = pk_shape_expect_same_dtype(call, 0, 1);
  if (status) return status;
  if (a->rank != b->rank || a->rank < 2 || a->rank > 3)
    return pk_shape_refuse(call, "a %s and b %s must both be [N, rows, columns] or [rows, columns]",
                           text_a, text_b);
  int row = a->rank - 2, column = a->rank - 1;
  int64_t inner_a = a->shape[transpose_a ? row : column],
          inner_b = b->shape[transpose_b ? column : row];
  if (inner_a != inner_b)
    return pk_shape_refuse(call, "a %s and b %s do not agree: %lld is not %lld", text_a, text_b,
                           (long long)inner_a, (long long)inner_b);
  if (a->rank == 3 && a->shape[0] != b->shape[0])
    return pk_shape_refuse(call, "a %s and b %s do not agree: %lld workers are not %lld", text_a,
                           text_b, (long long)a->shape[0], (long long)b->shape[0]);
  int64_t extents[3] = {a->shape[0]};
  extents[row] = a->shape[transpose_a ? column : row];
  extents[column] = b->shape[transpose_b ? row : column];
  return pk_shape_set(call, outputs, pk_shape_product_dtype(a->dtype), a->rank, extents);
}

/* ids (input 1) are i32 [N, ...] for as many workers as input 0 has. */
static pk_status expect_ids(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *ids = call->inputs[1];
  pk_status status = pk_shape_expect_dtype(call, 1, PK_INDICES);
  if (status) return status;
  if (ids->rank >= 1 && ids->shape[0] == x->shape[0]) return PK_OK;
  char text[PK_SHAPE_TEXT], other[PK_SHAPE_TEXT], name[32];
  return pk_shape_refuse(call, "ids %s must have the %lld workers of %s %s first",
                         pk_shape_text(text, ids->rank, ids->shape), (long long)x->shape[0],
                         pk_shape_input_name(call, 0, name),
                         pk_shape_text(other, x->rank, x->shape));
}

static pk_status expect_vocabulary(const pk_call *call) {
  int64_t vocabulary = call->attributes.integers[0];
  if (vocabulary >= 1 && vocabulary <= INT32_MAX) return PK_OK;
  return pk_shape_refuse(call, "vocabulary %lld is not in 1 .. 2147483647", (long long)vocabulary);
}

pk_status pk_shape_embedding(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *weight = call->inputs[0], *ids = call->inputs[1];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_REALS);
  if (!status) status = pk_shape_expect_rank(call, 0, 3, "[N, V, d]");
  if (!status) status = expect_ids(call);
  if (status) return status;
  int64_t extents[PK_MAX_RANK + 1];
  for (int d = 0; d < ids->rank; d++) extents[d] = ids->shape[d];
  extents[ids->rank] = weight->shape[2];
  return pk_shape_set(call, outputs, weight->dtype, ids->rank + 1, extents);
}

pk_status pk_shape_embedding_grad(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *g = call->inputs[0], *ids = call->inputs[1];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status)
    status = pk_shape_expect_rank(call, 0, ids->rank + 1, "[N, ..., d] for ids [N, ...]");
  if (!status) status = expect_ids(call);
  if (!status) status = pk_shape_expect(call, 1, g->rank - 1, g->shape, "g");
  if (!status) status = expect_vocabulary(call);
  if (status) return status;
  int64_t extents[3] = {g->shape[0], call->attributes.integers[0], g->shape[g->rank - 1]};
  return pk_shape_set(call, outputs, g->dtype, 3, extents);
}

pk_status pk_shape_pick(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_dtype(call, 1, PK_INDICES);
  if (!status) status = pk_shape_expect_rank(call, 0, 3, "[N, R, V]");
  if (!status) status = pk_shape_expect(call, 1, 2, x->shape, "x");
  return status ? status : pk_shape_set(call, outputs, x->dtype, 2, x->shape);
}

pk_status pk_shape_unpick(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *g = call->inputs[0];
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (!status) status = pk_shape_expect_dtype(call, 1, PK_INDICES);
  if (!status) status = pk_shape_expect_rank(call, 0, 2, "[N, R]");
  if (!status) status = pk_shape_expect(call, 1, 2, g->shape, "g");
  if (!status) status = expect_vocabulary(call);
  if (status) return status;
  int64_t extents[3] = {g->shape[0], g->shape[1], call->attributes.integers[0]};
  return pk_shape_set(call, outputs, g->dtype, 3, extents);
}
