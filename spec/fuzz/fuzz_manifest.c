/* Fuzzes manifests of token caches: any bytes give splits that add up and stay inside the folder,
 * or a message. The identity is put right first, as no mutation would find it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/identity.h"
#include "data/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where the result is not what manifest.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

/* Writes the right digits over those of "identity": "...", where there are as many. */
static void correct_identity(char *text, size_t bytes) {
  static const char key[] = "\"identity\": \"";
  char digits[PK_SHA256_TEXT];
  char *found = memmem(text, bytes, key, sizeof key - 1);
  if (!found || pk_json_identity(text, (int64_t)bytes, "input", digits) != PK_OK) return;
  found += sizeof key - 1;
  size_t left = bytes - (size_t)(found - text);
  if (left >= PK_SHA256_TEXT) memcpy(found, digits, PK_SHA256_TEXT - 1);
}

static void check_split(const pk_manifest_split *split) {
  const pk_tokens *tokens = split->tokens;
  int64_t count = 0;
  require(split->name && tokens && (tokens->width == 2 || tokens->width == 4));
  require(tokens->vocabulary >= 1 && tokens->vocabulary <= INT32_MAX && !tokens->memory);
  for (int64_t i = 0; i < tokens->shard_count; i++) {
    const pk_token_file *shard = &tokens->shards[i];
    require(shard->first == count && shard->tokens >= 0 && strlen(shard->sha256) == 64);
    require(shard->path && shard->path[0] && shard->path[0] != '/' && !strstr(shard->path, "../"));
    count += shard->tokens;
  }
  require(count == tokens->count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  char *text = malloc(bytes + 1);
  if (!text) return 0;
  memcpy(text, data, bytes);
  correct_identity(text, bytes);
  pk_manifest manifest;
  pk_status status = pk_manifest_read(text, (int64_t)bytes, "input", &manifest);
  if (status == PK_OK) {
    for (int64_t i = 0; i < manifest.split_count; i++) check_split(&manifest.splits[i]);
  } else {
    require(*pk_error_message() && manifest.split_count == 0 && !manifest.splits);
  }
  pk_manifest_clear(&manifest);
  free(text);
  return 0;
}
