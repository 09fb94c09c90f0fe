/* Comparing every byte of a cache with its manifest. */
#include <string.h>

#include "data/manifest.h"

/* What the blocks of plain shards go to. */
typedef struct state {
  const pk_tokens *tokens;
  const pk_token_file *shard;
  int64_t place; /* of the next id in the shard */
  pk_sha256 hash;
} state;

static pk_status take_ids(state *s, const void *ids, int64_t bytes) {
  int64_t count = bytes / s->tokens->width;
  pk_status status = pk_tokens_check(s->tokens, s->shard->path, s->place, count, ids);
  pk_sha256_add(&s->hash, ids, bytes);
  s->place += count;
  return status ? status : pk_interrupt_check();
}

static pk_status take_plain(void *target, const void *block, int64_t bytes) {
  return take_ids(target, block, bytes);
}

static pk_status take_nothing(void *target, const void *block, int64_t bytes) {
  (void)target, (void)block, (void)bytes;
  return pk_interrupt_check();
}

/* The ids of a compressed shard, whose stored bytes are right. */
static pk_status verify_ids(state *s) {
  enum { PIECE = 1 << 15 };
  uint32_t ids[PIECE];
  pk_token_reader *reader;
  pk_status status = pk_token_reader_create(s->tokens, &reader);
  for (int64_t at = 0; at < s->shard->tokens && !status;) {
    int64_t left = s->shard->tokens - at, count = left < PIECE ? left : PIECE;
    status = pk_token_reader_read(reader, s->shard->first + at, count, ids);
    if (!status) status = take_ids(s, ids, count * s->tokens->width);
    at += count;
  }
  pk_token_reader_free(reader);
  return status;
}

static pk_status verify_shard(state *s) {
  pk_shard_file file = {.fd = -1};
  bool compressed = s->shard->compressed;
  s->place = 0;
  pk_status status = pk_shard_open(s->shard, s->tokens->width, &file);
  if (!status) status = pk_shard_verify(&file, compressed ? take_nothing : take_plain, s);
  pk_shard_free(&file);
  return status || !compressed ? status : verify_ids(s);
}

pk_status pk_manifest_verify_split(const pk_manifest_split *split, const char *folder) {
  state s = {.tokens = split->tokens};
  char digits[PK_SHA256_TEXT];
  pk_status status = PK_OK;
  pk_sha256_begin(&s.hash);
  for (int64_t i = 0; i < split->tokens->shard_count && !status; i++) {
    s.shard = &split->tokens->shards[i];
    status = verify_shard(&s);
  }
  if (status || !*split->tokens_sha256) return status;
  pk_sha256_end(&s.hash, digits);
  if (strcmp(digits, split->tokens_sha256) == 0) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: the SHA-256 of the tokens of %s is %s, the manifest says %s",
                 folder, split->name, digits, split->tokens_sha256);
}
