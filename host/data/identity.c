/* Canonical JSON, as Python's json.dumps(value, sort_keys=True) writes it, and its SHA-256. It
 * works on the text's own number tokens, because a double does not hold every integer. */
#include "data/identity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/utf8.h"

enum { NUMBER_BYTES = 4096 }; /* Python itself refuses integers of more than 4,300 digits */

/* One key and value of an object, both as they will be written; key_text is what keys sort by:
 * UTF-8 sorts like code points. */
typedef struct member {
  pk_buffer key;
  pk_buffer value;
} member;

typedef struct members {
  member *list;
  int64_t count;
  int64_t capacity;
} members;

/* Functions from here to canonical_value return PK_FORMAT where json->problem says what is wrong;
 * pk_json_canonical makes the message. */
static pk_status canonical_value(pk_json *json, int depth, const char *without, pk_buffer *into);

static pk_status write_character(uint32_t point, pk_buffer *into) {
  static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  const char *found = point && point < 0x80 ? strchr(plain, (int)point) : NULL;
  if (found) return pk_buffer_format(into, "\\%c", letters[found - plain]);
  if (point >= 0x20 && point < 0x7f) return pk_buffer_format(into, "%c", (int)point);
  if (point < 0x10000) return pk_buffer_format(into, "\\u%04x", point);
  point -= 0x10000;
  return pk_buffer_format(into, "\\u%04x\\u%04x", 0xd800 + (point >> 10), 0xdc00 + (point & 0x3ff));
}

/* Writes decoded text, lone surrogates included, as a JSON string in ASCII. */
static pk_status write_string(const pk_buffer *text, pk_buffer *into) {
  pk_status status = pk_buffer_add_text(into, "\"");
  for (int64_t i = 0; i < text->bytes && !status;) {
    int length;
    uint32_t point = pk_utf8_read(text->data + i, &length);
    status = write_character(point, into);
    i += length;
  }
  return status ? status : pk_buffer_add_text(into, "\"");
}

static pk_status read_string(pk_json *json, pk_buffer *text) {
  const char *content;
  int64_t bytes;
  bool escapes;
  if (!pk_json_string(json, &content, &bytes, &escapes)) return PK_FORMAT;
  return pk_json_decode(content, bytes, text, NULL);
}

/* repr() of a double: the fewest digits that read back to it, with an exponent below 1e-4 and from
 * 1e16 on. */
static pk_status write_double(double x, pk_buffer *into) {
  if (isinf(x)) return pk_buffer_add_text(into, x > 0 ? "Infinity" : "-Infinity");
  char text[40];
  for (int precision = 0; precision < 17; precision++) {
    snprintf(text, sizeof text, "%.*e", precision, x);
    if (strtod(text, NULL) == x) break;
  }
  char *mark = strchr(text, 'e');
  int exponent = atoi(mark + 1);
  if (exponent < -4 || exponent >= 16) return pk_buffer_add_text(into, text);
  const char *point = strchr(text, '.');
  int decimals = (point ? (int)(mark - point) - 1 : 0) - exponent;
  return pk_buffer_format(into, "%.*f", decimals < 1 ? 1 : decimals, x);
}

static pk_status canonical_number(pk_json *json, pk_buffer *into) {
  int64_t start = json->at;
  bool whole;
  if (!pk_json_number(json, &whole)) return PK_FORMAT;
  int64_t bytes = json->at - start;
  char token[NUMBER_BYTES + 1];
  if (bytes > NUMBER_BYTES) {
    json->at = start;
    pk_json_fail(json, "a number of more than 4096 characters");
    return PK_FORMAT;
  }
  memcpy(token, json->text + start, (size_t)bytes);
  token[bytes] = '\0';
  if (!whole) return write_double(strtod(token, NULL), into);
  return pk_buffer_add_text(into, strcmp(token, "-0") == 0 ? "0" : token);
}

static pk_status canonical_array(pk_json *json, int depth, pk_buffer *into) {
  json->at++;
  pk_status status = pk_buffer_add_text(into, "[");
  if (!pk_json_take(json, ']')) {
    for (bool first = true; !status; first = false) {
      if (!first) status = pk_buffer_add_text(into, ", ");
      if (!status) status = canonical_value(json, depth + 1, NULL, into);
      if (status) return status;
      if (!pk_json_take(json, ',')) break;
    }
    if (!status && !pk_json_expect(json, ']', "a comma or ] is expected here")) return PK_FORMAT;
  }
  return status ? status : pk_buffer_add_text(into, "]");
}

static int compare_members(const void *a, const void *b) {
  const pk_buffer *x = &((const member *)a)->key, *y = &((const member *)b)->key;
  int64_t shared = x->bytes < y->bytes ? x->bytes : y->bytes;
  int order = shared ? memcmp(x->data, y->data, (size_t)shared) : 0;
  return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void free_members(members *all) {
  for (int64_t i = 0; i < all->count; i++) {
    pk_buffer_free(&all->list[i].key);
    pk_buffer_free(&all->list[i].value);
  }
  free(all->list);
}

static pk_status read_member(pk_json *json, int depth, members *all) {
  if (all->count == all->capacity) {
    int64_t capacity = all->capacity ? 2 * all->capacity : 8;
    member *list = realloc(all->list, (size_t)capacity * sizeof *list);
    if (!list)
      return pk_fail(PK_NO_MEMORY, "no memory for an object of %lld keys", (long long)capacity);
    all->list = list;
    all->capacity = capacity;
  }
  member *next = &all->list[all->count++];
  *next = (member){{0}, {0}};
  pk_status status = read_string(json, &next->key);
  if (status) return status;
  if (!pk_json_expect(json, ':', "a colon is expected here")) return PK_FORMAT;
  return canonical_value(json, depth + 1, NULL, &next->value);
}

static pk_status write_members(members *all, const char *without, pk_buffer *into) {
  pk_status status = pk_buffer_add_text(into, "{");
  bool first = true;
  for (int64_t i = 0; i < all->count && !status; i++) {
    member *next = &all->list[i];
    if (without && strcmp(pk_buffer_text(&next->key), without) == 0) continue;
    if (!first) status = pk_buffer_add_text(into, ", ");
    first = false;
    if (!status) status = write_string(&next->key, into);
    if (!status) status = pk_buffer_add_text(into, ": ");
    if (!status) status = pk_buffer_add(into, next->value.data, next->value.bytes);
  }
  return status ? status : pk_buffer_add_text(into, "}");
}

static pk_status canonical_object(pk_json *json, int depth, const char *without, pk_buffer *into) {
  members all = {0};
  pk_status status = PK_OK;
  json->at++;
  if (!pk_json_take(json, '}')) {
    do {
      status = read_member(json, depth, &all);
      if (status) goto done;
    } while (pk_json_take(json, ','));
    if (!pk_json_expect(json, '}', "a comma or } is expected here")) {
      status = PK_FORMAT;
      goto done;
    }
  }
  if (all.count > 1) qsort(all.list, (size_t)all.count, sizeof *all.list, compare_members);
  for (int64_t i = 1; i < all.count; i++) {
    if (compare_members(&all.list[i - 1], &all.list[i]) == 0) {
      pk_json_fail(json, "the object that ends here has a key twice");
      status = PK_FORMAT;
      goto done;
    }
  }
  status = write_members(&all, without, into);
done:
  free_members(&all);
  return status;
}

static pk_status canonical_value(pk_json *json, int depth, const char *without, pk_buffer *into) {
  pk_json_space(json);
  char c = json->at < json->bytes ? json->text[json->at] : '\0';
  if (c == '{' || c == '[') {
    if (depth >= PK_JSON_DEPTH) {
      pk_json_fail(json, "nested deeper than 64 levels");
      return PK_FORMAT;
    }
    return c == '{' ? canonical_object(json, depth, without, into)
                    : canonical_array(json, depth, into);
  }
  if (c == '"') {
    pk_buffer text = {0};
    pk_status status = read_string(json, &text);
    if (!status) status = write_string(&text, into);
    pk_buffer_free(&text);
    return status;
  }
  if (c == '-' || (c >= '0' && c <= '9')) return canonical_number(json, into);
  int64_t start = json->at;
  if (!pk_json_word(json)) return PK_FORMAT;
  return pk_buffer_add(into, json->text + start, json->at - start);
}

static long long line_of(const char *text, int64_t at) {
  long long line = 1;
  for (int64_t i = 0; i < at; i++) line += text[i] == '\n';
  return line;
}

pk_status pk_json_canonical(const char *text, int64_t bytes, const char *name, const char *without,
                            pk_buffer *into) {
  int64_t bad = pk_utf8_defect(text, bytes);
  if (bad >= 0) {
    return pk_fail(PK_FORMAT, "%s:%lld: a byte that is not UTF-8", name, line_of(text, bad));
  }
  pk_json json = {text, bytes, 0, NULL};
  if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) json.at = 3;
  pk_status status = canonical_value(&json, 0, without, into);
  if (!status) {
    pk_json_space(&json);
    if (json.at < bytes) pk_json_fail(&json, "more text after the end of the JSON value");
  }
  if (json.problem) {
    return pk_fail(PK_FORMAT, "%s:%lld: %s (byte %lld)", name, line_of(text, json.at), json.problem,
                   (long long)json.at);
  }
  return status;
}

pk_status pk_json_identity(const char *text, int64_t bytes, const char *name, char *digits) {
  pk_buffer canonical = {0};
  pk_status status = pk_json_canonical(text, bytes, name, "identity", &canonical);
  if (!status) pk_sha256_of(canonical.data, canonical.bytes, digits);
  pk_buffer_free(&canonical);
  return status;
}
