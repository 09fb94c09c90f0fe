/* Files that grow by lines, as a run's do: opened without following links, appended to, and cut
 * back to their first lines. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/output.h"

enum { PIECE = 1 << 20 };

pk_status pk_append_open(const char *path, int *file) {
  return pk_file_open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, file);
}

pk_status pk_append(int file, const char *path, const void *data, int64_t bytes) {
  return pk_write_all(file, path, data, bytes);
}

pk_status pk_append_close(int file, const char *path) {
  return file < 0 || close(file) == 0 ? PK_OK : pk_fail_io(path, "be written");
}

/* Reads the next piece of a file; *got is 0 at its end. */
static pk_status read_piece(int fd, const char *path, char *piece, int64_t most, int64_t *got) {
  ssize_t count;
  do {
    count = read(fd, piece, (size_t)(most < PIECE ? most : PIECE));
  } while (count < 0 && errno == EINTR);
  *got = count;
  return count >= 0 ? PK_OK : pk_fail_io(path, "be read");
}

pk_status pk_file_lines(const char *path, int64_t lines, int64_t *found, int64_t *bytes) {
  *found = *bytes = 0;
  int fd = -1;
  char *piece = malloc(PIECE);
  pk_status status = piece ? pk_file_open(path, O_RDONLY, &fd)
                           : pk_fail(PK_NO_MEMORY, "%s: no memory to read it", path);
  int64_t got = 1, place = 0;
  while (!status && *found < lines && got > 0) {
    status = read_piece(fd, path, piece, PIECE, &got);
    const char *at = piece, *end = piece + got;
    while (!status && *found < lines && (at = memchr(at, '\n', (size_t)(end - at)))) {
      at++;
      ++*found;
      *bytes = place + (at - piece);
    }
    place += got;
  }
  if (fd >= 0) close(fd);
  free(piece);
  return status;
}

pk_status pk_file_cut(const char *path, int64_t bytes) {
  int fd;
  pk_status status = pk_file_open(path, O_WRONLY | O_NOFOLLOW, &fd);
  if (status) return status;
  if (ftruncate(fd, bytes) != 0) status = pk_fail_io(path, "be cut");
  if (!status) status = pk_descriptor_sync(fd, path);
  close(fd);
  return status;
}

pk_status pk_file_copy(const char *path, int64_t bytes, const char *to) {
  int fd = -1;
  pk_output output = {.fd = -1};
  char *piece = malloc(PIECE);
  pk_status status = piece ? pk_file_open(path, O_RDONLY, &fd)
                           : pk_fail(PK_NO_MEMORY, "%s: no memory to copy it", path);
  if (!status) status = pk_output_open(&output, to);
  while (!status && bytes > 0) {
    int64_t got;
    status = read_piece(fd, path, piece, bytes, &got);
    if (!status && got == 0) {
      status = pk_fail(PK_IO, "%s: became shorter while it was copied", path);
    }
    if (!status) status = pk_output_write(&output, piece, got);
    bytes -= got;
  }
  if (!status) status = pk_output_publish(&output);
  pk_output_discard(&output);
  if (fd >= 0) close(fd);
  free(piece);
  return status;
}
