/* Elementwise operations of one and two inputs, casts and copies.
 *
 * Every loop is generated from one function whose operation is a constant argument, so that the
 * choice is made outside the loop and the compiler vectorises each. */
#include "cpu/vmath.h"
#include "cpu/walk.h"

#define INLINE static inline __attribute__((always_inline))

/* --- two inputs --- */

INLINE float pair_f32(int op, float a, float b) {
  switch (op) {
  case PK_OP_minimum:
    return a < b || a != a ? a : b;
  case PK_OP_maximum:
    return a > b || a != a ? a : b;
  case PK_OP_less:
    return a < b ? (float)1 : (float)0;
  case PK_OP_add:
    return a + b;
  case PK_OP_subtract:
    return a - b;
  case PK_OP_multiply:
    return a * b;
  default:
    return a / b;
  }
}

INLINE double pair_f64(int op, double a, double b) {
  switch (op) {
  case PK_OP_minimum:
    return a < b || a != a ? a : b;
  case PK_OP_maximum:
    return a > b || a != a ? a : b;
  case PK_OP_less:
    return a < b ? (double)1 : (double)0;
  case PK_OP_add:
    return a + b;
  case PK_OP_subtract:
    return a - b;
  case PK_OP_multiply:
    return a * b;
  default:
    return a / b;
  }
}

INLINE void pair_row_f32(int op, int64_t count, char *const data[PK_WALK_BLOCKS],
                         const int64_t strides[PK_WALK_BLOCKS]) {
  float *y = (float *)data[0];
  const float *a = (const float *)data[1], *b = (const float *)data[2];
  int64_t sy = strides[0], sa = strides[1], sb = strides[2];
  if (sy == 1 && sa == 1 && sb == 1) {
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i] = pair_f32(op, a[i], b[i]);
  } else if (sy == 1 && sa == 1 && sb == 0) {
    float value = b[0];
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i] = pair_f32(op, a[i], value);
  } else if (sy == 1 && sa == 0 && sb == 1) {
    float value = a[0];
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i] = pair_f32(op, value, b[i]);
  } else {
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i * sy] = pair_f32(op, a[i * sa], b[i * sb]);
  }
}

INLINE void pair_row_f64(int op, int64_t count, char *const data[PK_WALK_BLOCKS],
                         const int64_t strides[PK_WALK_BLOCKS]) {
  double *y = (double *)data[0];
  const double *a = (const double *)data[1], *b = (const double *)data[2];
  int64_t sy = strides[0], sa = strides[1], sb = strides[2];
  if (sy == 1 && sa == 1 && sb == 1) {
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i] = pair_f64(op, a[i], b[i]);
  } else {
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i * sy] = pair_f64(op, a[i * sa], b[i * sb]);
  }
}

INLINE void pair_row(int op, int dtype, int64_t count, char *const data[PK_WALK_BLOCKS],
                     const int64_t strides[PK_WALK_BLOCKS]) {
  if (dtype == PK_F32)
    pair_row_f32(op, count, data, strides);
  else
    pair_row_f64(op, count, data, strides);
}

static void pair_walk_row(const void *options, int64_t count, char *const data[PK_WALK_BLOCKS],
                          const int64_t strides[PK_WALK_BLOCKS]) {
  const pk_call *call = options;
  int dtype = call->outputs[0]->dtype;
  switch (call->op) {
  case PK_OP_add:
    pair_row(PK_OP_add, dtype, count, data, strides);
    break;
  case PK_OP_subtract:
    pair_row(PK_OP_subtract, dtype, count, data, strides);
    break;
  case PK_OP_multiply:
    pair_row(PK_OP_multiply, dtype, count, data, strides);
    break;
  case PK_OP_minimum:
    pair_row(PK_OP_minimum, dtype, count, data, strides);
    break;
  case PK_OP_maximum:
    pair_row(PK_OP_maximum, dtype, count, data, strides);
    break;
  case PK_OP_less:
    pair_row(PK_OP_less, dtype, count, data, strides);
    break;
  default:
    pair_row(PK_OP_divide, dtype, count, data, strides);
  }
}

static pk_status run_pair(const pk_call *call) {
  pk_block blocks[3] = {pk_block_of(call->outputs[0])};
  for (int i = 0; i < 2; i++)
    blocks[1 + i] =
        pk_block_spread(pk_block_of(call->inputs[i]), blocks[0].rank, blocks[0].extents);
  pk_walk(pk_cpu_threads(call), 3, blocks, pair_walk_row, call);
  return PK_OK;
}

pk_status PK_KERNEL(add)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(subtract)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(multiply)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(divide)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(minimum)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(maximum)(const pk_call *call) {
  return run_pair(call);
}

pk_status PK_KERNEL(less)(const pk_call *call) {
  return run_pair(call);
}

/* --- one input --- */

INLINE float map_f32(int op, float x, float scale, float shift) {
  switch (op) {
  case PK_OP_abs:
    return fabsf(x);
  case PK_OP_sign:
    return x > 0 ? (float)1 : x < 0 ? (float)-1 : x;
  case PK_OP_round:
    return rintf(x);
  case PK_OP_floor:
    return floorf(x);
  case PK_OP_affine:
    return scale * x + shift;
  case PK_OP_negate:
    return -x;
  case PK_OP_exp:
    return pk_exp_f32(x);
  case PK_OP_log:
    return pk_log_f32(x);
  case PK_OP_sqrt:
    return sqrtf(x);
  case PK_OP_rsqrt:
    return 1.0f / sqrtf(x);
  case PK_OP_sigmoid:
    return pk_sigmoid_f32(x);
  default:
    return x * pk_sigmoid_f32(x);
  }
}

INLINE double map_f64(int op, double x, double scale, double shift) {
  switch (op) {
  case PK_OP_abs:
    return fabs(x);
  case PK_OP_sign:
    return x > 0 ? (double)1 : x < 0 ? (double)-1 : x;
  case PK_OP_round:
    return rint(x);
  case PK_OP_floor:
    return floor(x);
  case PK_OP_affine:
    return scale * x + shift;
  case PK_OP_negate:
    return -x;
  case PK_OP_exp:
    return exp(x);
  case PK_OP_log:
    return log(x);
  case PK_OP_sqrt:
    return sqrt(x);
  case PK_OP_rsqrt:
    return 1.0 / sqrt(x);
  case PK_OP_sigmoid:
    return pk_sigmoid_f64(x);
  default:
    return x * pk_sigmoid_f64(x);
  }
}

INLINE void map_row(int op, const pk_call *call, int64_t count, char *const data[PK_WALK_BLOCKS],
                    const int64_t strides[PK_WALK_BLOCKS]) {
  double scale = call->attributes.numbers[0], shift = call->attributes.numbers[1];
  float scale_f32 = (float)scale, shift_f32 = (float)shift;
  int64_t sy = strides[0], sx = strides[1];
  if (call->outputs[0]->dtype == PK_F32) {
    float *y = (float *)data[0];
    const float *x = (const float *)data[1];
    if (sy == 1 && sx == 1) {
      PK_EACH
      for (int64_t i = 0; i < count; i++) y[i] = map_f32(op, x[i], scale_f32, shift_f32);
    } else {
      PK_EACH
      for (int64_t i = 0; i < count; i++) y[i * sy] = map_f32(op, x[i * sx], scale_f32, shift_f32);
    }
  } else {
    double *y = (double *)data[0];
    const double *x = (const double *)data[1];
    PK_EACH
    for (int64_t i = 0; i < count; i++) y[i * sy] = map_f64(op, x[i * sx], scale, shift);
  }
}

static void map_walk_row(const void *options, int64_t count, char *const data[PK_WALK_BLOCKS],
                         const int64_t strides[PK_WALK_BLOCKS]) {
  const pk_call *call = options;
  switch (call->op) {
  case PK_OP_affine:
    map_row(PK_OP_affine, call, count, data, strides);
    break;
  case PK_OP_negate:
    map_row(PK_OP_negate, call, count, data, strides);
    break;
  case PK_OP_abs:
    map_row(PK_OP_abs, call, count, data, strides);
    break;
  case PK_OP_sign:
    map_row(PK_OP_sign, call, count, data, strides);
    break;
  case PK_OP_round:
    map_row(PK_OP_round, call, count, data, strides);
    break;
  case PK_OP_floor:
    map_row(PK_OP_floor, call, count, data, strides);
    break;
  case PK_OP_exp:
    map_row(PK_OP_exp, call, count, data, strides);
    break;
  case PK_OP_log:
    map_row(PK_OP_log, call, count, data, strides);
    break;
  case PK_OP_sqrt:
    map_row(PK_OP_sqrt, call, count, data, strides);
    break;
  case PK_OP_rsqrt:
    map_row(PK_OP_rsqrt, call, count, data, strides);
    break;
  case PK_OP_sigmoid:
    map_row(PK_OP_sigmoid, call, count, data, strides);
    break;
  default:
    map_row(PK_OP_silu, call, count, data, strides);
  }
}

static pk_status run_map(const pk_call *call) {
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  pk_walk(pk_cpu_threads(call), 2, blocks, map_walk_row, call);
  return PK_OK;
}

pk_status PK_KERNEL(affine)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(negate)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(abs)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(sign)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(round)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(floor)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(exp)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(log)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(sqrt)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(rsqrt)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(sigmoid)(const pk_call *call) {
  return run_map(call);
}

pk_status PK_KERNEL(silu)(const pk_call *call) {
  return run_map(call);
}
