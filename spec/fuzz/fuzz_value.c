/* Fuzzes the readers of JSON and YAML: any bytes give a sound tree or a message. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where a tree is not what pack.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

static void check_tree(const pk_value *value, int depth) {
  require(depth <= 64);
  int kind = pk_value_get_kind(value);
  int64_t bytes = 0;
  const char *text = pk_value_get_string(value, &bytes);
  double number = pk_value_get_number(value);
  require(isfinite(number));
  if (kind == PK_VALUE_BOOLEAN) require(number == 0 || number == 1);
  if (kind == PK_VALUE_STRING) require(text && (int64_t)strlen(text) == bytes);
  if (kind != PK_VALUE_ARRAY && kind != PK_VALUE_OBJECT) require(!pk_value_first(value));
  for (const pk_value *child = pk_value_first(value); child; child = pk_value_next(child)) {
    require((pk_value_key(child) != NULL) == (kind == PK_VALUE_OBJECT));
    check_tree(child, depth + 1);
  }
}

static void check(pk_status status, pk_value *root) {
  if (status == PK_OK) {
    require(root != NULL);
    check_tree(root, 0);
  } else {
    require(root == NULL && *pk_error_message());
  }
  pk_value_free(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  pk_value *root = NULL;
  pk_status status = pk_value_from_json((const char *)data, (int64_t)bytes, "input", &root);
  check(status, root);
  status = pk_value_from_yaml((const char *)data, (int64_t)bytes, "input", &root);
  check(status, root);
  return 0;
}
