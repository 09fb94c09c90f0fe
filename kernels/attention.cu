// Causal attention for any operands and any width up to 256, in tiles of 16 rows by plain
// arithmetic, and the choice between these kernels and those of attention_mma.cu.
//
// The softmax of a row is built up tile by tile (Dao et al. 2022, arXiv:2205.14135); masked tiles
// are not visited. Gradients of q, and of k and v, are two kernels, so that no sum depends on the
// order in which blocks run.
#include <math.h>

#include "attention_heads.h"
#include "attention_mma.h"
#include "pack.h"

enum { ROWS = 16, THREADS = 128, LANES = THREADS / ROWS }; // LANES threads work on one row

// Elements from one row of a tile to the next: odd, so that columns of rows lie in different banks.
static __host__ __device__ int64_t row_step(int64_t width) {
  return width + 1 - width % 2;
}

// Rows first .. first + ROWS - 1 of a head into a tile, zeros past its end.
template <class From, class To>
static __device__ void load_tile(const pk_attention_shape &shape, const From *head, int64_t first,
                                 To *tile) {
  int64_t step = row_step(shape.width), spread = shape.heads * shape.width;
  for (int64_t i = threadIdx.x; i < ROWS * shape.width; i += THREADS) {
    int64_t row = i / shape.width, column = i % shape.width;
    bool there = first + row < shape.length;
    tile[row * step + column] = there ? pk_to<To>(head[(first + row) * spread + column]) : To(0);
  }
}

template <class T> static __device__ T dot(const T *a, const T *b, int64_t width) {
  T sum = 0;
  for (int64_t c = 0; c < width; c++) sum += a[c] * b[c];
  return sum;
}

// The largest, and the sum, of a value over the LANES threads of a row, which are neighbours in a
// warp.
template <class T> static __device__ T row_max(T x) {
#pragma unroll
  for (int lane = LANES / 2; lane > 0; lane /= 2) {
    T other = __shfl_xor_sync(0xffffffffu, x, lane);
    x = other > x ? other : x;
  }
  return x;
}
template <class T> static __device__ T row_sum(T x) {
#pragma unroll
  for (int lane = LANES / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// A weight as the product with v sees it: rounded to bf16 where the operands are.
template <class From, class T> static __device__ T as_operand(T x) {
  return sizeof(From) == 2 ? T(__bfloat162float(__float2bfloat16_rn(float(x)))) : x;
}

// A row of results, in shared memory: each thread has columns lane, lane + LANES, ... of its own
// row.
template <class T> static __device__ void clear(T *row, int lane, int64_t width) {
  for (int64_t c = lane; c < width; c += LANES) row[c] = 0;
}

// row = row * rescale + weights (of ROWS rows) times a tile.
template <class T>
static __device__ void add_product(T *row, int lane, int64_t width, T rescale, const T *weights,
                                   const T *tile) {
  int64_t step = row_step(width);
  for (int64_t c = lane; c < width; c += LANES) {
    T sum = 0;
    for (int j = 0; j < ROWS; j++) sum += weights[j] * tile[j * step + c];
    row[c] = row[c] * rescale + sum;
  }
}

template <class T>
static __device__ void store_row(const T *row, int lane, int64_t width, T factor, T *out) {
  for (int64_t c = lane; c < width; c += LANES) out[c] = row[c] * factor;
}

// One block: ROWS query rows of a head. From: type of q, k, v; T: of arithmetic and results.
template <class From, class T>
static __global__ void __launch_bounds__(THREADS)
    forward(pk_attention_shape shape, const From *q, int64_t q_stride, const From *k,
            int64_t k_stride, const From *v, int64_t v_stride, T *o, int64_t o_stride, T *lse,
            int64_t lse_stride, T scale) {
  PK_DYNAMIC_SHARED(T, shared);
  int64_t step = row_step(shape.width);
  T *q_tile = shared, *k_tile = q_tile + ROWS * step, *v_tile = k_tile + ROWS * step;
  int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  T *sums = v_tile + (ROWS + row) * step;
  T *weights = v_tile + 2 * ROWS * step + row * (ROWS + 1);
  int64_t head = blockIdx.x / shape.tiles, tile = shape.tiles - 1 - blockIdx.x % shape.tiles;
  int64_t first = tile * ROWS, me = first + row;
  load_tile(shape, q + pk_head_start(shape, head, q_stride), first, q_tile);
  clear(sums, lane, shape.width);
  T largest = T(-INFINITY), total = 0;
  for (int64_t from = 0; from <= first; from += ROWS) {
    __syncthreads();
    load_tile(shape, k + pk_head_start(shape, head, k_stride), from, k_tile);
    load_tile(shape, v + pk_head_start(shape, head, v_stride), from, v_tile);
    __syncthreads();
    T scores[ROWS / LANES], top = largest;
#pragma unroll
    for (int i = 0; i < ROWS / LANES; i++) {
      int column = lane + i * LANES;
      bool seen = from + column <= me;
      scores[i] = seen ? scale * dot(q_tile + row * step, k_tile + column * step, shape.width)
                       : T(-INFINITY);
      top = scores[i] > top ? scores[i] : top;
    }
    top = row_max(top);
    T rescale = exp(largest - top), added = 0;
    largest = top;
#pragma unroll
    for (int i = 0; i < ROWS / LANES; i++) {
      T weight = exp(scores[i] - top);
      added += weight;
      weights[lane + i * LANES] = as_operand<From>(weight);
    }
    total = total * rescale + row_sum(added);
    __syncwarp();
    add_product(sums, lane, shape.width, rescale, weights, v_tile);
  }
  if (me >= shape.length) return;
  T *out = o + pk_head_start(shape, head, o_stride) + me * shape.heads * shape.width;
  store_row(sums, lane, shape.width, 1 / total, out);
  if (lane == 0) lse[pk_lse_start(shape, head, lse_stride) + me] = largest + log(total);
}

// What both gradient kernels read.
template <class From, class T> struct gradient_inputs {
  const From *q, *k, *v;
  const T *o, *g, *lse;
  int64_t q_stride, k_stride, v_stride, o_stride, g_stride, lse_stride;
  T scale;
};

// Row `row` of a tile of dO (rounded as an operand) into place, and delta = dO . O of it.
template <class From, class T>
static __device__ void load_gradient(const pk_attention_shape &shape,
                                     const gradient_inputs<From, T> &in, int64_t head,
                                     int64_t first, T *tile, T *deltas) {
  int64_t step = row_step(shape.width), spread = shape.heads * shape.width;
  int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const T *g = in.g + pk_head_start(shape, head, in.g_stride) + (first + row) * spread;
  const T *o = in.o + pk_head_start(shape, head, in.o_stride) + (first + row) * spread;
  T sum = 0;
  for (int64_t c = lane; c < shape.width; c += LANES) {
    T x = first + row < shape.length ? as_operand<From>(g[c]) : T(0);
    tile[row * step + c] = x;
    if (first + row < shape.length) sum += x * o[c];
  }
  sum = row_sum(sum);
  if (lane == 0) deltas[row] = sum;
}

// p = e^(s - lse) and dS = p (dP - delta) of one query and one key row, both 0 where the key is not
// seen.
template <class From, class T>
static __device__ void score_gradient(const T *q, const T *k, const T *v, const T *g, int64_t width,
                                      T scale, T lse, T delta, bool seen, T *p, T *ds) {
  T weight = seen ? exp(scale * dot(q, k, width) - lse) : T(0);
  *p = as_operand<From>(weight);
  *ds = seen ? as_operand<From>(weight * (dot(g, v, width) - delta)) : T(0);
}

// One block: the gradient of ROWS query rows.
template <class From, class T>
static __global__ void __launch_bounds__(THREADS)
    backward_q(pk_attention_shape shape, gradient_inputs<From, T> in, T *q_grad, int64_t stride) {
  PK_DYNAMIC_SHARED(T, shared);
  int64_t step = row_step(shape.width);
  T *q_tile = shared, *g_tile = q_tile + ROWS * step, *k_tile = g_tile + ROWS * step;
  T *v_tile = k_tile + ROWS * step, *deltas = v_tile + 2 * ROWS * step;
  int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  T *sums = v_tile + (ROWS + row) * step, *ds = deltas + ROWS + row * (ROWS + 1);
  int64_t head = blockIdx.x / shape.tiles, tile = shape.tiles - 1 - blockIdx.x % shape.tiles;
  int64_t first = tile * ROWS, me = first + row;
  load_tile(shape, in.q + pk_head_start(shape, head, in.q_stride), first, q_tile);
  load_gradient(shape, in, head, first, g_tile, deltas);
  T lse = me < shape.length ? in.lse[pk_lse_start(shape, head, in.lse_stride) + me] : T(0);
  clear(sums, lane, shape.width);
  for (int64_t from = 0; from <= first; from += ROWS) {
    __syncthreads();
    load_tile(shape, in.k + pk_head_start(shape, head, in.k_stride), from, k_tile);
    load_tile(shape, in.v + pk_head_start(shape, head, in.v_stride), from, v_tile);
    __syncthreads();
    for (int i = lane; i < ROWS; i += LANES) {
      T p;
      bool seen = me < shape.length && from + i <= me;
      score_gradient<From>(q_tile + row * step, k_tile + i * step, v_tile + i * step,
                           g_tile + row * step, shape.width, in.scale, lse, deltas[row], seen, &p,
                           &ds[i]);
    }
    __syncwarp();
    add_product(sums, lane, shape.width, T(1), ds, k_tile);
  }
  if (me >= shape.length) return;
  T *out = q_grad + pk_head_start(shape, head, stride) + me * shape.heads * shape.width;
  store_row(sums, lane, shape.width, in.scale, out);
}

// One block: the gradients of ROWS rows of k and v.
template <class From, class T>
static __global__ void __launch_bounds__(THREADS)
    backward_kv(pk_attention_shape shape, gradient_inputs<From, T> in, T *k_grad, int64_t k_stride,
                T *v_grad, int64_t v_stride) {
  PK_DYNAMIC_SHARED(T, shared);
  int64_t step = row_step(shape.width);
  T *k_tile = shared, *v_tile = k_tile + ROWS * step, *q_tile = v_tile + ROWS * step;
  int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  T *g_tile = q_tile + ROWS * step, *k_sums = g_tile + (ROWS + row) * step;
  T *v_sums = k_sums + ROWS * step, *deltas = g_tile + 3 * ROWS * step, *lses = deltas + ROWS;
  T *ds = lses + ROWS + row * (ROWS + 1), *p = ds + ROWS * (ROWS + 1);
  int64_t head = blockIdx.x / shape.tiles, first = blockIdx.x % shape.tiles * ROWS;
  load_tile(shape, in.k + pk_head_start(shape, head, in.k_stride), first, k_tile);
  load_tile(shape, in.v + pk_head_start(shape, head, in.v_stride), first, v_tile);
  const T *lse = in.lse + pk_lse_start(shape, head, in.lse_stride);
  clear(k_sums, lane, shape.width);
  clear(v_sums, lane, shape.width);
  for (int64_t from = first; from < shape.length; from += ROWS) {
    __syncthreads();
    load_tile(shape, in.q + pk_head_start(shape, head, in.q_stride), from, q_tile);
    load_gradient(shape, in, head, from, g_tile, deltas);
    if (threadIdx.x < ROWS)
      lses[threadIdx.x] = from + threadIdx.x < shape.length ? lse[from + threadIdx.x] : T(0);
    __syncthreads();
    for (int i = lane; i < ROWS; i += LANES) { // query i of the tile
      bool seen = from + i < shape.length && first + row <= from + i;
      score_gradient<From>(q_tile + i * step, k_tile + row * step, v_tile + row * step,
                           g_tile + i * step, shape.width, in.scale, lses[i], deltas[i], seen,
                           &p[i], &ds[i]);
    }
    __syncwarp();
    add_product(k_sums, lane, shape.width, T(1), ds, q_tile);
    add_product(v_sums, lane, shape.width, T(1), p, g_tile);
  }
  int64_t me = first + row;
  if (me >= shape.length) return;
  T *k_out = k_grad + pk_head_start(shape, head, k_stride) + me * shape.heads * shape.width;
  T *v_out = v_grad + pk_head_start(shape, head, v_stride) + me * shape.heads * shape.width;
  store_row(k_sums, lane, shape.width, in.scale, k_out);
  store_row(v_sums, lane, shape.width, T(1), v_out);
}

// --- launching ---

static unsigned grid_of(const pk_attention_job *job, const pk_attention_shape &shape) {
  return static_cast<unsigned>(job->workers * shape.per_worker * shape.tiles);
}

template <class From, class T>
static cudaError_t launch_forward(const pk_attention_job *job, cudaStream_t stream) {
  pk_attention_shape shape = pk_attention_shape_of(job, ROWS);
  size_t shared = (4 * ROWS * row_step(job->width) + ROWS * (ROWS + 1)) * sizeof(T);
  return pk_launch(forward<From, T>, dim3(grid_of(job, shape)), dim3(THREADS), shared, stream,
                   shape, static_cast<const From *>(job->q.at), job->q.stride,
                   static_cast<const From *>(job->k.at), job->k.stride,
                   static_cast<const From *>(job->v.at), job->v.stride, static_cast<T *>(job->o.at),
                   job->o.stride, static_cast<T *>(job->lse), job->lse_stride,
                   static_cast<T>(job->scale));
}

template <class From, class T>
static cudaError_t launch_backward(const pk_attention_job *job, cudaStream_t stream) {
  pk_attention_shape shape = pk_attention_shape_of(job, ROWS);
  gradient_inputs<From, T> in;
  in.q = static_cast<const From *>(job->q.at);
  in.k = static_cast<const From *>(job->k.at);
  in.v = static_cast<const From *>(job->v.at);
  in.o = static_cast<const T *>(job->o.at);
  in.g = static_cast<const T *>(job->g.at);
  in.lse = static_cast<const T *>(job->lse);
  in.q_stride = job->q.stride;
  in.k_stride = job->k.stride;
  in.v_stride = job->v.stride;
  in.o_stride = job->o.stride;
  in.g_stride = job->g.stride;
  in.lse_stride = job->lse_stride;
  in.scale = static_cast<T>(job->scale);
  size_t tile = ROWS * row_step(job->width), panel = ROWS * (ROWS + 1);
  cudaError_t error = pk_launch(backward_q<From, T>, dim3(grid_of(job, shape)), dim3(THREADS),
                                (5 * tile + panel + ROWS) * sizeof(T), stream, shape, in,
                                static_cast<T *>(job->q_grad.at), job->q_grad.stride);
  if (error != cudaSuccess) return error;
  return pk_launch(backward_kv<From, T>, dim3(grid_of(job, shape)), dim3(THREADS),
                   (6 * tile + 2 * panel + 2 * ROWS) * sizeof(T), stream, shape, in,
                   static_cast<T *>(job->k_grad.at), job->k_grad.stride,
                   static_cast<T *>(job->v_grad.at), job->v_grad.stride);
}

template <class From, class T>
static cudaError_t launch_typed(const pk_attention_job *job, cudaStream_t stream, bool backward) {
  return backward ? launch_backward<From, T>(job, stream) : launch_forward<From, T>(job, stream);
}

static cudaError_t launch_plain(const pk_attention_job *job, cudaStream_t stream, bool backward) {
  if (job->dtype == PK_F64) return launch_typed<double, double>(job, stream, backward);
  if (job->dtype == PK_F32) return launch_typed<float, float>(job, stream, backward);
  return launch_typed<pk_bf16, float>(job, stream, backward);
}

extern "C" cudaError_t pk_launch_attention(const pk_attention_job *job, cudaStream_t stream) {
  if (pk_attention_mma_fits(job)) return pk_launch_attention_mma(job, stream);
  return launch_plain(job, stream, false);
}

extern "C" cudaError_t pk_launch_attention_grad(const pk_attention_job *job, cudaStream_t stream) {
  if (pk_attention_mma_fits(job)) return pk_launch_attention_mma_grad(job, stream);
  return launch_plain(job, stream, true);
}

extern "C" int64_t pk_attention_grad_workspace(const pk_attention_job *job) {
  return job->dtype == PK_BF16 ? pk_attention_mma_workspace(job) : 0;
}
