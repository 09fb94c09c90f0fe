/* Trees of values from outside (pk_value): building, reading, freeing, and what all readers check.
 */
#include "io/value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From here on a fraction that is lost is one of a number meant as a whole one. */
static const double FRACTIONS_END = 4294967296.0;

pk_value *pk_value_create(int kind) {
  pk_value *value = calloc(1, sizeof *value);
  if (!value) {
    pk_fail(PK_NO_MEMORY, "no memory for a value of %zu bytes", sizeof *value);
    return NULL;
  }
  value->kind = kind;
  return value;
}

void pk_value_append(pk_value *parent, pk_value *child) {
  if (parent->last) {
    parent->last->next = child;
  } else {
    parent->first = child;
  }
  parent->last = child;
}

static pk_status copy_text(char **copy, const char *text, int64_t bytes) {
  char *result = malloc((size_t)bytes + 1);
  if (!result) {
    return pk_fail(PK_NO_MEMORY, "no memory for a string of %lld bytes", (long long)bytes);
  }
  if (bytes > 0) memcpy(result, text, (size_t)bytes);
  result[bytes] = '\0';
  free(*copy);
  *copy = result;
  return PK_OK;
}

pk_status pk_value_set_string(pk_value *value, const char *text, int64_t bytes) {
  value->bytes = bytes;
  return copy_text(&value->string, text, bytes);
}

pk_status pk_value_set_key(pk_value *value, const char *text, int64_t bytes) {
  return copy_text(&value->key, text, bytes);
}

void pk_value_free(pk_value *root) {
  if (!root) return;
  for (pk_value *child = root->first; child;) {
    pk_value *next = child->next;
    pk_value_free(child); /* no deeper than PK_VALUE_DEPTH */
    child = next;
  }
  free(root->string);
  free(root->key);
  free(root);
}

int pk_value_get_kind(const pk_value *value) {
  return value->kind;
}

double pk_value_get_number(const pk_value *value) {
  return value->number;
}

const char *pk_value_get_string(const pk_value *value, int64_t *bytes) {
  if (bytes) *bytes = value->bytes;
  return value->string;
}

const pk_value *pk_value_first(const pk_value *value) {
  return value->first;
}

const pk_value *pk_value_next(const pk_value *value) {
  return value->next;
}

const char *pk_value_key(const pk_value *value) {
  return value->key;
}

bool pk_number_is_decimal(const char *text) {
  static const char digits[] = "0123456789";
  const char *p = text + (*text == '-' || *text == '+');
  size_t before = strspn(p, digits), after = 0;
  p += before;
  if (*p == '.') {
    after = strspn(++p, digits);
    p += after;
  }
  if (before + after == 0) return false;
  if (*p == 'e' || *p == 'E') {
    p++;
    p += *p == '-' || *p == '+';
    size_t exponent = strspn(p, digits);
    if (exponent == 0) return false;
    p += exponent;
  }
  return *p == '\0';
}

/* Whether a decimal text stands for a whole number: the exponent moves the last digit that is not 0
 * in front of the point. */
static bool is_whole(const char *text) {
  int64_t behind = 0, zeros = 0; /* digits behind the point, and zeros at the end of all */
  bool point = false;
  const char *p = text;
  for (; *p && *p != 'e' && *p != 'E'; p++) {
    if (*p == '.') point = true;
    if (*p < '0' || *p > '9') continue;
    behind += point;
    zeros = *p == '0' ? zeros + 1 : 0;
  }
  return (*p ? strtoll(p + 1, NULL, 10) : 0) + zeros >= behind;
}

const char *pk_number_read(const char *text, double *number) {
  if (!pk_number_is_decimal(text)) return "is not a number";
  double value = strtod(text, NULL);
  if (!isfinite(value)) return "is too large for a number";
  bool is_integer = text[strcspn(text, ".eE")] == '\0';
  if (is_integer && fabs(value) >= PK_VALUE_INTEGER_LIMIT)
    return "is not below 2^53 in magnitude, as integers must be";
  /* Large doubles have few binary places, and a fraction may round to none. */
  if (fabs(value) >= FRACTIONS_END && value == floor(value) && !is_whole(text))
    return "has a fraction that a number of this size cannot hold";
  *number = value;
  return NULL;
}

/* Length of the UTF-8 sequence at text, or 0: overlong forms, surrogates and values past U+10FFFF
 * are not UTF-8 (Unicode 15, table 3-7). */
static int64_t utf8_length(const unsigned char *text, int64_t bytes) {
  unsigned char lead = text[0];
  if (lead < 0x80) return 1;
  int64_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || length > bytes) return 0;
  unsigned char low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  if (text[1] < low || text[1] > high) return 0;
  for (int64_t i = 2; i < length; i++) {
    if ((text[i] & 0xc0) != 0x80) return 0;
  }
  return length;
}

int64_t pk_text_mark(const char *text, int64_t bytes) {
  return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

const char *pk_text_defect(const char *text, int64_t bytes, int64_t *offset) {
  for (int64_t i = 0; i < bytes;) {
    *offset = i;
    if (text[i] == '\0') return "a NUL character";
    int64_t length = utf8_length((const unsigned char *)text + i, bytes - i);
    if (length == 0) return "a byte that is not UTF-8";
    i += length;
  }
  return NULL;
}

static int compare_keys(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first key, in byte order, that two children share, or NULL. */
static pk_status find_duplicate(const pk_value *object, const char **duplicate) {
  *duplicate = NULL;
  size_t count = 0;
  for (const pk_value *child = object->first; child; child = child->next) count++;
  if (count < 2) return PK_OK;
  const char **keys = malloc(count * sizeof *keys);
  if (!keys) return pk_fail(PK_NO_MEMORY, "no memory to compare %zu keys", count);
  count = 0;
  for (const pk_value *child = object->first; child; child = child->next)
    keys[count++] = child->key;
  qsort(keys, count, sizeof *keys, compare_keys);
  for (size_t i = 1; i < count && !*duplicate; i++) {
    if (strcmp(keys[i - 1], keys[i]) == 0) *duplicate = keys[i];
  }
  free(keys);
  return PK_OK;
}

pk_status pk_value_check_keys(const pk_value *root, const char *name) {
  if (root->kind == PK_VALUE_OBJECT) {
    const char *duplicate;
    pk_status status = find_duplicate(root, &duplicate);
    if (status) return status;
    if (duplicate) {
      return pk_fail(PK_FORMAT, "%s: the key \"%s\" is there twice%s%s", name, duplicate,
                     root->key ? " in " : "", root->key ? root->key : "");
    }
  }
  for (const pk_value *child = root->first; child; child = child->next) {
    pk_status status = pk_value_check_keys(child, name);
    if (status) return status;
  }
  return PK_OK;
}

pk_status pk_fail_at(const char *name, const char *text, int64_t bytes, int64_t offset,
                     const char *format, ...) {
  char message[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  long long line = 1, column = 1;
  for (int64_t i = 0; i < offset && i < bytes; i++) {
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n';
  }
  return pk_fail(PK_FORMAT, "%s:%lld:%lld: %s", name, line, column, message);
}
