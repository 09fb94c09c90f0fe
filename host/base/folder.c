/* Folders that nobody else has: new ones under a given name, and temporary ones. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

pk_status pk_directory_claim(const char *path, int *made) {
  char above[PATH_MAX];
  int length = snprintf(above, sizeof above, "%s", path);
  *made = 0;
  if (length >= PATH_MAX) return pk_fail(PK_IO, "%s: the path is too long", path);
  while (length > 1 && above[length - 1] == '/') above[--length] = 0;
  char *slash = strrchr(above, '/');
  if (slash && slash != above) {
    *slash = 0;
    pk_status status = pk_directory_create(above);
    if (status != PK_OK) return status;
  }
  *made = mkdir(path, 0777) == 0;
  if (*made || errno == EEXIST) return PK_OK;
  return pk_fail(PK_IO, "%s: cannot be made: %s", path, strerror(errno));
}

pk_status pk_directory_temporary(char **path) {
  const char *chosen = getenv("TMPDIR");
  const char *const places[] = {chosen && *chosen ? chosen : "/tmp", "/tmp", "/var/tmp"};
  int reason = 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    char *made = NULL;
    if (asprintf(&made, "%s/packlua-XXXXXX", places[i]) < 0)
      return pk_fail(PK_NO_MEMORY, "no memory for the name of a temporary folder");
    if (mkdtemp(made)) {
      *path = made;
      return PK_OK;
    }
    if (reason == 0) reason = errno;
    free(made);
  }
  return pk_fail(PK_IO, "no temporary folder: %s: %s (TMPDIR names another place)", places[0],
                 strerror(reason));
}

pk_status pk_directory_remove(const char *path) {
  if (rmdir(path) == 0) return PK_OK;
  return pk_fail(PK_IO, "%s: cannot be removed: %s", path, strerror(errno));
}
