/* One stored file of a cache, every byte of which is checked as it is read. */
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"

static const char advice[] = "copy it again from where it is whole, or prepare the cache anew";

int64_t pk_block_count(int64_t bytes) {
  return (bytes + PK_BLOCK_BYTES - 1) / PK_BLOCK_BYTES;
}

uint64_t pk_block_sum(const void *block, int64_t bytes) {
  pk_sha256 hash;
  uint8_t digest[SHA256_DIGEST_SIZE];
  uint64_t sum = 0;
  pk_sha256_begin(&hash);
  pk_sha256_add(&hash, block, bytes);
  sha256_digest(&hash, sizeof digest, digest);
  for (int i = 0; i < 8; i++) sum = sum << 8 | digest[i];
  return sum;
}

static pk_status check_size(const pk_token_file *shard, int32_t width, int64_t bytes) {
  int64_t stated = shard->compressed ? shard->bytes : shard->tokens * width;
  if (stated < 0 || bytes == stated) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: %lld bytes, the manifest says %lld (%lld tokens of %d bytes): %s",
                 shard->path, (long long)bytes, (long long)stated, (long long)shard->tokens, width,
                 advice);
}

pk_status pk_shard_open(const pk_token_file *shard, int32_t width, pk_shard_file *file) {
  file->shard = shard;
  file->held = -1;
  pk_status status = pk_file_open(shard->path, O_RDONLY | O_NOFOLLOW, &file->fd);
  if (status) return status;
  struct stat about;
  if (fstat(file->fd, &about) != 0) {
    status = pk_fail_io(shard->path, "be read");
  } else {
    file->bytes = about.st_size;
    status = check_size(shard, width, file->bytes);
  }
  if (!status && !file->block) {
    file->block = malloc(PK_BLOCK_BYTES);
    if (!file->block) status = pk_fail(PK_NO_MEMORY, "%s: no memory to read it", shard->path);
  }
  if (status) pk_shard_close(file);
  return status;
}

void pk_shard_close(pk_shard_file *file) {
  if (file->fd >= 0) close(file->fd);
  file->fd = -1;
}

void pk_shard_free(pk_shard_file *file) {
  pk_shard_close(file);
  free(file->block);
  file->block = NULL;
}

static pk_status read_bytes(const pk_shard_file *file, int64_t offset, char *into, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t got = pread(file->fd, into + done, (size_t)(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return pk_fail_io(file->shard->path, "be read");
    if (got == 0) {
      return pk_fail(PK_FORMAT, "%s: ends at byte %lld, before byte %lld: it was cut while in use",
                     file->shard->path, (long long)(offset + done), (long long)(offset + bytes));
    }
    done += got;
  }
  return PK_OK;
}

static int64_t block_bytes(const pk_shard_file *file, int64_t block) {
  int64_t left = file->bytes - block * PK_BLOCK_BYTES;
  return left < PK_BLOCK_BYTES ? left : PK_BLOCK_BYTES;
}

/* The sums of a shard that several threads may read: set once, whoever comes first. */
static uint64_t *sums_of(const pk_token_file *shard) {
  return __atomic_load_n(&shard->sums, __ATOMIC_ACQUIRE);
}

static void keep_sums(const pk_token_file *shard, uint64_t *sums) {
  uint64_t *none = NULL;
  uint64_t **place = &((pk_token_file *)shard)->sums;
  if (!__atomic_compare_exchange_n(place, &none, sums, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    free(sums);
  }
}

static pk_status fail_damaged(const pk_shard_file *file, int64_t block) {
  int64_t first = block * PK_BLOCK_BYTES;
  return pk_fail(PK_FORMAT,
                 "%s: damaged: bytes %lld .. %lld are not those of the manifest's checksum: %s",
                 file->shard->path, (long long)first,
                 (long long)(first + block_bytes(file, block) - 1), advice);
}

/* Reads a whole block into memory of its size, and checks it. */
static pk_status read_block(const pk_shard_file *file, int64_t block, char *into) {
  int64_t bytes = block_bytes(file, block);
  pk_status status = read_bytes(file, block * PK_BLOCK_BYTES, into, bytes);
  if (status || pk_block_sum(into, bytes) == sums_of(file->shard)[block]) return status;
  return fail_damaged(file, block);
}

/* Hashes the whole file; sums, where it is not NULL, receives those of its blocks. */
static pk_status hash_all(pk_shard_file *file, uint64_t *sums, char digits[PK_SHA256_TEXT],
                          pk_status (*take)(void *, const void *, int64_t), void *target) {
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  file->held = -1;
  int64_t count = pk_block_count(file->bytes);
  for (int64_t block = 0; block < count; block++) {
    int64_t bytes = block_bytes(file, block);
    pk_status status = read_bytes(file, block * PK_BLOCK_BYTES, file->block, bytes);
    if (!status && take) status = take(target, file->block, bytes);
    if (status) return status;
    pk_sha256_add(&hash, file->block, bytes);
    sums[block] = pk_block_sum(file->block, bytes);
  }
  pk_sha256_end(&hash, digits);
  return PK_OK;
}

static pk_status check_whole(const pk_shard_file *file, const char *digits) {
  if (strcmp(digits, file->shard->sha256) == 0) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: damaged: its SHA-256 is %s, the manifest says %s: %s",
                 file->shard->path, digits, file->shard->sha256, advice);
}

static uint64_t *new_sums(const pk_shard_file *file) {
  uint64_t *sums = malloc((size_t)(pk_block_count(file->bytes) + 1) * sizeof *sums);
  if (!sums) pk_fail(PK_NO_MEMORY, "%s: no memory to check it", file->shard->path);
  return sums;
}

static pk_status learn_sums(pk_shard_file *file) {
  char digits[PK_SHA256_TEXT];
  uint64_t *sums = new_sums(file);
  pk_status status = sums ? hash_all(file, sums, digits, NULL, NULL) : PK_NO_MEMORY;
  if (!status) status = check_whole(file, digits);
  if (status) {
    free(sums);
  } else {
    keep_sums(file->shard, sums);
  }
  return status;
}

pk_status pk_shard_read(pk_shard_file *file, int64_t offset, void *into, int64_t bytes) {
  pk_status status = sums_of(file->shard) ? PK_OK : learn_sums(file);
  char *to = into;
  while (bytes > 0 && !status) {
    int64_t block = offset / PK_BLOCK_BYTES, skip = offset % PK_BLOCK_BYTES;
    int64_t size = block_bytes(file, block), take = size - skip < bytes ? size - skip : bytes;
    if (take == size) {
      status = read_block(file, block, to);
    } else {
      if (file->held != block) status = read_block(file, block, file->block);
      file->held = status ? -1 : block;
      if (!status) memcpy(to, file->block + skip, (size_t)take);
    }
    to += take;
    offset += take;
    bytes -= take;
  }
  return status;
}

pk_status pk_shard_verify(pk_shard_file *file,
                          pk_status (*take)(void *target, const void *block, int64_t bytes),
                          void *target) {
  char digits[PK_SHA256_TEXT];
  uint64_t *sums = new_sums(file);
  const uint64_t *stated = sums_of(file->shard);
  pk_status status = sums ? hash_all(file, sums, digits, take, target) : PK_NO_MEMORY;
  if (!status) status = check_whole(file, digits);
  for (int64_t i = 0; !status && stated && i < pk_block_count(file->bytes); i++) {
    if (sums[i] != stated[i]) status = fail_damaged(file, i);
  }
  free(sums);
  return status;
}
