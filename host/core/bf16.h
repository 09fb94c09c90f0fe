/* bf16, the upper half of an f32, to and from wider numbers. */
#ifndef PK_BF16_H
#define PK_BF16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float pk_bf16_to_f32(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* The bf16 nearest to value, ties to even, as f32; NaN stays NaN. */
static inline float pk_bf16_rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  uint32_t quiet = bits | 0x400000u;
  bits = ((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) & 0xffff0000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint16_t pk_bf16_from_f32(float value) {
  float rounded = pk_bf16_rounded(value);
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return (uint16_t)(bits >> 16);
}

/* Rounds to f32 by making the last bit odd where bits are lost, so that rounding the result again
 * to fewer bits is as if done at once. */
static inline float pk_f32_to_odd(double value) {
  float rounded = (float)value;
  if ((double)rounded == value || value != value) return rounded;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  bits -= fabs((double)rounded) > fabs(value); /* towards zero */
  bits |= 1;
  memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

#endif
