/* Matrix products on the calling thread: f32 by oneDNN, else CBLAS; f64 by CBLAS; else plain loops.
 *
 * Both libraries have thread teams of their own. Each thread that comes here tells OpenMP once that
 * its team is itself alone, which oneDNN and OpenBLAS's OpenMP build go by, and OpenBLAS's other
 * builds are told for the whole process (cblas.c), so that the pool is the only parallelism.
 *
 * A product that fails, for want of memory, is noted and its kernel told at the end: pieces have no
 * status of their own, and another library in its place would give other bits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cpu/products.h"

#ifdef PK_HAVE_DNNL
#include <dnnl.h>

#include "cpu/guard.h"
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

static pthread_mutex_t failure_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int failure;
static char failure_text[1024];

void pk_cpu_product_failed(pk_status status) {
  pthread_mutex_lock(&failure_mutex);
  if (failure == PK_OK) {
    snprintf(failure_text, sizeof failure_text, "%s", pk_error_message());
    atomic_store(&failure, (int)status);
  }
  pthread_mutex_unlock(&failure_mutex);
}

pk_status pk_cpu_products_end(void) {
  if (atomic_load_explicit(&failure, memory_order_relaxed) == PK_OK) return PK_OK;
  pthread_mutex_lock(&failure_mutex);
  pk_status status = (pk_status)atomic_exchange(&failure, PK_OK);
  if (status != PK_OK) pk_fail(status, "%s", failure_text);
  pthread_mutex_unlock(&failure_mutex);
  return status;
}

#ifdef PK_HAVE_DNNL
typedef struct dnnl_product {
  const pk_gemm *shape;
  float alpha, beta;
  const float *a, *b;
  float *c;
  dnnl_status_t status;
} dnnl_product;

static void multiply(void *argument) {
  dnnl_product *p = argument;
  const pk_gemm *s = p->shape;
  p->status = dnnl_sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->p, s->k,
                         p->alpha, p->a, s->lda, p->b, s->ldb, p->beta, p->c, s->ldc);
}

/* As pk_cblas_f32, by oneDNN. */
static bool library_f32(const pk_gemm *shape, float alpha, const float *a, const float *b,
                        float beta, float *c) {
  dnnl_product product = {shape, alpha, beta, a, b, c, dnnl_success};
  char problem[PK_GUARD_TEXT] = "the system refused memory";
  pk_cpu_limit_library_threads();
  bool returned = pk_cpu_has_room(PK_DNNL_MIB) && pk_cpu_guard(multiply, &product, problem);
  if (returned && product.status != dnnl_out_of_memory) return product.status == dnnl_success;
  pk_cpu_product_failed(pk_fail(PK_NO_MEMORY, "a product [%lld, %lld] x [%lld, %lld] by oneDNN: %s",
                                (long long)shape->m, (long long)shape->k, (long long)shape->k,
                                (long long)shape->p, problem));
  return true;
}
#else
static bool library_f32(const pk_gemm *shape, float alpha, const float *a, const float *b,
                        float beta, float *c) {
  return pk_cblas_f32(shape, alpha, a, b, beta, c);
}
#endif

void pk_cpu_gemm_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  const pk_gemm shape = {transpose_a, transpose_b, m, p, k, lda, ldb, ldc};
  /* Libraries leave out a product over no elements. */
  if (k == 0 || !library_f32(&shape, alpha, a, b, beta, c))
    plain_gemm_f32(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void pk_cpu_gemm_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                     double beta, double *c, int64_t ldc) {
  if (m == 0 || p == 0) return;
  const pk_gemm shape = {transpose_a, transpose_b, m, p, k, lda, ldb, ldc};
  if (k == 0 || !pk_cblas_f64(&shape, alpha, a, b, beta, c))
    plain_gemm_f64(transpose_a, transpose_b, m, p, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
