/* bf16 values as f32, for products on a processor without bf16 arithmetic: products of two such
 * values are exact in f32, so what remains different from bf16 hardware is the order of the sums.
 */
#ifndef PK_WIDEN_H
#define PK_WIDEN_H

#include "cpu/cpu.h"

/* How wide rows of scratch are apart: rows that are powers of two long would share cache sets. */
enum { PK_SCRATCH_GAP = 16 };

static inline void pk_widen(const uint16_t *restrict from, float *restrict to, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = pk_bf16_to_f32(from[i]);
}

/* Rounds f32 values to the nearest that bf16 has. */
static inline void pk_round_to_bf16(float *restrict values, int64_t count) {
  for (int64_t i = 0; i < count; i++) values[i] = pk_bf16_rounded(values[i]);
}

/* The element at offset of an f64 or f32 tensor's data; for bf16, count of them widened into
 * scratch. */
static inline const void *pk_widened(const pk_tensor *tensor, int64_t offset, int64_t count,
                                     void *scratch) {
  const char *data = (const char *)pk_tensor_data(tensor) + offset * pk_dtype_size(tensor->dtype);
  if (tensor->dtype != PK_BF16) return data;
  pk_widen((const uint16_t *)(const void *)data, scratch, count);
  return scratch;
}

#endif
