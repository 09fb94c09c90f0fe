// cuBLASLt on the CPU, as much of it as packlua uses: strided batches of products of f32, bf16 and
// f64.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>

#include "cuda/libraries.h"
#include "cupti.h"
#include "dnn.h"
#include "pool.h"

namespace emu {
bool has_cublas();
bool has_cupti();
void submit(cudaStream_t stream, const char *name, std::function<void()> work);
} // namespace emu

namespace {

// The real header's descriptors are opaque; these live behind the same pointers.
struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading, batch_stride = 0;
  int32_t batch = 1;
  cublasLtOrder_t order = CUBLASLT_ORDER_COL;
  // Strides from one row, and from one column, to the next.
  int64_t down() const { return order == CUBLASLT_ORDER_COL ? 1 : leading; }
  int64_t right() const { return order == CUBLASLT_ORDER_COL ? leading : 1; }
};
struct Preference {
  uint64_t workspace = 0;
};

size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

template <class T> T load(const char *data, cudaDataType_t type, int64_t index) {
  switch (type) {
  case CUDA_R_64F:
    return static_cast<T>(reinterpret_cast<const double *>(data)[index]);
  case CUDA_R_32F:
    return static_cast<T>(reinterpret_cast<const float *>(data)[index]);
  default:
    return static_cast<T>(__bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(data)[index]));
  }
}

template <class T> void store(char *data, cudaDataType_t type, int64_t index, T value) {
  switch (type) {
  case CUDA_R_64F:
    reinterpret_cast<double *>(data)[index] = static_cast<double>(value);
    break;
  case CUDA_R_32F:
    reinterpret_cast<float *>(data)[index] = static_cast<float>(value);
    break;
  default:
    reinterpret_cast<__nv_bfloat16 *>(data)[index] = __float2bfloat16(static_cast<float>(value));
  }
}

// D = alpha * op(A) op(B) + beta * C, of m x n with k products each.
template <class T> struct Job {
  Layout a, b, c, d;
  bool transpose_a, transpose_b;
  const char *a_data, *b_data, *c_data;
  char *d_data;
  T alpha, beta;
  int64_t m, n, k;
};

enum { COLUMNS = 32 }; // of D in one piece

template <class T> void run_piece(const void *data, int64_t piece) {
  const Job<T> &job = *static_cast<const Job<T> *>(data);
  int64_t groups = (job.n + COLUMNS - 1) / COLUMNS, batch = piece / groups;
  int64_t first = piece % groups * COLUMNS, last = std::min<int64_t>(job.n, first + COLUMNS);
  auto at = [batch](const char *start, const Layout &layout) {
    return start + batch * layout.batch_stride * static_cast<int64_t>(size_of(layout.type));
  };
  const char *a = at(job.a_data, job.a), *b = at(job.b_data, job.b);
  const char *c = job.c_data ? at(job.c_data, job.c) : nullptr;
  char *d = const_cast<char *>(at(job.d_data, job.d));
  int64_t a_row = job.transpose_a ? job.a.right() : job.a.down();
  int64_t a_k = job.transpose_a ? job.a.down() : job.a.right();
  int64_t b_k = job.transpose_b ? job.b.right() : job.b.down();
  int64_t b_column = job.transpose_b ? job.b.down() : job.b.right();
  std::vector<T> wide(static_cast<size_t>(job.m * job.k)), sums(static_cast<size_t>(job.m));
  for (int64_t l = 0; l < job.k; l++)
    for (int64_t i = 0; i < job.m; i++)
      wide[l * job.m + i] = load<T>(a, job.a.type, i * a_row + l * a_k);
  for (int64_t j = first; j < last; j++) {
    std::fill(sums.begin(), sums.end(), T(0));
    for (int64_t l = 0; l < job.k; l++) {
      T factor = load<T>(b, job.b.type, l * b_k + j * b_column);
      const T *column = &wide[l * job.m];
      for (int64_t i = 0; i < job.m; i++) sums[i] += column[i] * factor;
    }
    for (int64_t i = 0; i < job.m; i++) {
      T value = job.alpha * sums[i];
      if (job.beta != T(0))
        value += job.beta * load<T>(c, job.c.type, i * job.c.down() + j * job.c.right());
      store(d, job.d.type, i * job.d.down() + j * job.d.right(), value);
    }
  }
}

template <class T> void run(cudaStream_t stream, const Job<T> &job) {
  emu::submit(stream, "gemm", [job] {
    int64_t groups = (job.n + COLUMNS - 1) / COLUMNS;
    emu::pool_run(groups * job.d.batch, job.m * job.k, run_piece<T>, &job);
  });
}

bool leading_fits(const Layout &layout) {
  uint64_t least = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  return layout.leading >= static_cast<int64_t>(least);
}

// The rules of cuBLASLt that a wrong call would break.
cublasStatus_t check(const Product &p, const Layout &a, const Layout &b, const Layout &c,
                     const Layout &d) {
  bool ta = p.transpose_a != CUBLAS_OP_N, tb = p.transpose_b != CUBLAS_OP_N;
  uint64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
  uint64_t n = tb ? b.rows : b.columns, k_of_b = tb ? b.columns : b.rows;
  bool fits = m == d.rows && n == d.columns && k == k_of_b && c.rows == d.rows &&
              c.columns == d.columns && leading_fits(a) && leading_fits(b) && leading_fits(c) &&
              leading_fits(d) && a.batch == d.batch && b.batch == d.batch && c.batch == d.batch;
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  bool is_f64 = p.compute == CUBLAS_COMPUTE_64F;
  bool types = is_f64 ? a.type == CUDA_R_64F && b.type == CUDA_R_64F && d.type == CUDA_R_64F
                      : a.type == b.type && (a.type == CUDA_R_32F || a.type == CUDA_R_16BF) &&
                            (d.type == CUDA_R_32F || d.type == CUDA_R_16BF);
  types = types && c.type == d.type && p.scale == (is_f64 ? CUDA_R_64F : CUDA_R_32F);
  if (!types || p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

// PACKLUA_EMU_ALGORITHMS algorithms (by default one), so that a search has something to choose
// from.
int algorithms() {
  const char *text = getenv("PACKLUA_EMU_ALGORITHMS");
  return text && *text ? atoi(text) : 1;
}

} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<Preference *>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}
const char *cublasLtGetStatusString(cublasStatus_t) {
  return "a status of the emulated cuBLASLt";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product *>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
  Product *product = reinterpret_cast<Product *>(handle);
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_TRANSA:
    memcpy(&product->transpose_a, value, bytes);
    break;
  case CUBLASLT_MATMUL_DESC_TRANSB:
    memcpy(&product->transpose_b, value, bytes);
    break;
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    memcpy(&product->epilogue, value, bytes);
    break;
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout *>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
  Layout *layout = reinterpret_cast<Layout *>(handle);
  switch (attribute) {
  case CUBLASLT_MATRIX_LAYOUT_ORDER:
    memcpy(&layout->order, value, bytes);
    break;
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
    memcpy(&layout->batch, value, bytes);
    break;
  case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
    memcpy(&layout->batch_stride, value, bytes);
    break;
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference *>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    memcpy(&reinterpret_cast<Preference *>(preference)->workspace, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *count) {
  auto layout = [](cublasLtMatrixLayout_t handle) -> const Layout & {
    return *reinterpret_cast<const Layout *>(handle);
  };
  cublasStatus_t status = check(*reinterpret_cast<const Product *>(product), layout(a), layout(b),
                                layout(c), layout(d));
  *count = 0;
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (int i = 0; i < std::min(wanted, algorithms()); i++) {
    memset(&results[i], 0, sizeof results[i]);
    results[i].algo.data[0] = static_cast<uint64_t>(i) + 1;
    results[i].state = CUBLAS_STATUS_SUCCESS;
    *count = i + 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result) {
  memset(result, 0, sizeof *result);
  if (algorithm->data[0] < 1 || algorithm->data[0] > static_cast<uint64_t>(algorithms()))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  auto layout = [](cublasLtMatrixLayout_t handle) -> const Layout & {
    return *reinterpret_cast<const Layout *>(handle);
  };
  return check(*reinterpret_cast<const Product *>(product), layout(a), layout(b), layout(c),
               layout(d));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product_handle,
                              const void *alpha, const void *a_data,
                              cublasLtMatrixLayout_t a_handle, const void *b_data,
                              cublasLtMatrixLayout_t b_handle, const void *beta, const void *c_data,
                              cublasLtMatrixLayout_t c_handle, void *d_data,
                              cublasLtMatrixLayout_t d_handle, const cublasLtMatmulAlgo_t *, void *,
                              size_t, cudaStream_t stream) {
  const Product &product = *reinterpret_cast<const Product *>(product_handle);
  const Layout &a = *reinterpret_cast<const Layout *>(a_handle);
  const Layout &b = *reinterpret_cast<const Layout *>(b_handle);
  const Layout &c = *reinterpret_cast<const Layout *>(c_handle);
  const Layout &d = *reinterpret_cast<const Layout *>(d_handle);
  cublasStatus_t status = check(product, a, b, c, d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  auto make = [&](auto zero) {
    using T = decltype(zero);
    bool transpose_a = product.transpose_a != CUBLAS_OP_N;
    return Job<T>{a,
                  b,
                  c,
                  d,
                  transpose_a,
                  product.transpose_b != CUBLAS_OP_N,
                  static_cast<const char *>(a_data),
                  static_cast<const char *>(b_data),
                  static_cast<const char *>(c_data),
                  static_cast<char *>(d_data),
                  *static_cast<const T *>(alpha),
                  *static_cast<const T *>(beta),
                  static_cast<int64_t>(d.rows),
                  static_cast<int64_t>(d.columns),
                  static_cast<int64_t>(transpose_a ? a.rows : a.columns)};
  };
  if (product.compute == CUBLAS_COMPUTE_64F)
    run(stream, make(0.0));
  else
    run(stream, make(0.0f));
  return CUBLAS_STATUS_SUCCESS;
}

// Emulated libraries are there by name like real ones.
void *pk_cuda_symbol(pk_cuda_library library, const char *name) {
  static const struct {
    const char *name;
    void *address;
  } known[] = {
#define KNOWN(function) {#function, reinterpret_cast<void *>(function)}
      KNOWN(cublasLtCreate),
      KNOWN(cublasLtDestroy),
      KNOWN(cublasLtGetVersion),
      KNOWN(cublasLtGetStatusString),
      KNOWN(cublasLtMatmulDescCreate),
      KNOWN(cublasLtMatmulDescDestroy),
      KNOWN(cublasLtMatmulDescSetAttribute),
      KNOWN(cublasLtMatrixLayoutCreate),
      KNOWN(cublasLtMatrixLayoutDestroy),
      KNOWN(cublasLtMatrixLayoutSetAttribute),
      KNOWN(cublasLtMatmulPreferenceCreate),
      KNOWN(cublasLtMatmulPreferenceDestroy),
      KNOWN(cublasLtMatmulPreferenceSetAttribute),
      KNOWN(cublasLtMatmulAlgoGetHeuristic),
      KNOWN(cublasLtMatmulAlgoCheck),
      KNOWN(cublasLtMatmul),
#undef KNOWN
  };
  static const char *const files[] = {"libcublasLt.so", "libcudnn.so", "libcupti.so"};
  if (library == PK_CUDNN)
    if (void *address = emu::cudnn_symbol(name)) return address;
  if (library == PK_CUPTI && emu::has_cupti())
    if (void *address = emu::cupti_symbol(name)) return address;
  if (library != PK_CUBLASLT || !emu::has_cublas()) {
    pk_cuda_no_library(files[library], "it is not emulated");
    return nullptr;
  }
  for (const auto &entry : known)
    if (strcmp(entry.name, name) == 0) return entry.address;
  return nullptr;
}

} // extern "C"
