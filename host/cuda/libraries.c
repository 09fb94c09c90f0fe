/* Opening cuBLASLt, cuDNN and CUPTI (libraries.h). */
#include "cuda/libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* The names that the major versions of the headers stand for, then others that will do: the ones of
 * an installation for development, and of CUPTI, whose records have not moved since (cupti.c),
 * those of the last two versions. */
enum { NAMES = 3, OWN_MAJOR = CUDART_VERSION / 1000 };
static const char *const names[PK_CUDA_LIBRARIES][NAMES] = {
    {"libcublasLt.so." TEXT(PK_CUBLASLT_MAJOR), "libcublasLt.so"},
    {"libcudnn.so.9", "libcudnn.so"},
    {OWN_MAJOR == 12 ? "libcupti.so.12" : "libcupti.so.13", "libcupti.so.12", "libcupti.so"},
};

static struct {
  pthread_mutex_t lock;
  void *handles[PK_CUDA_LIBRARIES];
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A library in the toolkit, as CUPTI's folder is on no search path. NULL if it is not there. */
static void *open_in_toolkit(const char *name) {
  static const char *const folders[] = {"extras/CUPTI/lib64", "lib64"};
  const char *home = getenv("CUDA_HOME");
  for (int f = 0; f < 2; f++) {
    char path[PATH_MAX];
    int used =
        snprintf(path, sizeof path, "%s/%s/%s", home ? home : "/usr/local/cuda", folders[f], name);
    void *handle = used < PATH_MAX ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (handle) return handle;
  }
  return NULL;
}

static void *open_library(pk_cuda_library library) {
  pthread_mutex_lock(&opened.lock);
  void *handle = opened.handles[library];
  for (int n = 0; n < NAMES && !handle && names[library][n]; n++) {
    if (library == PK_CUPTI) handle = open_in_toolkit(names[library][n]);
    if (!handle) handle = dlopen(names[library][n], RTLD_NOW | RTLD_LOCAL);
  }
  opened.handles[library] = handle;
  pthread_mutex_unlock(&opened.lock);
  return handle;
}

void *pk_cuda_symbol(pk_cuda_library library, const char *name) {
  void *handle = open_library(library);
  if (!handle) {
    const char *why = dlerror();
    pk_cuda_no_library(names[library][0], why ? why : "no reason given");
    return NULL;
  }
  void *symbol = dlsym(handle, name);
  if (!symbol) pk_fail(PK_UNSUPPORTED, "%s has no function %s", names[library][0], name);
  return symbol;
}
