/* Writes and reads content in zstd frames. The last frame is a skippable one, which holds the
 * SHA-256 of all bytes before it: zstd's own checksums do not see a frame that is missing, or a
 * flipped bit that zstd ignores. */
#include "io/frames.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zstd.h>

#include "base/sha256.h"

static const char trailer_tag[] = "packlua sha256 ";
static const unsigned char trailer_magic[4] = {0x5c, 0x2a, 0x4d, 0x18};

enum {
  TAG_BYTES = sizeof trailer_tag - 1,
  TRAILER_CONTENT = TAG_BYTES + PK_SHA256_TEXT - 1,
  TRAILER_BYTES = 8 + TRAILER_CONTENT, /* magic, size of the content, content */
  FRAME_HEADER = 6                     /* the least that a zstd frame's header has */
};

static void make_trailer(unsigned char trailer[TRAILER_BYTES], const char digits[PK_SHA256_TEXT]) {
  memcpy(trailer, trailer_magic, 4);
  memcpy(trailer + 4, (const unsigned char[4]){TRAILER_CONTENT, 0, 0, 0}, 4);
  memcpy(trailer + 8, trailer_tag, TAG_BYTES);
  memcpy(trailer + 8 + TAG_BYTES, digits, PK_SHA256_TEXT - 1);
}

/* --- writing --- */

struct pk_frame_writer {
  pk_output *output;
  ZSTD_CCtx *zstd;
  char *content; /* [PK_FRAME_BYTES] of the frame to come */
  int64_t used;
  char *packed;
  size_t packed_size;
  pk_sha256 hash;
};

pk_status pk_frame_writer_create(pk_output *output, int level, int threads,
                                 pk_frame_writer **writer) {
  *writer = NULL;
  pk_frame_writer *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "%s: no memory to compress", output->path);
  created->output = output;
  created->packed_size = ZSTD_compressBound(PK_FRAME_BYTES);
  created->content = malloc(PK_FRAME_BYTES);
  created->packed = malloc(created->packed_size);
  created->zstd = ZSTD_createCCtx();
  if (!created->content || !created->packed || !created->zstd) {
    pk_frame_writer_free(created);
    return pk_fail(PK_NO_MEMORY, "%s: no memory to compress", output->path);
  }
  pk_sha256_begin(&created->hash);
  ZSTD_CCtx_setParameter(created->zstd, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(created->zstd, ZSTD_c_checksumFlag, 1);
  /* A zstd without threads refuses this and does the work in the caller's. */
  if (threads > 1) ZSTD_CCtx_setParameter(created->zstd, ZSTD_c_nbWorkers, threads);
  *writer = created;
  return PK_OK;
}

void pk_frame_writer_free(pk_frame_writer *writer) {
  if (!writer) return;
  ZSTD_freeCCtx(writer->zstd);
  free(writer->content);
  free(writer->packed);
  free(writer);
}

static pk_status write_frame(pk_frame_writer *writer) {
  size_t packed = ZSTD_compress2(writer->zstd, writer->packed, writer->packed_size, writer->content,
                                 (size_t)writer->used);
  if (ZSTD_isError(packed)) {
    return pk_fail(PK_NO_MEMORY, "%s: cannot be compressed: %s", writer->output->path,
                   ZSTD_getErrorName(packed));
  }
  writer->used = 0;
  pk_sha256_add(&writer->hash, writer->packed, (int64_t)packed);
  return pk_output_write(writer->output, writer->packed, (int64_t)packed);
}

pk_status pk_frame_writer_add(pk_frame_writer *writer, const void *data, int64_t bytes) {
  const char *from = data;
  while (bytes > 0) {
    int64_t room = PK_FRAME_BYTES - writer->used, count = bytes < room ? bytes : room;
    memcpy(writer->content + writer->used, from, (size_t)count);
    writer->used += count;
    from += count;
    bytes -= count;
    if (writer->used == PK_FRAME_BYTES) {
      pk_status status = write_frame(writer);
      if (status) return status;
    }
  }
  return PK_OK;
}

pk_status pk_frame_writer_end(pk_frame_writer *writer) {
  pk_status status = writer->used > 0 ? write_frame(writer) : PK_OK;
  if (status) return status;
  char digits[PK_SHA256_TEXT];
  unsigned char trailer[TRAILER_BYTES];
  pk_sha256_end(&writer->hash, digits);
  make_trailer(trailer, digits);
  return pk_output_write(writer->output, trailer, TRAILER_BYTES);
}

/* --- reading --- */

typedef struct frame {
  int64_t place; /* in the file */
  int64_t start; /* in the content */
  int32_t packed;
  int32_t bytes;
} frame;

struct pk_frames {
  const char *path;
  int fd;
  ZSTD_DCtx *zstd;
  char *packed; /* [packed_size], also the window of the scan */
  int64_t packed_size;
  char *content;   /* [PK_FRAME_BYTES] of the frame unpacked last */
  int64_t current; /* its index, or -1 */
  frame *list;
  int64_t count;
  int64_t bytes;
};

static pk_status fail_damaged(const pk_frames *frames, int64_t place, const char *reason) {
  return pk_fail(PK_FORMAT, "%s: damaged at byte %" PRId64 ": %s", frames->path, place, reason);
}

/* Reads stored bytes, all of them. */
static pk_status read_stored(const pk_frames *frames, int64_t place, void *data, int64_t bytes) {
  char *to = data;
  while (bytes > 0) {
    ssize_t got = pread(frames->fd, to, (size_t)bytes, place);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return pk_fail_io(frames->path, "be read");
    if (got == 0) return fail_damaged(frames, place, "the file ends here");
    to += got;
    place += got;
    bytes -= got;
  }
  return PK_OK;
}

/* What the frame at the beginning of the window, `got` bytes of the file from `place` on, is. */
static pk_status measure(const pk_frames *frames, int64_t place, int64_t got, frame *found) {
  if (!pk_frames_begin(frames->packed, got) || got < FRAME_HEADER) {
    return fail_damaged(frames, place, "no frame begins here");
  }
  /* The frame header's descriptor (RFC 8878, 3.1.1.1.1): a checksum, and no dictionary. */
  if ((frames->packed[4] & 7) != 4) return fail_damaged(frames, place, "not a frame of packlua's");
  unsigned long long bytes = ZSTD_getFrameContentSize(frames->packed, (size_t)got);
  if (bytes == 0 || bytes > PK_FRAME_BYTES) { /* unknown is beyond too */
    return fail_damaged(frames, place, "a frame of a size that packlua does not write");
  }
  size_t packed = ZSTD_findFrameCompressedSize(frames->packed, (size_t)got);
  if (ZSTD_isError(packed)) return fail_damaged(frames, place, ZSTD_getErrorName(packed));
  *found = (frame){
      .place = place, .start = frames->bytes, .packed = (int32_t)packed, .bytes = (int32_t)bytes};
  return PK_OK;
}

static pk_status append_frame(pk_frames *frames, const frame *found) {
  int64_t count = frames->count;
  if ((count & (count - 1)) == 0) { /* the room doubles at powers of two */
    frame *larger = realloc(frames->list, (size_t)(count ? 2 * count : 1) * sizeof *larger);
    if (!larger) return pk_fail(PK_NO_MEMORY, "%s: no memory to read it", frames->path);
    frames->list = larger;
  }
  frames->list[frames->count++] = *found;
  frames->bytes += found->bytes;
  return PK_OK;
}

/* Lists the frames before `end`, and hashes their stored bytes. */
static pk_status scan(pk_frames *frames, int64_t end, char digits[PK_SHA256_TEXT]) {
  pk_sha256 hash;
  pk_sha256_begin(&hash);
  for (int64_t place = 0; place < end;) {
    int64_t left = end - place, got = left < frames->packed_size ? left : frames->packed_size;
    frame found = {0};
    pk_status status = read_stored(frames, place, frames->packed, got);
    if (!status) status = measure(frames, place, got, &found);
    if (!status) status = append_frame(frames, &found);
    if (status) return status;
    pk_sha256_add(&hash, frames->packed, found.packed);
    place += found.packed;
  }
  pk_sha256_end(&hash, digits);
  return PK_OK;
}

static pk_status open_frames(pk_frames *frames, int64_t stored) {
  unsigned char trailer[TRAILER_BYTES], wanted[TRAILER_BYTES];
  char digits[PK_SHA256_TEXT] = "";
  if (stored < TRAILER_BYTES) {
    return pk_fail(PK_FORMAT, "%s: %" PRId64 " bytes are too few: cut short", frames->path, stored);
  }
  int64_t end = stored - TRAILER_BYTES;
  pk_status status = read_stored(frames, end, trailer, TRAILER_BYTES);
  if (status) return status;
  make_trailer(wanted, digits);
  if (memcmp(trailer, wanted, 8 + TAG_BYTES) != 0) {
    return pk_fail(PK_FORMAT, "%s: does not end with its checksum: cut short, or not packlua's",
                   frames->path);
  }
  /* The window holds any frame that the writer makes. */
  frames->packed_size = (int64_t)ZSTD_compressBound(PK_FRAME_BYTES);
  if (end < frames->packed_size) frames->packed_size = end;
  frames->packed = malloc((size_t)frames->packed_size + 1);
  if (!frames->packed) return pk_fail(PK_NO_MEMORY, "%s: no memory to read it", frames->path);
  status = scan(frames, end, digits);
  if (status) return status;
  make_trailer(wanted, digits);
  if (memcmp(trailer, wanted, TRAILER_BYTES) == 0) return PK_OK;
  return pk_fail(PK_FORMAT, "%s: damaged: the SHA-256 of its bytes is %s, not %.64s", frames->path,
                 digits, (const char *)trailer + 8 + TAG_BYTES);
}

bool pk_frames_begin(const void *head, int64_t bytes) {
  static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd};
  return bytes >= 4 && memcmp(head, magic, 4) == 0;
}

pk_status pk_frames_open(int fd, const char *path, int64_t stored, pk_frames **frames) {
  *frames = NULL;
  pk_frames *opened = calloc(1, sizeof *opened);
  if (!opened) return pk_fail(PK_NO_MEMORY, "%s: no memory to read it", path);
  opened->path = path;
  opened->fd = fd;
  opened->current = -1;
  pk_status status = open_frames(opened, stored);
  if (status) {
    pk_frames_free(opened);
    return status;
  }
  *frames = opened;
  return PK_OK;
}

void pk_frames_free(pk_frames *frames) {
  if (!frames) return;
  ZSTD_freeDCtx(frames->zstd);
  free(frames->packed);
  free(frames->content);
  free(frames->list);
  free(frames);
}

int64_t pk_frames_bytes(const pk_frames *frames) {
  return frames->bytes;
}

/* The frame that holds a byte of the content. */
static int64_t frame_of(const pk_frames *frames, int64_t offset) {
  int64_t low = 0, high = frames->count;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (frames->list[middle].start <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Unpacks a frame, which zstd checks against its checksum. */
static pk_status unpack(pk_frames *frames, int64_t index) {
  if (index == frames->current) return PK_OK;
  if (!frames->content) frames->content = malloc(PK_FRAME_BYTES);
  if (!frames->zstd) frames->zstd = ZSTD_createDCtx();
  if (!frames->content || !frames->zstd) {
    return pk_fail(PK_NO_MEMORY, "%s: no memory to decompress it", frames->path);
  }
  const frame *wanted = &frames->list[index];
  pk_status status = read_stored(frames, wanted->place, frames->packed, wanted->packed);
  if (status) return status;
  frames->current = -1;
  size_t got = ZSTD_decompressDCtx(frames->zstd, frames->content, PK_FRAME_BYTES, frames->packed,
                                   (size_t)wanted->packed);
  if (ZSTD_isError(got)) return fail_damaged(frames, wanted->place, ZSTD_getErrorName(got));
  if ((int64_t)got != wanted->bytes) {
    return fail_damaged(frames, wanted->place, "a frame of another size than it says");
  }
  frames->current = index;
  return PK_OK;
}

pk_status pk_frames_read(pk_frames *frames, int64_t offset, void *data, int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > frames->bytes || bytes > frames->bytes - offset) {
    return pk_fail(PK_FORMAT,
                   "%s: its content ends at byte %" PRId64 "; %" PRId64 " from %" PRId64
                   " on are wanted",
                   frames->path, frames->bytes, bytes, offset);
  }
  char *to = data;
  while (bytes > 0) {
    int64_t index = frame_of(frames, offset);
    pk_status status = unpack(frames, index);
    if (status) return status;
    int64_t skip = offset - frames->list[index].start;
    int64_t there = frames->list[index].bytes - skip, count = bytes < there ? bytes : there;
    memcpy(to, frames->content + skip, (size_t)count);
    to += count;
    offset += count;
    bytes -= count;
  }
  return PK_OK;
}
