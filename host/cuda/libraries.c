/* Opening cuBLASLt and cuDNN (libraries.h). */
#include "cuda/libraries.h"

#include <dlfcn.h>
#include <pthread.h>

#include "core/core.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* The names that the major versions of the headers stand for, then the ones of an installation for
 * development. */
static const char *const names[PK_CUDA_LIBRARIES][2] = {
    {"libcublasLt.so." TEXT(PK_CUBLASLT_MAJOR), "libcublasLt.so"},
    {"libcudnn.so.9", "libcudnn.so"},
};

static struct {
  pthread_mutex_t lock;
  void *handles[PK_CUDA_LIBRARIES];
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *open_library(pk_cuda_library library) {
  pthread_mutex_lock(&opened.lock);
  for (int n = 0; n < 2 && !opened.handles[library]; n++)
    opened.handles[library] = dlopen(names[library][n], RTLD_NOW | RTLD_LOCAL);
  void *handle = opened.handles[library];
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
