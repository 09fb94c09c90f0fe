/* CBLAS, opened when a product first asks for it.
 *
 * OpenBLAS maps 128 MiB of address space for each thread that multiplies, and where the system
 * refuses it tries again for ever. As a library linked to the program it did so before main. So it
 * is opened late, by programs that multiply f64 numbers, and only where the room is there. */
#include "cpu/products.h"

#ifndef PK_HAVE_CBLAS

void pk_cblas_expect_threads(int64_t count) {
  (void)count;
}

bool pk_cblas_f32(const pk_gemm *shape, float alpha, const float *a, const float *b, float beta,
                  float *c) {
  (void)shape, (void)alpha, (void)a, (void)b, (void)beta, (void)c;
  return false;
}

bool pk_cblas_f64(const pk_gemm *shape, double alpha, const double *a, const double *b, double beta,
                  double *c) {
  (void)shape, (void)alpha, (void)a, (void)b, (void)beta, (void)c;
  return false;
}

#else

#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { LIBRARY_MIB = 96, THREAD_MIB = 128 }; /* of address space: code, and for each thread */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool opened;
static int64_t most_threads = 1;
static __typeof__(cblas_sgemm) *multiply_f32;
static __typeof__(cblas_dgemm) *multiply_f64;

void pk_cblas_expect_threads(int64_t count) {
  pthread_mutex_lock(&mutex);
  if (count > most_threads) most_threads = count;
  pthread_mutex_unlock(&mutex);
}

static pk_status check_room(void) {
  int64_t mib = LIBRARY_MIB + most_threads * THREAD_MIB;
  if (pk_cpu_has_room(mib)) return PK_OK;
  return pk_fail(PK_NO_MEMORY,
                 "%s needs %lld MiB of address space for products on %lld thread%s, and the system "
                 "refuses it (ulimit -v shows a limit); fewer threads (runtime.threads) need less",
                 PK_CBLAS_LIBRARY, (long long)mib, (long long)most_threads,
                 most_threads == 1 ? "" : "s");
}

/* Without a team of its own, which would take room, and threads, for every core. */
static void *load_alone(void) {
  static const char name[] = "OPENBLAS_NUM_THREADS";
  const char *before = getenv(name);
  char *kept = before ? strdup(before) : NULL;
  setenv(name, "1", 1);
  void *library = dlopen(PK_CBLAS_LIBRARY, RTLD_LAZY | RTLD_GLOBAL);
  if (kept) {
    setenv(name, kept, 1);
  } else {
    unsetenv(name);
  }
  free(kept);
  return library;
}

/* A function of the library; POSIX promises that the conversion of the pointer works. */
static pk_status find_function(void *library, const char *name, void *function, size_t size) {
  void *symbol = dlsym(library, name);
  if (!symbol) return pk_fail(PK_UNSUPPORTED, "%s has no function %s", PK_CBLAS_LIBRARY, name);
  memcpy(function, &symbol, size);
  return PK_OK;
}

/* Some builds of OpenBLAS go by this number, the others by OpenMP's, and CBLAS of others has
 * neither. */
static void limit_threads(void *library) {
  void (*set_threads)(int) = NULL;
  void *found = dlsym(library, "openblas_set_num_threads");
  memcpy(&set_threads, &found, sizeof found);
  if (found) set_threads(1);
  pk_cpu_limit_library_threads();
}

static pk_status open_library(void) {
  pk_status status = check_room();
  if (status != PK_OK) return status;
  void *library = load_alone();
  if (!library) return pk_fail(PK_UNSUPPORTED, "products need a library: %s", dlerror());
  status = find_function(library, "cblas_sgemm", &multiply_f32, sizeof multiply_f32);
  if (status == PK_OK)
    status = find_function(library, "cblas_dgemm", &multiply_f64, sizeof multiply_f64);
  if (status != PK_OK) return status;
  limit_threads(library);
  /* The library sets itself up during its first product, which must not meet another. */
  double one = 1, result;
  multiply_f64(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &one, 1, &one, 1, 0, &result,
               1);
  return PK_OK;
}

/* Whether the library is there; if it is not, what is missing is noted. */
static bool is_open(void) {
  if (!atomic_load_explicit(&opened, memory_order_acquire)) {
    pthread_mutex_lock(&mutex);
    pk_status status = opened ? PK_OK : open_library();
    if (status == PK_OK) atomic_store_explicit(&opened, true, memory_order_release);
    pthread_mutex_unlock(&mutex);
    if (status != PK_OK) {
      pk_cpu_product_failed(status);
      return false;
    }
  }
  pk_cpu_limit_library_threads();
  return true;
}

static CBLAS_TRANSPOSE transpose_of(bool transpose) {
  return transpose ? CblasTrans : CblasNoTrans;
}

/* CBLAS counts in int. */
static bool fits(const pk_gemm *s) {
  return s->m <= INT_MAX && s->p <= INT_MAX && s->k <= INT_MAX && s->lda <= INT_MAX &&
         s->ldb <= INT_MAX && s->ldc <= INT_MAX;
}

bool pk_cblas_f32(const pk_gemm *s, float alpha, const float *a, const float *b, float beta,
                  float *c) {
  if (!fits(s)) return false;
  if (is_open())
    multiply_f32(CblasRowMajor, transpose_of(s->transpose_a), transpose_of(s->transpose_b),
                 (int)s->m, (int)s->p, (int)s->k, alpha, a, (int)s->lda, b, (int)s->ldb, beta, c,
                 (int)s->ldc);
  return true;
}

bool pk_cblas_f64(const pk_gemm *s, double alpha, const double *a, const double *b, double beta,
                  double *c) {
  if (!fits(s)) return false;
  if (is_open())
    multiply_f64(CblasRowMajor, transpose_of(s->transpose_a), transpose_of(s->transpose_b),
                 (int)s->m, (int)s->p, (int)s->k, alpha, a, (int)s->lda, b, (int)s->ldb, beta, c,
                 (int)s->ldc);
  return true;
}

#endif
