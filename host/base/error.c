/* The message of the last failure on each thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { MESSAGE_BYTES = 2048 };

/* Thread-local like errno, so that parts without a context (files, parsers) report in the same way.
 */
static _Thread_local char message[MESSAGE_BYTES];

const char *pk_error_message(void) {
  return message;
}

pk_status pk_fail(pk_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

pk_status pk_fail_within(pk_status status, const char *format, ...) {
  char inner[MESSAGE_BYTES];
  memcpy(inner, message, sizeof inner);
  va_list arguments;
  va_start(arguments, format);
  int used = vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  if (used >= 0 && used < MESSAGE_BYTES - 2) {
    snprintf(message + used, sizeof message - (size_t)used, ": %s", inner);
  }
  return status;
}
