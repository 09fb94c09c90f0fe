/* The part of JSON that readers of lines and of manifests share: strings, numbers, and errors. */
#ifndef PK_DATA_JSON_TEXT_H
#define PK_DATA_JSON_TEXT_H

#include "base/buffer.h"

#define PK_JSON_DEPTH 64

/* A place in a JSON text that is valid UTF-8. Functions that return false leave problem set, with
 * at where it is. */
typedef struct pk_json {
  const char *text;
  int64_t bytes;
  int64_t at;
  const char *problem;
} pk_json;

bool pk_json_fail(pk_json *json, const char *problem);
void pk_json_space(pk_json *json);

/* Moves past character if it is next (after white space). */
bool pk_json_take(pk_json *json, char character);
bool pk_json_expect(pk_json *json, char character, const char *problem);

/* Moves past a string; *content is what lies between its quotation marks, as it is written, and
 * *escapes says whether that has backslashes. */
bool pk_json_string(pk_json *json, const char **content, int64_t *bytes, bool *escapes);

/* Appends a string's content with escapes decoded and surrogate pairs joined. A surrogate alone
 * becomes U+FFFD and is counted in *lone, or is kept (three bytes) where lone is NULL. content must
 * come from pk_json_string. Only memory can fail. */
pk_status pk_json_decode(const char *content, int64_t bytes, pk_buffer *into, int64_t *lone);

/* Moves past a number, true, false or null. */
bool pk_json_number(pk_json *json, bool *whole);
bool pk_json_word(pk_json *json);

/* Moves past any value, also NaN, Infinity and -Infinity as Python writes them; depth is how deep
 * it lies. */
bool pk_json_skip(pk_json *json, int depth);

#endif
