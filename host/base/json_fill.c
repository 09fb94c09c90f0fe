/* Numbers into JSON text of which the rest is known. */
#include <math.h>

#include "base/base.h"

__extension__ typedef unsigned __int128 wide;

enum { NUMBER_BYTES = 32, MANTISSA_BITS = 53, DIGITS = 17 };

static const uint64_t NORMAL = (uint64_t)1 << (MANTISSA_BITS - 1), ENOUGH = 100000000000000000;
static const double INTEGERS_END = 9007199254740992.0; /* 2^53 */
static const double LEAST = 1e-15, LOG10_OF_2 = 0.30102999566398120;

static wide power_of(int base, int exponent) {
  wide power = 1;
  while (exponent-- > 0) power *= (wide)base;
  return power;
}

/* The digits of a number, at least so many. Returns their end. */
static char *put_digits(char *text, uint64_t number, int least) {
  char reversed[20];
  int count = 0;
  for (; number > 0 || count < least; number /= 10) reversed[count++] = (char)('0' + number % 10);
  while (count > 0) *text++ = reversed[--count];
  return text;
}

/* number / 10^places, the number being at most ENOUGH, as 0.00123. */
static char *put_decimal(char *text, uint64_t number, int places) {
  uint64_t one = (uint64_t)power_of(10, places <= DIGITS ? places : DIGITS + 1);
  text = put_digits(text, number / one, 1);
  if (number % one == 0) return text;
  *text++ = '.';
  text = put_digits(text, number % one, places);
  while (text[-1] == '0') text--;
  return text;
}

/* The digits of number as 1.23e-06, the exponent below 0. */
static char *put_scientific(char *text, uint64_t number, int exponent) {
  char *end = put_digits(text + 1, number, 1);
  while (end[-1] == '0') end--;
  text[0] = text[1];
  text[1] = '.';
  if (end == text + 2) end--;
  *end++ = 'e';
  *end++ = '-';
  return put_digits(end, (uint64_t)-exponent, 2);
}

/* A number from LEAST to 2^53 that is no integer, with the fewest of 15, 16 and 17 digits that read
 * back to the same bits; halves are rounded up, as LuaJIT does.
 *
 * x = m 2^e, and x 10^places has 17 digits before the point. It is exact / 2^shift with exact =
 * m 5^places, an integer below 2^128, so that rounding it to multiples of 100, 10 and 1 is exact.
 * The result reads back as x if it is off by less than half of x's last place, which is 5^places /
 * 2 in units of exact; a quarter below a power of two. */
static char *put_fraction(char *text, double x) {
  int exponent;
  uint64_t m = (uint64_t)ldexp(frexp(x, &exponent), MANTISSA_BITS);
  int places = DIGITS - 1 - (int)floor((exponent - 1) * LOG10_OF_2);
  int shift = MANTISSA_BITS - exponent - places;
  wide fives = power_of(5, places);
  if (m * fives >> shift >= ENOUGH) { /* the logarithm was that of the power of two below */
    fives = power_of(5, --places);
    shift++;
  }
  wide exact = m * fives;
  for (uint64_t unit = 100;; unit /= 10) {
    wide step = (wide)unit << shift;
    uint64_t number = (uint64_t)(exact >> shift) / unit;
    wide rest = exact - number * step;
    bool up = 2 * rest >= step;
    wide off = up ? step - rest : rest;
    if (unit > 1 && (m == NORMAL && !up ? 4 : 2) * off >= fives) continue;
    number = (number + up) * unit;
    exponent = DIGITS - 1 - places + (number == ENOUGH);
    return exponent < -4 ? put_scientific(text, number, exponent)
                         : put_decimal(text, number, places);
  }
}

/* As lua/pack/io/json.lua writes a number, or NULL. */
static char *put_number(char *text, double x) {
  if (signbit(x)) *text++ = '-';
  x = fabs(x);
  if (!(x < INTEGERS_END)) return NULL;
  if (x == floor(x)) return put_digits(text, (uint64_t)x, 1);
  return x < LEAST ? NULL : put_fraction(text, x);
}

int64_t pk_json_fill(const char *form, const double *numbers, char *text, int64_t room) {
  char *at = text;
  for (; *form; form++) {
    if (text + room - at < NUMBER_BYTES) return -1;
    if (*form != PK_JSON_NUMBER) {
      *at++ = *form;
    } else {
      at = put_number(at, *numbers++);
      if (!at) return -1;
    }
  }
  return at - text;
}
