/* What the three readers of outside values (JSON, YAML, Lua) share: the tree and how it is built.
 */
#ifndef PK_IO_VALUE_H
#define PK_IO_VALUE_H

#include "base/base.h"

#define PK_VALUE_DEPTH 64
#define PK_VALUE_INTEGER_LIMIT 9007199254740992.0 /* 2^53: from here doubles skip integers */

struct pk_value {
  int32_t kind; /* a pk_value_kind */
  int64_t bytes;
  double number;
  char *string; /* of a string: bytes bytes and a NUL */
  char *key;    /* of an object's child */
  pk_value *first, *last, *next;
};

/* A value without parent, or NULL when memory is short (the message is set). */
pk_value *pk_value_create(int kind);

/* Makes child, which has no parent, the last child of parent and its owner. */
void pk_value_append(pk_value *parent, pk_value *child);

/* Copies bytes into the value's string, or into its key. */
pk_status pk_value_set_string(pk_value *value, const char *text, int64_t bytes);
pk_status pk_value_set_key(pk_value *value, const char *text, int64_t bytes);

/* Whether text is [-+] digits [. digits] [e [-+] digits], with a digit before the exponent. */
bool pk_number_is_decimal(const char *text);

/* The bytes of a byte order mark at the beginning of text: 3 or 0. Editors write it unseen. */
int64_t pk_text_mark(const char *text, int64_t bytes);

/* NULL if text is UTF-8 without NUL characters; else what is wrong, and *offset says where. */
const char *pk_text_defect(const char *text, int64_t bytes, int64_t *offset);

/* Refuses two children of one name anywhere below root. */
pk_status pk_value_check_keys(const pk_value *root, const char *name);

/* Fails with PK_FORMAT and "name:line:column: message" for the place offset of text. */
pk_status pk_fail_at(const char *name, const char *text, int64_t bytes, int64_t offset,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
