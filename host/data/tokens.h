/* Where token ids are read from: an array in memory, or the shards of a cache's split. */
#ifndef PK_DATA_TOKENS_H
#define PK_DATA_TOKENS_H

#include "data/shard.h"

/* Some ids of another sequence, which are those from `start` on of the joined one. */
typedef struct pk_token_part {
  const pk_tokens *tokens;
  int64_t first, count, start;
} pk_token_part;

struct pk_tokens {
  int32_t holders; /* the last one frees it */
  int64_t count;
  int64_t vocabulary; /* ids are below it */
  int32_t width;      /* bytes of an id, little-endian: 2 or 4 */
  const void *memory; /* borrowed; NULL: the ids are in shards */
  pk_token_file *shards;
  int64_t shard_count;
  pk_token_part *parts; /* NULL: it is not joined of others */
  int64_t part_count;
};

/* Takes a hold, which pk_tokens_free gives back. Like freeing, from one thread at a time. */
const pk_tokens *pk_tokens_hold(const pk_tokens *tokens);

/* A reader has a place: it keeps the shard it reads open, and a compressed one is decompressed once
 * when it is read from front to back. A reader belongs to one thread at a time. */
typedef struct pk_token_reader pk_token_reader;

/* Owned; tokens must outlive it, unlike with loaders. */
pk_status pk_token_reader_create(const pk_tokens *tokens, pk_token_reader **reader);
void pk_token_reader_free(pk_token_reader *reader);

/* Ids first .. first+count-1, count * width bytes as they are stored, each checked to be below the
 * vocabulary. Errors: see pk_tokens_read. */
pk_status pk_token_reader_read(pk_token_reader *reader, int64_t first, int64_t count, void *ids);

/* Checks that a shard's file is there and has the size that the manifest states, if it does. */
pk_status pk_token_file_check(const pk_token_file *shard, int32_t width);

/* Checks that ids are below the vocabulary. path and first are where they are from, for messages.
 */
pk_status pk_tokens_check(const pk_tokens *tokens, const char *path, int64_t first, int64_t count,
                          const void *ids);

/* Copies count ids of width bytes as i32. */
void pk_ids_widen(const void *ids, int32_t width, int64_t count, int32_t *into);

#endif
