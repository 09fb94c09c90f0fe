/* Matrix products on the calling thread: f32 by oneDNN, else CBLAS; f64 by CBLAS; else plain loops.
 *
 * Both libraries have thread teams of their own. Each thread that comes here tells OpenMP once that
 * its team is itself alone, which oneDNN and OpenBLAS's OpenMP build go by, and OpenBLAS's other
 * builds are told for the whole process, so that the pool is the only parallelism. OpenBLAS sets
 * itself up during its first product, which therefore happens before any two threads can meet in
 * it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

#include "cpu/cpu.h"

#ifdef PK_HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef PK_HAVE_CBLAS
#include <cblas.h>
#endif

#include "cpu/real_f32.h"

#include "cpu/plain_gemm_real.h"

#include "cpu/real_f64.h"

#include "cpu/plain_gemm_real.h"

/* OpenMP is looked up, not linked: it is there if a library brought it. */
void pk_cpu_limit_library_threads(void) {
  static _Thread_local bool done;
  if (done) return;
  done = true;
  void (*set_threads)(int);
  void *found = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  memcpy(&set_threads, &found, sizeof found);
  if (found) set_threads(1);
}

#ifdef PK_HAVE_CBLAS
static void start_cblas(void) {
#ifdef PK_HAVE_OPENBLAS
  openblas_set_num_threads(1);
#endif
  double one = 1, result;
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &one, 1, &one, 1, 0, &result,
              1);
}

static void prepare_cblas(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pk_cpu_limit_library_threads();
  pthread_once(&once, start_cblas);
}

static CBLAS_TRANSPOSE transpose_of(bool transpose) {
  return transpose ? CblasTrans : CblasNoTrans;
}

/* CBLAS counts in int. */
static bool fits_cblas(int64_t m, int64_t p, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
  return m <= INT_MAX && p <= INT_MAX && k <= INT_MAX && lda <= INT_MAX && ldb <= INT_MAX &&
         ldc <= INT_MAX;
}
#endif

/* Each multiplies by a library and returns true, or leaves C as it is and returns false. */
static bool library_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                        float beta, float *c, int64_t ldc) {
#if defined(PK_HAVE_DNNL)
  pk_cpu_limit_library_threads();
  return dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, p, k, alpha, a, lda, b,
                    ldb, beta, c, ldc) == dnnl_success;
#elif defined(PK_HAVE_CBLAS)
  if (!fits_cblas(m, p, k, lda, ldb, ldc)) return false;
  prepare_cblas();
  cblas_sgemm(CblasRowMajor, transpose_of(transpose_a), transpose_of(transpose_b), (int)m, (int)p,
              (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
  return true;
#else
  (void)transpose_a, (void)transpose_b, (void)m, (void)p, (void)k, (void)alpha, (void)a, (void)lda;
  (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;
  return false;
#endif
}

static bool library_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                        double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                        double beta, double *c, int64_t ldc) {
#if defined(PK_HAVE_CBLAS)
  if (!fits_cblas(m, p, k, lda, ldb, ldc)) return false;
  prepare_cblas();
  cblas_dgemm(CblasRowMajor, transpose_of(transpose_a), transpose_of(transpose_b), (int)m, (int)p,
              (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
  return true;
#else
  (void)transpose_a, (void)transpose_b, (void)m, (void)p, (void)k, (void)alpha, (void)a, (void)lda;
  (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;
  return false;
#endif
}

void pk_cpu_gemm_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  /* Libraries leave out a product over no elements. */
  if (k == 0 ||
      !library_f32(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc))
    plain_gemm_f32(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void pk_cpu_gemm_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                     double beta, double *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  if (k == 0 ||
      !library_f64(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc))
    plain_gemm_f64(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
