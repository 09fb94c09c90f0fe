/* The arithmetic of random numbers (random.c says what it is), for the host and for kernels: both
 * must round alike, so products and sums are not contracted in either. */
#ifndef PK_RANDOM_H
#define PK_RANDOM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define PK_RANDOM static __device__ __forceinline__
#else
#define PK_RANDOM static inline
#endif

/* --- words --------------------------------------------------------------------------------- */

/* Philox4x32-10. */
PK_RANDOM void pk_random_rounds(const uint32_t counter[4], const uint32_t key[2],
                                uint32_t words[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

/* The four words of elements 4 block .. 4 block + 3. */
PK_RANDOM void pk_random_words(const uint32_t key[2], uint64_t block, uint32_t words[4]) {
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
  pk_random_rounds(counter, key, words);
}

/* The same of a stream that a training step has for itself: of the streams above no one has its
 * counters. */
PK_RANDOM void pk_random_step_words(const uint32_t key[2], uint64_t block, uint32_t step,
                                    uint32_t words[4]) {
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), step, 1};
  pk_random_rounds(counter, key, words);
}

/* The step that a number counts, 0 where it is not in 0 .. 2^32-1. */
PK_RANDOM uint32_t pk_random_step_of(double counter) {
  return counter >= 0 && counter < 4294967296.0 ? (uint32_t)counter : 0;
}

/* A word as a number in [0, 1) that f32 holds too. */
PK_RANDOM double pk_random_column(uint32_t word) {
  return (double)(word >> 8) * 0x1p-24;
}

/* --- logarithm, sine and cosine ------------------------------------------------------------- */

/* ln x of a normal x > 0, within 1 ulp. With x = 2^k (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2), and
 * s = f / (2 + f): ln(1 + f) = 2 atanh(s) = f - f^2/2 + s (f^2/2 + R), R = 2 s^2/3 + 2 s^4/5 + ...,
 * of which f, the largest part, is exact. ln 2 is a sum of two, k times the first of which is
 * exact. */
PK_RANDOM double pk_random_logarithm(double x) {
  const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
  const uint64_t half_bits = UINT64_C(0x3FE6A09E667F3BCD); /* 1/sqrt(2) */
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int64_t exponent = (int64_t)(bits - half_bits) >> 52;
  bits -= (uint64_t)exponent << 52;
  double mantissa;
  memcpy(&mantissa, &bits, sizeof mantissa);
  double k = (double)exponent, f = mantissa - 1.0;
  double s = f / (2.0 + f), z = s * s, halved = 0.5 * f * f;
  double r = 2.0 / 25.0;
  for (int n = 23; n >= 3; n -= 2) r = r * z + 2.0 / n;
  r *= z;
  return k * ln2_high - ((halved - (s * (halved + r) + k * ln2_low)) - f);
}

/* sin y and cos y for |y + low| <= pi/4 by their series, low being a correction below y's last bit.
 */
PK_RANDOM double pk_random_sine(double y, double low) {
  double z = y * y;
  double r = 1.0 / 355687428096000.0; /* 1/17! */
  r = -1.0 / 1307674368000.0 + r * z;
  r = 1.0 / 6227020800.0 + r * z;
  r = -1.0 / 39916800.0 + r * z;
  r = 1.0 / 362880.0 + r * z;
  r = -1.0 / 5040.0 + r * z;
  r = 1.0 / 120.0 + r * z;
  r = -1.0 / 6.0 + r * z;
  return y + (z * y * r + low);
}

PK_RANDOM double pk_random_cosine(double y, double low) {
  double z = y * y;
  double r = -1.0 / 6402373705728000.0; /* 1/18! */
  r = 1.0 / 20922789888000.0 + r * z;
  r = -1.0 / 87178291200.0 + r * z;
  r = 1.0 / 479001600.0 + r * z;
  r = -1.0 / 3628800.0 + r * z;
  r = 1.0 / 40320.0 + r * z;
  r = -1.0 / 720.0 + r * z;
  r = 1.0 / 24.0 + r * z;
  double halved = 0.5 * z, head = 1.0 - halved;
  return head + (((1.0 - head) - halved) + (z * z * r - y * low));
}

/* cos and sin of 2 pi word / 2^32. The nearest quarter turn is found in integers, so what remains,
 * at most an eighth turn, is exact. It is multiplied by 2 pi, given as a sum of two, in a coarse
 * and a fine part, whose products with the first of the two are exact; what the sums lose is kept
 * in low. */
PK_RANDOM void pk_random_turn(uint32_t word, double *cosine, double *sine) {
  const double two_pi = 0x1.921fb54400000p+2, two_pi_low = 0x1.0b4611a626331p-32;
  uint32_t quarter = (word + (UINT32_C(1) << 29)) >> 30;
  int64_t turn = (int32_t)(word - (quarter << 30));
  int64_t fine = ((turn + 0x8000) & 0xFFFF) - 0x8000;
  double coarse_part = (double)(turn - fine) * 0x1p-32 * two_pi;
  double fine_part = (double)fine * 0x1p-32 * two_pi;
  double correction = (double)turn * 0x1p-32 * two_pi_low;
  double rest = fine_part + correction, lost = correction - (rest - fine_part);
  double y = coarse_part + rest, low = (rest - (y - coarse_part)) + lost;
  double c = pk_random_cosine(y, low), s = pk_random_sine(y, low);
  /* Without branches, as quarters are random: cos is c, -s, -c, s and sin is s, c, -s, -c. */
  *cosine = (quarter & 1 ? s : c) * (double)(1 - (int)((quarter + 1) & 2));
  *sine = (quarter & 1 ? c : s) * (double)(1 - (int)(quarter & 2));
}

/* Two normals from two words. The first is moved to the middle of its interval, so that it is never
 * 0 and the largest magnitude is sqrt(66 ln 2) = 6.76. */
PK_RANDOM void pk_random_normal_pair(const uint32_t words[2], double pair[2]) {
  double radius = sqrt(-2.0 * pk_random_logarithm(((double)words[0] + 0.5) * 0x1p-32));
  double cosine, sine;
  pk_random_turn(words[1], &cosine, &sine);
  pair[0] = radius * cosine;
  pair[1] = radius * sine;
}

#ifndef __cplusplus
/* The key of a stream (random.c). */
void pk_random_key(uint64_t seed, const char *name, uint32_t key[2]);
#endif

#endif
