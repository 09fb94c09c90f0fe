/* Opening devices in shared libraries (device_library.h). */
#include "core/device_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The file of a library: beside the program, or where it is installed. False if it is in neither.
 */
static bool find_file(const char *library, char path[PATH_MAX]) {
  static const char *const folders[] = {".", PK_LIBRARY_FOLDER};
  char own[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  if (length <= 0) return false;
  own[length] = 0;
  *strrchr(own, '/') = 0;
  for (int f = 0; f < 2; f++) {
    int used = snprintf(path, PATH_MAX, "%s/%s/lib%s.so", own, folders[f], library);
    if (used > 0 && used < PATH_MAX && access(path, R_OK) == 0) return true;
  }
  return false;
}

/* Loads a library, which stays loaded, and checks that it belongs to this program. */
static pk_status load(const char *library, void **handle) {
  char path[PATH_MAX];
  if (!find_file(library, path)) {
    return pk_fail(PK_UNSUPPORTED, "this build has no lib%s.so: docs/cuda.md says how to make it",
                   library);
  }
  *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*handle) return pk_fail(PK_UNSUPPORTED, "%s cannot be loaded: %s", path, dlerror());
  const char *version = dlsym(*handle, "pk_device_version");
  if (version && strcmp(version, pk_version()) == 0) return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "%s is of version %s, the program of %s: build them together",
                 path, version ? version : "unknown", pk_version());
}

/* A function of a library; POSIX promises that the conversion of the pointer works. */
static pk_status find_function(void *handle, const char *name, void *function, size_t size) {
  void *symbol = dlsym(handle, name);
  if (!symbol) return pk_fail(PK_UNSUPPORTED, "a device's library has no function %s", name);
  memcpy(function, &symbol, size);
  return PK_OK;
}

pk_status pk_device_library_open(const char *library, const pk_context_options *options,
                                 pk_device **device) {
  void *handle = NULL;
  pk_status (*open)(const pk_context_options *, pk_device **) = NULL;
  pk_status status = load(library, &handle);
  if (status == PK_OK) status = find_function(handle, "pk_device_open", &open, sizeof open);
  if (status != PK_OK || !open) return pk_fail_within(status, "device '%s'", options->device);
  return open(options, device);
}

pk_status pk_device_library_check(const char *library, const char *name) {
  void *handle = NULL;
  pk_status (*usable)(const char *) = NULL;
  pk_status status = load(library, &handle);
  if (status == PK_OK) status = find_function(handle, "pk_device_usable", &usable, sizeof usable);
  if (status == PK_OK && usable) status = usable(name);
  return status == PK_OK ? PK_OK : pk_fail_within(status, "device '%s'", name);
}

void pk_device_library_list(const char *library, const char *prefix, char *text, int64_t size) {
  char path[PATH_MAX];
  void *handle = NULL;
  void (*list)(const char *, char *, int64_t) = NULL;
  text[0] = 0;
  if (!find_file(library, path)) return;
  pk_status status = load(library, &handle);
  if (status == PK_OK) status = find_function(handle, "pk_device_list", &list, sizeof list);
  if (status != PK_OK || !list) {
    snprintf(text, (size_t)size, "%s: not usable: %s\n", prefix, pk_error_message());
    return;
  }
  list(prefix, text, size);
}
