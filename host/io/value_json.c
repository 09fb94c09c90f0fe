/* JSON from outside. cJSON parses; a pass before it refuses what cJSON would let through: numbers
 * that a double cannot hold, NaN, control characters, NUL, bytes that are not UTF-8, deep nesting.
 */
#include <cJSON.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "io/value.h"

enum { NUMBER_BYTES = 62 }; /* cJSON reads a number through a buffer of 64 */

typedef struct source {
  const char *text;
  int64_t bytes;
  const char *name;
} source;

#define FAIL(source, offset, ...)                                                                  \
  pk_fail_at((source)->name, (source)->text, (source)->bytes, (offset), __VA_ARGS__)

static int64_t count_digits(const char *text) {
  int64_t count = 0;
  while (text[count] >= '0' && text[count] <= '9') count++;
  return count;
}

/* Whether token is a number as RFC 8259 writes it: one that does not begin with a plus, a point or
 * a 0 before other digits, nor has a point without digits behind it. */
static bool is_number(const char *token) {
  const char *p = token + (*token == '-'), *point = strchr(token, '.');
  int64_t digits = count_digits(p);
  if (digits == 0 || (digits > 1 && *p == '0')) return false;
  if (point && count_digits(point + 1) == 0) return false;
  return pk_number_is_decimal(token);
}

/* Checks the number, or the word in a number's place, at *offset and moves past it. */
static pk_status scan_number(const source *s, int64_t *offset) {
  int64_t start = *offset, end = start;
  while (end < s->bytes &&
         (strchr("+-.", s->text[end]) || (s->text[end] >= '0' && s->text[end] <= '9') ||
          ((s->text[end] | 32) >= 'a' && (s->text[end] | 32) <= 'z'))) {
    end++;
  }
  *offset = end;
  char token[NUMBER_BYTES + 1];
  if (end - start > NUMBER_BYTES) {
    return FAIL(s, start, "a number or word of more than %d characters", NUMBER_BYTES);
  }
  memcpy(token, s->text + start, (size_t)(end - start));
  token[end - start] = '\0';
  if (!strcmp(token, "true") || !strcmp(token, "false") || !strcmp(token, "null")) return PK_OK;
  if (!is_number(token)) return FAIL(s, start, "%s is not JSON", token);
  double number;
  const char *defect = pk_number_read(token, &number);
  return defect ? FAIL(s, start, "%s %s", token, defect) : PK_OK;
}

/* Checks the string whose quotation mark is at *offset and moves past it. */
static pk_status scan_string(const source *s, int64_t *offset) {
  int64_t start = *offset;
  for (int64_t i = start + 1; i < s->bytes; i++) {
    unsigned char c = (unsigned char)s->text[i];
    if (c < 0x20) return FAIL(s, i, "a control character (byte %d) in a string", c);
    if (c == '"') {
      *offset = i + 1;
      return PK_OK;
    }
    if (c == '\\') {
      if (s->bytes - i >= 6 && memcmp(s->text + i, "\\u0000", 6) == 0) {
        return FAIL(s, i, "a NUL character (\\u0000) in a string");
      }
      i++;
    }
  }
  return FAIL(s, start, "a string that does not end");
}

static pk_status scan(const source *s) {
  int64_t bad;
  const char *defect = pk_text_defect(s->text, s->bytes, &bad);
  if (defect) return FAIL(s, bad, "%s", defect);
  int depth = 0;
  int64_t i = pk_text_mark(s->text, s->bytes);
  while (i < s->bytes) {
    pk_status status = PK_OK;
    char c = s->text[i];
    if (c == '"') {
      status = scan_string(s, &i);
    } else if (strchr(" \t\r\n,:", c)) {
      i++;
    } else if (c == '[' || c == '{') {
      if (++depth > PK_VALUE_DEPTH) {
        status = FAIL(s, i, "nested deeper than %d levels", PK_VALUE_DEPTH);
      }
      i++;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) status = FAIL(s, i, "a closing %c without its opening", c);
      i++;
    } else if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9') ||
               ((c | 32) >= 'a' && (c | 32) <= 'z')) {
      status = scan_number(s, &i);
    } else {
      status = FAIL(s, i, "a character (byte %d) that is not JSON", (unsigned char)c);
    }
    if (status) return status;
  }
  /* Also keeps cJSON off the end of a text that stops after a comma: some releases read past it. */
  if (depth > 0) return FAIL(s, s->bytes, "the text ends inside an array or object");
  return PK_OK;
}

/* --- cJSON's memory: it does not say why it fails --- */

static _Thread_local bool memory_refused;

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (!memory) memory_refused = true;
  return memory;
}

static void set_hooks(void) {
  cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
}

static cJSON *parse(const source *s, const char **end) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, set_hooks);
  memory_refused = false;
  return cJSON_ParseWithLengthOpts(s->text, (size_t)s->bytes, end, 0);
}

/* --- the tree --- */

static pk_status convert(const cJSON *json, pk_value **result) {
  int kind = cJSON_IsNull(json)     ? PK_VALUE_NULL
             : cJSON_IsBool(json)   ? PK_VALUE_BOOLEAN
             : cJSON_IsNumber(json) ? PK_VALUE_NUMBER
             : cJSON_IsString(json) ? PK_VALUE_STRING
             : cJSON_IsArray(json)  ? PK_VALUE_ARRAY
                                    : PK_VALUE_OBJECT;
  pk_value *value = pk_value_create(kind);
  if (!value) return PK_NO_MEMORY;
  pk_status status = PK_OK;
  if (kind == PK_VALUE_BOOLEAN) value->number = cJSON_IsTrue(json) ? 1 : 0;
  if (kind == PK_VALUE_NUMBER) value->number = json->valuedouble;
  if (kind == PK_VALUE_STRING) {
    status = pk_value_set_string(value, json->valuestring, (int64_t)strlen(json->valuestring));
  }
  if (kind == PK_VALUE_ARRAY || kind == PK_VALUE_OBJECT) {
    for (const cJSON *item = json->child; item && !status; item = item->next) {
      pk_value *child = NULL;
      status = convert(item, &child);
      if (status) break;
      pk_value_append(value, child);
      if (item->string) {
        status = pk_value_set_key(child, item->string, (int64_t)strlen(item->string));
      }
    }
  }
  if (status) {
    pk_value_free(value);
    return status;
  }
  *result = value;
  return PK_OK;
}

pk_status pk_value_from_json(const char *text, int64_t bytes, const char *name, pk_value **root) {
  *root = NULL;
  source s = {text, bytes, name};
  if (bytes == 0) return pk_fail(PK_FORMAT, "%s: empty, not JSON", name);
  pk_status status = scan(&s);
  if (status) return status;
  const char *end = NULL;
  pk_value *value = NULL;
  cJSON *json = parse(&s, &end);
  if (!json && memory_refused) {
    status = pk_fail(PK_NO_MEMORY, "%s: no memory for its values", name);
    goto done;
  }
  if (!json) {
    status = FAIL(&s, end ? end - text : 0, "not valid JSON");
    goto done;
  }
  int64_t rest = end - text;
  while (rest < bytes && strchr(" \t\r\n", text[rest])) rest++;
  if (rest < bytes) {
    status = FAIL(&s, rest, "more text after the end of the JSON value");
    goto done;
  }
  status = convert(json, &value);
  if (!status) status = pk_value_check_keys(value, name);
  if (status) goto done;
  *root = value;
  value = NULL;
done:
  pk_value_free(value);
  cJSON_Delete(json);
  return status;
}
