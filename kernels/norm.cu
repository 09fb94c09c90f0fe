// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) and its gradients.
//
// Rows are worked on in packs of four elements. Where they are aligned, a pack is one access and
// the row stays in registers; the plain kernels read any row twice, and add in the same order, so
// that both give the same bits.
#include "device.h"

#include "norm.h"
#include "pack.h"

static constexpr int PACK = 4;
static constexpr int THREADS = 256, WARPS = THREADS / 32;
static constexpr int MOST_PACKS = 10; // of a lane, in registers

typedef pk_pack<float, PACK> Pack;

static __device__ __forceinline__ float root(float x) {
  return sqrtf(x);
}
static __device__ __forceinline__ double root(double x) {
  return sqrt(x);
}

// --- forward: a warp per row, pack p in lane p mod 32 ---

template <class T> static __device__ __forceinline__ T rstd_of(const pk_norm_job &job, T squares) {
  return T(1) / root(squares / static_cast<T>(job.width) + static_cast<T>(job.eps));
}

template <class Y> static __global__ void __launch_bounds__(THREADS) packed_rows(pk_norm_job job) {
  int lane = threadIdx.x % 32, packs = static_cast<int>(job.width / PACK);
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS, total = job.workers * job.rows;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; index < total;
       index += step) {
    int64_t worker = index / job.rows, row = index % job.rows, start = row * job.width;
    const Pack *a = reinterpret_cast<const Pack *>(pk_row<const float>(job.x, worker) + start);
    Pack x[MOST_PACKS];
#pragma unroll
    for (int k = 0; k < MOST_PACKS; k++)
      if (k * 32 + lane < packs) x[k] = a[k * 32 + lane];
    if (job.sum.at) {
      const Pack *b = reinterpret_cast<const Pack *>(pk_row<const float>(job.b, worker) + start);
      Pack *sum = reinterpret_cast<Pack *>(pk_row<float>(job.sum, worker) + start);
#pragma unroll
      for (int k = 0; k < MOST_PACKS; k++) {
        if (k * 32 + lane >= packs) continue;
        Pack other = b[k * 32 + lane];
        for (int i = 0; i < PACK; i++) x[k].at[i] += other.at[i];
        sum[k * 32 + lane] = x[k];
      }
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < MOST_PACKS; k++)
      if (k * 32 + lane < packs)
        for (int i = 0; i < PACK; i++) squares += x[k].at[i] * x[k].at[i];
    squares = pk_warp_sum(squares);
    float rstd = rstd_of(job, squares);
    if (lane == 0) pk_row<float>(job.rstd, worker)[row] = rstd;
    const Pack *weight = reinterpret_cast<const Pack *>(pk_row<const float>(job.weight, worker));
    pk_pack<Y, PACK> *y = reinterpret_cast<pk_pack<Y, PACK> *>(pk_row<Y>(job.y, worker) + start);
#pragma unroll
    for (int k = 0; k < MOST_PACKS; k++) {
      if (k * 32 + lane >= packs) continue;
      Pack w = weight[k * 32 + lane];
      pk_pack<Y, PACK> result;
      for (int i = 0; i < PACK; i++) result.at[i] = pk_to<Y>(x[k].at[i] * rstd * w.at[i]);
      y[k * 32 + lane] = result;
    }
  }
}

template <class X, class Y>
static __global__ void __launch_bounds__(THREADS) plain_rows(pk_norm_job job) {
  int lane = threadIdx.x % 32;
  int64_t step = static_cast<int64_t>(gridDim.x) * WARPS, total = job.workers * job.rows;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; index < total;
       index += step) {
    int64_t worker = index / job.rows, row = index % job.rows, start = row * job.width;
    const X *x = pk_row<const X>(job.x, worker) + start;
    X *sum = job.sum.at ? pk_row<X>(job.sum, worker) + start : nullptr;
    X squares = 0;
    for (int64_t first = lane * PACK; first < job.width; first += 32 * PACK) {
      for (int64_t c = first; c < first + PACK && c < job.width; c++) {
        X value = x[c];
        if (sum) {
          value += pk_row<const X>(job.b, worker)[start + c];
          sum[c] = value;
        }
        squares += value * value;
      }
    }
    squares = pk_warp_sum(squares);
    X rstd = rstd_of(job, squares);
    if (lane == 0) pk_row<X>(job.rstd, worker)[row] = rstd;
    const X *weight = pk_row<const X>(job.weight, worker);
    Y *y = pk_row<Y>(job.y, worker) + start;
    if (sum) x = sum;
    for (int64_t first = lane * PACK; first < job.width; first += 32 * PACK)
      for (int64_t c = first; c < first + PACK && c < job.width; c++)
        y[c] = pk_to<Y>(x[c] * rstd * weight[c]);
  }
}

extern "C" cudaError_t pk_launch_norm(const pk_norm_job *job, cudaStream_t stream) {
  bool to_bf16 = job->y_dtype == PK_BF16;
  bool packed = job->dtype == PK_F32 && job->width % PACK == 0 &&
                job->width <= MOST_PACKS * 32 * PACK && pk_rows_fit(job->x, 4, PACK) &&
                pk_rows_fit(job->weight, 4, PACK) && pk_rows_fit(job->y, to_bf16 ? 2 : 4, PACK) &&
                pk_rows_fit(job->b, 4, PACK) && pk_rows_fit(job->sum, 4, PACK);
  auto kernel = job->dtype == PK_F64 ? plain_rows<double, double>
                : packed             ? (to_bf16 ? packed_rows<pk_bf16> : packed_rows<float>)
                : to_bf16            ? plain_rows<float, pk_bf16>
                                     : plain_rows<float, float>;
  return pk_launch(kernel, dim3(pk_grid_for(job->workers * job->rows, WARPS)), dim3(THREADS), 0,
                   stream, *job);
}

// --- gradients: x_grad = rstd * (g w - xhat mean(g w xhat)) with xhat = x rstd; the weight's is
// the sum of g xhat over the rows ---

// A block has some rows, and thread t pack t of them all, so that it can add up its part of the
// weight's gradient in order.
static constexpr int GRAD_ROWS = 32; // of a block
static constexpr int AT_ONCE = 4;    // rows that meet at one barrier
static constexpr int MOST_THREADS = 512;

static int64_t blocks_for(int64_t rows) {
  return (rows + GRAD_ROWS - 1) / GRAD_ROWS;
}

// Threads for rows of this width.
static int threads_for(int64_t width) {
  int64_t threads = (width + PACK - 1) / PACK;
  return threads < MOST_THREADS ? static_cast<int>((threads + 31) / 32 * 32) : MOST_THREADS;
}

static __global__ void __launch_bounds__(MOST_THREADS)
    packed_gradients(pk_norm_grad_job job, int64_t blocks) {
  PK_SHARED(float, parts, [2][AT_ONCE][MOST_THREADS / 32]);
  int warps = blockDim.x / 32, pack = threadIdx.x;
  bool inside = pack < job.width / PACK;
  int64_t worker = blockIdx.x / blocks, first = blockIdx.x % blocks * GRAD_ROWS;
  int64_t last = first + GRAD_ROWS < job.rows ? first + GRAD_ROWS : job.rows;
  const float *rstds = pk_row<const float>(job.rstd, worker);
  Pack weight = {}, weight_grad = {};
  if (inside)
    weight = reinterpret_cast<const Pack *>(pk_row<const float>(job.weight, worker))[pack];
  int buffer = 0;
  for (int64_t row = first; row < last; row += AT_ONCE) {
    Pack x[AT_ONCE] = {}, g[AT_ONCE] = {};
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      if (!inside || row + r >= last) continue;
      int64_t start = (row + r) * job.width;
      x[r] = reinterpret_cast<const Pack *>(pk_row<const float>(job.x, worker) + start)[pack];
      g[r] = reinterpret_cast<const Pack *>(pk_row<const float>(job.g, worker) + start)[pack];
    }
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      float dot = 0;
      for (int i = 0; i < PACK; i++) dot += g[r].at[i] * weight.at[i] * x[r].at[i];
      dot = pk_warp_sum(dot);
      if (threadIdx.x % 32 == 0) parts[buffer][r][threadIdx.x / 32] = dot;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      if (!inside || row + r >= last) continue;
      float dot = parts[buffer][r][0];
      for (int warp = 1; warp < warps; warp++) dot += parts[buffer][r][warp];
      float rstd = rstds[row + r], mean = dot * rstd / static_cast<float>(job.width);
      Pack *to =
          reinterpret_cast<Pack *>(pk_row<float>(job.x_grad, worker) + (row + r) * job.width) +
          pack;
      Pack before = {};
      if (job.accumulate_x) before = *to;
      for (int i = 0; i < PACK; i++) {
        float normed = x[r].at[i] * rstd;
        weight_grad.at[i] += g[r].at[i] * normed;
        float made = rstd * (g[r].at[i] * weight.at[i] - normed * mean);
        before.at[i] = job.accumulate_x ? before.at[i] + made : made;
      }
      *to = before;
    }
    buffer ^= 1; // the other one was read before the barrier
  }
  if (inside)
    reinterpret_cast<Pack *>(static_cast<float *>(job.partials) + blockIdx.x * job.width)[pack] =
        weight_grad;
}

// The same of any rows, a row at a time; partials are added up in memory.
template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    plain_gradients(pk_norm_grad_job job, int64_t blocks) {
  PK_SHARED(T, parts, [2][MOST_THREADS / 32]);
  int warps = blockDim.x / 32;
  int64_t worker = blockIdx.x / blocks, first = blockIdx.x % blocks * GRAD_ROWS;
  int64_t last = first + GRAD_ROWS < job.rows ? first + GRAD_ROWS : job.rows;
  const T *weight = pk_row<const T>(job.weight, worker);
  T *weight_grad = static_cast<T *>(job.partials) + blockIdx.x * job.width;
  int64_t own = static_cast<int64_t>(threadIdx.x) * PACK, step = blockDim.x * PACK;
  for (int64_t row = first; row < last; row++) {
    int64_t start = row * job.width;
    const T *x = pk_row<const T>(job.x, worker) + start;
    const T *g = pk_row<const T>(job.g, worker) + start;
    T *x_grad = pk_row<T>(job.x_grad, worker) + start;
    T dot = 0;
    for (int64_t pack = own; pack < job.width; pack += step)
      for (int64_t c = pack; c < pack + PACK && c < job.width; c++) dot += g[c] * weight[c] * x[c];
    dot = pk_warp_sum(dot);
    int buffer = static_cast<int>(row & 1);
    if (threadIdx.x % 32 == 0) parts[buffer][threadIdx.x / 32] = dot;
    __syncthreads();
    dot = parts[buffer][0];
    for (int warp = 1; warp < warps; warp++) dot += parts[buffer][warp];
    T rstd = pk_row<const T>(job.rstd, worker)[row], mean = dot * rstd / static_cast<T>(job.width);
    for (int64_t pack = own; pack < job.width; pack += step) {
      for (int64_t c = pack; c < pack + PACK && c < job.width; c++) {
        T normed = x[c] * rstd, made = rstd * (g[c] * weight[c] - normed * mean);
        weight_grad[c] = (row == first ? T(0) : weight_grad[c]) + g[c] * normed;
        x_grad[c] = job.accumulate_x ? x_grad[c] + made : made;
      }
    }
  }
}

// The blocks' parts of the weight's gradient: 32 columns to a block of 32 warps, each of which adds
// some of the parts in order.
template <class T>
static __global__ void __launch_bounds__(1024) add_parts(pk_norm_grad_job job, int64_t blocks) {
  PK_SHARED(T, sums, [32][33]);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t slabs = (job.width + 31) / 32, worker = blockIdx.x / slabs;
  int64_t column = blockIdx.x % slabs * 32 + lane, each = (blocks + 31) / 32;
  int64_t first = warp * each, last = first + each < blocks ? first + each : blocks;
  const T *parts = static_cast<const T *>(job.partials) + worker * blocks * job.width + column;
  T sum = 0;
  if (column < job.width) {
#pragma unroll 8
    for (int64_t block = first; block < last; block++) sum += parts[block * job.width];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= job.width) return;
  for (int other = 1; other < 32; other++) sum += sums[other][lane];
  T *to = pk_row<T>(job.weight_grad, worker) + column;
  *to = job.accumulate_weight ? *to + sum : sum;
}

extern "C" int64_t pk_norm_grad_workspace(int64_t workers, int64_t rows, int64_t width) {
  return workers * blocks_for(rows) * width;
}

extern "C" cudaError_t pk_launch_norm_grad(const pk_norm_grad_job *job, cudaStream_t stream) {
  int64_t blocks = blocks_for(job->rows);
  bool packed = job->dtype == PK_F32 && job->width % PACK == 0 &&
                job->width <= MOST_THREADS * PACK && pk_rows_fit(job->x, 4, PACK) &&
                pk_rows_fit(job->g, 4, PACK) && pk_rows_fit(job->weight, 4, PACK) &&
                pk_rows_fit(job->x_grad, 4, PACK);
  auto gradients = job->dtype == PK_F64 ? plain_gradients<double>
                   : packed             ? packed_gradients
                                        : plain_gradients<float>;
  cudaError_t error = cudaSuccess;
  if (blocks > 0)
    error = pk_launch(gradients, dim3(static_cast<unsigned>(job->workers * blocks)),
                      dim3(threads_for(job->width)), 0, stream, *job, blocks);
  if (error != cudaSuccess) return error;
  unsigned slabs = static_cast<unsigned>((job->width + 31) / 32 * job->workers);
  return pk_launch(job->dtype == PK_F64 ? add_parts<double> : add_parts<float>, dim3(slabs),
                   dim3(1024), 0, stream, *job, blocks);
}
