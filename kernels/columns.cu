// Columns of arenas: the largest, some of them, and random numbers for all. To the bits of the
// CPU's.
#include "columns.h"

#include <math.h>

#include "core/random.h"
#include "device.h"
#include "pack.h"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 132 * 16 };

// Blocks for all columns of a row, each thread taking several.
static dim3 grid_of(int64_t columns, int64_t rows) {
  int64_t blocks = (columns + THREADS - 1) / THREADS;
  if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
}

// --- gather_columns and scatter_columns ---

template <class T> static __global__ void __launch_bounds__(THREADS) gather(pk_columns_job job) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  const T *x = pk_row<const T>(job.x, blockIdx.y);
  T *values = pk_row<T>(job.values, blockIdx.y);
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; k < job.count;
       k += step) {
    int32_t column = job.index[k * job.index_stride];
    values[k] = column >= 0 && column < job.columns ? x[column] : pk_to<T>(NAN);
  }
}

template <class T> static __global__ void __launch_bounds__(THREADS) scatter(pk_columns_job job) {
  if (job.stopped && *job.stopped != 0) return;
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  T *x = pk_row<T>(job.x, blockIdx.y);
  const T *values = pk_row<const T>(job.values, blockIdx.y);
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; k < job.count;
       k += step) {
    int32_t column = job.index[k * job.index_stride];
    if (column >= 0 && column < job.columns) x[column] = values[k];
  }
}

extern "C" cudaError_t pk_launch_gather_columns(const pk_columns_job *job, cudaStream_t stream) {
  auto kernel = job->dtype == PK_F64 ? gather<double> : gather<float>;
  return pk_launch(kernel, grid_of(job->count, job->rows), dim3(THREADS), 0, stream, *job);
}

extern "C" cudaError_t pk_launch_scatter_columns(const pk_columns_job *job, cudaStream_t stream) {
  auto kernel = job->dtype == PK_F64 ? scatter<double> : scatter<float>;
  return pk_launch(kernel, grid_of(job->count, job->rows), dim3(THREADS), 0, stream, *job);
}

// --- topk_mask ---

// Magnitudes as whole numbers in the same order: the bits of |x|, all of them for any NaN.
static __device__ __forceinline__ uint64_t key_of(float x) {
  uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;
  return bits > 0x7F800000u ? 0x7FFFFFFFu : bits;
}
static __device__ __forceinline__ uint64_t key_of(double x) {
  uint64_t bits = static_cast<uint64_t>(__double_as_longlong(x)) & 0x7FFFFFFFFFFFFFFFull;
  return bits > 0x7FF0000000000000ull ? 0x7FFFFFFFFFFFFFFFull : bits;
}

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, OWN_DIGITS = DIGITS / THREADS };

typedef unsigned long long Count;

// What is known of a row: the digits of the smallest key that is chosen, from the highest on; how
// many of those that have these digits are chosen; and how many there are.
struct Search {
  uint64_t prefix;
  int64_t left, equal;
};

// Rows are cut into as many parts as there are blocks for each.
struct Parts {
  int64_t count, length;
};

static Parts parts_of(int64_t rows, int64_t columns) {
  const int64_t least = 4096;
  int64_t most = 132 * 8 / rows + 1, count = (columns + least - 1) / least;
  if (count > most) count = most;
  return {count, (columns + count - 1) / count};
}

struct TopkJob {
  pk_rows x, y;
  int64_t rows, columns;
  Parts parts;
  Search *searches; // [rows]
  Count *counts;    // [rows, DIGITS]
  Count *equal;     // [rows, parts]
};

// The columns of a block, first .. end-1.
static __device__ __forceinline__ void part_of(const TopkJob &job, int64_t *first, int64_t *end) {
  *first = static_cast<int64_t>(blockIdx.x) * job.parts.length;
  *end = *first + job.parts.length < job.columns ? *first + job.parts.length : job.columns;
}

// A count of 0 has a prefix above all keys.
static __global__ void __launch_bounds__(THREADS) begin(TopkJob job, int64_t count) {
  for (int d = threadIdx.x; d < DIGITS; d += THREADS) job.counts[blockIdx.x * DIGITS + d] = 0;
  if (threadIdx.x == 0) job.searches[blockIdx.x] = {count > 0 ? 0 : ~0ull, count, count};
}

// Adds to counts how often each digit follows the known ones.
template <class T>
static __global__ void __launch_bounds__(THREADS) count_digits(TopkJob job, int shift) {
  PK_SHARED(unsigned, own, [DIGITS]);
  for (int d = threadIdx.x; d < DIGITS; d += THREADS) own[d] = 0;
  __syncthreads();
  const T *x = pk_row<const T>(job.x, blockIdx.y);
  uint64_t known = job.searches[blockIdx.y].prefix >> shift >> DIGIT_BITS;
  int64_t first, end;
  part_of(job, &first, &end);
#pragma unroll 4
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) {
    uint64_t digits = key_of(x[c]) >> shift;
    if (digits >> DIGIT_BITS == known) atomicAdd(&own[digits & (DIGITS - 1)], 1u);
  }
  __syncthreads();
  Count *counts = job.counts + static_cast<int64_t>(blockIdx.y) * DIGITS;
  for (int d = threadIdx.x; d < DIGITS; d += THREADS)
    if (own[d] != 0) atomicAdd(&counts[d], static_cast<Count>(own[d]));
}

// Finds the digit of the smallest key that is chosen, and leaves zeros in counts. A block for each
// row, whose threads have OWN_DIGITS digits each, the first one the highest.
static __global__ void __launch_bounds__(THREADS) choose_digit(TopkJob job, int shift) {
  PK_SHARED(int64_t, sums, [THREADS]);
  Count *counts = job.counts + static_cast<int64_t>(blockIdx.x) * DIGITS;
  Search *search = job.searches + blockIdx.x;
  int64_t left = search->left, sum = 0;
  int highest = DIGITS - 1 - static_cast<int>(threadIdx.x) * OWN_DIGITS;
  for (int d = 0; d < OWN_DIGITS; d++) sum += static_cast<int64_t>(counts[highest - d]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  int64_t before = 0;
  for (unsigned t = 0; t < threadIdx.x; t++) before += sums[t];
  if (before < left && left <= before + sum) {
    int digit = highest;
    left -= before;
    while (static_cast<int64_t>(counts[digit]) < left)
      left -= static_cast<int64_t>(counts[digit--]);
    search->prefix |= static_cast<uint64_t>(digit) << shift;
    search->left = left;
    search->equal = static_cast<int64_t>(counts[digit]);
  }
  for (int d = 0; d < OWN_DIGITS; d++) counts[highest - d] = 0;
}

// How many keys of a part equal the smallest one that is chosen, where not all of them are.
template <class T> static __global__ void __launch_bounds__(THREADS) count_equal(TopkJob job) {
  PK_SHARED(int64_t, sums, [WARPS]);
  Search search = job.searches[blockIdx.y];
  if (search.left == search.equal) return;
  const T *x = pk_row<const T>(job.x, blockIdx.y);
  int64_t first, end, own = 0;
  part_of(job, &first, &end);
#pragma unroll 4
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) own += key_of(x[c]) == search.prefix;
  own = pk_block_sum<THREADS>(own, sums);
  if (threadIdx.x == 0) job.equal[blockIdx.y * job.parts.count + blockIdx.x] = own;
}

// Of a block's flags, how many are set in the threads before this one; *all: in all of them.
static __device__ __forceinline__ int64_t rank_in_block(bool flag, int *sums, int64_t *all) {
  unsigned set = __ballot_sync(0xffffffffu, flag), lane = threadIdx.x % 32;
  __syncthreads();
  if (lane == 0) sums[threadIdx.x / 32] = __popc(set);
  __syncthreads();
  int before = __popc(set & ((1u << lane) - 1)), total = 0;
  for (unsigned warp = 0; warp < WARPS; warp++) {
    if (warp < threadIdx.x / 32) before += sums[warp];
    total += sums[warp];
  }
  *all = total;
  return before;
}

template <class T> static __global__ void __launch_bounds__(THREADS) write_mask(TopkJob job) {
  PK_SHARED(int64_t, sums, [WARPS]);
  PK_SHARED(int, ranks, [WARPS]);
  Search search = job.searches[blockIdx.y];
  const T *x = pk_row<const T>(job.x, blockIdx.y);
  T *y = pk_row<T>(job.y, blockIdx.y);
  int64_t first, end;
  part_of(job, &first, &end);
  if (search.left == search.equal) {
#pragma unroll 4
    for (int64_t c = first + threadIdx.x; c < end; c += THREADS)
      y[c] = key_of(x[c]) >= search.prefix ? T(1) : T(0);
    return;
  }
  int64_t before = 0;
  for (int64_t p = threadIdx.x; p < blockIdx.x; p += THREADS)
    before += static_cast<int64_t>(job.equal[blockIdx.y * job.parts.count + p]);
  before = pk_block_sum<THREADS>(before, sums);
  for (int64_t tile = first; tile < end; tile += THREADS) {
    int64_t c = tile + threadIdx.x, all;
    uint64_t key = c < end ? key_of(x[c]) : 0;
    bool equal = c < end && key == search.prefix;
    int64_t rank = before + rank_in_block(equal, ranks, &all);
    if (c < end) y[c] = key > search.prefix || (equal && rank < search.left) ? T(1) : T(0);
    before += all;
  }
}

extern "C" int64_t pk_topk_workspace(int64_t rows, int64_t columns) {
  if (rows * columns == 0) return 0;
  return rows * (static_cast<int64_t>(sizeof(Search)) +
                 (DIGITS + parts_of(rows, columns).count) * static_cast<int64_t>(sizeof(Count)));
}

template <class T>
static cudaError_t topk_mask(const TopkJob &job, int64_t count, int bits, cudaStream_t stream) {
  dim3 one(static_cast<unsigned>(job.rows)), block(THREADS);
  dim3 all(static_cast<unsigned>(job.parts.count), static_cast<unsigned>(job.rows));
  cudaError_t error = pk_launch(begin, one, block, 0, stream, job, count);
  int digits = count > 0 ? (bits + DIGIT_BITS - 1) / DIGIT_BITS : 0;
  for (int digit = digits - 1; digit >= 0 && error == cudaSuccess; digit--) {
    error = pk_launch(count_digits<T>, all, block, 0, stream, job, digit * DIGIT_BITS);
    if (error == cudaSuccess)
      error = pk_launch(choose_digit, one, block, 0, stream, job, digit * DIGIT_BITS);
  }
  if (error == cudaSuccess) error = pk_launch(count_equal<T>, all, block, 0, stream, job);
  if (error == cudaSuccess) error = pk_launch(write_mask<T>, all, block, 0, stream, job);
  return error;
}

extern "C" cudaError_t pk_launch_topk_mask(pk_rows x, pk_rows y, int64_t rows, int64_t columns,
                                           int64_t count, int dtype, void *workspace,
                                           cudaStream_t stream) {
  TopkJob job = {x, y, rows, columns, parts_of(rows, columns), nullptr, nullptr, nullptr};
  job.searches = static_cast<Search *>(workspace);
  job.counts = reinterpret_cast<Count *>(job.searches + rows);
  job.equal = job.counts + rows * DIGITS;
  return dtype == PK_F64 ? topk_mask<double>(job, count, 63, stream)
                         : topk_mask<float>(job, count, 31, stream);
}

// --- random_columns ---

struct Key {
  uint32_t at[2];
};

template <class T>
static __global__ void __launch_bounds__(THREADS)
    random_columns(T *y, int64_t columns, Key key, const double *counter) {
  int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
  uint32_t step = pk_random_step_of(*counter);
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
       block * 4 < columns; block += stride) {
    uint32_t words[4];
    pk_random_step_words(key.at, static_cast<uint64_t>(block), step, words);
    for (int i = 0; i < 4 && block * 4 + i < columns; i++)
      y[block * 4 + i] = pk_to<T>(pk_random_column(words[i]));
  }
}

extern "C" cudaError_t pk_launch_random_columns(void *y, int64_t columns, int dtype,
                                                const uint32_t key[2], const double *counter,
                                                cudaStream_t stream) {
  Key own = {{key[0], key[1]}};
  dim3 grid = grid_of((columns + 3) / 4, 1);
  if (dtype == PK_F64)
    return pk_launch(random_columns<double>, grid, dim3(THREADS), 0, stream,
                     static_cast<double *>(y), columns, own, counter);
  return pk_launch(random_columns<float>, grid, dim3(THREADS), 0, stream, static_cast<float *>(y),
                   columns, own, counter);
}
