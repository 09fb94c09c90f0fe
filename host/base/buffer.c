/* A growing piece of memory. */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pk_status pk_buffer_reserve(pk_buffer *buffer, int64_t more) {
  int64_t wanted = buffer->bytes + more;
  if (wanted < buffer->capacity) return PK_OK;
  int64_t capacity = buffer->capacity + buffer->capacity / 2;
  if (capacity < wanted + 1) capacity = wanted + 1;
  if (capacity < 64) capacity = 64;
  char *data = realloc(buffer->data, (size_t)capacity);
  if (!data) return pk_fail(PK_NO_MEMORY, "no memory for %lld bytes of text", (long long)capacity);
  buffer->data = data;
  buffer->capacity = capacity;
  return PK_OK;
}

pk_status pk_buffer_add(pk_buffer *buffer, const void *data, int64_t bytes) {
  if (bytes == 0) return PK_OK;
  pk_status status = pk_buffer_reserve(buffer, bytes);
  if (status) return status;
  memcpy(buffer->data + buffer->bytes, data, (size_t)bytes);
  buffer->bytes += bytes;
  return PK_OK;
}

pk_status pk_buffer_add_text(pk_buffer *buffer, const char *text) {
  return pk_buffer_add(buffer, text, (int64_t)strlen(text));
}

pk_status pk_buffer_format(pk_buffer *buffer, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length < 0) return pk_fail(PK_INVALID, "the format %s cannot be printed", format);
  pk_status status = pk_buffer_reserve(buffer, length);
  if (status) return status;
  va_start(arguments, format);
  vsnprintf(buffer->data + buffer->bytes, (size_t)length + 1, format, arguments);
  va_end(arguments);
  buffer->bytes += length;
  return PK_OK;
}

const char *pk_buffer_text(pk_buffer *buffer) {
  if (!buffer->data) return "";
  buffer->data[buffer->bytes] = '\0';
  return buffer->data;
}

void pk_buffer_clear(pk_buffer *buffer, int64_t keep) {
  if (buffer->capacity > keep) pk_buffer_free(buffer);
  buffer->bytes = 0;
}

void pk_buffer_free(pk_buffer *buffer) {
  free(buffer->data);
  *buffer = (pk_buffer){0};
}
