/* Single elements of any dtype, to and from f64, rounded once to nearest even. */
#ifndef PK_DTYPE_H
#define PK_DTYPE_H

#include "cpu/cpu.h"

/* To i32: NaN gives 0, values out of range the nearest that there is. */
static inline int32_t pk_i32_from_f64(double value) {
  double whole = rint(value);
  if (!(whole == whole)) return 0;
  return whole <= INT32_MIN ? INT32_MIN : whole >= INT32_MAX ? INT32_MAX : (int32_t)whole;
}

static inline __attribute__((always_inline)) double pk_load_f64(int dtype, const void *data,
                                                                int64_t index) {
  switch (dtype) {
  case PK_F64:
    return ((const double *)data)[index];
  case PK_F32:
    return ((const float *)data)[index];
  case PK_BF16:
    return pk_bf16_to_f32(((const uint16_t *)data)[index]);
  default:
    return ((const int32_t *)data)[index];
  }
}

static inline __attribute__((always_inline)) void pk_store_f64(int dtype, void *data, int64_t index,
                                                               double value) {
  switch (dtype) {
  case PK_F64:
    ((double *)data)[index] = value;
    break;
  case PK_F32:
    ((float *)data)[index] = (float)value;
    break;
  case PK_BF16:
    ((uint16_t *)data)[index] = pk_bf16_from_f32(pk_f32_to_odd(value));
    break;
  default:
    ((int32_t *)data)[index] = pk_i32_from_f64(value);
  }
}

#endif
