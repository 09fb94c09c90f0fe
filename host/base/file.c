/* Whole files, folders and locks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"

enum { FIRST_READ = 4096 };

/* --- files --- */

/* Reads fd to its end into *data, which grows: the size that a file states may be none (in /proc),
 * or change meanwhile. */
static pk_status read_all(int fd, const char *path, char **data, int64_t *bytes, int64_t limit) {
  int64_t capacity = FIRST_READ, used = 0;
  struct stat about;
  if (fstat(fd, &about) == 0 && about.st_size >= capacity) {
    if (S_ISREG(about.st_mode) && about.st_size > limit) {
      return pk_fail(PK_INVALID, "%s: %lld bytes, more than the limit of %lld", path,
                     (long long)about.st_size, (long long)limit);
    }
    capacity = about.st_size < limit ? about.st_size + 1 : limit + 1;
  }
  for (;;) {
    char *larger = realloc(*data, (size_t)capacity + 1);
    if (!larger) {
      return pk_fail(PK_NO_MEMORY, "%s: no memory for %lld bytes", path, (long long)capacity);
    }
    *data = larger;
    ssize_t got = 1;
    while (used < capacity && got != 0) {
      got = read(fd, *data + used, (size_t)(capacity - used));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return pk_fail_io(path, "be read");
      used += got;
    }
    if (used > limit) {
      return pk_fail(PK_INVALID, "%s: more than the limit of %lld bytes", path, (long long)limit);
    }
    if (got == 0) break;
    capacity = capacity < limit / 2 ? capacity * 2 : limit + 1;
  }
  (*data)[used] = '\0';
  *bytes = used;
  return PK_OK;
}

/* What is at a path, for a message that it is no ordinary file. */
static const char *kind_of(mode_t mode) {
  return S_ISDIR(mode)    ? "a directory"
         : S_ISLNK(mode)  ? "a link"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

pk_status pk_file_open(const char *path, int flags, int *fd) {
  struct stat about;
  *fd = -1;
  /* Looked at beforehand, as opening a device may do something, and afterwards, as another thing
   * may be there by then. */
  if (((flags & O_NOFOLLOW) ? lstat(path, &about) : stat(path, &about)) == 0 &&
      !S_ISREG(about.st_mode)) {
    return pk_fail(PK_INVALID, "%s: is not a regular file: it is %s", path, kind_of(about.st_mode));
  }
  /* Not to block: a pipe would wait for its other end. */
  *fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (*fd < 0) {
    int reason = errno;
    if (lstat(path, &about) == 0 &&
        (reason == ENXIO || reason == EISDIR || (reason == ELOOP && flags & O_NOFOLLOW))) {
      return pk_fail(PK_INVALID, "%s: is not a regular file: it is %s", path,
                     kind_of(about.st_mode));
    }
    errno = reason;
    return pk_fail_io(path, "be opened");
  }
  pk_status status = PK_OK;
  if (fstat(*fd, &about) != 0) {
    status = pk_fail_io(path, "be opened");
  } else if (!S_ISREG(about.st_mode)) {
    status =
        pk_fail(PK_INVALID, "%s: is not a regular file: it is %s", path, kind_of(about.st_mode));
  }
  if (status) {
    close(*fd);
    *fd = -1;
  }
  return status;
}

pk_status pk_file_read(const char *path, char **data, int64_t *bytes, int64_t limit) {
  *data = NULL;
  *bytes = 0;
  if (limit < 0 || limit >= INT64_MAX / 4) {
    return pk_fail(PK_INVALID, "%s: a limit of %lld bytes", path, (long long)limit);
  }
  int fd;
  pk_status status = pk_file_open(path, O_RDONLY, &fd);
  if (status) return status;
  status = read_all(fd, path, data, bytes, limit);
  close(fd);
  if (status) {
    free(*data);
    *data = NULL;
  }
  return status;
}

void pk_bytes_free(char *data) {
  free(data);
}

pk_status pk_file_write(const char *path, const void *data, int64_t bytes) {
  pk_output output;
  pk_status status = pk_output_open(&output, path);
  if (status) return status;
  status = pk_output_write(&output, data, bytes);
  if (status) {
    pk_output_discard(&output);
    return status;
  }
  return pk_output_publish(&output);
}

pk_status pk_file_append(const char *path, const void *data, int64_t bytes) {
  int fd;
  pk_status status = pk_file_open(path, O_WRONLY | O_APPEND | O_CREAT, &fd);
  if (status) return status;
  status = pk_write_all(fd, path, data, bytes);
  if (close(fd) != 0 && !status) status = pk_fail_io(path, "be written");
  return status;
}

int pk_path_kind(const char *path) {
  struct stat about;
  if (stat(path, &about) != 0) return 0;
  return S_ISREG(about.st_mode) ? 'f' : S_ISDIR(about.st_mode) ? 'd' : 'o';
}

int pk_path_real(const char *path, char *text) {
  return realpath(path, text) ? 0 : -1;
}

int pk_path_is_link(const char *path) {
  struct stat about;
  return lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
}

int64_t pk_file_size(const char *path) {
  struct stat about;
  return stat(path, &about) == 0 && S_ISREG(about.st_mode) ? (int64_t)about.st_size : -1;
}

/* --- folders --- */

pk_status pk_directory_create(const char *path) {
  char *prefix = strdup(path);
  if (!prefix) return pk_fail(PK_NO_MEMORY, "no memory for the path of %s", path);
  pk_status status = PK_OK;
  for (char *end = prefix; *end && !status;) {
    end += strspn(end, "/");
    end += strcspn(end, "/");
    char next = *end;
    *end = '\0';
    /* An existing folder may answer EEXIST, or EROFS and EACCES where nothing could be made. */
    if (mkdir(prefix, 0777) != 0) {
      int reason = errno;
      if (pk_path_kind(prefix) != 'd') {
        errno = reason == EEXIST ? ENOTDIR : reason;
        status = pk_fail_io(prefix, "be made a directory");
      }
    }
    *end = next;
  }
  free(prefix);
  return status;
}

static int not_dots(const struct dirent *entry) {
  return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

/* The names as lines. */
static pk_status join_names(const char *path, struct dirent **entries, int count, char **names) {
  size_t size = 1, used = 0;
  for (int i = 0; i < count; i++) {
    if (strchr(entries[i]->d_name, '\n')) {
      return pk_fail(PK_INVALID, "%s: a name in it has a line break: %s", path, entries[i]->d_name);
    }
    size += strlen(entries[i]->d_name) + 1;
  }
  char *text = malloc(size);
  if (!text) return pk_fail(PK_NO_MEMORY, "%s: no memory for its %d names", path, count);
  for (int i = 0; i < count; i++) {
    size_t length = strlen(entries[i]->d_name);
    memcpy(text + used, entries[i]->d_name, length);
    text[used + length] = '\n';
    used += length + 1;
  }
  text[used] = '\0';
  *names = text;
  return PK_OK;
}

pk_status pk_directory_list(const char *path, char **names) {
  *names = NULL;
  struct dirent **entries = NULL;
  int count = scandir(path, &entries, not_dots, by_bytes);
  if (count < 0) return pk_fail_io(path, "be listed");
  pk_status status = join_names(path, entries, count, names);
  for (int i = 0; i < count; i++) free(entries[i]);
  free(entries);
  return status;
}

/* --- locks --- */

/* What a locked file says about its owner goes into the message. */
static pk_status fail_locked(int fd, const char *path) {
  char owner[128];
  ssize_t length = pread(fd, owner, sizeof owner - 1, 0);
  owner[length > 0 ? length : 0] = '\0';
  owner[strcspn(owner, "\n")] = '\0';
  return pk_fail(PK_INVALID, "%s: locked by another process%s%s%s", path, *owner ? " (" : "", owner,
                 *owner ? ")" : "");
}

/* The note is for people, so failing to write it is no failure. */
static void note_owner(int fd) {
  char host[65] = "", note[128];
  gethostname(host, sizeof host - 1);
  int length = snprintf(note, sizeof note, "process %ld on %s\n", (long)getpid(), host);
  ssize_t written = ftruncate(fd, 0) == 0 ? pwrite(fd, note, (size_t)length, 0) : -1;
  (void)written;
}

/* A file of the user's that happens to have the name of a lock is not written to. */
static pk_status check_lock_file(int fd, const char *path) {
  static const char begin[] = "process ";
  char content[sizeof begin - 1];
  ssize_t length = pread(fd, content, sizeof content, 0);
  if (length <= 0 || memcmp(content, begin, (size_t)length) == 0) return PK_OK;
  return pk_fail(PK_IO, "%s: is there and is no lock of packlua's: move it away", path);
}

pk_status pk_file_lock(const char *path, int *lock) {
  *lock = -1;
  int fd;
  pk_status status = pk_file_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, &fd);
  if (!status) {
    status = check_lock_file(fd, path);
    if (status) close(fd);
  }
  if (status) return PK_IO; /* whatever it was: PK_INVALID stands for a lock that is held */
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      status = fail_locked(fd, path);
    } else if (errno == ENOLCK || pk_lacks(errno)) {
      status =
          pk_fail(PK_UNSUPPORTED, "%s: this file system has no locks: %s", path, strerror(errno));
    } else {
      status = pk_fail_io(path, "be locked");
    }
    close(fd);
    return status;
  }
  note_owner(fd);
  *lock = fd;
  return PK_OK;
}

/* The file stays: removing it would let a process that has it open lock what nobody else sees. */
void pk_file_unlock(int lock) {
  if (lock >= 0) close(lock);
}
