/* YAML from outside, by libyaml's events: one document of plain data. Aliases, anchors and tags are
 * refused, so a small text cannot become a large tree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "io/value.h"

enum { NUMBER_BYTES = 62 };

typedef struct reader {
  yaml_parser_t parser;
  const char *name;
} reader;

#define FAIL(reader, mark, format, ...)                                                            \
  pk_fail(PK_FORMAT, "%s:%zu:%zu: " format, (reader)->name, (mark).line + 1, (mark).column + 1,    \
          __VA_ARGS__)

static pk_status next_event(reader *r, yaml_event_t *event) {
  if (yaml_parser_parse(&r->parser, event)) return PK_OK;
  memset(event, 0, sizeof *event);
  if (r->parser.error == YAML_MEMORY_ERROR) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory to read YAML", r->name);
  }
  return FAIL(r, r->parser.problem_mark, "not valid YAML: %s",
              r->parser.problem ? r->parser.problem : "unreadable");
}

static bool is_one_of(const char *text, const char *const *words) {
  for (; *words; words++) {
    if (strcmp(text, *words) == 0) return true;
  }
  return false;
}

/* The base of 0x1f, 0o17 or 0b101, with *digits after its prefix, or 0. */
static int other_base(const char *text, const char **digits) {
  text += *text == '-' || *text == '+';
  if (text[0] != '0' || text[1] == '\0' || text[2] == '\0') return 0;
  *digits = text + 2;
  int base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : text[1] == 'b' ? 2 : 0;
  const char *valid = base == 16 ? "0123456789abcdefABCDEF" : base == 8 ? "01234567" : "01";
  return base && (*digits)[strspn(*digits, valid)] == '\0' ? base : 0;
}

/* Sets *number and *found if the plain scalar is a number. */
static pk_status read_number(const reader *r, yaml_mark_t mark, const char *scalar, double *number,
                             bool *found) {
  *found = false;
  char text[NUMBER_BYTES + 1];
  size_t count = 0;
  if (!strpbrk(scalar, "0123456789")) return PK_OK;
  for (const char *p = scalar; *p; p++) {
    if (*p == '_' && p > scalar) continue; /* 65_536, as YAML 1.1 has it */
    if (count == NUMBER_BYTES) return PK_OK;
    text[count++] = *p;
  }
  text[count] = '\0';
  const char *digits, *defect = NULL;
  int base = other_base(text, &digits);
  if (base) {
    *number = (double)strtoull(digits, NULL, base);
    if (*text == '-') *number = -*number;
    if (fabs(*number) >= PK_VALUE_INTEGER_LIMIT) defect = "is not below 2^53 in magnitude";
  } else if (pk_number_is_decimal(text)) {
    /* YAML 1.1 wants a point before an exponent; people write 1e-3 all the same. */
    const char *p = text + (*text == '-' || *text == '+');
    if (p[0] == '0' && p[1] != '\0' && p[strspn(p, "0123456789")] == '\0') {
      return FAIL(
          r, mark,
          "%s is octal in some YAML and decimal in other; write it without the leading zero",
          scalar);
    }
    defect = pk_number_read(text, number);
  } else {
    return PK_OK;
  }
  if (defect) return FAIL(r, mark, "%s %s", scalar, defect);
  *found = true;
  return PK_OK;
}

/* The meaning of a scalar: quoted ones are strings; plain ones by the core schema, and
 * yes/no/on/off by YAML 1.1, as PyYAML reads them. */
static pk_status read_scalar(const reader *r, const yaml_event_t *event, pk_value *value) {
  static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
  static const char *const trues[] = {"true", "True", "TRUE", "yes", "Yes",
                                      "YES",  "on",   "On",   "ON",  NULL};
  static const char *const falses[] = {"false", "False", "FALSE", "no",  "No",
                                       "NO",    "off",   "Off",   "OFF", NULL};
  static const char *const infinite[] = {".inf",  ".Inf",  ".INF",  "+.inf", "+.Inf",
                                         "+.INF", "-.inf", "-.Inf", "-.INF", ".nan",
                                         ".NaN",  ".NAN",  NULL};
  const char *text = (const char *)event->data.scalar.value;
  int64_t bytes = (int64_t)event->data.scalar.length, bad;
  const char *defect = pk_text_defect(text, bytes, &bad);
  if (defect) return FAIL(r, event->start_mark, "%s in a string", defect);
  if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
    if (is_one_of(text, nulls)) return PK_OK;
    bool is_true = is_one_of(text, trues), found;
    if (is_true || is_one_of(text, falses)) {
      value->kind = PK_VALUE_BOOLEAN;
      value->number = is_true;
      return PK_OK;
    }
    if (is_one_of(text, infinite))
      return FAIL(r, event->start_mark, "%s is not a finite number", text);
    pk_status status = read_number(r, event->start_mark, text, &value->number, &found);
    if (found) value->kind = PK_VALUE_NUMBER;
    if (status || found) return status;
  }
  value->kind = PK_VALUE_STRING;
  return pk_value_set_string(value, text, bytes);
}

static pk_status refuse_extras(const reader *r, const yaml_event_t *event) {
  const yaml_char_t *anchor = NULL, *tag = NULL;
  if (event->type == YAML_SCALAR_EVENT) {
    anchor = event->data.scalar.anchor;
    tag = event->data.scalar.tag;
  } else if (event->type == YAML_SEQUENCE_START_EVENT) {
    anchor = event->data.sequence_start.anchor;
    tag = event->data.sequence_start.tag;
  } else if (event->type == YAML_MAPPING_START_EVENT) {
    anchor = event->data.mapping_start.anchor;
    tag = event->data.mapping_start.tag;
  } else if (event->type == YAML_ALIAS_EVENT) {
    return FAIL(r, event->start_mark, "aliases (*%s) are not supported here",
                (const char *)event->data.alias.anchor);
  }
  if (anchor)
    return FAIL(r, event->start_mark, "anchors (&%s) are not supported here", (const char *)anchor);
  if (tag) return FAIL(r, event->start_mark, "tags (%s) are not supported here", (const char *)tag);
  return PK_OK;
}

static pk_status read_node(reader *r, const yaml_event_t *event, int depth, pk_value **result);

/* Reads children up to the end of a sequence or mapping. */
static pk_status read_children(reader *r, pk_value *parent, int depth) {
  pk_status status = PK_OK;
  while (!status) {
    yaml_event_t event;
    pk_value key = {0}, *child = NULL;
    status = next_event(r, &event);
    bool end = event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
    if (!status && !end && parent->kind == PK_VALUE_OBJECT) {
      if (event.type != YAML_SCALAR_EVENT) {
        status = FAIL(r, event.start_mark, "%s", "a key that is not a string");
      } else {
        status = refuse_extras(r, &event);
        const char *text = (const char *)event.data.scalar.value;
        int64_t bytes = (int64_t)event.data.scalar.length, bad;
        const char *defect = status ? NULL : pk_text_defect(text, bytes, &bad);
        if (defect) status = FAIL(r, event.start_mark, "%s in a key", defect);
        if (!status) status = pk_value_set_key(&key, text, bytes);
      }
      yaml_event_delete(&event);
      if (!status) status = next_event(r, &event);
    }
    if (!status && !end) status = read_node(r, &event, depth, &child);
    if (!status && !end) {
      child->key = key.key;
      pk_value_append(parent, child);
    } else {
      free(key.key);
    }
    yaml_event_delete(&event);
    if (end) break;
  }
  return status;
}

/* Reads the value that begins with event. */
static pk_status read_node(reader *r, const yaml_event_t *event, int depth, pk_value **result) {
  pk_status status = refuse_extras(r, event);
  if (status) return status;
  pk_value *value = pk_value_create(PK_VALUE_NULL);
  if (!value) return PK_NO_MEMORY;
  if (event->type == YAML_SCALAR_EVENT) {
    status = read_scalar(r, event, value);
  } else if (depth == PK_VALUE_DEPTH) {
    status = FAIL(r, event->start_mark, "nested deeper than %d levels", PK_VALUE_DEPTH);
  } else {
    value->kind = event->type == YAML_SEQUENCE_START_EVENT ? PK_VALUE_ARRAY : PK_VALUE_OBJECT;
    status = read_children(r, value, depth + 1);
  }
  if (status) {
    pk_value_free(value);
    return status;
  }
  *result = value;
  return PK_OK;
}

/* Reads a stream of one document; an empty one is null. */
static pk_status read_stream(reader *r, pk_value **value) {
  pk_status status = PK_OK;
  bool end = false;
  while (!status && !end) {
    yaml_event_t event;
    status = next_event(r, &event);
    if (!status && event.type == YAML_DOCUMENT_START_EVENT) {
      if (*value) status = FAIL(r, event.start_mark, "%s", "more than one document");
    } else if (!status && event.type == YAML_STREAM_END_EVENT) {
      end = true;
    } else if (!status && event.type != YAML_STREAM_START_EVENT &&
               event.type != YAML_DOCUMENT_END_EVENT) {
      status = read_node(r, &event, 0, value);
    }
    yaml_event_delete(&event);
  }
  if (!status && !*value) *value = pk_value_create(PK_VALUE_NULL);
  return *value || status ? status : PK_NO_MEMORY;
}

pk_status pk_value_from_yaml(const char *text, int64_t bytes, const char *name, pk_value **root) {
  *root = NULL;
  int64_t mark = pk_text_mark(text, bytes), bad;
  text += mark;
  bytes -= mark;
  const char *defect = pk_text_defect(text, bytes, &bad);
  if (defect) return pk_fail_at(name, text, bytes, bad, "%s", defect);
  reader r = {.name = name};
  if (!yaml_parser_initialize(&r.parser))
    return pk_fail(PK_NO_MEMORY, "%s: no memory to read YAML", name);
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, (size_t)bytes);
  yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
  pk_value *value = NULL;
  pk_status status = read_stream(&r, &value);
  if (!status) status = pk_value_check_keys(value, name);
  if (status) {
    pk_value_free(value);
  } else {
    *root = value;
  }
  yaml_parser_delete(&r.parser);
  return status;
}
