/* Shape rules: the checks they share, the table, and the rules of elementwise operations and
 * reductions. */
#include "core/shapes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const pk_shape_rule pk_shape_rules[PK_OP_COUNT] = {
#define PK_OP(name, inputs, outputs, attributes, flags, summary) [PK_OP_##name] = pk_shape_##name,
#include "ops.def"
#undef PK_OP
};

const char *pk_shape_text(char text[PK_SHAPE_TEXT], int rank, const int64_t *shape) {
  int used = snprintf(text, PK_SHAPE_TEXT, "[");
  for (int d = 0; d < rank; d++) {
    used += snprintf(text + used, (size_t)(PK_SHAPE_TEXT - used), d ? ", %lld" : "%lld",
                     (long long)shape[d]);
  }
  snprintf(text + used, (size_t)(PK_SHAPE_TEXT - used), "]");
  return text;
}

pk_status pk_shape_refuse(const pk_call *call, const char *format, ...) {
  char message[768];
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  return pk_fail(PK_INVALID, "%s: %s", pk_op_describe(call->op)->name, message);
}

const char *pk_shape_input_name(const pk_call *call, int i, char text[32]) {
  const pk_op_info *info = pk_op_describe(call->op);
  if (info->flags & PK_OP_VARIADIC) {
    snprintf(text, 32, "input %d", i);
    return text;
  }
  const char *word = info->inputs;
  for (int k = 0; k < i; k++) word += strcspn(word, " ") + 1;
  snprintf(text, 32, "%.*s", (int)strcspn(word, " ?!"), word);
  return text;
}

pk_status pk_shape_expect_dtype(const pk_call *call, int i, int set) {
  int dtype = call->inputs[i]->dtype;
  if (set >> dtype & 1) return PK_OK;
  char name[32];
  pk_shape_input_name(call, i, name);
  if (set == PK_ARITHMETIC)
    return pk_shape_refuse(call, "%s is %s: arithmetic is done in f32 and f64, cast it first", name,
                           pk_dtype_name(dtype));
  if (set == PK_REALS)
    return pk_shape_refuse(call, "%s is %s: f64, f32 or bf16 is wanted, cast it first", name,
                           pk_dtype_name(dtype));
  for (int wanted = PK_F64; wanted <= PK_I32; wanted++)
    if (set == 1 << wanted)
      return pk_shape_refuse(call, "%s is %s, but %s is wanted", name, pk_dtype_name(dtype),
                             pk_dtype_name(wanted));
  return pk_shape_refuse(call, "%s is %s", name, pk_dtype_name(dtype));
}

pk_status pk_shape_expect_same_dtype(const pk_call *call, int i, int j) {
  int first = call->inputs[i]->dtype, second = call->inputs[j]->dtype;
  if (first == second) return PK_OK;
  char a[32], b[32];
  return pk_shape_refuse(call, "%s is %s, but %s is %s: cast one of them",
                         pk_shape_input_name(call, i, a), pk_dtype_name(first),
                         pk_shape_input_name(call, j, b), pk_dtype_name(second));
}

pk_status pk_shape_expect_rank(const pk_call *call, int i, int rank, const char *wanted) {
  const pk_tensor *x = call->inputs[i];
  if (x->rank == rank) return PK_OK;
  char name[32], text[PK_SHAPE_TEXT];
  return pk_shape_refuse(call, "%s %s must be %s", pk_shape_input_name(call, i, name),
                         pk_shape_text(text, x->rank, x->shape), wanted);
}

pk_status pk_shape_expect(const pk_call *call, int i, int rank, const int64_t *extents,
                          const char *from) {
  const pk_tensor *x = call->inputs[i];
  bool equal = x->rank == rank;
  for (int d = 0; equal && d < rank; d++) equal = x->shape[d] == extents[d];
  if (equal) return PK_OK;
  char name[32], text[PK_SHAPE_TEXT], wanted[PK_SHAPE_TEXT];
  pk_shape_input_name(call, i, name);
  pk_shape_text(text, x->rank, x->shape);
  pk_shape_text(wanted, rank, extents);
  if (!from) return pk_shape_refuse(call, "%s %s must be %s", name, text, wanted);
  return pk_shape_refuse(call, "%s %s must be %s, as %s says", name, text, wanted, from);
}

pk_status pk_shape_set(const pk_call *call, pk_shape *output, int dtype, int64_t rank,
                       const int64_t *extents) {
  if (rank < 0 || rank > PK_MAX_RANK)
    return pk_shape_refuse(call, "a result of %lld dimensions, but %d is the most", (long long)rank,
                           PK_MAX_RANK);
  output->dtype = dtype;
  output->rank = (int32_t)rank;
  char text[PK_SHAPE_TEXT];
  for (int d = 0; d < rank; d++) {
    if (extents[d] < 0)
      return pk_shape_refuse(call, "a negative extent in shape %s",
                             pk_shape_text(text, (int)rank, extents));
    output->extents[d] = extents[d];
  }
  if (!pk_shape_fits((int)rank, extents))
    return pk_shape_refuse(call, "shape %s is too large", pk_shape_text(text, (int)rank, extents));
  return PK_OK;
}

pk_status pk_shape_like(const pk_call *call, pk_shape *output, int i) {
  const pk_tensor *x = call->inputs[i];
  return pk_shape_set(call, output, x->dtype, x->rank, x->shape);
}

pk_status pk_shape_expect_axis(const pk_call *call, int i, int64_t axis) {
  const pk_tensor *x = call->inputs[i];
  if (axis >= 0 && axis < x->rank) return PK_OK;
  char name[32], text[PK_SHAPE_TEXT];
  return pk_shape_refuse(call, "axis %lld is not one of the %d of %s %s", (long long)axis, x->rank,
                         pk_shape_input_name(call, i, name),
                         pk_shape_text(text, x->rank, x->shape));
}

int pk_shape_product_dtype(int dtype) {
  return dtype == PK_BF16 ? PK_F32 : dtype;
}

/* Extent d of rank, counted as if x had that rank: missing ones in front are 1. */
static int64_t extent_of(const pk_tensor *x, int rank, int d) {
  int own = d - (rank - x->rank);
  return own < 0 ? 1 : x->shape[own];
}

/* Inputs i and j have extents that are equal or 1. */
static pk_status expect_broadcast(const pk_call *call, int i, int j) {
  const pk_tensor *a = call->inputs[i], *b = call->inputs[j];
  int rank = a->rank > b->rank ? a->rank : b->rank;
  for (int d = 0; d < rank; d++) {
    int64_t extent_a = extent_of(a, rank, d), extent_b = extent_of(b, rank, d);
    if (extent_a == extent_b || extent_a == 1 || extent_b == 1) continue;
    char name_a[32], name_b[32], text_a[PK_SHAPE_TEXT], text_b[PK_SHAPE_TEXT];
    return pk_shape_refuse(
        call, "%s %s and %s %s do not broadcast: %lld is not %lld",
        pk_shape_input_name(call, i, name_a), pk_shape_text(text_a, a->rank, a->shape),
        pk_shape_input_name(call, j, name_b), pk_shape_text(text_b, b->rank, b->shape),
        (long long)extent_a, (long long)extent_b);
  }
  return PK_OK;
}

/* All inputs broadcast to one shape: aligned at the right, extents 1 or missing repeat. */
pk_status pk_shape_broadcast(const pk_call *call, pk_shape *outputs) {
  int rank = 0;
  for (int i = 0; i < call->n_inputs; i++) {
    pk_status status = pk_shape_expect_dtype(call, i, PK_ARITHMETIC);
    if (!status) status = pk_shape_expect_same_dtype(call, 0, i);
    for (int j = 0; j < i && !status; j++) status = expect_broadcast(call, j, i);
    if (status) return status;
    if (call->inputs[i]->rank > rank) rank = call->inputs[i]->rank;
  }
  int64_t extents[PK_MAX_RANK];
  for (int d = 0; d < rank; d++) {
    extents[d] = 1;
    for (int i = 0; i < call->n_inputs && extents[d] == 1; i++)
      extents[d] = extent_of(call->inputs[i], rank, d);
  }
  return pk_shape_set(call, outputs, call->inputs[0]->dtype, rank, extents);
}

pk_status pk_shape_map(const pk_call *call, pk_shape *outputs) {
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  return status ? status : pk_shape_like(call, outputs, 0);
}

pk_status pk_shape_cast(const pk_call *call, pk_shape *outputs) {
  int64_t dtype = call->attributes.integers[0];
  if (dtype < PK_F64 || dtype > PK_I32)
    return pk_shape_refuse(call, "%lld is not the number of a dtype", (long long)dtype);
  const pk_tensor *x = call->inputs[0];
  return pk_shape_set(call, outputs, (int)dtype, x->rank, x->shape);
}

pk_status pk_shape_copy(const pk_call *call, pk_shape *outputs) {
  /* Adding into an output is arithmetic; a plain copy is not. */
  pk_status status = PK_OK;
  if (call->attributes.accumulate) status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  return status ? status : pk_shape_like(call, outputs, 0);
}

/* Sum, mean and largest value over axes; no axes means all of them. */
pk_status pk_shape_reduce(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  const pk_attributes *attributes = &call->attributes;
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (status) return status;
  bool reduced[PK_MAX_RANK] = {false};
  for (int i = 0; i < attributes->list_count; i++) {
    status = pk_shape_expect_axis(call, 0, attributes->list[i]);
    if (status) return status;
    if (reduced[attributes->list[i]])
      return pk_shape_refuse(call, "axis %lld is given twice", (long long)attributes->list[i]);
    reduced[attributes->list[i]] = true;
  }
  int64_t extents[PK_MAX_RANK], count = 1;
  int rank = 0;
  for (int d = 0; d < x->rank; d++) {
    bool over = attributes->list_count == 0 || reduced[d];
    if (over) count *= x->shape[d];
    if (!over || attributes->integers[0]) extents[rank++] = over ? 1 : x->shape[d];
  }
  if (count == 0 && call->op == PK_OP_max) {
    char text[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "x %s has no largest value over an extent of 0",
                           pk_shape_text(text, x->rank, x->shape));
  }
  return pk_shape_set(call, outputs, x->dtype, rank, extents);
}

pk_status pk_shape_sum_to(const pk_call *call, pk_shape *outputs) {
  const pk_tensor *x = call->inputs[0];
  const pk_attributes *attributes = &call->attributes;
  pk_status status = pk_shape_expect_dtype(call, 0, PK_ARITHMETIC);
  if (status) return status;
  int rank = attributes->list_count;
  bool fits = rank <= x->rank;
  for (int d = 0; fits && d < rank; d++) {
    int64_t extent = attributes->list[d];
    fits = extent == 1 || extent == x->shape[x->rank - rank + d];
  }
  if (!fits) {
    char from[PK_SHAPE_TEXT], to[PK_SHAPE_TEXT];
    return pk_shape_refuse(call, "shape %s does not broadcast to x %s",
                           pk_shape_text(to, rank, attributes->list),
                           pk_shape_text(from, x->rank, x->shape));
  }
  return pk_shape_set(call, outputs, x->dtype, rank, attributes->list);
}
