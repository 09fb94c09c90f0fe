/* Fuzzes the reader of compressed safetensors files: any bytes give a sound file or a message, and
 * what the writer of frames makes reads back to the same. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sha256.h"
#include "io/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where a file is not what pack.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

static void write_all(int fd, const void *data, size_t bytes) {
  require(write(fd, data, bytes) == (ssize_t)bytes);
}

/* Reads all that the file says it has; damage may still come to light. */
static void check_file(pk_safetensors *file) {
  for (int64_t i = 0; i < pk_safetensors_count(file); i++) {
    pk_safetensors_entry entry;
    require(pk_safetensors_describe(file, i, &entry) == PK_OK);
    char *raw = malloc((size_t)entry.bytes + 1);
    require(raw != NULL);
    pk_status status = pk_safetensors_read(file, i, raw, entry.bytes);
    require(status == PK_OK || *pk_error_message());
    free(raw);
  }
}

/* Opens a file that needs no disk: the bytes, and after them a trailer. */
static void check(const void *data, size_t bytes, const void *trailer, size_t trailer_bytes) {
  int fd = memfd_create("fuzz", 0);
  require(fd >= 0);
  write_all(fd, data, bytes);
  write_all(fd, trailer, trailer_bytes);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  pk_safetensors *file = NULL;
  pk_status status = pk_safetensors_open(path, &file);
  if (status == PK_OK) {
    require(file != NULL);
    check_file(file);
  } else {
    require(file == NULL && strstr(pk_error_message(), path));
  }
  pk_safetensors_close(file);
  close(fd);
}

/* The checksum that fits the bytes, so that mutations get past it. */
static void check_with_checksum(const uint8_t *data, size_t bytes) {
  static const unsigned char head[23] = "\x5c\x2a\x4d\x18\x4f\0\0\0packlua sha256 ";
  unsigned char trailer[sizeof head + PK_SHA256_TEXT - 1];
  char digits[PK_SHA256_TEXT];
  pk_sha256_of(data, (int64_t)bytes, digits);
  memcpy(trailer, head, sizeof head);
  memcpy(trailer + sizeof head, digits, PK_SHA256_TEXT - 1);
  check(data, bytes, trailer, sizeof trailer);
}

/* The bytes as content: written as frames, they are read back as they were. */
static void check_content(const uint8_t *data, size_t bytes) {
  char path[128], *read = malloc(bytes + 1);
  const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(path, sizeof path, "%s/packlua-fuzz-%ld.zst", folder, (long)getpid());
  pk_output output;
  pk_frame_writer *writer = NULL;
  require(read && pk_output_open(&output, path) == PK_OK);
  require(pk_frame_writer_create(&output, 1, 1, &writer) == PK_OK);
  require(pk_frame_writer_add(writer, data, (int64_t)bytes) == PK_OK);
  require(pk_frame_writer_end(writer) == PK_OK);
  pk_frame_writer_free(writer);
  int fd = open(output.temporary, O_RDONLY);
  require(fd >= 0);
  pk_frames *frames = NULL;
  require(pk_frames_open(fd, path, lseek(fd, 0, SEEK_END), &frames) == PK_OK);
  require(pk_frames_bytes(frames) == (int64_t)bytes);
  require(pk_frames_read(frames, 0, read, (int64_t)bytes) == PK_OK);
  require(memcmp(read, data, bytes) == 0);
  require(pk_frames_read(frames, 0, read, (int64_t)bytes + 1) == PK_FORMAT);
  pk_frames_free(frames);
  close(fd);
  pk_output_discard(&output);
  free(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  check(data, bytes, "", 0);
  check_with_checksum(data, bytes);
  if (bytes % 64 == 0) check_content(data, bytes);
  return 0;
}
