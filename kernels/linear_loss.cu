// The head's loss: a block for each row of logits, which reads it once for its log-sum-exp and once
// more, from the L2 cache, for its gradients, and writes these in place.
#include "linear_loss.h"

#include <math.h>

#include "device.h"
#include "pack.h"

static constexpr int THREADS = 512, WIDTH = 8, PIECE = THREADS * WIDTH, SUM_THREADS = 256;
static constexpr int IGNORED = -100;

static __device__ __forceinline__ float exponential(float x) {
  return expf(x);
}
static __device__ __forceinline__ double exponential(double x) {
  return exp(x);
}

// What exponents of a sum are taken from, where its largest term is top: no infinities from -inf.
template <class T> static __device__ __forceinline__ T origin_of(T top) {
  return top > -INFINITY ? top : T(0);
}

// The largest of a thread's logits, and the sum of e^(logit - largest).
template <class T>
static __device__ void thread_sum(const T *row, int64_t vocabulary, T *largest, T *sum) {
  T top = -INFINITY, total = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * WIDTH; c < vocabulary; c += PIECE) {
    pk_pack<T, WIDTH> pack = *reinterpret_cast<const pk_pack<T, WIDTH> *>(row + c);
    T highest = top;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
      if (c + i < vocabulary && pack.at[i] > highest) highest = pack.at[i];
    if (highest > top) {
      total *= exponential(origin_of(top) - highest); // of 0 where nothing was seen before
      top = highest;
    }
    T origin = origin_of(top);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
      if (c + i < vocabulary) total += exponential(pack.at[i] - origin);
  }
  *largest = top;
  *sum = total;
}

// The row's log-sum-exp, the same in all threads, which have read the row when it is there.
template <class T>
static __device__ T row_lse(const T *row, int64_t vocabulary, T *tops, double *parts) {
  T own, sum;
  thread_sum(row, vocabulary, &own, &sum);
  T top = pk_warp_max(own);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
  top = tops[0];
#pragma unroll
  for (int warp = 1; warp < THREADS / 32; warp++) top = tops[warp] > top ? tops[warp] : top;
  double share = static_cast<double>(sum);
  if (share != 0) share *= static_cast<double>(exponential(origin_of(own) - origin_of(top)));
  double total = pk_block_sum<THREADS>(share, parts);
  return static_cast<T>(static_cast<double>(top) + log(total));
}

// (softmax - onehot) g of a row in its own memory. Gradients are no larger than logits, so what a
// piece overwrites was read with it or before.
template <class T, class Grad>
static __device__ void row_gradients(T *row, int64_t vocabulary, T lse, T g, int target) {
  Grad *grads = reinterpret_cast<Grad *>(row);
  for (int64_t first = 0; first < vocabulary; first += PIECE) {
    int64_t c = first + static_cast<int64_t>(threadIdx.x) * WIDTH;
    pk_pack<T, WIDTH> pack = {};
    if (c < vocabulary) pack = *reinterpret_cast<const pk_pack<T, WIDTH> *>(row + c);
    __syncthreads();
    if (c >= vocabulary) continue;
    pk_pack<Grad, WIDTH> made;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      T slope = exponential(pack.at[i] - lse);
      if (c + i == target) slope -= 1;
      made.at[i] = pk_to<Grad>(target == IGNORED ? T(0) : slope * g);
    }
    *reinterpret_cast<pk_pack<Grad, WIDTH> *>(grads + c) = made;
  }
}

template <class T, class Grad, int work> static __global__ void logits_rows(pk_logits logits) {
  PK_SHARED(T, tops, [THREADS / 32]);
  PK_SHARED(double, parts, [THREADS / 32]);
  int64_t r = blockIdx.x, worker = blockIdx.y;
  T *row = static_cast<T *>(logits.at) + (worker * logits.rows + r) * logits.ld;
  int target = logits.targets[worker * logits.targets_stride + r];
  T *kept = static_cast<T *>(logits.lse) + worker * logits.lse_stride + r, lse;
  if (work & PK_LOGITS_LOSS) {
    bool there = target >= 0 && target < logits.vocabulary;
    double picked = there ? static_cast<double>(row[target]) : 0;
    lse = row_lse(row, logits.vocabulary, tops, parts);
    if (threadIdx.x == 0) {
      double term = there ? static_cast<double>(lse) - picked : NAN;
      logits.terms[worker * logits.terms_stride + r] = target == IGNORED ? 0 : term;
      *kept = lse;
    }
  } else {
    lse = *kept;
  }
  if (work & PK_LOGITS_GRADIENT) {
    T g = static_cast<const T *>(logits.g)[worker * logits.g_stride];
    row_gradients<T, Grad>(row, logits.vocabulary, lse, g, target);
  }
}

template <class T, class Grad>
static cudaError_t launch_rows(const pk_logits *logits, pk_logits_work work, cudaStream_t stream) {
  auto kernel = work == PK_LOGITS_LOSS       ? logits_rows<T, Grad, PK_LOGITS_LOSS>
                : work == PK_LOGITS_GRADIENT ? logits_rows<T, Grad, PK_LOGITS_GRADIENT>
                                             : logits_rows<T, Grad, PK_LOGITS_STEP>;
  dim3 grid(static_cast<unsigned>(logits->rows), static_cast<unsigned>(logits->workers));
  return pk_launch(kernel, grid, dim3(THREADS), 0, stream, *logits);
}

extern "C" cudaError_t pk_launch_logits(const pk_logits *logits, pk_logits_work work,
                                        cudaStream_t stream) {
  if (logits->dtype == PK_F64) return launch_rows<double, double>(logits, work, stream);
  if (logits->grad_dtype == PK_BF16) return launch_rows<float, pk_bf16>(logits, work, stream);
  return launch_rows<float, float>(logits, work, stream);
}

template <class T> static __global__ void loss_sums(pk_loss_sums sums) {
  PK_SHARED(double, parts, [SUM_THREADS / 32]);
  const double *terms = sums.terms + blockIdx.x * sums.terms_stride;
  const int32_t *targets = sums.targets + blockIdx.x * sums.targets_stride;
  double sum = 0, count = 0;
  for (int64_t r = threadIdx.x; r < sums.rows; r += SUM_THREADS) {
    sum += terms[r];
    count += targets[r] == IGNORED ? 0 : 1;
  }
  sum = pk_block_sum<SUM_THREADS>(sum, parts);
  count = pk_block_sum<SUM_THREADS>(count, parts);
  if (threadIdx.x != 0) return;
  static_cast<T *>(sums.loss)[blockIdx.x * sums.loss_stride] = static_cast<T>(sum);
  sums.count[blockIdx.x * sums.count_stride] = count;
}

extern "C" cudaError_t pk_launch_loss_sums(const pk_loss_sums *sums, cudaStream_t stream) {
  auto kernel = sums->dtype == PK_F64 ? loss_sums<double> : loss_sums<float>;
  return pk_launch(kernel, dim3(static_cast<unsigned>(sums->workers)), dim3(SUM_THREADS), 0, stream,
                   *sums);
}
