/* Random numbers: the same bits for the same (seed, name, element) on every machine.
 *
 * A stream is named by (seed, name). Its key is mix(seed) XOR FNV-1a-64(name), low word first,
 * where mix is one step of SplitMix64 (Steele et al. 2014), so that seeds that differ in one bit
 * give unrelated keys. Its words are those of Philox4x32-10 at the counters 0, 1, 2, ... (64 bits,
 * low word first; the upper two counter words are 0): element e of the stream is word e mod 4 at
 * counter e / 4. A uniform value is its element's word / 2^32. Two normal values come from two
 * neighbouring words by Box and Muller (1958), in f64. Logarithm, sine and cosine are written in
 * random.h from additions, multiplications and divisions, which IEEE 754 rounds in one way only, as
 * it does the square root; the build turns contraction into fused operations off. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/core.h"
#include "core/random.h"

_Static_assert(FLT_EVAL_METHOD == 0, "f64 arithmetic must round to f64 after every operation");

/* --- words --------------------------------------------------------------------------------- */

void pk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
  pk_random_rounds(counter, key, words);
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

void pk_random_key(uint64_t seed, const char *name, uint32_t key[2]) {
  uint64_t bits = mix(seed) ^ pk_fnv1a(name, (int64_t)strlen(name));
  key[0] = (uint32_t)bits;
  key[1] = (uint32_t)(bits >> 32);
}

/* --- values --------------------------------------------------------------------------------- */

/* The part of the four elements of block that lies in first .. first + count - 1. */
static void block_range(uint64_t block, int64_t first, int64_t count, int *from, int *to) {
  int64_t start = (int64_t)(block * 4), end = first + count;
  *from = first > start ? (int)(first - start) : 0;
  *to = end - start < 4 ? (int)(end - start) : 4;
}

void pk_random_normal(uint64_t seed, const char *name, int64_t first, int64_t count, double mean,
                      double deviation, double *values) {
  uint32_t key[2], words[4];
  pk_random_key(seed, name, key);
  uint64_t last = (uint64_t)(first + count + 3) / 4;
  for (uint64_t block = (uint64_t)first / 4; count > 0 && block < last; block++) {
    double normals[4];
    pk_random_words(key, block, words);
    pk_random_normal_pair(words, normals);
    pk_random_normal_pair(words + 2, normals + 2);
    int from, to;
    block_range(block, first, count, &from, &to);
    for (int i = from; i < to; i++) *values++ = mean + deviation * normals[i];
  }
}

void pk_random_uniform(uint64_t seed, const char *name, int64_t first, int64_t count,
                       double *values) {
  uint32_t key[2], words[4];
  pk_random_key(seed, name, key);
  uint64_t last = (uint64_t)(first + count + 3) / 4;
  for (uint64_t block = (uint64_t)first / 4; count > 0 && block < last; block++) {
    pk_random_words(key, block, words);
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
  if (stream->taken % 4 == 0) pk_random_words(stream->key, stream->taken / 4, stream->words);
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
  pk_random_key(seed, name, stream.key);
  for (int64_t i = 0; i < count; i++) permutation[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    int64_t j = (int64_t)draw(&stream, (uint64_t)i);
    int64_t kept = permutation[i];
    permutation[i] = permutation[j];
    permutation[j] = kept;
  }
}
