/* A growing piece of memory. */
#ifndef PK_DATA_BUFFER_H
#define PK_DATA_BUFFER_H

#include "base/base.h"

/* All zero is an empty buffer. data has room for a NUL after its bytes, which only pk_buffer_text
 * puts there. */
typedef struct pk_buffer {
  char *data;
  int64_t bytes;
  int64_t capacity;
} pk_buffer;

/* Room for more bytes after those that are there. */
pk_status pk_buffer_reserve(pk_buffer *buffer, int64_t more);
pk_status pk_buffer_add(pk_buffer *buffer, const void *data, int64_t bytes);
pk_status pk_buffer_add_text(pk_buffer *buffer, const char *text);
pk_status pk_buffer_format(pk_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The bytes with a NUL after them; borrowed. "" for an empty buffer. */
const char *pk_buffer_text(pk_buffer *buffer);

/* Empties the buffer; memory above keep bytes goes back, so that one huge line is not held for
 * ever. */
void pk_buffer_clear(pk_buffer *buffer, int64_t keep);
void pk_buffer_free(pk_buffer *buffer);

#endif
