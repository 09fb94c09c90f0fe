/* Writes the tokens of a split into shards, hashing what is stored and what it stands for. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/output.h"
#include "data/prepare.h"

void pk_shards_begin(pk_shards *shards, const char *folder, const char *split, int width,
                     int64_t shard_tokens, int level) {
  *shards = (pk_shards){.folder = folder,
                        .split = split,
                        .width = width,
                        .shard_tokens = shard_tokens,
                        .level = level,
                        .fd = -1};
  pk_sha256_begin(&shards->stored_hash);
  pk_sha256_begin(&shards->token_hash);
}

void pk_shards_name(const pk_shards *shards, int64_t index, char *name, size_t size) {
  snprintf(name, size, "%s-%05lld.bin%s", shards->split, (long long)index,
           shards->level ? ".zst" : "");
}

static pk_status start_zstd(pk_shards *shards) {
  if (!shards->zstd) {
    shards->zstd = ZSTD_createCCtx();
    shards->packed = malloc(ZSTD_CStreamOutSize());
  }
  if (!shards->zstd || !shards->packed)
    return pk_fail(PK_NO_MEMORY, "no memory to compress shards");
  ZSTD_CCtx_reset(shards->zstd, ZSTD_reset_session_only);
  ZSTD_CCtx_setParameter(shards->zstd, ZSTD_c_compressionLevel, shards->level);
  ZSTD_CCtx_setParameter(shards->zstd, ZSTD_c_checksumFlag, 1);
  return PK_OK;
}

static pk_status open_shard(pk_shards *shards) {
  if (shards->count == shards->capacity) {
    int64_t capacity = shards->capacity ? 2 * shards->capacity : 16;
    pk_shard *list = realloc(shards->list, (size_t)capacity * sizeof *list);
    if (!list) return pk_fail(PK_NO_MEMORY, "no memory for %lld shards", (long long)capacity);
    shards->list = list;
    shards->capacity = capacity;
  }
  if (!shards->block) shards->block = malloc(PK_BLOCK_BYTES);
  if (!shards->block) return pk_fail(PK_NO_MEMORY, "no memory to write shards");
  char name[64];
  pk_shards_name(shards, shards->count, name, sizeof name);
  free(shards->path);
  if (asprintf(&shards->path, "%s/%s", shards->folder, name) < 0) {
    shards->path = NULL;
    return pk_fail(PK_NO_MEMORY, "no memory for a path");
  }
  shards->fd = open(shards->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (shards->fd < 0) return pk_fail_io(shards->path, "be created");
  shards->list[shards->count++] = (pk_shard){0};
  return shards->level ? start_zstd(shards) : PK_OK;
}

static pk_status end_block(pk_shards *shards) {
  uint64_t sum = pk_block_sum(shards->block, shards->block_bytes);
  shards->block_bytes = 0;
  return pk_buffer_format(&shards->list[shards->count - 1].sums, "%016" PRIx64, sum);
}

/* Takes the sums of blocks that are full. */
static pk_status add_to_blocks(pk_shards *shards, const char *data, int64_t bytes) {
  while (bytes > 0) {
    int64_t room = PK_BLOCK_BYTES - shards->block_bytes, taken = bytes < room ? bytes : room;
    memcpy(shards->block + shards->block_bytes, data, (size_t)taken);
    shards->block_bytes += taken;
    pk_status status = taken == room ? end_block(shards) : PK_OK;
    if (status) return status;
    data += taken;
    bytes -= taken;
  }
  return PK_OK;
}

static pk_status store(pk_shards *shards, const void *data, int64_t bytes) {
  pk_sha256_add(&shards->stored_hash, data, bytes);
  shards->list[shards->count - 1].bytes += bytes;
  pk_status status = add_to_blocks(shards, data, bytes);
  if (status) return status;
  return pk_write_all(shards->fd, shards->path, data, bytes);
}

static pk_status compress(pk_shards *shards, const void *data, int64_t bytes,
                          ZSTD_EndDirective end) {
  ZSTD_inBuffer input = {data, (size_t)bytes, 0};
  for (bool done = false; !done;) {
    ZSTD_outBuffer output = {shards->packed, ZSTD_CStreamOutSize(), 0};
    size_t left = ZSTD_compressStream2(shards->zstd, &output, &input, end);
    if (ZSTD_isError(left)) {
      return pk_fail(PK_NO_MEMORY, "%s: zstd: %s", shards->path, ZSTD_getErrorName(left));
    }
    pk_status status = store(shards, shards->packed, (int64_t)output.pos);
    if (status) return status;
    done = end == ZSTD_e_end ? left == 0 : input.pos == input.size;
  }
  return PK_OK;
}

static pk_status close_shard(pk_shards *shards) {
  pk_status status = shards->level ? compress(shards, NULL, 0, ZSTD_e_end) : PK_OK;
  if (!status && shards->block_bytes > 0) status = end_block(shards);
  if (!status) status = pk_descriptor_sync(shards->fd, shards->path);
  if (close(shards->fd) != 0 && !status) status = pk_fail_io(shards->path, "be written");
  shards->fd = -1;
  pk_sha256_end(&shards->stored_hash, shards->list[shards->count - 1].sha256);
  return status;
}

pk_status pk_shards_add(pk_shards *shards, const void *tokens, int64_t count) {
  const char *from = tokens;
  while (count > 0) {
    pk_status status = shards->fd < 0 ? open_shard(shards) : PK_OK;
    if (status) return status;
    pk_shard *shard = &shards->list[shards->count - 1];
    int64_t room = shards->shard_tokens - shard->tokens, taken = count < room ? count : room;
    int64_t bytes = taken * shards->width;
    pk_sha256_add(&shards->token_hash, from, bytes);
    status =
        shards->level ? compress(shards, from, bytes, ZSTD_e_continue) : store(shards, from, bytes);
    if (status) return status;
    shard->tokens += taken;
    shards->tokens += taken;
    from += bytes;
    count -= taken;
    if (taken == room) status = close_shard(shards);
    if (status) return status;
  }
  return PK_OK;
}

pk_status pk_shards_close(pk_shards *shards) {
  pk_status status = shards->fd >= 0 ? close_shard(shards) : PK_OK;
  pk_sha256_end(&shards->token_hash, shards->tokens_sha256);
  return status;
}

void pk_shards_free(pk_shards *shards) {
  if (shards->path && shards->fd >= 0) close(shards->fd);
  ZSTD_freeCCtx(shards->zstd);
  for (int64_t i = 0; i < shards->count; i++) pk_buffer_free(&shards->list[i].sums);
  free(shards->packed);
  free(shards->block);
  free(shards->path);
  free(shards->list);
  *shards = (pk_shards){.fd = -1};
}
