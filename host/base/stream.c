/* Reading a file that may be gzip or zstd, piece by piece, in memory that does not grow. */
#include "base/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/output.h"

enum { STORED = 1 << 17 }; /* bytes read from the file at once */

typedef enum coding { CODING_NONE, CODING_GZIP, CODING_ZSTD } coding;

struct pk_stream {
  char *path;
  int file;
  coding coding;
  int64_t stored;       /* bytes read from the file */
  bool at_end;          /* the file has no more */
  bool between;         /* no member or frame is open */
  unsigned char *input; /* [STORED] */
  size_t begin, end;    /* what of input is not used yet */
  z_stream gzip;
  bool gzip_ready;
  ZSTD_DStream *zstd;
};

/* Makes sure that input has bytes, unless the file has no more. */
static pk_status refill(pk_stream *stream) {
  if (stream->begin < stream->end || stream->at_end) return PK_OK;
  ssize_t count;
  do {
    count = read(stream->file, stream->input, STORED);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return pk_fail(PK_IO, "%s: cannot be read: %s", stream->path, strerror(errno));
  stream->begin = 0;
  stream->end = (size_t)count;
  stream->stored += count;
  stream->at_end = count == 0;
  return PK_OK;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), wanted = strlen(end);
  return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static pk_status find_coding(pk_stream *stream) {
  static const unsigned char gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
  pk_status status = refill(stream);
  if (status) return status;
  size_t count = stream->end - stream->begin;
  const unsigned char *head = stream->input + stream->begin;
  /* zstd's skippable frames begin with 50..5f 2a 4d 18. */
  bool skippable =
      count >= 4 && (head[0] & 0xf0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0;
  if (count >= 2 && memcmp(head, gzip, 2) == 0) {
    stream->coding = CODING_GZIP;
    if (inflateInit2(&stream->gzip, 15 + 16) != Z_OK) {
      return pk_fail(PK_NO_MEMORY, "%s: no memory to decompress it", stream->path);
    }
    stream->gzip_ready = true;
  } else if (skippable || (count >= 4 && memcmp(head, zstd, 4) == 0)) {
    stream->coding = CODING_ZSTD;
    stream->zstd = ZSTD_createDStream();
    if (!stream->zstd) return pk_fail(PK_NO_MEMORY, "%s: no memory to decompress it", stream->path);
    /* As far as zstd --long=31 goes; the memory of a window is used as far as there is text. */
    ZSTD_DCtx_setParameter(stream->zstd, ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  } else if (count < 4 && (ends_with(stream->path, ".gz") || ends_with(stream->path, ".zst"))) {
    return pk_fail(PK_FORMAT, "%s: only %zu bytes: not a whole compressed file", stream->path,
                   count);
  }
  stream->between = true;
  return PK_OK;
}

static pk_status open_stream(pk_stream *stream, pk_stream_kind kind) {
  pk_status status = pk_file_open(stream->path, O_RDONLY, &stream->file);
  if (status) return status;
  stream->input = malloc(STORED);
  if (!stream->input) return pk_fail(PK_NO_MEMORY, "%s: no memory to read it", stream->path);
  return kind == PK_STREAM_BY_CONTENT ? find_coding(stream) : PK_OK;
}

pk_status pk_stream_open(const char *path, pk_stream_kind kind, pk_stream **result) {
  *result = NULL;
  pk_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return pk_fail(PK_NO_MEMORY, "%s: no memory to read it", path);
  stream->file = -1;
  stream->path = strdup(path);
  pk_status status =
      stream->path ? open_stream(stream, kind) : pk_fail(PK_NO_MEMORY, "no memory for a path");
  if (status) {
    pk_stream_close(stream);
    return status;
  }
  *result = stream;
  return PK_OK;
}

void pk_stream_close(pk_stream *stream) {
  if (!stream) return;
  if (stream->file >= 0) close(stream->file);
  if (stream->gzip_ready) inflateEnd(&stream->gzip);
  ZSTD_freeDStream(stream->zstd);
  free(stream->input);
  free(stream->path);
  free(stream);
}

int64_t pk_stream_stored(const pk_stream *stream) {
  return stream->stored;
}

static pk_status read_plain(pk_stream *stream, void *data, int64_t limit, int64_t *count) {
  size_t there = stream->end - stream->begin;
  size_t taken = (size_t)limit < there ? (size_t)limit : there;
  memcpy(data, stream->input + stream->begin, taken);
  stream->begin += taken;
  *count = (int64_t)taken;
  return PK_OK;
}

/* Between two members: another one must begin here. Zero bytes at the end of a file are padding. */
static pk_status next_member(pk_stream *stream, bool *found) {
  *found = false;
  const unsigned char *head = stream->input + stream->begin;
  if (*head == 0) {
    stream->begin++;
    return PK_OK;
  }
  if (*head != 0x1f) {
    return pk_fail(
        PK_FORMAT, "%s: %lld bytes in: what follows the end of the gzip data is not gzip",
        stream->path, (long long)(stream->stored - (int64_t)(stream->end - stream->begin)));
  }
  inflateReset(&stream->gzip);
  stream->between = false;
  *found = true;
  return PK_OK;
}

static pk_status read_gzip(pk_stream *stream, void *data, int64_t limit, int64_t *count) {
  z_stream *gzip = &stream->gzip;
  if (stream->between) {
    bool found;
    pk_status status = next_member(stream, &found);
    if (status || !found) return status;
  }
  size_t there = stream->end - stream->begin;
  gzip->next_in = stream->input + stream->begin;
  gzip->avail_in = (uInt)there;
  gzip->next_out = data;
  gzip->avail_out = (uInt)(limit < 1 << 30 ? limit : 1 << 30);
  uInt room = gzip->avail_out;
  int result = inflate(gzip, Z_NO_FLUSH);
  stream->begin = stream->end - gzip->avail_in;
  *count = room - gzip->avail_out;
  if (result == Z_STREAM_END) stream->between = true;
  if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) return PK_OK;
  if (result == Z_MEM_ERROR) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory to decompress it", stream->path);
  }
  return pk_fail(PK_FORMAT, "%s: damaged gzip data: %s", stream->path,
                 gzip->msg ? gzip->msg : "unexpected dictionary");
}

static pk_status read_zstd(pk_stream *stream, void *data, int64_t limit, int64_t *count) {
  ZSTD_inBuffer input = {stream->input + stream->begin, stream->end - stream->begin, 0};
  ZSTD_outBuffer output = {data, (size_t)limit, 0};
  size_t result = ZSTD_decompressStream(stream->zstd, &output, &input);
  stream->begin += input.pos;
  *count = (int64_t)output.pos;
  ZSTD_ErrorCode code = ZSTD_getErrorCode(result);
  if (code == ZSTD_error_memory_allocation || code == ZSTD_error_frameParameter_windowTooLarge) {
    return pk_fail(PK_NO_MEMORY,
                   "%s: no memory for its long zstd window (zstd --long); as gzip, or compressed "
                   "anew without --long, it needs less",
                   stream->path);
  }
  if (ZSTD_isError(result)) {
    return pk_fail(PK_FORMAT, "%s: damaged zstd data: %s", stream->path, ZSTD_getErrorName(result));
  }
  stream->between = result == 0;
  return PK_OK;
}

/* What a decompressor still holds once the file has no more bytes. */
static pk_status drain(pk_stream *stream, void *data, int64_t limit, int64_t *count) {
  if (stream->coding == CODING_NONE || stream->between) return PK_OK;
  pk_status status = stream->coding == CODING_GZIP ? read_gzip(stream, data, limit, count)
                                                   : read_zstd(stream, data, limit, count);
  if (status || *count > 0 || stream->between) return status;
  return pk_fail(PK_FORMAT, "%s: the %s data is cut off: the file ends in the middle of it",
                 stream->path, stream->coding == CODING_GZIP ? "gzip" : "zstd");
}

pk_status pk_stream_read(pk_stream *stream, void *data, int64_t limit, int64_t *count) {
  *count = 0;
  while (*count == 0 && limit > 0) {
    pk_status status = refill(stream);
    if (status) return status;
    if (stream->begin == stream->end) return drain(stream, data, limit, count);
    status = stream->coding == CODING_GZIP   ? read_gzip(stream, data, limit, count)
             : stream->coding == CODING_ZSTD ? read_zstd(stream, data, limit, count)
                                             : read_plain(stream, data, limit, count);
    if (status) return status;
  }
  return PK_OK;
}
