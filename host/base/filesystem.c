/* What file systems differ in: some cannot sync folders, lock, change permissions or say how much
 * room they have. The library goes on without, and says so. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/output.h"

enum { LINUX_ENOTSUPP = 524 }; /* of the kernel's own, which some file systems let through */

bool pk_lacks(int reason) {
  return reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOTSUP || reason == EINVAL ||
         reason == ENOTTY || reason == LINUX_ENOTSUPP;
}

/* --- remarks --- */

enum kind { NO_SYNC, NO_PERMISSIONS, NO_ROOM, NO_LOCKS, KINDS };

static const char *const consequences[KINDS] = {
    "a file that was written just before the machine failed may be missing",
    "what is finished is not write-protected",
    "whether what is to be written fits is not known beforehand",
    "nothing keeps a second process from writing the same"};

static struct {
  pthread_mutex_t mutex;
  bool noted[KINDS];
  char *list[KINDS];
  int count;
} remarks = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Notes once per process what a file system lacks, first seen at path. reason: errno, or 0. */
static void note(enum kind kind, const char *path, const char *what, int reason) {
  pthread_mutex_lock(&remarks.mutex);
  char *text = NULL;
  if (!remarks.noted[kind] &&
      asprintf(&text, "%s: this file system %s%s%s%s; %s", path, what, reason ? " (" : "",
               reason ? strerror(reason) : "", reason ? ")" : "", consequences[kind]) >= 0) {
    remarks.noted[kind] = true;
    remarks.list[remarks.count++] = text;
  }
  pthread_mutex_unlock(&remarks.mutex);
}

const char *pk_file_remark(int index) {
  pthread_mutex_lock(&remarks.mutex);
  const char *text = index >= 0 && index < remarks.count ? remarks.list[index] : NULL;
  pthread_mutex_unlock(&remarks.mutex);
  return text;
}

/* --- operations that may be lacking --- */

pk_status pk_descriptor_sync(int fd, const char *path) {
  if (fsync(fd) == 0) return PK_OK;
  if (!pk_lacks(errno)) return pk_fail_io(path, "be brought to disk");
  note(NO_SYNC, path, "cannot bring what is written to disk", errno);
  return PK_OK;
}

pk_status pk_folder_sync(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  pk_status status = PK_OK;
  if (fd >= 0) {
    status = pk_descriptor_sync(fd, folder);
    close(fd);
  } else if (errno == EACCES || pk_lacks(errno)) { /* one may write to it and not list it */
    note(NO_SYNC, folder, "does not let the folder be brought to disk", errno);
  } else {
    status = pk_fail_io(folder, "be brought to disk");
  }
  return status;
}

pk_status pk_file_protect(const char *path) {
  if (chmod(path, 0444) == 0) return PK_OK;
  if (errno != EPERM && errno != EACCES && errno != EROFS && !pk_lacks(errno)) {
    return pk_fail_io(path, "be made read-only");
  }
  note(NO_PERMISSIONS, path, "refuses to change permissions", errno);
  return PK_OK;
}

void pk_remark_unlocked(const char *path) {
  note(NO_LOCKS, path, "has no locks", 0);
}

char *pk_folder_of(const char *path) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  while (length > 0 && path[length - 1] != '/') length--;
  while (length > 1 && path[length - 1] == '/') length--;
  return length == 0 ? strdup(".") : strndup(path, length);
}

pk_status pk_disk_room(const char *folder, double *bytes) {
  struct statvfs disk;
  *bytes = HUGE_VAL;
  if (statvfs(folder, &disk) != 0) {
    if (!pk_lacks(errno)) return pk_fail_io(folder, "find its disk");
    note(NO_ROOM, folder, "does not say how much room it has", errno);
  } else if (disk.f_blocks == 0) {
    note(NO_ROOM, folder, "does not say how much room it has", 0);
  } else {
    *bytes = (double)disk.f_bavail * (double)disk.f_frsize;
  }
  return PK_OK;
}
