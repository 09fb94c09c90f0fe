/* What the callers of libraries for matrix products share (blas.c, cblas.c, onednn.c). */
#ifndef PK_CPU_PRODUCTS_H
#define PK_CPU_PRODUCTS_H

#include "cpu/cpu.h"

/* A row-major product C [m, p] = alpha * op(A) op(B) + beta * C. */
typedef struct pk_gemm {
  bool transpose_a, transpose_b;
  int64_t m, p, k, lda, ldb, ldc;
} pk_gemm;

/* Each returns true if there is nothing more to do, as the product is computed or its failure
 * noted; false, with C as it is, where CBLAS has no such product. */
bool pk_cblas_f32(const pk_gemm *shape, float alpha, const float *a, const float *b, float beta,
                  float *c);
bool pk_cblas_f64(const pk_gemm *shape, double alpha, const double *a, const double *b, double beta,
                  double *c);

/* Notes that a product failed, with this thread's message, for pk_cpu_products_end. */
void pk_cpu_product_failed(pk_status status);

/* Whether the system has so much memory left for this process (room.c): false only where a limit of
 * the process or of the system refuses it. */
bool pk_cpu_has_room(int64_t mib);

/* What oneDNN may want at once, about: it writes code for its products without looking whether it
 * got the memory. */
enum { PK_DNNL_MIB = 32 };

/* Notes the number of threads that a device multiplies on. */
void pk_cblas_expect_threads(int64_t count);

#endif
