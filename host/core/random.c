/* Random numbers: the same bits for the same (seed, name, element) on every machine.
 *
 * A stream is named by (seed, name). Its key is mix(seed) XOR FNV-1a-64(name), low word first,
 * where mix is one step of SplitMix64 (Steele et al. 2014), so that seeds that differ in one bit
 * give unrelated keys. Its words are those of Philox4x32-10 at the counters 0, 1, 2, ... (64 bits,
 * low word first; the upper two counter words are 0): element e of the stream is word e mod 4 at
 * counter e / 4. A uniform value is its element's word / 2^32. Two normal values come from two
 * neighbouring words by Box and Muller (1958), in f64. Logarithm, sine and cosine are written here
 * from additions, multiplications and divisions, which IEEE 754 rounds in one way only, as it does
 * the square root; the build turns contraction into fused operations off. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/core.h"

_Static_assert(FLT_EVAL_METHOD == 0, "f64 arithmetic must round to f64 after every operation");

/* --- words --------------------------------------------------------------------------------- */

void pk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
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

uint64_t pk_fnv1a(const void *data, int64_t bytes) {
  const unsigned char *at = data;
  uint64_t hash = UINT64_C(0xCBF29CE484222325);
  for (int64_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
  return hash;
}

/* One step of SplitMix64. */
static uint64_t mix(uint64_t seed) {
  uint64_t z = seed + UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

static void stream_key(uint64_t seed, const char *name, uint32_t key[2]) {
  uint64_t bits = mix(seed) ^ pk_fnv1a(name, (int64_t)strlen(name));
  key[0] = (uint32_t)bits;
  key[1] = (uint32_t)(bits >> 32);
}

/* The four words of elements 4 block .. 4 block + 3. */
static void stream_words(const uint32_t key[2], uint64_t block, uint32_t words[4]) {
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
  pk_philox(counter, key, words);
}

/* --- logarithm, sine and cosine ------------------------------------------------------------- */

/* ln x of a normal x > 0, within 1 ulp. With x = 2^k (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2), and
 * s = f / (2 + f): ln(1 + f) = 2 atanh(s) = f - f^2/2 + s (f^2/2 + R), R = 2 s^2/3 + 2 s^4/5 + ...,
 * of which f, the largest part, is exact. ln 2 is a sum of two, k times the first of which is
 * exact. */
static double logarithm(double x) {
  const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
  const uint64_t half_bits = UINT64_C(0x3FE6A09E667F3BCD); /* 1/sqrt(2) */
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int64_t exponent = (int64_t)(bits - half_bits) >> 52;
  bits -= (uint64_t)exponent << 52;
  double mantissa;
  memcpy(&mantissa, &bits, sizeof mantissa);
  double k = (double)exponent, f = mantissa - 1.0;
  double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  double r = 2.0 / 25.0;
  for (int n = 23; n >= 3; n -= 2) r = r * z + 2.0 / n;
  r *= z;
  return k * ln2_high - ((half - (s * (half + r) + k * ln2_low)) - f);
}

/* sin y and cos y for |y + low| <= pi/4 by their series, low being a correction below y's last bit.
 */
static double sine_near_zero(double y, double low) {
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

static double cosine_near_zero(double y, double low) {
  double z = y * y;
  double r = -1.0 / 6402373705728000.0; /* 1/18! */
  r = 1.0 / 20922789888000.0 + r * z;
  r = -1.0 / 87178291200.0 + r * z;
  r = 1.0 / 479001600.0 + r * z;
  r = -1.0 / 3628800.0 + r * z;
  r = 1.0 / 40320.0 + r * z;
  r = -1.0 / 720.0 + r * z;
  r = 1.0 / 24.0 + r * z;
  double half = 0.5 * z, head = 1.0 - half;
  return head + (((1.0 - head) - half) + (z * z * r - y * low));
}

/* cos and sin of 2 pi word / 2^32. The nearest quarter turn is found in integers, so what remains,
 * at most an eighth turn, is exact. It is multiplied by 2 pi, given as a sum of two, in a coarse
 * and a fine part, whose products with the first of the two are exact; what the sums lose is kept
 * in low. */
static void cosine_and_sine(uint32_t word, double *cosine, double *sine) {
  const double two_pi = 0x1.921fb54400000p+2, two_pi_low = 0x1.0b4611a626331p-32;
  uint32_t quarter = (word + (UINT32_C(1) << 29)) >> 30;
  int64_t turn = (int32_t)(word - (quarter << 30));
  int64_t fine = ((turn + 0x8000) & 0xFFFF) - 0x8000;
  double coarse_part = (double)(turn - fine) * 0x1p-32 * two_pi;
  double fine_part = (double)fine * 0x1p-32 * two_pi;
  double correction = (double)turn * 0x1p-32 * two_pi_low;
  double rest = fine_part + correction, lost = correction - (rest - fine_part);
  double y = coarse_part + rest, low = (rest - (y - coarse_part)) + lost;
  double c = cosine_near_zero(y, low), s = sine_near_zero(y, low);
  /* Without branches, as quarters are random: cos is c, -s, -c, s and sin is s, c, -s, -c. */
  *cosine = (quarter & 1 ? s : c) * (double)(1 - (int)((quarter + 1) & 2));
  *sine = (quarter & 1 ? c : s) * (double)(1 - (int)(quarter & 2));
}

/* --- values --------------------------------------------------------------------------------- */

/* Two normals from two words. The first is moved to the middle of its interval, so that it is never
 * 0 and the largest magnitude is sqrt(66 ln 2) = 6.76. */
static void normal_pair(const uint32_t words[2], double pair[2]) {
  double radius = sqrt(-2.0 * logarithm(((double)words[0] + 0.5) * 0x1p-32));
  double cosine, sine;
  cosine_and_sine(words[1], &cosine, &sine);
  pair[0] = radius * cosine;
  pair[1] = radius * sine;
}

/* The part of the four elements of block that lies in first .. first + count - 1. */
static void block_range(uint64_t block, int64_t first, int64_t count, int *from, int *to) {
  int64_t start = (int64_t)(block * 4), end = first + count;
  *from = first > start ? (int)(first - start) : 0;
  *to = end - start < 4 ? (int)(end - start) : 4;
}

void pk_random_normal(uint64_t seed, const char *name, int64_t first, int64_t count, double mean,
                      double deviation, double *values) {
  uint32_t key[2], words[4];
  stream_key(seed, name, key);
  uint64_t last = (uint64_t)(first + count + 3) / 4;
  for (uint64_t block = (uint64_t)first / 4; count > 0 && block < last; block++) {
    double normals[4];
    stream_words(key, block, words);
    normal_pair(words, normals);
    normal_pair(words + 2, normals + 2);
    int from, to;
    block_range(block, first, count, &from, &to);
    for (int i = from; i < to; i++) *values++ = mean + deviation * normals[i];
  }
}

void pk_random_uniform(uint64_t seed, const char *name, int64_t first, int64_t count,
                       double *values) {
  uint32_t key[2], words[4];
  stream_key(seed, name, key);
  uint64_t last = (uint64_t)(first + count + 3) / 4;
  for (uint64_t block = (uint64_t)first / 4; count > 0 && block < last; block++) {
    stream_words(key, block, words);
    int from, to;
    block_range(block, first, count, &from, &to);
    for (int i = from; i < to; i++) *values++ = (double)words[i] * 0x1p-32;
  }
}

/* --- permutations --------------------------------------------------------------------------- */

/* The words of a stream, one after the other. */
typedef struct reader {
  uint32_t key[2];
  uint32_t words[4];
  uint64_t taken;
} reader;

static uint32_t next_word(reader *stream) {
  if (stream->taken % 4 == 0) stream_words(stream->key, stream->taken / 4, stream->words);
  return stream->words[stream->taken++ % 4];
}

/* Uniform in 0 .. largest: as many low bits as largest has, drawn again until they are in range.
 * One word is drawn at a time, or two (low first) when largest needs them. */
static uint64_t draw(reader *stream, uint64_t largest) {
  uint64_t mask = largest, value;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  do {
    value = next_word(stream);
    if (mask >> 32) value |= (uint64_t)next_word(stream) << 32;
    value &= mask;
  } while (value > largest);
  return value;
}

void pk_random_permutation(uint64_t seed, const char *name, int64_t count, int64_t *permutation) {
  reader stream = {.taken = 0};
  stream_key(seed, name, stream.key);
  for (int64_t i = 0; i < count; i++) permutation[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    int64_t j = (int64_t)draw(&stream, (uint64_t)i);
    int64_t kept = permutation[i];
    permutation[i] = permutation[j];
    permutation[j] = kept;
  }
}
