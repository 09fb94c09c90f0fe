// What algorithms and plain optimizers change arenas with: SGD, blends under the guard, and choices
// of columns. To the bits of the CPU's.
#include "device.h"

#include "core/random.h"
#include "pack.h"
#include "step_numbers.h"
#include "train.h"

enum { THREADS = 256, MOST_BLOCKS = 132 * 16 };

// Blocks for all columns of a row, each thread taking several.
static dim3 grid_of(int64_t columns, int64_t rows) {
  int64_t blocks = (columns + THREADS - 1) / THREADS;
  if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
}

// --- sgd ---

template <class T> static __global__ void __launch_bounds__(THREADS) sgd(pk_sgd_job job) {
  if (job.guard.at[GUARD_STOPPED * job.guard.stride] != 0) return;
  int64_t worker = blockIdx.y, stride = static_cast<int64_t>(gridDim.x) * THREADS;
  double rate = rate_of(job.scalars, job.rates, worker);
  T rounded = pk_to<T>(rate);
  T decay = pk_to<T>(1 - rate * job.scalars.at[SCALAR_DECAY * job.scalars.stride]);
  T momentum = pk_to<T>(job.scalars.at[SCALAR_BETA1 * job.scalars.stride]);
  T *x = pk_row<T>(job.x, worker);
  const T *g = pk_row<const T>(job.g, worker);
  T *m = job.m.at ? pk_row<T>(job.m, worker) : nullptr;
  bool finite = true;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; c < job.columns;
       c += stride) {
    T d = g[c];
    if (m) {
      m[c] = momentum * m[c] + g[c];
      d = job.nesterov ? g[c] + momentum * m[c] : m[c];
    }
    T kept = job.blocks[c / 64 * job.blocks_stride] != 0 ? decay : T(1);
    x[c] = kept * x[c] - rounded * d;
    finite = finite && isfinite(x[c]);
  }
  if (!finite) note_found_of(job.guard, static_cast<int32_t>(worker) + 1, step_of(job.scalars));
}

extern "C" cudaError_t pk_launch_sgd(const pk_sgd_job *job, cudaStream_t stream) {
  auto kernel = job->dtype == PK_F64 ? sgd<double> : sgd<float>;
  return pk_launch(kernel, grid_of(job->columns, job->workers), dim3(THREADS), 0, stream, *job);
}

// --- blend ---

template <class T> static __global__ void __launch_bounds__(THREADS) blend(pk_blend_job job) {
  if (job.guard.at[GUARD_STOPPED * job.guard.stride] != 0) return;
  int64_t row = blockIdx.y, stride = static_cast<int64_t>(gridDim.x) * THREADS;
  double factor = job.factor.at ? job.factor.at[row * job.factor.stride] : 1.0;
  T own = pk_to<T>(job.lerps ? 1 - job.scale * factor : job.own);
  T coefficient = pk_to<T>(job.scale * factor);
  T *y = pk_row<T>(job.y, row);
  const T *x = pk_row<const T>(job.x, row);
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; c < job.columns;
       c += stride)
    y[c] = own == T(0) ? coefficient * x[c] : own * y[c] + coefficient * x[c];
}

extern "C" cudaError_t pk_launch_blend(const pk_blend_job *job, cudaStream_t stream) {
  auto kernel = job->dtype == PK_F64 ? blend<double> : blend<float>;
  return pk_launch(kernel, grid_of(job->columns, job->rows), dim3(THREADS), 0, stream, *job);
}

// --- topk_mask ---

// Magnitudes as whole numbers in the same order: the bits of |x|, those of NaN being largest.
static __device__ __forceinline__ uint64_t key_of(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFu;
}
static __device__ __forceinline__ uint64_t key_of(double x) {
  return static_cast<uint64_t>(__double_as_longlong(x)) & 0x7FFFFFFFFFFFFFFFull;
}

enum { DIGIT_BITS = 10, DIGITS = 1 << DIGIT_BITS };

// A block for each row. Digits of the smallest key that is chosen are found from the highest on;
// then each thread writes a part of the row, for which it knows how many equal keys come before.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    topk_mask(pk_rows x, pk_rows y, int64_t columns, int64_t count, int bits) {
  PK_SHARED(int, counts, [DIGITS]);
  PK_SHARED(uint64_t, prefix, [1]);
  PK_SHARED(int64_t, left, [1]);
  PK_SHARED(int64_t, equal, [THREADS]);
  const T *row = pk_row<const T>(x, blockIdx.x);
  if (threadIdx.x == 0) {
    prefix[0] = 0;
    left[0] = count;
  }
  for (int shift = (bits + DIGIT_BITS - 1) / DIGIT_BITS * DIGIT_BITS - DIGIT_BITS; shift >= 0;
       shift -= DIGIT_BITS) {
    for (int d = threadIdx.x; d < DIGITS; d += THREADS) counts[d] = 0;
    __syncthreads();
    uint64_t known = prefix[0] >> shift >> DIGIT_BITS;
    for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
      uint64_t key = key_of(row[c]);
      if (key >> shift >> DIGIT_BITS == known) atomicAdd(&counts[key >> shift & (DIGITS - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = DIGITS - 1;
      while (digit > 0 && counts[digit] < left[0]) left[0] -= counts[digit--];
      prefix[0] |= static_cast<uint64_t>(digit) << shift;
    }
    __syncthreads();
  }
  int64_t part = (columns + THREADS - 1) / THREADS, first = threadIdx.x * part;
  int64_t last = first + part < columns ? first + part : columns, own = 0;
  for (int64_t c = first; c < last; c++) own += key_of(row[c]) == prefix[0];
  equal[threadIdx.x] = own;
  __syncthreads();
  int64_t before = 0;
  for (unsigned t = 0; t < threadIdx.x; t++) before += equal[t];
  T *mask = pk_row<T>(y, blockIdx.x);
  for (int64_t c = first; c < last; c++) {
    uint64_t key = key_of(row[c]);
    bool chosen = key > prefix[0] || (key == prefix[0] && before < left[0]);
    before += key == prefix[0];
    mask[c] = chosen && count > 0 ? T(1) : T(0);
  }
}

extern "C" cudaError_t pk_launch_topk_mask(pk_rows x, pk_rows y, int64_t rows, int64_t columns,
                                           int64_t count, int dtype, cudaStream_t stream) {
  dim3 grid(static_cast<unsigned>(rows));
  if (dtype == PK_F64)
    return pk_launch(topk_mask<double>, grid, dim3(THREADS), 0, stream, x, y, columns, count, 63);
  return pk_launch(topk_mask<float>, grid, dim3(THREADS), 0, stream, x, y, columns, count, 31);
}

// --- random_columns ---

struct Key {
  uint32_t at[2];
};

template <class T>
static __global__ void __launch_bounds__(THREADS)
    random_columns(T *y, int64_t columns, Key key, pk_vector scalars) {
  int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
  uint32_t step = static_cast<uint32_t>(scalars.at[SCALAR_STEP * scalars.stride]);
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
       block * 4 < columns; block += stride) {
    uint32_t words[4];
    pk_random_step_words(key.at, static_cast<uint64_t>(block), step, words);
    for (int i = 0; i < 4 && block * 4 + i < columns; i++)
      y[block * 4 + i] = pk_to<T>(pk_random_column(words[i]));
  }
}

extern "C" cudaError_t pk_launch_random_columns(void *y, int64_t columns, int dtype,
                                                const uint32_t key[2], pk_vector scalars,
                                                cudaStream_t stream) {
  Key own = {{key[0], key[1]}};
  dim3 grid = grid_of((columns + 3) / 4, 1);
  if (dtype == PK_F64)
    return pk_launch(random_columns<double>, grid, dim3(THREADS), 0, stream,
                     static_cast<double *>(y), columns, own, scalars);
  return pk_launch(random_columns<float>, grid, dim3(THREADS), 0, stream, static_cast<float *>(y),
                   columns, own, scalars);
}
