/* Paths by shell patterns. */
#include <errno.h>
#include <glob.h>
#include <string.h>

#include "base/buffer.h"

/* A folder that is not there matches nothing; one that cannot be read may hide what would match. */
static int is_fatal(const char *path, int reason) {
  (void)path;
  return reason != ENOENT && reason != ENOTDIR;
}

/* Appends the pattern with the wildcards escaped in the parts of its beginning that are there as
 * they are written: a name with brackets is a file before it is a pattern. */
static pk_status escape_names(const char *pattern, pk_buffer *into) {
  pk_buffer prefix = {0};
  pk_status status = PK_OK;
  bool there = true;
  for (const char *part = pattern; *part && !status;) {
    size_t slashes = strspn(part, "/"), length = slashes + strcspn(part + slashes, "/");
    if (there) {
      status = pk_buffer_add(&prefix, part, (int64_t)length);
      there = !status && pk_path_kind(pk_buffer_text(&prefix)) != 0;
    }
    for (size_t i = 0; i < length && !status; i++) {
      if (there && strchr("*?[]\\", part[i])) status = pk_buffer_add_text(into, "\\");
      if (!status) status = pk_buffer_add(into, &part[i], 1);
    }
    part += length;
  }
  pk_buffer_free(&prefix);
  return status;
}

pk_status pk_glob(const char *pattern, char **paths) {
  *paths = NULL;
  pk_buffer text = {0}, escaped = {0};
  glob_t found = {0};
  pk_status status = PK_OK;
  if (strpbrk(pattern, "*?[") && pk_path_kind(pattern) == 0) {
    status = escape_names(pattern, &escaped);
    int result = status ? 0 : glob(pk_buffer_text(&escaped), 0, is_fatal, &found);
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
  pk_buffer_free(&escaped);
  if (status) {
    pk_buffer_free(&text);
    return status;
  }
  pk_buffer_text(&text);
  *paths = text.data;
  return PK_OK;
}
