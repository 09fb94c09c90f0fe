/* Reading manifests. Nothing in one is believed: sizes are checked before they are used, and file
 * names cannot lead out of the folder. */
#include "data/manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_BYTES = 160 };

#define MOST_TOKENS 1125899906842624 /* 2^50: their bytes are a whole number below 2^53 */

void pk_manifest_clear(pk_manifest *manifest) {
  for (int64_t i = 0; i < manifest->split_count; i++) {
    free(manifest->splits[i].name);
    pk_tokens_free(manifest->splits[i].tokens);
  }
  free(manifest->splits);
  *manifest = (pk_manifest){0};
}

/* --- values by key; where is the path of the object in messages, such as "splits.train." --- */

static const pk_value *find(const pk_value *object, const char *key) {
  const pk_value *child = pk_value_first(object);
  while (child && strcmp(pk_value_key(child), key) != 0) child = pk_value_next(child);
  return child;
}

static const char *kind_name(const pk_value *value) {
  static const char *const names[] = {"null",     "true or false", "a number",
                                      "a string", "an array",      "an object"};
  return names[pk_value_get_kind(value)];
}

static pk_status get(const pk_value *object, const char *name, const char *where, const char *key,
                     int kind, const char *expected, const pk_value **value) {
  *value = find(object, key);
  if (!*value) return pk_fail(PK_FORMAT, "%s: %s%s is missing", name, where, key);
  if (pk_value_get_kind(*value) == kind) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: %s%s is %s, not %s", name, where, key, kind_name(*value),
                 expected);
}

static pk_status get_string(const pk_value *object, const char *name, const char *where,
                            const char *key, const char **text) {
  const pk_value *value;
  pk_status status = get(object, name, where, key, PK_VALUE_STRING, "a string", &value);
  if (!status) *text = pk_value_get_string(value, NULL);
  return status;
}

static pk_status get_integer(const pk_value *object, const char *name, const char *where,
                             const char *key, int64_t least, int64_t most, int64_t *integer) {
  const pk_value *value;
  pk_status status = get(object, name, where, key, PK_VALUE_NUMBER, "a number", &value);
  if (status) return status;
  double number = pk_value_get_number(value);
  if (number != floor(number) || number < (double)least || number > (double)most) {
    return pk_fail(PK_FORMAT, "%s: %s%s is %.17g, not a whole number of %" PRId64 " .. %" PRId64,
                   name, where, key, number, least, most);
  }
  *integer = (int64_t)number;
  return PK_OK;
}

static pk_status get_digest(const pk_value *object, const char *name, const char *where,
                            const char *key, char digits[PK_SHA256_TEXT]) {
  const char *text;
  pk_status status = get_string(object, name, where, key, &text);
  if (status) return status;
  size_t length = strlen(text);
  if (length != PK_SHA256_TEXT - 1 || strspn(text, "0123456789abcdef") != length) {
    return pk_fail(PK_FORMAT, "%s: %s%s is \"%.80s\", not the 64 digits of a SHA-256", name, where,
                   key, text);
  }
  memcpy(digits, text, PK_SHA256_TEXT);
  return PK_OK;
}

/* --- shards --- */

/* Whether a file name is relative and has no part that is empty, "." or "..". */
static bool stays_inside(const char *file) {
  for (const char *part = file;; part++) {
    size_t length = strcspn(part, "/");
    if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && !memcmp(part, "..", 2))) {
      return false;
    }
    part += length;
    if (!*part) return true;
  }
}

static bool ends_with(const char *text, const char *ending) {
  size_t length = strlen(text), tail = strlen(ending);
  return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* "blocks_sha256": 16 digits for each block. */
static pk_status read_sums(const pk_value *row, const char *name, const char *where,
                           pk_token_file *shard) {
  const char *digits;
  pk_status status = get_string(row, name, where, "blocks_sha256", &digits);
  if (status) return status;
  size_t length = strlen(digits), count = (size_t)pk_block_count(shard->bytes);
  if (shard->bytes < 0 || length != 16 * count || strspn(digits, "0123456789abcdef") != length) {
    return pk_fail(PK_FORMAT,
                   "%s: %sblocks_sha256 is not 16 digits for each %d of the \"bytes\" of its file",
                   name, where, PK_BLOCK_BYTES);
  }
  shard->sums = malloc((count + 1) * sizeof *shard->sums);
  if (!shard->sums) return pk_fail(PK_NO_MEMORY, "%s: no memory for its checksums", name);
  for (size_t i = 0; i < count; i++) {
    char one[17] = {0};
    memcpy(one, digits + 16 * i, 16);
    shard->sums[i] = strtoull(one, NULL, 16);
  }
  return PK_OK;
}

/* What need not be there: the size of the stored file, and the sums of its blocks. */
static pk_status read_stored(const pk_value *row, const char *name, const char *where,
                             int32_t width, pk_token_file *shard) {
  int64_t plain = shard->tokens * width;
  shard->bytes = shard->compressed ? -1 : plain;
  pk_status status = PK_OK;
  if (find(row, "bytes")) {
    status = get_integer(row, name, where, "bytes", 0, MOST_TOKENS * 8, &shard->bytes);
  }
  if (!status && !shard->compressed && shard->bytes != plain) {
    status = pk_fail(PK_FORMAT, "%s: %sbytes is %" PRId64 ", but %" PRId64 " tokens have %" PRId64,
                     name, where, shard->bytes, shard->tokens, plain);
  }
  if (!status && find(row, "blocks_sha256")) status = read_sums(row, name, where, shard);
  return status;
}

static pk_status read_shard(const pk_value *row, const char *name, const char *where, int32_t width,
                            pk_token_file *shard) {
  if (pk_value_get_kind(row) != PK_VALUE_OBJECT) {
    return pk_fail(PK_FORMAT, "%s: %.*s is %s, not an object", name, (int)strlen(where) - 1, where,
                   kind_name(row));
  }
  const char *file = NULL;
  pk_status status = get_string(row, name, where, "file", &file);
  if (!status) status = get_integer(row, name, where, "tokens", 0, MOST_TOKENS, &shard->tokens);
  if (!status) status = get_digest(row, name, where, "sha256", shard->sha256);
  if (status) return status;
  if (!stays_inside(file)) {
    return pk_fail(PK_FORMAT, "%s: %sfile is \"%.80s\", not a name inside the cache's folder", name,
                   where, file);
  }
  shard->compressed = ends_with(file, ".zst");
  shard->path = strdup(file);
  if (!shard->path) return pk_fail(PK_NO_MEMORY, "%s: no memory for a file name", name);
  return read_stored(row, name, where, width, shard);
}

static int64_t count_children(const pk_value *parent) {
  int64_t count = 0;
  for (const pk_value *row = pk_value_first(parent); row; row = pk_value_next(row)) count++;
  return count;
}

static pk_status read_shards(const pk_value *rows, const char *name, const char *split,
                             int64_t promised, pk_tokens *tokens) {
  int64_t count = count_children(rows);
  tokens->shards = calloc((size_t)count + 1, sizeof *tokens->shards);
  if (!tokens->shards) return pk_fail(PK_NO_MEMORY, "%s: no memory for its shards", name);
  tokens->shard_count = count;
  int64_t number = 0;
  for (const pk_value *row = pk_value_first(rows); row; row = pk_value_next(row), number++) {
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "splits.%.80s.shards[%" PRId64 "].", split, number);
    pk_token_file *shard = &tokens->shards[number];
    pk_status status = read_shard(row, name, where, tokens->width, shard);
    if (status) return status;
    shard->first = tokens->count;
    tokens->count += shard->tokens;
    if (tokens->count > MOST_TOKENS) {
      return pk_fail(PK_FORMAT, "%s: the shards of splits.%.80s have more than %" PRId64 " tokens",
                     name, split, (int64_t)MOST_TOKENS);
    }
  }
  if (tokens->count == promised) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: splits.%.80s.tokens is %" PRId64 ", but its shards have %" PRId64,
                 name, split, promised, tokens->count);
}

static pk_status read_split(const pk_value *value, const char *name, pk_manifest_split *split,
                            int32_t width, int64_t vocabulary) {
  const char *key = pk_value_key(value);
  if (pk_value_get_kind(value) != PK_VALUE_OBJECT) {
    return pk_fail(PK_FORMAT, "%s: splits.%.80s is %s, not an object", name, key, kind_name(value));
  }
  split->name = strdup(key);
  split->tokens = calloc(1, sizeof *split->tokens);
  if (!split->name || !split->tokens) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory for a split", name);
  }
  split->tokens->holders = 1;
  split->tokens->width = width;
  split->tokens->vocabulary = vocabulary;
  char where[WHERE_BYTES];
  snprintf(where, sizeof where, "splits.%.80s.", key);
  int64_t promised = 0;
  const pk_value *rows = NULL;
  pk_status status = get_integer(value, name, where, "tokens", 0, MOST_TOKENS, &promised);
  if (!status) status = get(value, name, where, "shards", PK_VALUE_ARRAY, "an array", &rows);
  if (!status) status = read_shards(rows, name, key, promised, split->tokens);
  if (!status && find(value, "tokens_sha256")) {
    status = get_digest(value, name, where, "tokens_sha256", split->tokens_sha256);
  }
  return status;
}

static pk_status read_splits(const pk_value *root, const char *name, pk_manifest *manifest,
                             int32_t width, int64_t vocabulary) {
  const pk_value *splits = NULL;
  pk_status status = get(root, name, "", "splits", PK_VALUE_OBJECT, "an object", &splits);
  if (status) return status;
  manifest->splits = calloc((size_t)count_children(splits) + 1, sizeof *manifest->splits);
  if (!manifest->splits) return pk_fail(PK_NO_MEMORY, "%s: no memory for its splits", name);
  for (const pk_value *row = pk_value_first(splits); row && !status; row = pk_value_next(row)) {
    status = read_split(row, name, &manifest->splits[manifest->split_count++], width, vocabulary);
  }
  return status;
}

/* --- the whole --- */

/* The version may be left out, as this is the only one there is. */
static pk_status check_version(const pk_value *root, const char *name) {
  int64_t version = 0;
  if (!find(root, "version")) return PK_OK;
  pk_status status = get_integer(root, name, "", "version", 0, MOST_TOKENS, &version);
  if (status || version == 1) return status;
  return pk_fail(PK_UNSUPPORTED, "%s: version %" PRId64 " of the layout; this program reads 1",
                 name, version);
}

static pk_status read_width(const pk_value *root, const char *name, int32_t *width) {
  const char *dtype;
  pk_status status = get_string(root, name, "", "dtype", &dtype);
  if (status) return status;
  *width = strcmp(dtype, "<u2") == 0 ? 2 : strcmp(dtype, "<u4") == 0 ? 4 : 0;
  if (*width) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: dtype is \"%.80s\", not \"<u2\" or \"<u4\"", name, dtype);
}

static pk_status check_identity(const char *text, int64_t bytes, const char *name,
                                const char *stated) {
  char found[PK_SHA256_TEXT];
  pk_status status = pk_json_identity(text, bytes, name, found);
  if (status || strcmp(found, stated) == 0) return status;
  return pk_fail(PK_FORMAT, "%s: altered: it says that its identity is %s, but its content has %s",
                 name, stated, found);
}

/* What the program reads where it is there: of another type it would mislead. */
static pk_status check_optional(const pk_value *root, const char *name, int64_t vocabulary) {
  int64_t eos = 0;
  const pk_value *complete = find(root, "validation_complete");
  if (complete && pk_value_get_kind(complete) != PK_VALUE_BOOLEAN) {
    return pk_fail(PK_FORMAT, "%s: validation_complete is %s, not true or false", name,
                   kind_name(complete));
  }
  if (!find(root, "eos_token_id")) return PK_OK;
  return get_integer(root, name, "", "eos_token_id", 0, vocabulary - 1, &eos);
}

pk_status pk_manifest_read(const char *text, int64_t bytes, const char *name,
                           pk_manifest *manifest) {
  *manifest = (pk_manifest){0};
  pk_value *root = NULL;
  int32_t width = 0;
  int64_t vocabulary = 0;
  pk_status status = pk_value_from_json(text, bytes, name, &root);
  if (!status && pk_value_get_kind(root) != PK_VALUE_OBJECT) {
    status = pk_fail(PK_FORMAT, "%s: is %s, not an object", name, kind_name(root));
  }
  if (!status) status = check_version(root, name);
  if (!status) status = get_digest(root, name, "", "identity", manifest->identity);
  if (!status) status = check_identity(text, bytes, name, manifest->identity);
  if (!status) status = read_width(root, name, &width);
  if (!status) status = get_integer(root, name, "", "vocab_size", 1, INT32_MAX, &vocabulary);
  if (!status) status = check_optional(root, name, vocabulary);
  if (!status) status = read_splits(root, name, manifest, width, vocabulary);
  pk_value_free(root);
  if (status) pk_manifest_clear(manifest);
  return status;
}
