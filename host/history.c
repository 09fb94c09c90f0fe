/* The history of prompts: a text file, a line per line typed. Each line is appended as it is typed,
 * so that a prompt that is killed loses none, and prompts on several nodes can share the file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "packlua.h"

int pk_history_path(char path[PATH_MAX]) {
  const char *own = getenv("PACKLUA_HISTORY"), *state = getenv("XDG_STATE_HOME");
  const char *home = getenv("HOME");
  int length = 0;
  if (own) {
    length = snprintf(path, PATH_MAX, "%s", own);
  } else if (state && *state == '/') {
    length = snprintf(path, PATH_MAX, "%s/packlua/history", state);
  } else if (home && *home) {
    length = snprintf(path, PATH_MAX, "%s/.local/state/packlua/history", home);
  }
  return length > 0 && length < PATH_MAX;
}

/* Makes the folders above path, for its owner alone. */
static void make_folders(const char *path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    mkdir(folder, 0700);
    *slash = '/';
  }
}

/* Opens the file, locked where the file system has locks, and not one that was replaced meanwhile.
 * Returns -1 with errno set if it cannot. */
static int open_locked(const char *path, int flags) {
  for (;;) {
    int file = open(path, flags | O_CLOEXEC, 0600);
    struct stat status;
    if (file < 0) return -1;
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) continue;
    if (fstat(file, &status) != 0 || status.st_nlink > 0) return file;
    close(file);
  }
}

static int write_all(int file, const char *text, size_t size) {
  while (size > 0) {
    ssize_t written = write(file, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text += written;
    size -= (size_t)written;
  }
  return 0;
}

int pk_history_append(const char *path, const char *line) {
  make_folders(path);
  char *text = NULL;
  int length = asprintf(&text, "%s\n", line);
  if (length < 0) return ENOMEM;
  int file = open_locked(path, O_WRONLY | O_APPEND | O_CREAT), problem = file < 0 ? errno : 0;
  if (file >= 0) {
    /* At once, so that lines of others do not come between. */
    problem = write_all(file, text, (size_t)length);
    close(file);
  }
  free(text);
  return problem;
}

/* The whole of an open file with a NUL after it, to be freed; NULL if it cannot be read. */
static char *read_whole(int file, size_t *size) {
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return NULL;
  char *text = malloc((size_t)status.st_size + 1);
  *size = 0;
  while (text && *size < (size_t)status.st_size) {
    ssize_t got = read(file, text + *size, (size_t)status.st_size - *size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    *size += (size_t)got;
  }
  if (text) text[*size] = 0;
  return text;
}

/* Where the last PK_HISTORY_LINES lines of text begin. */
static const char *newest(const char *text, size_t size) {
  const char *start = text + size;
  for (int lines = 0; start > text; start--) {
    if (start[-1] == '\n' && start < text + size && ++lines == PK_HISTORY_LINES) break;
  }
  return start;
}

/* Puts a file with this text in path's place. If it cannot, the longer one stays. */
static void replace(const char *path, const char *text, size_t size) {
  char other[PATH_MAX];
  int length = snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
  if (length < 0 || length >= PATH_MAX) return;
  int file = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  int problem = write_all(file, text, size);
  if (close(file) != 0 || problem || rename(other, path) != 0) unlink(other);
}

void pk_history_read(const char *path, void (*add)(void *target, const char *line), void *target) {
  int file = open_locked(path, O_RDONLY);
  if (file < 0) return;
  size_t size;
  char *text = read_whole(file, &size);
  if (text) {
    const char *start = newest(text, size);
    /* Cutting now and then is enough, as the file is short. */
    if (start - text > (ptrdiff_t)(size - (size_t)(start - text))) {
      replace(path, start, size - (size_t)(start - text));
    }
    char *rest = text + (start - text);
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
      if (*line) add(target, line);
    }
  }
  free(text);
  close(file);
}
