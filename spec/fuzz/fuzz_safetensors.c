/* Fuzzes the reader of safetensors files: any bytes give a sound file or a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Stops the fuzzer where a file is not what pack.h promises. */
static void require(int condition) {
  if (!condition) abort();
}

/* Reads a tensor and converts it to every dtype of tensors. */
static void check_data(pk_safetensors *file, int64_t index, const pk_safetensors_entry *entry) {
  int64_t count = 1;
  for (int d = 0; d < entry->rank; d++) count *= entry->bytes == 0 ? 0 : entry->shape[d];
  char *raw = malloc((size_t)entry->bytes + 1), *converted = malloc((size_t)count * 8 + 1);
  require(raw && converted);
  pk_status status = pk_safetensors_read(file, index, raw, entry->bytes);
  require(status == PK_OK || status == PK_FORMAT); /* another checksum than it says */
  require(pk_safetensors_read(file, index, raw, entry->bytes + 1) == PK_INVALID);
  for (int dtype = PK_F64; dtype <= PK_I32; dtype++) {
    status = pk_convert(dtype, converted, entry->dtype, raw, count);
    require(status == PK_OK || *pk_error_message());
  }
  free(raw);
  free(converted);
}

static void check_file(pk_safetensors *file) {
  int64_t end = 0;
  for (int64_t i = 0; i < pk_safetensors_count(file); i++) {
    pk_safetensors_entry entry;
    require(pk_safetensors_describe(file, i, &entry) == PK_OK);
    require(entry.offset == end && entry.bytes >= 0 && entry.rank >= 0 && entry.rank <= 8);
    end += entry.bytes;
    check_data(file, i, &entry);
  }
  for (int64_t i = 0; pk_safetensors_metadata_key(file, i); i++) {
    require(pk_safetensors_metadata(file, pk_safetensors_metadata_key(file, i)) != NULL);
  }
}

static void write_all(int fd, const void *data, size_t bytes) {
  require(write(fd, data, bytes) == (ssize_t)bytes);
}

/* Opens a file of two pieces, which need no disk. */
static void check(const void *head, size_t head_bytes, const void *data, size_t bytes) {
  int fd = memfd_create("fuzz", 0);
  require(fd >= 0);
  write_all(fd, head, head_bytes);
  write_all(fd, data, bytes);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  pk_safetensors *file = NULL;
  pk_status status = pk_safetensors_open(path, &file);
  if (status == PK_OK) {
    require(file != NULL);
    check_file(file);
  } else {
    require(file == NULL && *pk_error_message());
  }
  pk_safetensors_close(file);
  close(fd);
}

/* The bytes are a file as they are; and once more a header, which ends with the last brace, and
 * data, as few mutations of a file leave its header's size right. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  check("", 0, data, bytes);
  uint64_t header = bytes;
  while (header > 0 && data[header - 1] != '}') header--;
  check(&header, sizeof header, data, bytes);
  return 0;
}
