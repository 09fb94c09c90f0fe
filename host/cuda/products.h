/* Batched matrix products on a CUDA device through cuBLASLt: for matmul and for the head. */
#ifndef PK_CUDA_PRODUCTS_H
#define PK_CUDA_PRODUCTS_H

#include <cublasLt.h>

#include "cuda/cuda.h"

/* c [m, p] = op(a) [m, k] op(b) [k, p], or added to c; all stored by rows, ld elements from one row
 * to the next, stride elements from one matrix of the batch to the next. a and b are of one dtype:
 * f64, f32 or bf16; c is of the same, or f32 for bf16. */
typedef struct pk_operand {
  void *at;
  int64_t ld, stride;
} pk_operand;

typedef struct pk_product {
  pk_operand a, b, c;
  int64_t m, p, k, batch;
  int dtype, c_dtype;
  bool transpose_a, transpose_b, accumulate;
} pk_product;

/* Bytes of workspace with which a product is to be run, from its extents and the device. */
int64_t pk_cuda_product_workspace(const pk_cuda_device *cuda, const pk_product *product);

/* Runs a product for a call; products of no elements do nothing, sums of no terms are 0. The first
 * product of its form searches for an algorithm, for which it waits, allocates and copies; where
 * the stream is being captured it takes the first that cuBLASLt proposes. */
pk_status pk_cuda_product(const pk_call *call, const pk_product *product, void *workspace);

void pk_cuda_products_free(pk_cuda_products *products);

/* --- between products.c and algorithms.c --- */

/* What an algorithm is chosen by: everything that cuBLASLt is told but the addresses. Numbers
 * alone, so that it can be compared and written as a list of them. */
enum { PK_FORM_NUMBERS = 17 };
typedef union pk_product_form {
  struct {
    int64_t m, p, k, batch, dtype, c_dtype, transpose_a, transpose_b;
    int64_t ld[3], stride[3];
    int64_t alignment[3]; /* bytes, of a, b and c */
  };
  int64_t numbers[PK_FORM_NUMBERS];
} pk_product_form;

/* cuBLASLt's functions, found when the first product is run. */
typedef struct pk_cublaslt {
  __typeof__(cublasLtCreate) *create;
  __typeof__(cublasLtDestroy) *destroy;
  __typeof__(cublasLtGetVersion) *version;
  __typeof__(cublasLtGetStatusString) *status_string;
  __typeof__(cublasLtMatmulDescCreate) *product_create;
  __typeof__(cublasLtMatmulDescDestroy) *product_destroy;
  __typeof__(cublasLtMatmulDescSetAttribute) *product_set;
  __typeof__(cublasLtMatrixLayoutCreate) *layout_create;
  __typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
  __typeof__(cublasLtMatrixLayoutSetAttribute) *layout_set;
  __typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
  __typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
  __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
  __typeof__(cublasLtMatmulAlgoGetHeuristic) *propose;
  __typeof__(cublasLtMatmulAlgoCheck) *check;
  __typeof__(cublasLtMatmul) *run;
} pk_cublaslt;

/* A form with its descriptors, as cuBLASLt sees it: by columns, so that its first operand is b. */
typedef struct pk_planned_product {
  pk_product_form form;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  struct pk_planned_product *next; /* of the same hash */
} pk_planned_product;

enum { PK_FORM_HASHES = 256 };
struct pk_cuda_products {
  pk_cublaslt lt;
  cublasLtHandle_t handle;
  pk_planned_product *planned[PK_FORM_HASHES];
  struct pk_algorithms *algorithms; /* those timed before, see algorithms.c */
};

/* cuBLASLt's status as ours. */
pk_status pk_cublaslt_check(const pk_cublaslt *lt, cublasStatus_t status, const char *what);

/* Runs a planned product on the device's stream. */
pk_status pk_cuda_run_planned(pk_cuda_device *cuda, const pk_planned_product *planned,
                              const cublasLtMatmulAlgo_t *algorithm, const pk_product *product,
                              void *workspace);

/* Chooses the algorithm of a planned product (algorithms.c). */
pk_status pk_cuda_choose_algorithm(pk_cuda_device *cuda, pk_planned_product *planned,
                                   const pk_product *product, void *workspace);
void pk_algorithms_free(struct pk_algorithms *algorithms);

#endif
