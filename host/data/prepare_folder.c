/* The folder of a cache: made under another name, published by one rename. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/prepare.h"
#include "io/output.h"

/* Calls act for every file in the folder, until one fails. */
static pk_status for_files(const char *folder, pk_status (*act)(const char *path)) {
  char *names;
  pk_status status = pk_directory_list(folder, &names);
  if (status) return status;
  char *rest = names, *name;
  while (!status && (name = strsep(&rest, "\n"))) {
    char *path;
    if (!*name) continue;
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
      status = pk_fail(PK_NO_MEMORY, "no memory for a path");
    } else {
      status = act(path);
      free(path);
    }
  }
  pk_bytes_free(names);
  return status;
}

static pk_status remove_file(const char *path) {
  return unlink(path) == 0 ? PK_OK : pk_fail_io(path, "be removed");
}

static pk_status protect_file(const char *path) {
  return chmod(path, 0444) == 0 ? PK_OK : pk_fail_io(path, "be made read-only");
}

static pk_status remove_folder(const char *folder) {
  if (pk_path_kind(folder) == 0) return PK_OK;
  pk_status status = for_files(folder, remove_file);
  if (!status && rmdir(folder) != 0) status = pk_fail_io(folder, "be removed");
  return status;
}

static pk_status sync_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return pk_fail_io(folder, "be opened");
  pk_status status = fsync(fd) == 0 ? PK_OK : pk_fail_io(folder, "be written");
  close(fd);
  return status;
}

/* The folder that holds path; the caller frees it. */
static char *parent_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static pk_status refuse_existing(const char *output) {
  int kind = pk_path_kind(output);
  if (kind == 0) return PK_OK;
  if (kind != 'd') return pk_fail(PK_INVALID, "%s: is there and is not a folder", output);
  char *names;
  pk_status status = pk_directory_list(output, &names);
  if (status) return status;
  bool empty = !*names;
  pk_bytes_free(names);
  if (empty) return PK_OK;
  return pk_fail(PK_INVALID, "%s: the folder is there and not empty; a cache is never changed",
                 output);
}

static pk_status begin(pk_cache_folder *folder) {
  char *lock = NULL, *parent = parent_of(folder->output);
  pk_status status = PK_OK;
  if (!parent || asprintf(&folder->partial, "%s.partial", folder->output) < 0 ||
      asprintf(&lock, "%s.lock", folder->output) < 0) {
    status = pk_fail(PK_NO_MEMORY, "no memory for a path");
    goto done;
  }
  status = pk_directory_create(parent);
  if (!status) status = refuse_existing(folder->output);
  if (status) goto done;
  status = pk_file_lock(lock, &folder->lock);
  if (status) {
    pk_fail_within(status, "%s: another preparation is writing it", folder->output);
    goto done;
  }
  /* Whoever had the lock before may have published. */
  status = refuse_existing(folder->output);
  if (!status) status = remove_folder(folder->partial);
  if (status) goto done;
  if (mkdir(folder->partial, 0777) != 0) status = pk_fail_io(folder->partial, "be created");
done:
  free(parent);
  free(lock);
  return status;
}

pk_status pk_cache_folder_begin(pk_cache_folder *folder, const char *output) {
  *folder = (pk_cache_folder){.lock = -1};
  size_t length = strlen(output);
  while (length > 1 && output[length - 1] == '/') length--;
  if (length == 0) return pk_fail(PK_INVALID, "the name of the output folder is empty");
  folder->output = strndup(output, length);
  if (!folder->output) return pk_fail(PK_NO_MEMORY, "no memory for a path");
  pk_status status = begin(folder);
  if (status && folder->lock < 0) { /* what is there is another's */
    free(folder->partial);
    folder->partial = NULL;
  }
  return status;
}

pk_status pk_cache_folder_publish(pk_cache_folder *folder) {
  pk_status status = for_files(folder->partial, protect_file);
  if (!status) status = sync_folder(folder->partial);
  if (status) return status;
  if (rename(folder->partial, folder->output) != 0)
    return pk_fail_io(folder->output, "be published");
  free(folder->partial);
  folder->partial = NULL;
  char *parent = parent_of(folder->output);
  if (!parent) return pk_fail(PK_NO_MEMORY, "no memory for a path");
  status = sync_folder(parent);
  free(parent);
  return status;
}

void pk_cache_folder_end(pk_cache_folder *folder) {
  if (folder->partial) remove_folder(folder->partial);
  free(folder->partial);
  free(folder->output);
  pk_file_unlock(folder->lock);
  *folder = (pk_cache_folder){.lock = -1};
}
