/* Matrix products by cuBLASLt: its functions, descriptors made once per form, and running them. */
#include "cuda/products.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/libraries.h"

enum { WORKSPACE = 32 << 20, WORKSPACE_BEFORE_HOPPER = 8 << 20, LEAST_WORKSPACE = 1 << 20 };

pk_status pk_cublaslt_check(const pk_cublaslt *lt, cublasStatus_t status, const char *what) {
  if (status == CUBLAS_STATUS_SUCCESS) return PK_OK;
  pk_status kind = status == CUBLAS_STATUS_ALLOC_FAILED    ? PK_NO_MEMORY
                   : status == CUBLAS_STATUS_NOT_SUPPORTED ? PK_UNSUPPORTED
                                                           : PK_DEVICE;
  return pk_fail(kind, "cuBLASLt, %s: %s", what, lt->status_string(status));
}

/* --- opening the library --- */

/* A function's address as a pointer to a function, which C has no conversion for. */
static bool find(const char *name, void *function) {
  void *symbol = pk_cuda_symbol(PK_CUBLASLT, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static pk_status find_functions(pk_cublaslt *lt) {
  bool found = find("cublasLtCreate", &lt->create) && find("cublasLtDestroy", &lt->destroy) &&
               find("cublasLtGetVersion", &lt->version) &&
               find("cublasLtGetStatusString", &lt->status_string) &&
               find("cublasLtMatmulDescCreate", &lt->product_create) &&
               find("cublasLtMatmulDescDestroy", &lt->product_destroy) &&
               find("cublasLtMatmulDescSetAttribute", &lt->product_set) &&
               find("cublasLtMatrixLayoutCreate", &lt->layout_create) &&
               find("cublasLtMatrixLayoutDestroy", &lt->layout_destroy) &&
               find("cublasLtMatrixLayoutSetAttribute", &lt->layout_set) &&
               find("cublasLtMatmulPreferenceCreate", &lt->preference_create) &&
               find("cublasLtMatmulPreferenceDestroy", &lt->preference_destroy) &&
               find("cublasLtMatmulPreferenceSetAttribute", &lt->preference_set) &&
               find("cublasLtMatmulAlgoGetHeuristic", &lt->propose) &&
               find("cublasLtMatmulAlgoCheck", &lt->check) && find("cublasLtMatmul", &lt->run);
  return found ? PK_OK : PK_UNSUPPORTED;
}

static void free_planned(const pk_cublaslt *lt, pk_planned_product *planned) {
  if (planned->a) lt->layout_destroy(planned->a);
  if (planned->b) lt->layout_destroy(planned->b);
  if (planned->c) lt->layout_destroy(planned->c);
  if (planned->product) lt->product_destroy(planned->product);
  free(planned);
}

void pk_cuda_products_free(pk_cuda_products *products) {
  if (!products) return;
  for (int hash = 0; hash < PK_FORM_HASHES; hash++) {
    pk_planned_product *next;
    for (pk_planned_product *planned = products->planned[hash]; planned; planned = next) {
      next = planned->next;
      free_planned(&products->lt, planned);
    }
  }
  if (products->handle) products->lt.destroy(products->handle);
  pk_algorithms_free(products->algorithms);
  free(products);
}

static pk_status open_products(pk_cuda_device *cuda) {
  if (cuda->products) return PK_OK;
  pk_cuda_products *products = calloc(1, sizeof *products);
  if (!products) return pk_fail(PK_NO_MEMORY, "no host memory for cuBLASLt");
  pk_status status = find_functions(&products->lt);
  if (status == PK_OK) {
    cublasStatus_t made = products->lt.create(&products->handle);
    status = pk_cublaslt_check(&products->lt, made, "opening it");
  }
  if (status == PK_OK)
    cuda->products = products;
  else
    pk_cuda_products_free(products);
  return status;
}

/* --- forms and descriptors --- */

/* The largest power of two, 16 at most, of which address and steps are multiples: what kernels that
 * read 16 bytes at once ask for. */
static int64_t alignment_of(const pk_operand *operand, int64_t batch, int64_t size) {
  uint64_t all = (uint64_t)(uintptr_t)operand->at | (uint64_t)(operand->ld * size) | 16;
  if (batch > 1) all |= (uint64_t)(operand->stride * size);
  return (int64_t)(all & -all);
}

static pk_product_form form_of(const pk_product *product) {
  const pk_operand *operands[3] = {&product->a, &product->b, &product->c};
  pk_product_form form = {{.m = product->m,
                           .p = product->p,
                           .k = product->k,
                           .batch = product->batch,
                           .dtype = product->dtype,
                           .c_dtype = product->c_dtype,
                           .transpose_a = product->transpose_a,
                           .transpose_b = product->transpose_b}};
  for (int i = 0; i < 3; i++) {
    int64_t size = pk_dtype_size(i == 2 ? product->c_dtype : product->dtype);
    form.ld[i] = operands[i]->ld;
    form.stride[i] = product->batch > 1 ? operands[i]->stride : 0;
    form.alignment[i] = alignment_of(operands[i], product->batch, size);
  }
  return form;
}

static int hash_of(const pk_product_form *form) {
  uint64_t hash = 14695981039346656037u; /* FNV-1a over the numbers */
  for (int i = 0; i < PK_FORM_NUMBERS; i++)
    hash = (hash ^ (uint64_t)form->numbers[i]) * 1099511628211u;
  return (int)((hash >> 32) % PK_FORM_HASHES);
}

static cudaDataType_t type_of(int64_t dtype) {
  return dtype == PK_F64 ? CUDA_R_64F : dtype == PK_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* A matrix [rows, columns] by rows is [columns, rows] by columns. */
static cublasStatus_t make_layout(const pk_cublaslt *lt, const pk_product_form *form, int operand,
                                  int64_t rows, int64_t columns, cublasLtMatrixLayout_t *made) {
  int64_t dtype = operand == 2 ? form->c_dtype : form->dtype;
  cublasStatus_t status =
      lt->layout_create(made, type_of(dtype), (uint64_t)columns, (uint64_t)rows, form->ld[operand]);
  if (status || form->batch == 1) return status;
  int32_t batch = (int32_t)form->batch;
  status = lt->layout_set(*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  if (status) return status;
  return lt->layout_set(*made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &form->stride[operand],
                        sizeof form->stride[operand]);
}

static cublasStatus_t make_descriptors(const pk_cublaslt *lt, pk_planned_product *planned) {
  const pk_product_form *form = &planned->form;
  bool is_f64 = form->dtype == PK_F64, ta = form->transpose_a, tb = form->transpose_b;
  cublasOperation_t first = tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  /* f32 means f32: CUBLAS_COMPUTE_32F does not round operands to TF32 */
  cublasStatus_t status =
      lt->product_create(&planned->product, is_f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                         is_f64 ? CUDA_R_64F : CUDA_R_32F);
  if (!status)
    status = lt->product_set(planned->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
  if (!status)
    status = lt->product_set(planned->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
  if (!status)
    status = make_layout(lt, form, 0, ta ? form->k : form->m, ta ? form->m : form->k, &planned->a);
  if (!status)
    status = make_layout(lt, form, 1, tb ? form->p : form->k, tb ? form->k : form->p, &planned->b);
  return status ? status : make_layout(lt, form, 2, form->m, form->p, &planned->c);
}

/* --- running --- */

int64_t pk_cuda_product_workspace(const pk_cuda_device *cuda, const pk_product *product) {
  int64_t most = cuda->properties.sm >= 90 ? WORKSPACE : WORKSPACE_BEFORE_HOPPER;
  int64_t elements = product->batch * product->m * product->p;
  if (elements == 0) return 0;
  /* Small products have no use for more: sums that are split keep copies of c there. */
  int64_t wanted = elements >= most ? most : LEAST_WORKSPACE + 32 * elements;
  return wanted < most ? pk_aligned(wanted) : most;
}

pk_status pk_cuda_run_planned(pk_cuda_device *cuda, const pk_planned_product *planned,
                              const cublasLtMatmulAlgo_t *algorithm, const pk_product *product,
                              void *workspace) {
  const pk_cublaslt *lt = &cuda->products->lt;
  double one_f64 = 1, beta_f64 = product->accumulate;
  float one_f32 = 1, beta_f32 = product->accumulate;
  bool is_f64 = product->dtype == PK_F64;
  size_t bytes = (size_t)pk_cuda_product_workspace(cuda, product);
  cublasStatus_t status = lt->run(
      cuda->products->handle, planned->product, is_f64 ? (void *)&one_f64 : &one_f32, product->b.at,
      planned->b, product->a.at, planned->a, is_f64 ? (void *)&beta_f64 : &beta_f32, product->c.at,
      planned->c, product->c.at, planned->c, algorithm, workspace, bytes, cuda->stream);
  return pk_cublaslt_check(lt, status, "a product");
}

static pk_status plan(pk_cuda_device *cuda, const pk_product *product, void *workspace,
                      const pk_product_form *form, pk_planned_product **made) {
  pk_planned_product *planned = calloc(1, sizeof *planned);
  if (!planned) return pk_fail(PK_NO_MEMORY, "no host memory to plan a product");
  planned->form = *form;
  const pk_cublaslt *lt = &cuda->products->lt;
  pk_status status = pk_cublaslt_check(lt, make_descriptors(lt, planned), "describing a product");
  if (status == PK_OK) status = pk_cuda_choose_algorithm(cuda, planned, product, workspace);
  if (status == PK_OK)
    *made = planned;
  else
    free_planned(lt, planned);
  return status;
}

/* Zeros c [m, p] of each matrix. */
static pk_status clear(pk_cuda_device *cuda, const pk_product *product) {
  int64_t size = pk_dtype_size(product->c_dtype);
  bool whole = product->c.ld == product->p;
  int64_t rows = whole ? 1 : product->m, bytes = (whole ? product->m : 1) * product->p * size;
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < product->batch; i++) {
    char *at = (char *)product->c.at + i * product->c.stride * size;
    for (int64_t r = 0; r < rows && error == cudaSuccess; r++)
      error = cudaMemsetAsync(at + r * product->c.ld * size, 0, (size_t)bytes, cuda->stream);
  }
  return pk_cuda_check(error, "a sum of nothing");
}

pk_status pk_cuda_product(const pk_call *call, const pk_product *product, void *workspace) {
  pk_cuda_device *cuda = pk_cuda_of(call);
  if (product->batch == 0 || product->m == 0 || product->p == 0) return PK_OK;
  if (product->k == 0) return product->accumulate ? PK_OK : clear(cuda, product);
  pk_status status = open_products(cuda);
  if (status != PK_OK) return pk_fail_within(status, "%s", pk_op_describe(call->op)->name);
  pk_product_form form = form_of(product);
  pk_planned_product **chain = &cuda->products->planned[hash_of(&form)], *planned = *chain;
  while (planned && memcmp(&planned->form, &form, sizeof form) != 0) planned = planned->next;
  if (!planned) {
    status = plan(cuda, product, workspace, &form, &planned);
    if (status == PK_OK) {
      planned->next = *chain;
      *chain = planned;
    }
  }
  if (status == PK_OK)
    status = pk_cuda_run_planned(cuda, planned, &planned->algorithm, product, workspace);
  if (status == PK_OK) return PK_OK;
  return pk_fail_within(status, "%s: %lld x [%lld, %lld] x [%lld, %lld]",
                        pk_op_describe(call->op)->name, (long long)product->batch,
                        (long long)product->m, (long long)product->k, (long long)product->k,
                        (long long)product->p);
}
