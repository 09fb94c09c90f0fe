/* Casts between all dtypes, each rounded once, and copies. */
#include "cpu/dtype.h"
#include "cpu/walk.h"

#define INLINE static inline __attribute__((always_inline))

/* Through f64, which holds every value of the other dtypes. */
INLINE void cast_through_f64(int to, int from, int64_t count, char *const data[3],
                             const int64_t strides[3]) {
  for (int64_t i = 0; i < count; i++)
    pk_store_f64(to, data[0], i * strides[0], pk_load_f64(from, data[1], i * strides[1]));
}

INLINE void cast_from(int from, int to, int64_t count, char *const data[3],
                      const int64_t strides[3]) {
  switch (to) {
  case PK_F64:
    cast_through_f64(PK_F64, from, count, data, strides);
    break;
  case PK_F32:
    cast_through_f64(PK_F32, from, count, data, strides);
    break;
  case PK_BF16:
    cast_through_f64(PK_BF16, from, count, data, strides);
    break;
  default:
    cast_through_f64(PK_I32, from, count, data, strides);
  }
}

/* The two casts of mixed precision, straight and dense. */
static void cast_f32_to_bf16(int64_t count, uint16_t *restrict y, const float *restrict x) {
  for (int64_t i = 0; i < count; i++) y[i] = pk_bf16_from_f32(x[i]);
}

static void cast_bf16_to_f32(int64_t count, float *restrict y, const uint16_t *restrict x) {
  for (int64_t i = 0; i < count; i++) y[i] = pk_bf16_to_f32(x[i]);
}

static void cast_row(const void *options, int64_t count, char *const data[3],
                     const int64_t strides[3]) {
  const pk_call *call = options;
  int from = call->inputs[0]->dtype, to = call->outputs[0]->dtype;
  bool straight = strides[0] == 1 && strides[1] == 1;
  if (straight && from == PK_F32 && to == PK_BF16) {
    cast_f32_to_bf16(count, (uint16_t *)data[0], (const float *)data[1]);
  } else if (straight && from == PK_BF16 && to == PK_F32) {
    cast_bf16_to_f32(count, (float *)data[0], (const uint16_t *)data[1]);
  } else if (from == PK_F64) {
    cast_from(PK_F64, to, count, data, strides);
  } else if (from == PK_F32) {
    cast_from(PK_F32, to, count, data, strides);
  } else if (from == PK_BF16) {
    cast_from(PK_BF16, to, count, data, strides);
  } else {
    cast_from(PK_I32, to, count, data, strides);
  }
}

static void add_row(const void *options, int64_t count, char *const data[3],
                    const int64_t strides[3]) {
  const pk_call *call = options;
  int64_t sy = strides[0], sx = strides[1];
  if (call->outputs[0]->dtype == PK_F32) {
    float *restrict y = (float *)data[0];
    const float *restrict x = (const float *)data[1];
    for (int64_t i = 0; i < count; i++) y[i * sy] += x[i * sx];
  } else {
    double *restrict y = (double *)data[0];
    const double *restrict x = (const double *)data[1];
    for (int64_t i = 0; i < count; i++) y[i * sy] += x[i * sx];
  }
}

pk_status PK_KERNEL(copy)(const pk_call *call) {
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  if (call->attributes.accumulate)
    pk_walk(pk_cpu_threads(call), 2, blocks, add_row, call);
  else
    pk_block_copy(pk_cpu_threads(call), &blocks[0], &blocks[1]);
  return PK_OK;
}

pk_status PK_KERNEL(cast)(const pk_call *call) {
  if (call->inputs[0]->dtype == call->outputs[0]->dtype) return PK_KERNEL(copy)(call);
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  pk_walk(pk_cpu_threads(call), 2, blocks, cast_row, call);
  return PK_OK;
}
