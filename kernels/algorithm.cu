// What algorithms and plain optimizers change arenas with: SGD and blends under the guard. To the
// bits of the CPU's.
#include <math.h>

#include "device.h"
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
