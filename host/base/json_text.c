/* The part of JSON that readers of lines and of manifests share: strings, numbers, and errors. */
#include "base/json_text.h"

#include <string.h>

#include "base/utf8.h"

bool pk_json_fail(pk_json *json, const char *problem) {
  json->problem = problem;
  return false;
}

void pk_json_space(pk_json *json) {
  while (json->at < json->bytes) {
    char c = json->text[json->at];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    json->at++;
  }
}

bool pk_json_take(pk_json *json, char character) {
  pk_json_space(json);
  if (json->at == json->bytes || json->text[json->at] != character) return false;
  json->at++;
  return true;
}

bool pk_json_expect(pk_json *json, char character, const char *problem) {
  return pk_json_take(json, character) || pk_json_fail(json, problem);
}

/* The value of four hexadecimal digits, or -1. */
static int32_t hexadecimal(const char *text) {
  int32_t value = 0;
  for (int i = 0; i < 4; i++) {
    char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static bool is_escape(const pk_json *json, int64_t at, int64_t *length) {
  if (at + 1 >= json->bytes) return false;
  *length = 2;
  if (json->text[at + 1] != 'u')
    return json->text[at + 1] && strchr("\"\\/bfnrt", json->text[at + 1]);
  *length = 6;
  return at + 6 <= json->bytes && hexadecimal(json->text + at + 2) >= 0;
}

bool pk_json_string(pk_json *json, const char **content, int64_t *bytes, bool *escapes) {
  if (!pk_json_take(json, '"')) return pk_json_fail(json, "a string is expected here");
  int64_t start = json->at, at = start;
  *escapes = false;
  for (; at < json->bytes; at++) {
    unsigned char c = (unsigned char)json->text[at];
    if (c == '"') {
      *content = json->text + start;
      *bytes = at - start;
      json->at = at + 1;
      return true;
    }
    if (c < 0x20) {
      json->at = at;
      return pk_json_fail(json, "a control character in a string");
    }
    if (c == '\\') {
      int64_t length = 0;
      if (!is_escape(json, at, &length)) {
        json->at = at;
        return pk_json_fail(json, "not an escape that JSON has");
      }
      *escapes = true;
      at += length - 1;
    }
  }
  json->at = start - 1;
  return pk_json_fail(json, "a string that does not end");
}

/* The code point of the escape \u.... at *at, with its second half if it has one. */
static uint32_t unicode_escape(const char *content, int64_t bytes, int64_t *at, int64_t *lone) {
  uint32_t unit = (uint32_t)hexadecimal(content + *at + 2);
  *at += 6;
  if (unit < 0xd800 || unit > 0xdfff) return unit;
  if (unit < 0xdc00 && *at + 6 <= bytes && content[*at] == '\\' && content[*at + 1] == 'u') {
    uint32_t second = (uint32_t)hexadecimal(content + *at + 2);
    if (second >= 0xdc00 && second <= 0xdfff) {
      *at += 6;
      return 0x10000 + ((unit - 0xd800) << 10) + (second - 0xdc00);
    }
  }
  if (!lone) return unit;
  ++*lone;
  return 0xfffd;
}

static char simple_escape(char c) {
  switch (c) {
  case 'b':
    return '\b';
  case 'f':
    return '\f';
  case 'n':
    return '\n';
  case 'r':
    return '\r';
  case 't':
    return '\t';
  default:
    return c;
  }
}

pk_status pk_json_decode(const char *content, int64_t bytes, pk_buffer *into, int64_t *lone) {
  /* Decoding never makes text longer: \uXXXX has six bytes, its character at most three. */
  pk_status status = pk_buffer_reserve(into, bytes);
  if (status) return status;
  char *out = into->data + into->bytes;
  for (int64_t at = 0; at < bytes;) {
    const char *escape = memchr(content + at, '\\', (size_t)(bytes - at));
    int64_t plain = (escape ? escape - content : bytes) - at;
    memcpy(out, content + at, (size_t)plain);
    out += plain;
    at += plain;
    if (!escape) break;
    if (content[at + 1] == 'u') {
      out += pk_utf8_write(unicode_escape(content, bytes, &at, lone), out);
    } else {
      *out++ = simple_escape(content[at + 1]);
      at += 2;
    }
  }
  into->bytes = out - into->data;
  return PK_OK;
}

static bool digits(pk_json *json) {
  int64_t start = json->at;
  while (json->at < json->bytes && json->text[json->at] >= '0' && json->text[json->at] <= '9') {
    json->at++;
  }
  return json->at > start || pk_json_fail(json, "a digit is expected here");
}

static bool next_is(const pk_json *json, const char *set) {
  return json->at < json->bytes && json->text[json->at] && strchr(set, json->text[json->at]);
}

bool pk_json_number(pk_json *json, bool *whole) {
  if (next_is(json, "-")) json->at++;
  bool zero = next_is(json, "0");
  int64_t start = json->at;
  if (!digits(json)) return false;
  if (zero && json->at > start + 1) return pk_json_fail(json, "a number with a leading zero");
  *whole = !next_is(json, ".eE");
  if (next_is(json, ".")) {
    json->at++;
    if (!digits(json)) return false;
  }
  if (next_is(json, "eE")) {
    json->at++;
    if (next_is(json, "+-")) json->at++;
    if (!digits(json)) return false;
  }
  return true;
}

bool pk_json_word(pk_json *json) {
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; i++) {
    int64_t length = (int64_t)strlen(words[i]);
    if (json->bytes - json->at >= length &&
        memcmp(json->text + json->at, words[i], (size_t)length) == 0) {
      json->at += length;
      return true;
    }
  }
  return pk_json_fail(json, "a value is expected here");
}

/* Numbers that are none, as Python's json writes them. */
static bool skip_nonfinite(pk_json *json) {
  static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
  for (int i = 0; i < 3; i++) {
    int64_t length = (int64_t)strlen(words[i]);
    if (json->bytes - json->at >= length &&
        memcmp(json->text + json->at, words[i], (size_t)length) == 0) {
      json->at += length;
      return true;
    }
  }
  return false;
}

static bool skip_members(pk_json *json, int depth, char close) {
  if (depth >= PK_JSON_DEPTH) return pk_json_fail(json, "nested deeper than 64 levels");
  json->at++;
  if (pk_json_take(json, close)) return true;
  do {
    if (close == '}') {
      const char *key;
      int64_t bytes;
      bool escapes;
      if (!pk_json_string(json, &key, &bytes, &escapes)) return false;
      if (!pk_json_expect(json, ':', "a colon is expected here")) return false;
    }
    if (!pk_json_skip(json, depth + 1)) return false;
  } while (pk_json_take(json, ','));
  return pk_json_expect(json, close, "a comma or the end of the array or object is expected here");
}

bool pk_json_skip(pk_json *json, int depth) {
  pk_json_space(json);
  const char *content;
  int64_t bytes;
  bool flag;
  if (json->at == json->bytes) return pk_json_fail(json, "the text ends early");
  if (skip_nonfinite(json)) return true;
  switch (json->text[json->at]) {
  case '"':
    return pk_json_string(json, &content, &bytes, &flag);
  case '{':
    return skip_members(json, depth, '}');
  case '[':
    return skip_members(json, depth, ']');
  case '-':
  case '0':
  case '1':
  case '2':
  case '3':
  case '4':
  case '5':
  case '6':
  case '7':
  case '8':
  case '9':
    return pk_json_number(json, &flag);
  default:
    return pk_json_word(json);
  }
}
