/* What the parts of a preparation share: documents, the shuffle, the shards of a split, the folder.
 */
#ifndef PK_DATA_PREPARE_H
#define PK_DATA_PREPARE_H

#include <zstd.h>

#include "base/buffer.h"
#include "data/shard.h"

/* A document on its way. path is borrowed, text is owned. */
typedef struct pk_document {
  char *text;
  int64_t bytes;
  const char *path;
  int64_t line;
} pk_document;

/* --- the shuffle (prepare_shuffle.c) --- */

/* A buffer from which documents leave in random order. */
typedef struct pk_shuffle {
  uint64_t seed;
  char name[32]; /* of the random stream */
  int64_t limit;
  int64_t bytes_limit;
  pk_document *documents;
  int64_t count, capacity, bytes;
  int64_t drawn;
} pk_shuffle;

void pk_shuffle_begin(pk_shuffle *shuffle, const pk_prepare_options *options, const char *split);

/* Takes over the document's text, also on failure. */
pk_status pk_shuffle_add(pk_shuffle *shuffle, pk_document document);

/* Whether one must leave: the buffer holds its number of documents or bytes. */
bool pk_shuffle_is_full(const pk_shuffle *shuffle);

/* A random document, now the caller's. There must be one. */
pk_document pk_shuffle_draw(pk_shuffle *shuffle);
void pk_shuffle_end(pk_shuffle *shuffle);

/* --- the shards of one split (prepare_shards.c) --- */

typedef struct pk_shard {
  int64_t tokens;
  int64_t bytes; /* of the stored file */
  char sha256[PK_SHA256_TEXT];
  pk_buffer sums; /* of its blocks, as digits */
} pk_shard;

typedef struct pk_shards {
  const char *folder;
  const char *split;
  int width; /* bytes of a token */
  int64_t shard_tokens;
  int level;      /* of zstd; 0: stored as they are */
  pk_shard *list; /* finished ones, and the open one last */
  int64_t count, capacity;
  int64_t tokens; /* in all shards */
  int fd;         /* of the open shard, or -1 */
  char *path;
  pk_sha256 stored_hash, token_hash;
  char *block; /* [PK_BLOCK_BYTES]: the stored bytes whose sum is not taken yet */
  int64_t block_bytes;
  char tokens_sha256[PK_SHA256_TEXT]; /* once closed */
  ZSTD_CCtx *zstd;
  void *packed; /* [ZSTD_CStreamOutSize()] */
} pk_shards;

/* The strings are borrowed. */
void pk_shards_begin(pk_shards *shards, const char *folder, const char *split, int width,
                     int64_t shard_tokens, int level);
pk_status pk_shards_add(pk_shards *shards, const void *tokens, int64_t count);
pk_status pk_shards_close(pk_shards *shards);
void pk_shards_free(pk_shards *shards);

/* The name of a shard's file, such as "train-00000.bin". */
void pk_shards_name(const pk_shards *shards, int64_t index, char *name, size_t size);

/* --- the folder (prepare_folder.c) --- */

/* The file of a cache that names the documents that were skipped, if any were. */
#define PK_SKIPPED_NAME "skipped.txt"

/* OUTPUT while it is being made: OUTPUT.partial, and OUTPUT.lock, which is held. */
typedef struct pk_cache_folder {
  char *output;
  char *partial;
  bool made; /* partial is there, and ours */
  int lock;  /* -1: none */
} pk_cache_folder;

/* Locks, refuses an output that is there, and makes an empty partial folder, which has a mark until
 * it is published. One that a killed preparation left is removed; anything else in its place is
 * refused. */
pk_status pk_cache_folder_begin(pk_cache_folder *folder, const char *output);

/* Makes the files read-only and gives the folder its name. */
pk_status pk_cache_folder_publish(pk_cache_folder *folder);

/* Removes what is not published, and unlocks. */
void pk_cache_folder_end(pk_cache_folder *folder);

/* --- the manifest (prepare_manifest.c) --- */

/* Writes manifest.json, with its identity, into the folder. A split without files has count 0. */
pk_status pk_manifest_write(const char *folder, const pk_prepare_options *options,
                            const pk_tokenizer *tokenizer, const pk_prepare_progress *progress,
                            const pk_shards shards[2]);

#endif
