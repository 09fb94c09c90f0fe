/* What the CPU kernels share: naming per instruction set, threads, scratch memory, products. */
#ifndef PK_CPU_H
#define PK_CPU_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/bf16.h"
#include "core/core.h"

#ifdef PK_ISA
#define PK_JOIN_(a, b, c) a##b##_##c
#define PK_JOIN(a, b, c) PK_JOIN_(a, b, c)
/* The name of a kernel in this compilation's instruction set. */
#define PK_KERNEL(name) PK_JOIN(pk_cpu_, name, PK_ISA)

#define PK_OP(name, inputs, outputs, attributes, flags, summary)                                   \
  pk_status PK_KERNEL(name)(const pk_call *call);
#include "ops.def"
#undef PK_OP
#endif

/* The name of a kernel's workspace rule. */
#define PK_WORKSPACE_OF(name) PK_JOIN(pk_cpu_workspace_, name, PK_ISA)

/* Before a loop whose rounds only meet in memory where one reads and then writes its own elements:
 * an output may be in the place of an input. */
#if defined(__clang__)
#define PK_EACH _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define PK_EACH _Pragma("GCC ivdep")
#else
#define PK_EACH
#endif

/* The pool of the device that runs the call. */
pk_threads *pk_cpu_threads(const pk_call *call);

/* From cpu/limits.c: the bytes of memory that machine and cgroups have left, less a margin; and
 * what the cgroups listed in the file groups (/proc/self/cgroup) and those above them leave, as
 * found under root (/sys/fs/cgroup): INT64_MAX without a limit. */
int64_t pk_cpu_memory_left(void);
int64_t pk_cpu_cgroup_left(const char *groups, const char *root);

/* Row-major products on the calling thread alone, C [m, p] = alpha * op(A) op(B) + beta * C, with
 * leading dimensions in elements; from cpu/blas.c (oneDNN or CBLAS). */
void pk_cpu_gemm_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc);
void pk_cpu_gemm_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t p, int64_t k,
                     double alpha, const double *a, int64_t lda, const double *b, int64_t ldb,
                     double beta, double *c, int64_t ldc);

/* A row-major product C [m, p] f32 = op(A) op(B), or C + op(A) op(B), of bf16 or f32 operands. */
typedef struct pk_product {
  int64_t m, p, k, lda, ldb, ldc;
  int dtype; /* of A and B */
  bool transpose_a, transpose_b, adds;
} pk_product;

/* From cpu/onednn.c. Computes it on the calling thread by a primitive of oneDNN, which is made at
 * the thread's first call with these sizes; or returns false and leaves C as it is, where there is
 * none. */
bool pk_cpu_primitive_gemm(const pk_product *product, const void *a, const void *b, float *c);

/* Whether products of this dtype should be tried that way: of bf16 where has_bf16, and of both
 * dtypes under PACKLUA_PRODUCTS=primitives, which is how specs reach that code on any machine. */
bool pk_cpu_uses_primitives(int dtype);

/* Whether processor and library multiply bf16 faster than f32. */
bool pk_cpu_has_bf16(void);

/* At the end of each kernel that multiplies by the above: the failure of a product that was noted
 * meanwhile, on any thread, or PK_OK. */
pk_status pk_cpu_products_end(void);

/* Once in each thread before it calls a library that could start a team of its own (cpu/blas.c). */
void pk_cpu_limit_library_threads(void);

#endif
