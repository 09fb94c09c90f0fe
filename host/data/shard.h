/* One stored file of a cache, every byte of which is checked as it is read. */
#ifndef PK_DATA_SHARD_H
#define PK_DATA_SHARD_H

#include "base/sha256.h"

/* Stored bytes are checked in blocks of so many; the last one of a file may be shorter. */
enum { PK_BLOCK_BYTES = 1 << 18 };

typedef struct pk_token_file {
  char *path;     /* as it is opened */
  int64_t first;  /* place of its first id in the split */
  int64_t tokens; /* ids in it */
  bool compressed;
  char sha256[PK_SHA256_TEXT]; /* of the file as it is stored */
  int64_t bytes;               /* of the file as it is stored; -1: not stated */
  /* The first eight bytes of each block's SHA-256. NULL: not stated, and not found out so far. */
  uint64_t *sums;
} pk_token_file;

/* What is open of a shard. All zero but fd -1: nothing. */
typedef struct pk_shard_file {
  const pk_token_file *shard;
  int fd;
  int64_t bytes;
  char *block;  /* [PK_BLOCK_BYTES], for parts of blocks */
  int64_t held; /* the block that is in it, or -1 */
} pk_shard_file;

/* Opens a shard and checks its size. Errors name the file: missing, a link, pipe or the like,
 * shorter or longer than the manifest says. */
pk_status pk_shard_open(const pk_token_file *shard, int32_t width, pk_shard_file *file);

/* Closes the file and keeps the memory for the next one; _free frees that too. */
void pk_shard_close(pk_shard_file *file);
void pk_shard_free(pk_shard_file *file);

/* Stored bytes offset .. offset+bytes-1, which must be in the file. Errors: unreadable, or the
 * bytes are not those that the manifest states. Where it states no sums of blocks, the whole file
 * is read once, compared with its SHA-256, and its sums kept for the next readers. */
pk_status pk_shard_read(pk_shard_file *file, int64_t offset, void *into, int64_t bytes);

/* Blocks of so many bytes, and the sum of one. */
int64_t pk_block_count(int64_t bytes);
uint64_t pk_block_sum(const void *block, int64_t bytes);

/* Reads the whole file and compares its SHA-256 and sums with those of the manifest; each block
 * goes to take, unless that is NULL. Stops with PK_INTERRUPTED at a request to. */
pk_status pk_shard_verify(pk_shard_file *file,
                          pk_status (*take)(void *target, const void *block, int64_t bytes),
                          void *target);

#endif
