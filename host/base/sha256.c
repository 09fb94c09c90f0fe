/* SHA-256 by nettle, which uses the processor's instructions for it where there are any. */
#include "base/sha256.h"

#include <stdlib.h>

#include "base/stream.h"

void pk_sha256_begin(pk_sha256 *hash) {
  sha256_init(hash);
}

void pk_sha256_add(pk_sha256 *hash, const void *data, int64_t bytes) {
  if (bytes > 0) sha256_update(hash, (size_t)bytes, data);
}

void pk_sha256_end(pk_sha256 *hash, char text[PK_SHA256_TEXT]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_digest(hash, sizeof digest, digest);
  for (size_t i = 0; i < sizeof digest; i++) {
    text[2 * i] = digits[digest[i] >> 4];
    text[2 * i + 1] = digits[digest[i] & 15];
  }
  text[2 * sizeof digest] = '\0';
}

void pk_sha256_of(const void *data, int64_t bytes, char text[PK_SHA256_TEXT]) {
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  pk_sha256_add(&hash, data, bytes);
  pk_sha256_end(&hash, text);
}

/* Adds a file's bytes, or what they decompress to, to hash and to *bytes. */
static pk_status add_file(pk_sha256 *hash, const char *path, int decompress, int64_t *bytes) {
  enum { PIECE = 1 << 17 };
  pk_stream *stream = NULL;
  char *piece = NULL;
  pk_status status =
      pk_stream_open(path, decompress ? PK_STREAM_BY_CONTENT : PK_STREAM_PLAIN, &stream);
  if (status) goto done;
  piece = malloc(PIECE);
  if (!piece) {
    status = pk_fail(PK_NO_MEMORY, "no memory to read %s", path);
    goto done;
  }
  for (int64_t count = 1; count > 0;) {
    status = pk_stream_read(stream, piece, PIECE, &count);
    if (status) goto done;
    pk_sha256_add(hash, piece, count);
    *bytes += count;
  }
done:
  free(piece);
  pk_stream_close(stream);
  return status;
}

pk_status pk_files_sha256(const char *const *paths, int64_t count, int decompress, char *digits,
                          int64_t *bytes) {
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  *bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    pk_status status = add_file(&hash, paths[i], decompress, bytes);
    if (status) return status;
  }
  pk_sha256_end(&hash, digits);
  return PK_OK;
}
