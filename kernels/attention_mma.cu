// Causal attention on tensor cores, for bf16 operands and head widths of 64 and 128.
//
// A block of four warps has 64 rows of a head, each warp 16 of them, and goes through tiles of the
// other side: scores by mma, the softmax in registers, and what was just a result's fragment as the
// next product's operand (Dao 2023, arXiv:2307.08691). Tiles come by asynchronous copies, the next
// one while this one is used. Gradients are two kernels, one with query rows and one with key rows
// in registers, so that no sum depends on the order in which blocks run; both make the scores again
// from the saved log-sum-exp.
#include "attention_mma.h"

#include <math.h>

#include "attention_heads.h"
#include "pack.h"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS };

// Elements from one row of a tile in shared memory to the next: 16 bytes more than the row, so that
// the eight rows of a fragment lie in different banks.
template <int K> static constexpr int STEP = K + 8;

// --- tiles and fragments ---

// `rows` rows of a head from row `first` on, bf16, by asynchronous copies; zeros past the end.
template <int K, int rows>
static __device__ __forceinline__ void fetch(const pk_bf16 *head, int64_t spread, int64_t first,
                                             int64_t length, pk_bf16 *tile) {
  constexpr int packs = K / 8;
#pragma unroll
  for (int i = threadIdx.x; i < rows * packs; i += THREADS) {
    int row = i / packs, column = i % packs * 8;
    bool there = first + row < length;
    const pk_bf16 *from = head + (there ? first + row : 0) * spread + column;
    pk_copy_async(tile + row * STEP<K> + column, from, there);
  }
}

// The fragment of a left operand: rows row .. row + 15, columns column .. column + 15 of a tile.
template <int K>
static __device__ __forceinline__ void left(unsigned (&a)[4], const pk_bf16 *tile, int row,
                                            int column) {
  int lane = threadIdx.x % 32;
  pk_ldmatrix(a, tile + (row + lane / 8 % 2 * 8 + lane % 8) * STEP<K> + column + lane / 16 * 8);
}

// Fragments of two right operands that are a tile transposed: b of columns row .. row + 7 and row +
// 8 .. row + 15 of the result, for inner elements column .. column + 15.
template <int K>
static __device__ __forceinline__ void right_turned(unsigned (&b)[4], const pk_bf16 *tile, int row,
                                                    int column) {
  int lane = threadIdx.x % 32;
  pk_ldmatrix(b, tile + (row + lane / 16 * 8 + lane % 8) * STEP<K> + column + lane / 8 % 2 * 8);
}

// The same of a tile as it is: inner elements are rows row .. row + 15, the result's columns column
// .. column + 15.
template <int K>
static __device__ __forceinline__ void right(unsigned (&b)[4], const pk_bf16 *tile, int row,
                                             int column) {
  int lane = threadIdx.x % 32;
  pk_ldmatrix_transposed(b, tile + (row + lane / 8 % 2 * 8 + lane % 8) * STEP<K> + column +
                                lane / 16 * 8);
}

// d[j] and d[j + 1] += a * the two operands of b.
static __device__ __forceinline__ void
multiply_pair(float (&low)[4], float (&high)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
  unsigned first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  pk_mma_bf16(low, a, first);
  pk_mma_bf16(high, a, second);
}

// Two floats rounded to bf16, the first in the low half.
static __device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned a = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  unsigned b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return b << 16 | a;
}

// Columns 16 j .. 16 j + 15 of a result as a left operand.
template <int N>
static __device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&d)[N][4], int j) {
  a[0] = pack(d[2 * j][0], d[2 * j][1]);
  a[1] = pack(d[2 * j][2], d[2 * j][3]);
  a[2] = pack(d[2 * j + 1][0], d[2 * j + 1][1]);
  a[3] = pack(d[2 * j + 1][2], d[2 * j + 1][3]);
}

// d = rows `row` .. + 15 of a tile times the transpose of another tile of 8 N rows.
template <int K, int N>
static __device__ __forceinline__ void product_turned(float (&d)[N][4], const pk_bf16 *a_tile,
                                                      int row, const pk_bf16 *b_tile) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) d[j][e] = 0;
#pragma unroll
  for (int c = 0; c < K; c += 16) {
    unsigned a[4];
    left<K>(a, a_tile, row, c);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      unsigned b[4];
      right_turned<K>(b, b_tile, 8 * j, c);
      multiply_pair(d[j], d[j + 1], a, b);
    }
  }
}

// d += a result of N column blocks times a tile of 8 N rows.
template <int K, int N>
static __device__ __forceinline__ void product(float (&d)[K / 8][4], const float (&left_side)[N][4],
                                               const pk_bf16 *tile) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    unsigned a[4];
    as_left(a, left_side, i);
#pragma unroll
    for (int j = 0; j < K / 8; j += 2) {
      unsigned b[4];
      right<K>(b, tile, 16 * i, 8 * j);
      multiply_pair(d[j], d[j + 1], a, b);
    }
  }
}

// Rows of a result in a warp: this lane has elements 0 and 1 of row lane / 4 and 2 and 3 of row
// lane / 4 + 8, in columns 8 j + lane % 4 * 2 and the next.
static __device__ __forceinline__ int row_of(int e) {
  return threadIdx.x % 32 / 4 + e / 2 * 8;
}
static __device__ __forceinline__ int column_of(int j, int e) {
  return 8 * j + threadIdx.x % 4 * 2 + e % 2;
}

// Over the four lanes that share a row.
static __device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Writes a warp's 16 rows of K columns, times a factor for each of the two halves.
template <int K>
static __device__ __forceinline__ void store(const float (&d)[K / 8][4], float *head,
                                             int64_t spread, int64_t first, int64_t length,
                                             float upper, float lower) {
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int64_t row = first + row_of(2 * side);
    if (row >= length) continue;
    float factor = side ? lower : upper;
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
      float2 both = make_float2(d[j][2 * side] * factor, d[j][2 * side + 1] * factor);
      *reinterpret_cast<float2 *>(head + row * spread + column_of(j, 0)) = both;
    }
  }
}

// --- forward ---

struct operand {
  const pk_bf16 *at;
  int64_t stride;
};
struct result {
  float *at;
  int64_t stride;
};

// Scores of a tile become weights e^(s - m) of the row's largest so far; sums and o are brought to
// it.
template <int K, int N>
static __device__ __forceinline__ void soften(float (&s)[N][4], float (&o)[K / 8][4],
                                              float (&largest)[2], float (&total)[2]) {
#pragma unroll
  for (int side = 0; side < 2; side++) {
    float top = largest[side];
#pragma unroll
    for (int j = 0; j < N; j++) top = fmaxf(top, fmaxf(s[j][2 * side], s[j][2 * side + 1]));
    top = quad_max(top);
    float rescale = __expf(largest[side] - top), sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
      for (int e = 2 * side; e < 2 * side + 2; e++) {
        s[j][e] = __expf(s[j][e] - top);
        sum += s[j][e];
      }
    }
    total[side] = total[side] * rescale + quad_sum(sum);
    largest[side] = top;
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
      o[j][2 * side] *= rescale;
      o[j][2 * side + 1] *= rescale;
    }
  }
}

// Blocks of the forward pass that a multiprocessor has shared memory for: their registers are no
// scarcer than that.
template <int K> static constexpr int RESIDENT = K == 64 ? 3 : 2;

template <int K>
static __global__ void __launch_bounds__(THREADS, RESIDENT<K>)
    forward(pk_attention_shape shape, operand q, operand k, operand v, result o, result lse) {
  PK_DYNAMIC_SHARED(pk_bf16, shared);
  constexpr int tile_size = ROWS * STEP<K>;
  pk_bf16 *q_tile = shared, *k_tiles = q_tile + tile_size, *v_tiles = k_tiles + 2 * tile_size;
  int64_t head = blockIdx.x / shape.tiles, tile = shape.tiles - 1 - blockIdx.x % shape.tiles;
  int64_t spread = shape.heads * K, first = tile * ROWS;
  int warp_row = threadIdx.x / 32 * 16;
  const pk_bf16 *k_head = k.at + pk_head_start(shape, head, k.stride);
  const pk_bf16 *v_head = v.at + pk_head_start(shape, head, v.stride);
  fetch<K, ROWS>(q.at + pk_head_start(shape, head, q.stride), spread, first, shape.length, q_tile);
  fetch<K, ROWS>(k_head, spread, 0, shape.length, k_tiles);
  fetch<K, ROWS>(v_head, spread, 0, shape.length, v_tiles);
  pk_copy_commit();
  float sums[K / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int64_t step = 0; step <= tile; step++) {
    int now = step % 2 * tile_size, next = (step + 1) % 2 * tile_size;
    if (step < tile) {
      fetch<K, ROWS>(k_head, spread, (step + 1) * ROWS, shape.length, k_tiles + next);
      fetch<K, ROWS>(v_head, spread, (step + 1) * ROWS, shape.length, v_tiles + next);
    }
    pk_copy_commit();
    pk_copy_wait<1>();
    __syncthreads();
    float s[ROWS / 8][4];
    product_turned<K>(s, q_tile, warp_row, k_tiles + now);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool seen = step < tile || column_of(j, e) <= warp_row + row_of(e);
        s[j][e] = seen ? s[j][e] * shape.scale : -INFINITY;
      }
    soften<K>(s, sums, largest, total);
    product<K>(sums, s, v_tiles + now);
    __syncthreads();
  }
  store<K>(sums, o.at + pk_head_start(shape, head, o.stride), spread, first + warp_row,
           shape.length, 1 / total[0], 1 / total[1]);
  if (threadIdx.x % 4 != 0) return;
  float *lse_head = lse.at + pk_lse_start(shape, head, lse.stride);
  for (int side = 0; side < 2; side++) {
    int64_t row = first + warp_row + row_of(2 * side);
    if (row < shape.length) lse_head[row] = largest[side] + logf(total[side]);
  }
}

// --- gradients ---

// dO rounded to bf16 as [heads of all workers, T, K], and delta = dO . O of every row; a warp per
// row.
template <int K>
static __global__ void __launch_bounds__(THREADS)
    prepare(pk_attention_shape shape, int64_t rows, const float *g, int64_t g_stride,
            const float *o, int64_t o_stride, pk_bf16 *rounded, float *deltas) {
  int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
  if (row >= rows) return;
  int lane = threadIdx.x % 32;
  int64_t head = row / shape.length, spread = shape.heads * K, position = row % shape.length;
  const float *g_row = g + pk_head_start(shape, head, g_stride) + position * spread;
  const float *o_row = o + pk_head_start(shape, head, o_stride) + position * spread;
  float sum = 0;
#pragma unroll
  for (int c = lane * 2; c < K; c += 64) {
    float2 g_pair = *reinterpret_cast<const float2 *>(g_row + c);
    float2 o_pair = *reinterpret_cast<const float2 *>(o_row + c);
    pk_bf16 low = __float2bfloat16_rn(g_pair.x), high = __float2bfloat16_rn(g_pair.y);
    sum += __bfloat162float(low) * o_pair.x + __bfloat162float(high) * o_pair.y;
    rounded[row * K + c] = low;
    rounded[row * K + c + 1] = high;
  }
  sum = pk_warp_sum(sum);
  if (lane == 0) deltas[row] = sum;
}

// Scores become dS = p (dP - delta), and p is kept where asked for; both 0 where the key is not
// seen. by_query: whether rows of the fragments are queries (else columns are).
static __device__ __forceinline__ float weight_of(float score, float scale, float lse, bool seen) {
  return seen ? __expf(score * scale - lse) : 0.0f;
}

template <int K>
static __global__ void __launch_bounds__(THREADS)
    backward_q(pk_attention_shape shape, operand q, operand k, operand v, const pk_bf16 *g,
               const float *deltas, const float *lse, int64_t lse_stride, result q_grad) {
  PK_DYNAMIC_SHARED(pk_bf16, shared);
  constexpr int tile_size = ROWS * STEP<K>;
  pk_bf16 *q_tile = shared, *g_tile = q_tile + tile_size, *k_tile = g_tile + tile_size;
  pk_bf16 *v_tile = k_tile + tile_size;
  int64_t head = blockIdx.x / shape.tiles, tile = shape.tiles - 1 - blockIdx.x % shape.tiles;
  int64_t spread = shape.heads * K, first = tile * ROWS;
  int warp_row = threadIdx.x / 32 * 16;
  const pk_bf16 *k_head = k.at + pk_head_start(shape, head, k.stride);
  const pk_bf16 *v_head = v.at + pk_head_start(shape, head, v.stride);
  fetch<K, ROWS>(q.at + pk_head_start(shape, head, q.stride), spread, first, shape.length, q_tile);
  fetch<K, ROWS>(g + head * shape.length * K, K, first, shape.length, g_tile);
  pk_copy_commit();
  float row_lse[2], row_delta[2];
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int64_t row = first + warp_row + row_of(2 * side);
    bool there = row < shape.length;
    row_lse[side] = there ? lse[pk_lse_start(shape, head, lse_stride) + row] : 0.0f;
    row_delta[side] = there ? deltas[head * shape.length + row] : 0.0f;
  }
  float sums[K / 8][4] = {};
  for (int64_t step = 0; step <= tile; step++) {
    fetch<K, ROWS>(k_head, spread, step * ROWS, shape.length, k_tile);
    fetch<K, ROWS>(v_head, spread, step * ROWS, shape.length, v_tile);
    pk_copy_commit();
    pk_copy_wait<0>();
    __syncthreads();
    float s[ROWS / 8][4], dp[ROWS / 8][4];
    product_turned<K>(s, q_tile, warp_row, k_tile);
    product_turned<K>(dp, g_tile, warp_row, v_tile);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool seen = step < tile || column_of(j, e) <= warp_row + row_of(e);
        float p = weight_of(s[j][e], shape.scale, row_lse[e / 2], seen);
        s[j][e] = p * (dp[j][e] - row_delta[e / 2]);
      }
    product<K>(sums, s, k_tile);
    __syncthreads();
  }
  store<K>(sums, q_grad.at + pk_head_start(shape, head, q_grad.stride), spread, first + warp_row,
           shape.length, shape.scale, shape.scale);
}

// Queries in a tile of backward_kv: fewer where their fragments and the sums of wide heads would
// not fit in the registers.
template <int K> static constexpr int QUERIES = K == 64 ? 64 : 32;

template <int K>
static __global__ void __launch_bounds__(THREADS)
    backward_kv(pk_attention_shape shape, operand q, operand k, operand v, const pk_bf16 *g,
                const float *deltas, const float *lse, int64_t lse_stride, result k_grad,
                result v_grad) {
  PK_DYNAMIC_SHARED(pk_bf16, shared);
  constexpr int queries = QUERIES<K>;
  pk_bf16 *k_tile = shared, *v_tile = k_tile + ROWS * STEP<K>, *q_tile = v_tile + ROWS * STEP<K>;
  pk_bf16 *g_tile = q_tile + queries * STEP<K>;
  PK_SHARED(float, tile_lse, [queries]);
  PK_SHARED(float, tile_delta, [queries]);
  int64_t head = blockIdx.x / shape.tiles, first = blockIdx.x % shape.tiles * ROWS;
  int64_t spread = shape.heads * K;
  int warp_row = threadIdx.x / 32 * 16;
  const pk_bf16 *q_head = q.at + pk_head_start(shape, head, q.stride);
  const pk_bf16 *g_head = g + head * shape.length * K;
  const float *lse_head = lse + pk_lse_start(shape, head, lse_stride);
  fetch<K, ROWS>(k.at + pk_head_start(shape, head, k.stride), spread, first, shape.length, k_tile);
  fetch<K, ROWS>(v.at + pk_head_start(shape, head, v.stride), spread, first, shape.length, v_tile);
  float k_sums[K / 8][4] = {}, v_sums[K / 8][4] = {};
  for (int64_t from = first; from < shape.length; from += queries) {
    fetch<K, queries>(q_head, spread, from, shape.length, q_tile);
    fetch<K, queries>(g_head, K, from, shape.length, g_tile);
    pk_copy_commit();
    if (threadIdx.x < queries) {
      int64_t row = from + threadIdx.x;
      bool there = row < shape.length;
      tile_lse[threadIdx.x] = there ? lse_head[row] : 0.0f;
      tile_delta[threadIdx.x] = there ? deltas[head * shape.length + row] : 0.0f;
    }
    pk_copy_wait<0>();
    __syncthreads();
    float p[queries / 8][4], ds[queries / 8][4];
    product_turned<K>(p, k_tile, warp_row, q_tile);
    product_turned<K>(ds, v_tile, warp_row, g_tile);
#pragma unroll
    for (int j = 0; j < queries / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int column = column_of(j, e);
        int64_t query = from + column, key = first + warp_row + row_of(e);
        p[j][e] =
            weight_of(p[j][e], shape.scale, tile_lse[column], key <= query && query < shape.length);
        ds[j][e] = p[j][e] * (ds[j][e] - tile_delta[column]);
      }
    product<K>(v_sums, p, g_tile);
    product<K>(k_sums, ds, q_tile);
    __syncthreads();
  }
  store<K>(k_sums, k_grad.at + pk_head_start(shape, head, k_grad.stride), spread, first + warp_row,
           shape.length, shape.scale, shape.scale);
  store<K>(v_sums, v_grad.at + pk_head_start(shape, head, v_grad.stride), spread, first + warp_row,
           shape.length, 1.0f, 1.0f);
}

// --- launching ---

bool pk_attention_mma_fits(const pk_attention_job *job) {
  if (job->dtype != PK_BF16 || (job->width != 64 && job->width != 128)) return false;
  const pk_rows operands[] = {job->q, job->k, job->v};
  const pk_rows floats[] = {job->o, job->g, job->q_grad, job->k_grad, job->v_grad};
  bool fit = true;
  for (const pk_rows &tensor : operands) fit = fit && pk_rows_fit(tensor, 2, 8);
  for (const pk_rows &tensor : floats) fit = fit && pk_rows_fit(tensor, 4, 4);
  return fit;
}

static int64_t rows_of(const pk_attention_job *job) {
  return job->workers * job->sequences * job->heads * job->length;
}

int64_t pk_attention_mma_workspace(const pk_attention_job *job) {
  return rows_of(job) * (job->width * 2 + 4);
}

static operand operand_of(const pk_rows &tensor) {
  operand made = {static_cast<const pk_bf16 *>(tensor.at), tensor.stride};
  return made;
}
static result result_of(const pk_rows &tensor) {
  result made = {static_cast<float *>(tensor.at), tensor.stride};
  return made;
}

static dim3 grid_of(const pk_attention_job *job, const pk_attention_shape &shape) {
  return dim3(static_cast<unsigned>(job->workers * shape.per_worker * shape.tiles));
}

template <int K>
static cudaError_t launch_forward(const pk_attention_job *job, cudaStream_t stream) {
  pk_attention_shape shape = pk_attention_shape_of(job, ROWS);
  result lse = {static_cast<float *>(job->lse), job->lse_stride};
  return pk_launch(forward<K>, grid_of(job, shape), dim3(THREADS), 5 * ROWS * STEP<K> * 2, stream,
                   shape, operand_of(job->q), operand_of(job->k), operand_of(job->v),
                   result_of(job->o), lse);
}

template <int K>
static cudaError_t launch_backward(const pk_attention_job *job, cudaStream_t stream) {
  pk_attention_shape shape = pk_attention_shape_of(job, ROWS);
  int64_t rows = rows_of(job);
  pk_bf16 *rounded = static_cast<pk_bf16 *>(job->workspace);
  float *deltas = reinterpret_cast<float *>(rounded + rows * K);
  const float *lse = static_cast<const float *>(job->lse);
  cudaError_t error =
      pk_launch(prepare<K>, dim3(static_cast<unsigned>((rows + WARPS - 1) / WARPS)), dim3(THREADS),
                0, stream, shape, rows, static_cast<const float *>(job->g.at), job->g.stride,
                static_cast<const float *>(job->o.at), job->o.stride, rounded, deltas);
  if (error != cudaSuccess) return error;
  const pk_bf16 *g = rounded;
  error =
      pk_launch(backward_q<K>, grid_of(job, shape), dim3(THREADS), 4 * ROWS * STEP<K> * 2, stream,
                shape, operand_of(job->q), operand_of(job->k), operand_of(job->v), g,
                static_cast<const float *>(deltas), lse, job->lse_stride, result_of(job->q_grad));
  if (error != cudaSuccess) return error;
  return pk_launch(backward_kv<K>, grid_of(job, shape), dim3(THREADS),
                   2 * (ROWS + QUERIES<K>)*STEP<K> * 2, stream, shape, operand_of(job->q),
                   operand_of(job->k), operand_of(job->v), g, static_cast<const float *>(deltas),
                   lse, job->lse_stride, result_of(job->k_grad), result_of(job->v_grad));
}

cudaError_t pk_launch_attention_mma(const pk_attention_job *job, cudaStream_t stream) {
  return job->width == 64 ? launch_forward<64>(job, stream) : launch_forward<128>(job, stream);
}

cudaError_t pk_launch_attention_mma_grad(const pk_attention_job *job, cudaStream_t stream) {
  return job->width == 64 ? launch_backward<64>(job, stream) : launch_backward<128>(job, stream);
}
