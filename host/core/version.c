/* What this binary is made of. */
#include <cJSON.h>
#include <luajit.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>
#ifdef PK_HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef PK_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "core/core.h"

/* PK_VERSION and PK_REVISION (empty outside a git checkout) come from the build. */

static char text[1024];
static pthread_once_t text_once = PTHREAD_ONCE_INIT;

/* One line of the text. Some libraries put their name before the version; it is left out. */
static void append(const char *name, const char *version) {
  size_t used = strlen(text);
  const char *digits = version + strcspn(version, "0123456789");
  if (*digits) version = digits;
  int length = (int)strlen(version);
  while (length > 0 && version[length - 1] == ' ') length--;
  snprintf(text + used, sizeof text - used, "%s %.*s\n", name, length, version);
}

static void write_text(void) {
  if (*PK_REVISION) append("revision", PK_REVISION);
  append("compiler", __VERSION__);
  append("luajit", LUAJIT_VERSION);
  append("cjson", cJSON_Version());
  append("zstd", ZSTD_versionString());
  append("zlib", zlibVersion());
  append("libyaml", yaml_get_version_string());
#ifdef PK_HAVE_DNNL
  const dnnl_version_t *dnnl = dnnl_version();
  char version[64];
  snprintf(version, sizeof version, "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
  append("onednn", version);
#endif
#ifdef PK_HAVE_OPENBLAS
  append("openblas", OPENBLAS_VERSION); /* it is opened later, if at all */
#endif
}

const char *pk_version(void) {
  return PK_VERSION;
}

const char *pk_build_info(void) {
  pthread_once(&text_once, write_text);
  return text;
}
