/* The dtypes of safetensors files: their sizes, and conversion to the dtypes of tensors. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/bf16.h"
#include "io/safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian, as the host");

enum { CHUNK = 1024 };

static const double INTEGER_LIMIT = 9007199254740992.0; /* 2^53 */

typedef enum stored {
  FILE_F64,
  FILE_F32,
  FILE_F16,
  FILE_BF16,
  FILE_I64,
  FILE_U64,
  FILE_I32,
  FILE_U32,
  FILE_I16,
  FILE_U16,
  FILE_I8,
  FILE_U8,
  FILE_BOOL,
  FILE_OTHER /* from here on: known, but without conversion */
} stored;

static const struct {
  const char *name;
  int64_t size;
} dtypes[] = {
    [FILE_F64] = {"F64", 8},
    [FILE_F32] = {"F32", 4},
    [FILE_F16] = {"F16", 2},
    [FILE_BF16] = {"BF16", 2},
    [FILE_I64] = {"I64", 8},
    [FILE_U64] = {"U64", 8},
    [FILE_I32] = {"I32", 4},
    [FILE_U32] = {"U32", 4},
    [FILE_I16] = {"I16", 2},
    [FILE_U16] = {"U16", 2},
    [FILE_I8] = {"I8", 1},
    [FILE_U8] = {"U8", 1},
    [FILE_BOOL] = {"BOOL", 1},
    [FILE_OTHER] = {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"F8_E4M3FNUZ", 1},
    {"F8_E5M2FNUZ", 1},
    {"C64", 8},
};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static int find_dtype(const char *name) {
  int found = 0;
  while (found < DTYPES && strcmp(dtypes[found].name, name) != 0) found++;
  return found;
}

int64_t pk_safetensors_dtype_size(const char *dtype) {
  int found = find_dtype(dtype);
  return found < DTYPES ? dtypes[found].size : 0;
}

bool pk_safetensors_bytes(int64_t element, int rank, const int64_t *shape, int64_t *bytes) {
  *bytes = 0;
  for (int d = 0; d < rank; d++) {
    if (shape[d] == 0) return true;
  }
  *bytes = element;
  for (int d = 0; d < rank; d++) {
    if (__builtin_mul_overflow(*bytes, shape[d], bytes)) return false;
  }
  return true;
}

/* --- single elements --- */

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double from_f16(uint16_t half) {
  int exponent = half >> 10 & 31;
  double fraction = half & 1023;
  double magnitude = exponent == 31  ? (half & 1023 ? (double)NAN : (double)INFINITY)
                     : exponent == 0 ? ldexp(fraction, -24)
                                     : ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

/* --- pieces of arrays, by way of f64, which holds every value of the other dtypes but some of the
 * 64-bit integers --- */

#define LOAD(type, expression)                                                                     \
  for (int64_t i = 0; i < count; i++) {                                                            \
    type x;                                                                                        \
    memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                                            \
    to[i] = (double)(expression);                                                                  \
  }                                                                                                \
  break

static void load(double *to, stored dtype, const char *from, int64_t count) {
  switch (dtype) {
  case FILE_F64:
    memcpy(to, from, (size_t)count * sizeof *to);
    break;
  case FILE_F32:
    LOAD(float, x);
  case FILE_F16:
    LOAD(uint16_t, from_f16(x));
  case FILE_BF16:
    LOAD(uint16_t, float_of_bits((uint32_t)x << 16));
  case FILE_I64:
    LOAD(int64_t, x);
  case FILE_U64:
    LOAD(uint64_t, x);
  case FILE_I32:
    LOAD(int32_t, x);
  case FILE_U32:
    LOAD(uint32_t, x);
  case FILE_I16:
    LOAD(int16_t, x);
  case FILE_U16:
    LOAD(uint16_t, x);
  case FILE_I8:
    LOAD(int8_t, x);
  case FILE_BOOL:
    LOAD(uint8_t, x != 0);
  default:
    LOAD(uint8_t, x);
  }
}

static void store(int dtype, char *into, const double *from, int64_t count) {
  switch (dtype) {
  case PK_F64:
    memcpy(into, from, (size_t)count * sizeof *from);
    break;
  case PK_F32:
    for (int64_t i = 0; i < count; i++) ((float *)into)[i] = (float)from[i];
    break;
  case PK_BF16:
    for (int64_t i = 0; i < count; i++)
      ((uint16_t *)into)[i] = pk_bf16_from_f32(pk_f32_to_odd(from[i]));
    break;
  default:
    for (int64_t i = 0; i < count; i++) ((int32_t *)into)[i] = (int32_t)from[i];
  }
}

/* The first of the values that the conversion would change beyond rounding, or count. */
static int64_t find_misfit(stored from, int to, const double *values, int64_t count) {
  int64_t i = 0;
  if (to == PK_I32) {
    while (i < count && values[i] >= INT32_MIN && values[i] <= INT32_MAX &&
           values[i] == rint(values[i])) {
      i++;
    }
  } else if (from == FILE_I64 || from == FILE_U64) {
    while (i < count && fabs(values[i]) < INTEGER_LIMIT) i++;
  } else {
    i = count;
  }
  return i;
}

pk_status pk_convert(int dtype, void *into, const char *file_dtype, const void *values,
                     int64_t count) {
  int found = find_dtype(file_dtype);
  if (found >= FILE_OTHER) {
    return pk_fail(PK_UNSUPPORTED, "elements of dtype %s cannot be converted", file_dtype);
  }
  int64_t size = pk_dtype_size(dtype), file_size = dtypes[found].size;
  if (size <= 0) return pk_fail(PK_INVALID, "%d is not the number of a dtype", dtype);
  double piece[CHUNK];
  for (int64_t first = 0; first < count; first += CHUNK) {
    int64_t length = count - first < CHUNK ? count - first : CHUNK;
    load(piece, (stored)found, (const char *)values + first * file_size, length);
    int64_t misfit = find_misfit((stored)found, dtype, piece, length);
    if (misfit < length) {
      return pk_fail(PK_FORMAT, "%.17g is not a number that %s can hold", piece[misfit],
                     pk_dtype_name(dtype));
    }
    store(dtype, (char *)into + first * size, piece, length);
  }
  return PK_OK;
}
