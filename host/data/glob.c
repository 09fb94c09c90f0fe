/* Paths by shell patterns. */
#include <errno.h>
#include <glob.h>
#include <string.h>

#include "data/buffer.h"

/* A folder that is not there matches nothing; one that cannot be read may hide what would match. */
static int is_fatal(const char *path, int reason) {
  (void)path;
  return reason != ENOENT && reason != ENOTDIR;
}

pk_status pk_glob(const char *pattern, char **paths) {
  *paths = NULL;
  pk_buffer text = {0};
  glob_t found = {0};
  pk_status status = PK_OK;
  if (strpbrk(pattern, "*?[")) {
    int result = glob(pattern, 0, is_fatal, &found);
    if (result == GLOB_NOMATCH) {
      status = pk_fail(PK_IO, "%s: there are no such files", pattern);
    } else if (result != 0) {
      status = pk_fail(PK_IO, "%s: a folder on the way cannot be read", pattern);
    }
  } else {
    status = pk_buffer_format(&text, "%s\n", pattern);
  }
  for (size_t i = 0; !status && i < found.gl_pathc; i++) {
    status = pk_buffer_format(&text, "%s\n", found.gl_pathv[i]);
  }
  globfree(&found);
  if (status) {
    pk_buffer_free(&text);
    return status;
  }
  pk_buffer_text(&text);
  *paths = text.data;
  return PK_OK;
}
