/* Atomic output: temporary file, fsync, rename, fsync of the folder. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ATTEMPTS = 1000 };

static const int64_t MAX_WRITE = 1 << 30; /* Linux writes at most 2 GiB at once */

pk_status pk_fail_io(const char *path, const char *what) {
  int reason = errno;
  return pk_fail(PK_IO, "%s: cannot %s: %s", path, what, strerror(reason));
}

pk_status pk_write_all(int fd, const char *path, const void *data, int64_t bytes) {
  const char *from = data;
  while (bytes > 0) {
    ssize_t written = write(fd, from, (size_t)(bytes < MAX_WRITE ? bytes : MAX_WRITE));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return pk_fail_io(path, "be written");
    from += written;
    bytes -= written;
  }
  return PK_OK;
}

/* Creates the temporary file with the permissions that an ordinary new file would have. */
static int open_temporary(char *name, size_t size, const char *path) {
  int fd = -1;
  for (int i = 0; i < MAX_ATTEMPTS && fd < 0; i++) {
    snprintf(name, size, "%s.tmp-%ld-%d", path, (long)getpid(), i);
    fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) break;
  }
  return fd;
}

pk_status pk_output_open(pk_output *output, const char *path) {
  *output = (pk_output){.fd = -1};
  int kind = pk_path_kind(path);
  if (kind == 'd') return pk_fail(PK_IO, "%s: cannot be written: it is a directory", path);
  if (kind == 'o') return pk_fail(PK_IO, "%s: cannot be written: it is not a regular file", path);
  size_t size = strlen(path) + 64;
  output->path = strdup(path);
  output->temporary = malloc(size);
  if (!output->path || !output->temporary) {
    pk_output_discard(output);
    return pk_fail(PK_NO_MEMORY, "no memory for the path of %s", path);
  }
  output->fd = open_temporary(output->temporary, size, path);
  if (output->fd < 0) {
    pk_fail_io(path, "be created");
    pk_output_discard(output);
    return PK_IO;
  }
  return PK_OK;
}

pk_status pk_output_write(pk_output *output, const void *data, int64_t bytes) {
  return pk_write_all(output->fd, output->path, data, bytes);
}

void pk_output_discard(pk_output *output) {
  if (output->fd >= 0) close(output->fd);
  if (output->fd >= 0 && output->temporary) unlink(output->temporary);
  free(output->path);
  free(output->temporary);
  *output = (pk_output){.fd = -1};
}

/* A rename is on disk once its folder is. */
static pk_status sync_folder(const char *path) {
  char *folder = pk_folder_of(path);
  if (!folder) return pk_fail(PK_NO_MEMORY, "no memory for the path of %s", path);
  pk_status status = pk_folder_sync(folder);
  free(folder);
  return status;
}

pk_status pk_output_sync(pk_output *output) {
  return pk_descriptor_sync(output->fd, output->path);
}

pk_status pk_output_publish(pk_output *output) {
  pk_status status = pk_output_sync(output);
  if (status) goto done;
  int failed = close(output->fd);
  output->fd = -1;
  if (failed || rename(output->temporary, output->path) != 0) {
    status = pk_fail_io(output->path, "be finished");
    unlink(output->temporary);
    goto done;
  }
  status = sync_folder(output->path);
done:
  pk_output_discard(output);
  return status;
}
