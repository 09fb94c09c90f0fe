/* Matrix products on the calling thread: oneDNN or CBLAS, else plain loops.
 *
 * Both libraries have thread teams of their own. Each pool thread tells OpenMP once that its team
 * is itself alone, and OpenBLAS is told for the whole process, so that the pool is the only
 * parallelism. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "cpu/cpu.h"

#ifdef PK_HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef PK_HAVE_CBLAS
#include <cblas.h>
#endif

/* OpenMP is looked up, not linked: it is there if a library brought it. */
static void limit_library_threads(void) {
  static _Thread_local bool done;
  if (done) return;
  done = true;
  void (*set_threads)(int);
  void *found = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  memcpy(&set_threads, &found, sizeof found);
  if (found) set_threads(1);
}

#ifdef PK_HAVE_OPENBLAS
static void limit_openblas(void) {
  openblas_set_num_threads(1);
}
#endif

#ifdef PK_HAVE_CBLAS
static void prepare_cblas(void) {
  limit_library_threads();
#ifdef PK_HAVE_OPENBLAS
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, limit_openblas);
#endif
}
#endif

#if !defined(PK_HAVE_CBLAS)
static void plain_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                      double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                      double beta, double *restrict c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < p; j++) c[i * ldc + j] = beta == 0 ? 0 : c[i * ldc + j] * beta;
    for (int64_t l = 0; l < k; l++) {
      double x = alpha * (transpose_a ? a[l * lda + i] : a[i * lda + l]);
      for (int64_t j = 0; j < p; j++)
        c[i * ldc + j] += x * (transpose_b ? b[j * ldb + l] : b[l * ldb + j]);
    }
  }
}
#endif

#if !defined(PK_HAVE_DNNL) && !defined(PK_HAVE_CBLAS)
static void plain_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                      float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                      float beta, float *restrict c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < p; j++) c[i * ldc + j] = beta == 0 ? 0 : c[i * ldc + j] * beta;
    for (int64_t l = 0; l < k; l++) {
      float x = alpha * (transpose_a ? a[l * lda + i] : a[i * lda + l]);
      for (int64_t j = 0; j < p; j++)
        c[i * ldc + j] += x * (transpose_b ? b[j * ldb + l] : b[l * ldb + j]);
    }
  }
}
#endif

/* C <- beta C: the product over no elements, which libraries leave out. */
static void scale_f32(int64_t m, int64_t p, float beta, float *c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < p; j++) c[i * ldc + j] = beta == 0 ? 0 : c[i * ldc + j] * beta;
}

static void scale_f64(int64_t m, int64_t p, double beta, double *c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < p; j++) c[i * ldc + j] = beta == 0 ? 0 : c[i * ldc + j] * beta;
}

void pk_cpu_gemm_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  if (k == 0) {
    scale_f32(m, p, beta, c, ldc);
    return;
  }
#if defined(PK_HAVE_DNNL)
  limit_library_threads();
  dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, p, k, alpha, a, lda, b, ldb, beta,
             c, ldc);
#elif defined(PK_HAVE_CBLAS)
  prepare_cblas();
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)p, (int)k, alpha, a, (int)lda,
              b, (int)ldb, beta, c, (int)ldc);
#else
  plain_f32(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

void pk_cpu_gemm_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                     double beta, double *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  if (k == 0) {
    scale_f64(m, p, beta, c, ldc);
    return;
  }
#if defined(PK_HAVE_CBLAS)
  prepare_cblas();
  cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)p, (int)k, alpha, a, (int)lda,
              b, (int)ldb, beta, c, (int)ldc);
#else
  plain_f64(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}
