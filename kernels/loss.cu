// Cross-entropy of whole logits and its gradient.
#include <math.h>

#include "device.h"
#include "loss.h"
#include "pack.h"

static constexpr int THREADS = 256, WARPS = THREADS / 32;

static __device__ __forceinline__ float exponential(float x) {
  return expf(x);
}
static __device__ __forceinline__ double exponential(double x) {
  return exp(x);
}

// What a sum of e^(x - largest) is multiplied by when the largest is another. Infinities are equal.
template <class T> static __device__ __forceinline__ T brought_down(T largest, T top) {
  return largest == top ? T(1) : exponential(largest - top);
}

// The sums of two parts as one.
template <class T>
static __device__ __forceinline__ void join(T &largest, double &sum, T other, double other_sum) {
  T top = other > largest ? other : largest;
  sum = sum * static_cast<double>(brought_down(largest, top)) +
        other_sum * static_cast<double>(brought_down(other, top));
  largest = top;
}

// The logarithm of the sum of e^x over a row, which is read once: a thread's sum is brought down
// when a larger element comes.
template <class T> static __global__ void __launch_bounds__(THREADS) row_lse(pk_loss_job job) {
  PK_SHARED(T, tops, [WARPS]);
  PK_SHARED(double, sums, [WARPS]);
  int64_t worker = blockIdx.x / job.rows, row = blockIdx.x % job.rows;
  const T *x = pk_row<const T>(job.logits, worker) + row * job.vocabulary;
  T largest = -INFINITY, part = 0;
  for (int64_t c = threadIdx.x; c < job.vocabulary; c += THREADS) {
    T value = x[c];
    if (value > largest) {
      part = part * exponential(largest - value) + T(1);
      largest = value;
    } else {
      part += brought_down(value, largest);
    }
  }
  double sum = part;
  for (int apart = 16; apart > 0; apart /= 2) {
    T other = __shfl_xor_sync(0xffffffffu, largest, apart);
    double other_sum = __shfl_xor_sync(0xffffffffu, sum, apart);
    join(largest, sum, other, other_sum);
  }
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = largest;
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < WARPS; warp++) join(largest, sum, tops[warp], sums[warp]);
  if (isinf(largest) && sum > 0) sum = NAN;
  pk_row<T>(job.lse, worker)[row] = pk_to<T>(static_cast<double>(largest) + log(sum));
}

// A worker's loss and number of targets.
template <class T> static __global__ void __launch_bounds__(THREADS) sum_losses(pk_loss_job job) {
  PK_SHARED(double, parts, [WARPS]);
  int64_t worker = blockIdx.x;
  const int32_t *targets = pk_row<const int32_t>(job.targets, worker);
  const T *lse = pk_row<const T>(job.lse, worker), *logits = pk_row<const T>(job.logits, worker);
  double sum = 0, valid = 0;
  for (int64_t row = threadIdx.x; row < job.rows; row += THREADS) {
    int32_t target = targets[row];
    if (target == job.ignored) continue;
    bool there = target >= 0 && target < job.vocabulary;
    double picked = there ? static_cast<double>(logits[row * job.vocabulary + target]) : NAN;
    sum += static_cast<double>(lse[row]) - picked;
    valid += 1;
  }
  sum = pk_block_sum<THREADS>(sum, parts);
  valid = pk_block_sum<THREADS>(valid, parts);
  if (threadIdx.x > 0) return;
  *pk_row<T>(job.loss, worker) = pk_to<T>(sum);
  *pk_row<double>(job.count, worker) = valid;
}

template <class T> static cudaError_t forward(const pk_loss_job &job, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (job.rows > 0)
    error = pk_launch(row_lse<T>, dim3(static_cast<unsigned>(job.workers * job.rows)),
                      dim3(THREADS), 0, stream, job);
  if (error != cudaSuccess) return error;
  return pk_launch(sum_losses<T>, dim3(static_cast<unsigned>(job.workers)), dim3(THREADS), 0,
                   stream, job);
}

extern "C" cudaError_t pk_launch_cross_entropy(const pk_loss_job *job, cudaStream_t stream) {
  return job->dtype == PK_F64 ? forward<double>(*job, stream) : forward<float>(*job, stream);
}

// (softmax - onehot) * g of a row; zeros where the target is ignored.
template <class T, int width>
static __global__ void __launch_bounds__(THREADS) row_gradient(pk_loss_job job) {
  typedef pk_pack<T, width> Pack;
  int64_t worker = blockIdx.x / job.rows, row = blockIdx.x % job.rows;
  const T *x = pk_row<const T>(job.logits, worker) + row * job.vocabulary;
  T *grad = pk_row<T>(job.grad, worker) + row * job.vocabulary;
  int32_t target = pk_row<const int32_t>(job.targets, worker)[row];
  T lse = pk_row<const T>(job.lse, worker)[row], g = *pk_row<const T>(job.g, worker);
#pragma unroll 1
  for (int64_t c = threadIdx.x * width; c < job.vocabulary; c += THREADS * width) {
    Pack made = {};
    if (target != job.ignored) {
      Pack values = *reinterpret_cast<const Pack *>(x + c);
#pragma unroll
      for (int i = 0; i < width; i++) {
        T share = exponential(values.at[i] - lse);
        if (c + i == target) share -= T(1);
        made.at[i] = share * g;
      }
    }
    *reinterpret_cast<Pack *>(grad + c) = made;
  }
}

extern "C" cudaError_t pk_launch_cross_entropy_grad(const pk_loss_job *job, cudaStream_t stream) {
  bool packed =
      job->vocabulary % 4 == 0 && pk_rows_fit(job->logits, 4, 4) && pk_rows_fit(job->grad, 4, 4);
  auto kernel = job->dtype == PK_F64 ? row_gradient<double, 1>
                : packed             ? row_gradient<float, 4>
                                     : row_gradient<float, 1>;
  return pk_launch(kernel, dim3(static_cast<unsigned>(job->workers * job->rows)), dim3(THREADS), 0,
                   stream, *job);
}
