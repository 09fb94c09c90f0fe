/* The folder of a cache: made under another name, published by one rename. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "data/prepare.h"

/* The file by which a folder is known for one that a preparation is making. */
#define MARK ".packlua-preparing"

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

/* Whether a name is one that a preparation gives to its files. */
static bool is_own_name(const char *name) {
  static const char *const own[] = {
      MARK, PK_SKIPPED_NAME, "manifest.json", "manifest.json.tmp-", "train-", "validation-"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    size_t length = strlen(own[i]);
    bool begins = own[i][length - 1] == '-';
    if (begins ? strncmp(name, own[i], length) == 0 : strcmp(name, own[i]) == 0) return true;
  }
  return false;
}

static pk_status remove_own(const char *path) {
  return is_own_name(strrchr(path, '/') + 1) ? remove_file(path) : PK_OK;
}

static pk_status check_own(const char *path) {
  struct stat about;
  const char *name = strrchr(path, '/') + 1;
  if (lstat(path, &about) != 0) return pk_fail_io(path, "be looked at");
  if (S_ISREG(about.st_mode) && is_own_name(name)) return PK_OK;
  return pk_fail(PK_INVALID, "%s: no preparation made this: move it away, with its folder", path);
}

/* What the mark says about the process that makes a folder, and whether it may still be at work:
 * only for processes of this machine one can tell. */
static bool may_be_at_work(const char *mark, char *owner, size_t size) {
  char *text = NULL, host[65] = "", stated[65] = "";
  int64_t bytes;
  long process = 0;
  snprintf(owner, size, "another process");
  if (pk_file_read(mark, &text, &bytes, 1000)) return true;
  gethostname(host, sizeof host - 1);
  int found = sscanf(text, "process %ld on %64s", &process, stated);
  if (found == 2) snprintf(owner, size, "process %ld on %s", process, stated);
  pk_bytes_free(text);
  return found != 2 || strcmp(host, stated) != 0 || process == getpid() ||
         kill((pid_t)process, 0) == 0 || errno != ESRCH;
}

/* Removes what a killed preparation left, and nothing else: a folder with the mark of one, in which
 * there are only its files. locked: no other preparation can be at work. */
static pk_status remove_left_over(const char *folder, bool locked) {
  struct stat about;
  char *mark = NULL, owner[160];
  if (lstat(folder, &about) != 0) return errno == ENOENT ? PK_OK : pk_fail_io(folder, "be read");
  if (!S_ISDIR(about.st_mode)) {
    return pk_fail(PK_INVALID, "%s: is there and is no folder of a preparation: move it away",
                   folder);
  }
  if (asprintf(&mark, "%s/%s", folder, MARK) < 0) {
    return pk_fail(PK_NO_MEMORY, "no memory for a path");
  }
  pk_status status = PK_OK;
  if (lstat(mark, &about) != 0) {
    status = rmdir(folder) == 0
                 ? PK_OK
                 : pk_fail(PK_INVALID,
                           "%s: is there, and no preparation of this program left it: move it away",
                           folder);
  } else if (!locked && may_be_at_work(mark, owner, sizeof owner)) {
    status = pk_fail(PK_INVALID,
                     "%s: %s may be writing it, and this file system has no locks that would tell: "
                     "remove it if none is",
                     folder, owner);
  } else {
    status = for_files(folder, check_own);
    if (!status) status = for_files(folder, remove_file);
    if (!status && rmdir(folder) != 0) status = pk_fail_io(folder, "be removed");
  }
  free(mark);
  return status;
}

/* Makes the folder, with the mark by which it is known. */
static pk_status make_folder(pk_cache_folder *folder) {
  char *mark = NULL, host[65] = "", note[160];
  if (mkdir(folder->partial, 0777) != 0) return pk_fail_io(folder->partial, "be created");
  folder->made = true;
  if (asprintf(&mark, "%s/%s", folder->partial, MARK) < 0) {
    return pk_fail(PK_NO_MEMORY, "no memory for a path");
  }
  gethostname(host, sizeof host - 1);
  int length = snprintf(note, sizeof note, "process %ld on %s\n", (long)getpid(), host);
  pk_status status = pk_file_append(mark, note, length);
  free(mark);
  return status;
}

static pk_status refuse_existing(const char *output) {
  struct stat about;
  if (lstat(output, &about) != 0) return errno == ENOENT ? PK_OK : pk_fail_io(output, "be read");
  if (!S_ISDIR(about.st_mode)) {
    return pk_fail(PK_INVALID, "%s: is there and is not a folder%s", output,
                   S_ISLNK(about.st_mode) ? " but a link" : "");
  }
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
  char *lock = NULL, *parent = pk_folder_of(folder->output);
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
  bool locked = status == PK_OK;
  if (status == PK_INVALID) {
    pk_fail_within(status, "%s: another preparation is writing it", folder->output);
  } else if (status == PK_UNSUPPORTED) {
    pk_remark_unlocked(lock);
    status = PK_OK;
  } else if (status) {
    pk_fail_within(status, "%s: a cache cannot be made here", folder->output);
  }
  if (status) goto done;
  /* Whoever had the lock before may have published. */
  status = refuse_existing(folder->output);
  if (!status) status = remove_left_over(folder->partial, locked);
  if (status) goto done;
  status = make_folder(folder);
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
  return begin(folder);
}

static pk_status finish_file(const char *path) {
  int fd;
  pk_status status = pk_file_open(path, O_RDONLY | O_NOFOLLOW, &fd);
  if (status) return status;
  status = pk_descriptor_sync(fd, path);
  close(fd);
  return status ? status : pk_file_protect(path);
}

/* The mark goes before the folder gets its name: nobody changes a published cache. */
static pk_status finish_files(const pk_cache_folder *folder) {
  char *mark = NULL;
  if (asprintf(&mark, "%s/%s", folder->partial, MARK) < 0) {
    return pk_fail(PK_NO_MEMORY, "no memory for a path");
  }
  pk_status status = remove_file(mark);
  free(mark);
  if (!status) status = for_files(folder->partial, finish_file);
  return status ? status : pk_folder_sync(folder->partial);
}

pk_status pk_cache_folder_publish(pk_cache_folder *folder) {
  pk_status status = finish_files(folder);
  if (status) return status;
  if (rename(folder->partial, folder->output) != 0)
    return pk_fail_io(folder->output, "be published");
  folder->made = false;
  char *parent = pk_folder_of(folder->output);
  if (!parent) return pk_fail(PK_NO_MEMORY, "no memory for a path");
  status = pk_folder_sync(parent);
  free(parent);
  return status;
}

void pk_cache_folder_end(pk_cache_folder *folder) {
  if (folder->made && !for_files(folder->partial, remove_own)) rmdir(folder->partial);
  free(folder->partial);
  free(folder->output);
  pk_file_unlock(folder->lock);
  *folder = (pk_cache_folder){.lock = -1};
}
