// What a training step needs besides the update: gradient norms, the check for values that are not
// finite, the separate clip; and what is read over the workers.
#include <math.h>

#include "device.h"
#include "pack.h"
#include "step_numbers.h"
#include "train.h"

enum { THREADS = 256, PIECE = 16384, MOST_BLOCKS = 132 * 16 };

// At least one, whose sum is 0 where there are no columns.
static int64_t pieces_of(int64_t columns) {
  return columns > 0 ? (columns + PIECE - 1) / PIECE : 1;
}

// --- inverse_count ---

static __global__ void inverse_count(pk_vector scale, pk_vector count, int64_t workers) {
  for (int64_t i = threadIdx.x; i < workers; i += THREADS) {
    double targets = count.at[i * count.stride];
    scale.at[i * scale.stride] = targets == 0 ? 0 : 1 / targets;
  }
}

extern "C" cudaError_t pk_launch_inverse_count(pk_vector scale, pk_vector count, int64_t workers,
                                               cudaStream_t stream) {
  return pk_launch(inverse_count, dim3(1), dim3(THREADS), 0, stream, scale, count, workers);
}

// --- gradient_norm ---

// Squares of f32 fit in f64. Those of f64 may not: they are brought by a power of two to where they
// do, after a pass that finds the largest.

// The largest magnitude of a piece, NaN left out, into partial[worker][piece].
static __global__ void largest(pk_rows g, int64_t columns, double *partial) {
  PK_SHARED(double, parts, [THREADS / 32]);
  const double *row = pk_row<const double>(g, blockIdx.y);
  int64_t first = static_cast<int64_t>(blockIdx.x) * PIECE;
  int64_t end = first + PIECE < columns ? first + PIECE : columns;
  double top = 0;
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) top = fmax(top, fabs(row[c]));
  top = pk_warp_max(top);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < THREADS / 32; warp++) top = fmax(top, parts[warp]);
  partial[blockIdx.y * gridDim.x + blockIdx.x] = top;
}

// The exponent that brings a worker's largest value near 1; 0 where there is none or it is not
// finite.
static __device__ int exponent_of(const double *partial, int64_t pieces) {
  double top = 0;
  for (int64_t p = 0; p < pieces; p++) top = fmax(top, partial[p]);
  if (top == 0 || isinf(top)) return 0;
  int exponent;
  frexp(top, &exponent);
  return exponent < -1000 ? -1000 : exponent; // so that 2^-exponent is finite
}

static __global__ void exponents(const double *partial, int64_t pieces, int64_t workers,
                                 int *made) {
  for (int64_t i = threadIdx.x; i < workers; i += THREADS)
    made[i] = exponent_of(partial + i * pieces, pieces);
}

// The sum of squares of a piece into partial[worker][piece]; exponents is NULL for f32.
template <class T>
static __global__ void squares(pk_rows g, int64_t columns, const int *exponents, double *partial) {
  PK_SHARED(double, parts, [THREADS / 32]);
  const T *row = pk_row<const T>(g, blockIdx.y);
  double scale = exponents ? ldexp(1.0, -exponents[blockIdx.y]) : 1.0;
  int64_t first = static_cast<int64_t>(blockIdx.x) * PIECE;
  int64_t end = first + PIECE < columns ? first + PIECE : columns;
  double sum = 0;
  for (int64_t c = first + threadIdx.x * 4; c < end; c += THREADS * 4) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (c + i >= end) break;
      double x = static_cast<double>(row[c + i]) * scale;
      sum += x * x;
    }
  }
  sum = pk_block_sum<THREADS>(sum, parts);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

static __global__ void finish_norm(const double *partial, int64_t pieces, int64_t workers,
                                   const int *exponents, pk_vector scale, pk_vector norm) {
  for (int64_t i = threadIdx.x; i < workers; i += THREADS) {
    double total = 0;
    for (int64_t p = 0; p < pieces; p++) total += partial[i * pieces + p];
    double root = exponents ? ldexp(sqrt(total), exponents[i]) : sqrt(total);
    norm.at[i * norm.stride] = root * fabs(scale.at[i * scale.stride]);
  }
}

extern "C" int64_t pk_gradient_norm_workspace(int64_t workers, int64_t columns) {
  return workers * (pieces_of(columns) + 1) * 8;
}

extern "C" cudaError_t pk_launch_gradient_norm(pk_rows g, pk_vector scale, pk_vector norm,
                                               int64_t workers, int64_t columns, int dtype,
                                               void *workspace, cudaStream_t stream) {
  int64_t pieces = pieces_of(columns);
  double *partial = static_cast<double *>(workspace);
  int *powers = reinterpret_cast<int *>(partial + workers * pieces);
  dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(workers)), block(THREADS);
  cudaError_t error = cudaSuccess;
  if (dtype == PK_F64) {
    error = pk_launch(largest, grid, block, 0, stream, g, columns, partial);
    if (error == cudaSuccess)
      error = pk_launch(exponents, dim3(1), block, 0, stream, static_cast<const double *>(partial),
                        pieces, workers, powers);
    if (error == cudaSuccess)
      error = pk_launch(squares<double>, grid, block, 0, stream, g, columns,
                        static_cast<const int *>(powers), partial);
  } else {
    powers = nullptr;
    error = pk_launch(squares<float>, grid, block, 0, stream, g, columns,
                      static_cast<const int *>(powers), partial);
  }
  if (error != cudaSuccess) return error;
  return pk_launch(finish_norm, dim3(1), block, 0, stream, static_cast<const double *>(partial),
                   pieces, workers, static_cast<const int *>(powers), scale, norm);
}

// --- sum_squares ---

static __global__ void finish_squares(const double *partial, int64_t pieces, int64_t workers,
                                      pk_vector sums) {
  for (int64_t i = threadIdx.x; i < workers; i += THREADS) {
    double total = 0;
    for (int64_t p = 0; p < pieces; p++) total += partial[i * pieces + p];
    sums.at[i * sums.stride] = total;
  }
}

extern "C" int64_t pk_sum_squares_workspace(int64_t workers, int64_t columns) {
  return workers * pieces_of(columns) * 8;
}

extern "C" cudaError_t pk_launch_sum_squares(pk_rows x, pk_vector sums, int64_t workers,
                                             int64_t columns, int dtype, void *workspace,
                                             cudaStream_t stream) {
  int64_t pieces = pieces_of(columns);
  double *partial = static_cast<double *>(workspace);
  dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(workers));
  auto kernel = dtype == PK_F64 ? squares<double> : squares<float>;
  cudaError_t error = pk_launch(kernel, grid, dim3(THREADS), 0, stream, x, columns,
                                static_cast<const int *>(nullptr), partial);
  if (error != cudaSuccess) return error;
  return pk_launch(finish_squares, dim3(1), dim3(THREADS), 0, stream,
                   static_cast<const double *>(partial), pieces, workers, sums);
}

// --- check_finite ---

template <class T>
static __global__ void check_finite(pk_rows loss, pk_vector norm, pk_vector scalars, pk_guard guard,
                                    int64_t workers, double largest) {
  if (guard.at[GUARD_STOPPED * guard.stride] != 0) return;
  int32_t found = guard.at[GUARD_FOUND * guard.stride];
  if (found != 0) {
    stop(guard, found - 1, guard.at[GUARD_STEP * guard.stride], REASON_UPDATE);
    return;
  }
  double clip = scalars.at[SCALAR_CLIP * scalars.stride];
  for (int64_t i = 0; i < workers; i++) {
    double own = norm.at[i * norm.stride], clipped = clip > 0 && clip < own ? clip : own;
    int reason = !isfinite(*pk_row<const T>(loss, i)) ? REASON_LOSS
                 : !isfinite(own)                     ? REASON_NORM
                 : clipped > largest                  ? REASON_LARGE_NORM
                                                      : 0;
    if (reason == 0) continue;
    stop(guard, i, step_of(scalars), reason);
    return;
  }
  guard.at[GUARD_UPDATES * guard.stride]++;
  if (scalars.at[SCALAR_MIXES * scalars.stride] != 0) guard.at[GUARD_MIXINGS * guard.stride]++;
}

extern "C" cudaError_t pk_launch_check_finite(pk_rows loss, int dtype, pk_vector norm,
                                              pk_vector scalars, pk_guard guard, int64_t workers,
                                              double largest, cudaStream_t stream) {
  auto kernel = dtype == PK_F64 ? check_finite<double> : check_finite<float>;
  return pk_launch(kernel, dim3(1), dim3(1), 0, stream, loss, norm, scalars, guard, workers,
                   largest);
}

// --- check_arena ---

// Whether a piece has an element that is not finite, into partial[worker][piece].
template <class T> static __global__ void spoiled(pk_rows x, int64_t columns, double *partial) {
  PK_SHARED(double, parts, [THREADS / 32]);
  const T *row = pk_row<const T>(x, blockIdx.y);
  int64_t first = static_cast<int64_t>(blockIdx.x) * PIECE;
  int64_t end = first + PIECE < columns ? first + PIECE : columns;
  bool finite = true;
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) finite = finite && isfinite(row[c]);
  double count = pk_block_sum<THREADS>(finite ? 0.0 : 1.0, parts);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = count;
}

static __global__ void stop_at_spoiled(const double *partial, int64_t pieces, int64_t workers,
                                       pk_vector scalars, pk_guard guard, int reason) {
  if (guard.at[GUARD_STOPPED * guard.stride] != 0) return;
  for (int64_t p = 0; p < workers * pieces; p++) {
    if (partial[p] == 0) continue;
    stop(guard, p / pieces, step_of(scalars), reason);
    return;
  }
}

extern "C" int64_t pk_check_arena_workspace(int64_t workers, int64_t columns) {
  return workers * pieces_of(columns) * 8;
}

extern "C" cudaError_t pk_launch_check_arena(pk_rows x, pk_vector scalars, pk_guard guard,
                                             int64_t workers, int64_t columns, int dtype,
                                             int reason, void *workspace, cudaStream_t stream) {
  int64_t pieces = pieces_of(columns);
  double *partial = static_cast<double *>(workspace);
  dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(workers));
  auto kernel = dtype == PK_F64 ? spoiled<double> : spoiled<float>;
  cudaError_t error = pk_launch(kernel, grid, dim3(THREADS), 0, stream, x, columns, partial);
  if (error != cudaSuccess) return error;
  return pk_launch(stop_at_spoiled, dim3(1), dim3(1), 0, stream,
                   static_cast<const double *>(partial), pieces, workers, scalars, guard, reason);
}

// --- clip ---

template <class T>
static __global__ void clip(pk_rows g, pk_vector scale, pk_vector norm, pk_vector scalars,
                            pk_guard guard, int64_t columns) {
  if (guard.at[GUARD_STOPPED * guard.stride] != 0) return;
  T factor = pk_to<T>(gradient_factor(scale, norm, scalars, blockIdx.y));
  T *row = static_cast<T *>(g.at) + blockIdx.y * g.stride;
  int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; c < columns;
       c += stride)
    row[c] *= factor;
}

// Blocks for all columns of a row, each thread taking several.
static unsigned blocks_for(int64_t columns) {
  int64_t blocks = (columns + THREADS - 1) / THREADS;
  if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
  return static_cast<unsigned>(blocks);
}

extern "C" cudaError_t pk_launch_clip(pk_rows g, pk_vector scale, pk_vector norm, pk_vector scalars,
                                      pk_guard guard, int64_t workers, int64_t columns, int dtype,
                                      cudaStream_t stream) {
  auto kernel = dtype == PK_F64 ? clip<double> : clip<float>;
  return pk_launch(kernel, dim3(blocks_for(columns), static_cast<unsigned>(workers)), dim3(THREADS),
                   0, stream, g, scale, norm, scalars, guard, columns);
}

// --- average and consensus_distance ---

// The mean of a column, summed in f64 in order of the workers.
template <class T>
static __device__ double mean_of(const pk_rows &x, int64_t workers, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < workers; i++) sum += pk_row<const T>(x, i)[column];
  return sum / static_cast<double>(workers);
}

template <class T>
static __global__ void average(pk_rows x, T *y, int64_t workers, int64_t columns) {
  int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; c < columns;
       c += stride)
    y[c] = pk_to<T>(mean_of<T>(x, workers, c));
}

extern "C" cudaError_t pk_launch_average(pk_rows x, void *y, int64_t workers, int64_t columns,
                                         int dtype, cudaStream_t stream) {
  dim3 grid(blocks_for(columns)), block(THREADS);
  if (dtype == PK_F64)
    return pk_launch(average<double>, grid, block, 0, stream, x, static_cast<double *>(y), workers,
                     columns);
  return pk_launch(average<float>, grid, block, 0, stream, x, static_cast<float *>(y), workers,
                   columns);
}

template <class T>
static __global__ void distances(pk_rows x, int64_t workers, int64_t columns, double *partial) {
  PK_SHARED(double, parts, [THREADS / 32]);
  int64_t first = static_cast<int64_t>(blockIdx.x) * PIECE;
  int64_t end = first + PIECE < columns ? first + PIECE : columns;
  double total = 0;
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) {
    double mean = mean_of<T>(x, workers, c);
    for (int64_t i = 0; i < workers; i++) {
      double apart = pk_row<const T>(x, i)[c] - mean;
      total += apart * apart;
    }
  }
  total = pk_block_sum<THREADS>(total, parts);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

static __global__ void finish_distance(const double *partial, int64_t pieces, int64_t workers,
                                       double *y) {
  double total = 0;
  for (int64_t p = 0; p < pieces; p++) total += partial[p];
  *y = sqrt(total / static_cast<double>(workers));
}

extern "C" int64_t pk_consensus_workspace(int64_t columns) {
  return pieces_of(columns) * 8;
}

extern "C" cudaError_t pk_launch_consensus_distance(pk_rows x, double *y, int64_t workers,
                                                    int64_t columns, int dtype, void *workspace,
                                                    cudaStream_t stream) {
  double *partial = static_cast<double *>(workspace);
  int64_t pieces = pieces_of(columns);
  auto kernel = dtype == PK_F64 ? distances<double> : distances<float>;
  cudaError_t error = pk_launch(kernel, dim3(static_cast<unsigned>(pieces)), dim3(THREADS), 0,
                                stream, x, workers, columns, partial);
  if (error != cudaSuccess) return error;
  return pk_launch(finish_distance, dim3(1), dim3(1), 0, stream,
                   static_cast<const double *>(partial), pieces, workers, y);
}
