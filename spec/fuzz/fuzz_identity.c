/* Fuzzes canonical JSON: any bytes give a text that is its own canonical form, or a message. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where the result is not what identity.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  pk_buffer once = {0}, twice = {0};
  pk_status status =
      pk_json_canonical((const char *)data, (int64_t)bytes, "input", "identity", &once);
  require(status == PK_OK || strncmp(pk_error_message(), "input:", 6) == 0);
  if (status == PK_OK) {
    for (int64_t i = 0; i < once.bytes; i++) require(once.data[i] >= 0x20 && once.data[i] < 0x7f);
    /* A number beyond a double becomes Python's Infinity, which is not JSON. */
    if (!strstr(pk_buffer_text(&once), "Infinity")) {
      require(pk_json_canonical(once.data, once.bytes, "input", NULL, &twice) == PK_OK);
      require(once.bytes == twice.bytes && memcmp(once.data, twice.data, (size_t)once.bytes) == 0);
    }
  }
  pk_buffer_free(&once);
  pk_buffer_free(&twice);
  return 0;
}
