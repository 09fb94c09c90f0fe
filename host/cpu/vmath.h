/* Exponential, logarithm and sigmoid in f32, written so that the compiler vectorises loops over
 * them: no branches, no library calls. Polynomials from Cephes (Moshier). Over all of f32, with
 * subnormals, infinities and NaN, exponential and logarithm are within 1 ulp of the exact value and
 * the sigmoid within 2.5, on every instruction set with the same bits. */
#ifndef PK_VMATH_H
#define PK_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float pk_float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t pk_bits_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* e^x: x = n ln 2 + r, a polynomial in r, and 2^n in two factors so that results below the smallest
 * normal number are rounded once. */
static inline float pk_exp_f32(float x) {
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  /* Beyond these e^x is 0 or infinite in f32; the comparisons let NaN through. */
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted = x * 1.44269504f + shift;
  float n = shifted - shift;
  float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  int32_t whole = (int32_t)(pk_bits_from_float(shifted) - pk_bits_from_float(shift));
  int32_t half = whole >> 1;
  float first = pk_float_from_bits((uint32_t)(half + 127) << 23);
  float second = pk_float_from_bits((uint32_t)(whole - half + 127) << 23);
  return p * first * second;
}

/* ln x: x = 2^n (1 + f) with 1 + f in sqrt(1/2) .. sqrt(2), and a polynomial in f. */
static inline float pk_log_f32(float x) {
  const float smallest_normal = 1.17549435e-38f;
  int32_t subnormal = x < smallest_normal;
  float scaled = subnormal ? x * 8388608.0f : x;
  uint32_t bits = pk_bits_from_float(scaled);
  int32_t n = (int32_t)(bits - 0x3f3504f3u) >> 23;
  float f = pk_float_from_bits(bits - ((uint32_t)n << 23)) - 1.0f;
  float whole = (float)(n - (subnormal ? 23 : 0));
  float square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square;
  p = p + whole * -2.12194440e-4f;
  p = p - 0.5f * square;
  float result = (f + p) + whole * 0.693359375f;
  result = x == 0.0f ? -INFINITY : result;
  result = x < 0.0f ? NAN : result;
  /* Infinity and NaN give themselves. */
  return x < INFINITY ? result : x;
}

/* 1 / (1 + e^-x), from e^-|x|, which neither overflows nor loses the small values at negative x. */
static inline float pk_sigmoid_f32(float x) {
  float e = pk_exp_f32(-fabsf(x));
  float numerator = x < 0.0f ? e : 1.0f;
  return numerator / (1.0f + e);
}

static inline double pk_sigmoid_f64(double x) {
  double e = exp(-fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

#endif
