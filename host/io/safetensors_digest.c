/* The SHA-256 of what a safetensors file's header says. */
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

static int compare_parts(const void *a, const void *b) {
  const pk_safetensors_part *x = a, *y = b;
  if (!x->value != !y->value) return x->value ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* With its NUL, so that no two lists of texts look the same. */
static void add_text(pk_sha256 *hash, const char *text) {
  pk_sha256_add(hash, text, (int64_t)strlen(text) + 1);
}

void pk_safetensors_sort_parts(pk_safetensors_part *parts, int64_t count) {
  if (count > 0) qsort(parts, (size_t)count, sizeof *parts, compare_parts);
}

void pk_safetensors_header_sha256(const pk_safetensors_part *parts, int64_t count,
                                  const char *tensors, char digits[PK_SHA256_TEXT]) {
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  for (int64_t i = 0; i < count; i++) {
    add_text(&hash, parts[i].name);
    if (parts[i].value) {
      add_text(&hash, parts[i].value);
    } else {
      char shape[PK_SHAPE_TEXT];
      add_text(&hash, parts[i].dtype);
      add_text(&hash, pk_shape_text(shape, parts[i].rank, parts[i].shape));
    }
  }
  add_text(&hash, tensors);
  pk_sha256_end(&hash, digits);
}
