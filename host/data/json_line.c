/* The text field of a JSON object. cJSON would build a tree of a line that may have 100 MB, join no
 * count of bad surrogates and accept bytes that are not UTF-8; one pass over the line does it all.
 */
#include "data/json_line.h"

#include <string.h>

#include "base/json_text.h"
#include "base/utf8.h"

typedef struct field_value {
  const char *content; /* as written, or NULL if the field is not there */
  int64_t bytes;
  bool is_string;
} field_value;

/* Whether a key, as written, is the field. */
static pk_status is_field(const char *key, int64_t bytes, bool escapes, const char *field,
                          bool *same) {
  int64_t wanted = (int64_t)strlen(field);
  if (!escapes) {
    *same = bytes == wanted && memcmp(key, field, (size_t)bytes) == 0;
    return PK_OK;
  }
  pk_buffer decoded = {0};
  pk_status status = pk_json_decode(key, bytes, &decoded, NULL);
  *same = !status && decoded.bytes == wanted && memcmp(decoded.data, field, (size_t)wanted) == 0;
  pk_buffer_free(&decoded);
  return status;
}

static pk_status read_member(pk_json *json, const char *field, field_value *value) {
  const char *key, *content = NULL;
  int64_t bytes, content_bytes = 0;
  bool escapes, same;
  if (!pk_json_string(json, &key, &bytes, &escapes)) return PK_FORMAT;
  pk_status status = is_field(key, bytes, escapes, field, &same);
  if (status) return status;
  if (!pk_json_expect(json, ':', "a colon is expected here")) return PK_FORMAT;
  pk_json_space(json);
  bool is_string = json->at < json->bytes && json->text[json->at] == '"';
  if (is_string ? !pk_json_string(json, &content, &content_bytes, &escapes)
                : !pk_json_skip(json, 1)) {
    return PK_FORMAT;
  }
  if (same) *value = (field_value){is_string ? content : "", content_bytes, is_string};
  return PK_OK;
}

static pk_status read_object(pk_json *json, const char *field, field_value *value) {
  if (!pk_json_expect(json, '{', "an object { } is expected here")) return PK_FORMAT;
  if (!pk_json_take(json, '}')) {
    do {
      pk_status status = read_member(json, field, value);
      if (status) return status;
    } while (pk_json_take(json, ','));
    if (!pk_json_expect(json, '}', "a comma or } is expected here")) return PK_FORMAT;
  }
  pk_json_space(json);
  if (json->at < json->bytes) {
    pk_json_fail(json, "more text after the end of the object");
    return PK_FORMAT;
  }
  return PK_OK;
}

pk_status pk_json_field(const char *line, int64_t bytes, const char *field, pk_buffer *text,
                        int64_t *replaced) {
  int64_t bad = pk_utf8_defect(line, bytes);
  if (bad >= 0) {
    return pk_fail(PK_FORMAT, "invalid UTF-8 (byte 0x%02x at column %lld)",
                   (unsigned char)line[bad], (long long)bad + 1);
  }
  pk_json json = {line, bytes, 0, NULL};
  field_value value = {0};
  pk_status status = read_object(&json, field, &value);
  if (status == PK_FORMAT) {
    return pk_fail(PK_FORMAT, "not a JSON object: %s (column %lld)", json.problem,
                   (long long)json.at + 1);
  }
  if (status) return status;
  if (!value.content) return pk_fail(PK_FORMAT, "the object has no field \"%s\"", field);
  if (!value.is_string) return pk_fail(PK_FORMAT, "the field \"%s\" is not a string", field);
  return pk_json_decode(value.content, value.bytes, text, replaced);
}
