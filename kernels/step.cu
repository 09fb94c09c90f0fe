// Clip, mixing, AdamW and the bf16 copy in one pass over the arenas, to the same bits as the CPU:
// each thread has some columns of all workers, in shared memory from the first step to the last.
#include <math.h>

#include "device.h"
#include "pack.h"
#include "step_numbers.h"
#include "train.h"

enum { THREADS = 128, MOST_BLOCKS = 132 * 16, MOST_SHARED = 64 << 10 };

// Hyperparameters as host/cpu/adamw.h has them: combined in f64, rounded to T once.
template <class T> struct Adamw { T eps, beta1, rest1, beta2, rest2, inverse1, inverse2; };

// What a worker has of its own: the factor of its gradient, its learning rate, and 1 - rate *
// decay.
enum { OWN_FACTOR, OWN_RATE, OWN_DECAY, OWN_NUMBERS };

template <class T> static __device__ Adamw<T> adamw_of(const pk_vector &scalars) {
  const double *at = scalars.at;
  int64_t s = scalars.stride;
  double beta1 = at[SCALAR_BETA1 * s], beta2 = at[SCALAR_BETA2 * s];
  Adamw<T> a;
  a.eps = pk_to<T>(at[SCALAR_EPS * s]);
  a.beta1 = pk_to<T>(beta1);
  a.rest1 = pk_to<T>(1 - beta1);
  a.beta2 = pk_to<T>(beta2);
  a.rest2 = pk_to<T>(1 - beta2);
  a.inverse1 = pk_to<T>(1 / at[SCALAR_CORRECTION1 * s]);
  a.inverse2 = pk_to<T>(1 / at[SCALAR_CORRECTION2 * s]);
  return a;
}

static __device__ __forceinline__ float root(float x) {
  return sqrtf(x);
}
static __device__ __forceinline__ double root(double x) {
  return sqrt(x);
}

// As many columns as a thread takes at once: 16 bytes where rows are aligned, else one.
template <class T, int width>
static __device__ pk_pack<T, width> *place(const pk_rows &rows, int64_t worker, int64_t column) {
  return reinterpret_cast<pk_pack<T, width> *>(static_cast<T *>(rows.at) + worker * rows.stride +
                                               column);
}

// Row i of the mixing matrix times the columns of all workers, in f64 in order of j, without zeros;
// the sum starts from its first term. x: [workers][threads].
template <class T, int width>
static __device__ __forceinline__ pk_pack<T, width>
mixed(const double *row, const pk_pack<T, width> *x, int64_t workers) {
  double sums[width] = {};
  bool first = true;
  for (int64_t j = 0; j < workers; j++) {
    double weight = row[j];
    if (weight == 0) continue;
    pk_pack<T, width> peer = x[j * blockDim.x];
#pragma unroll
    for (int c = 0; c < width; c++) {
      double term = weight * static_cast<double>(peer.at[c]);
      sums[c] = first ? term : sums[c] + term;
    }
    first = false;
  }
  pk_pack<T, width> y;
#pragma unroll
  for (int c = 0; c < width; c++) y.at[c] = pk_to<T>(sums[c]);
  return y;
}

// AdamW of one worker's columns from the weights x. finite stays true if all results are.
template <class T, int width>
static __device__ __forceinline__ pk_pack<T, width>
adapted(const pk_step_job &job, const Adamw<T> &a, bool decays, const double *own, int64_t worker,
        int64_t column, pk_pack<T, width> x, bool &finite) {
  pk_pack<T, width> g = *place<T, width>(job.g, worker, column);
  pk_pack<T, width> *m_at = place<T, width>(job.m, worker, column),
                    *v_at = place<T, width>(job.v, worker, column);
  pk_pack<T, width> m = *m_at, v = *v_at;
  T factor = pk_to<T>(own[OWN_FACTOR]), rate = pk_to<T>(own[OWN_RATE]);
  T decay = decays ? pk_to<T>(own[OWN_DECAY]) : T(1);
#pragma unroll
  for (int c = 0; c < width; c++) {
    T gradient = factor * g.at[c];
    m.at[c] = a.beta1 * m.at[c] + a.rest1 * gradient;
    v.at[c] = a.beta2 * v.at[c] + a.rest2 * gradient * gradient;
    x.at[c] =
        decay * x.at[c] - rate * (m.at[c] * a.inverse1 / (root(v.at[c] * a.inverse2) + a.eps));
    // A difference of equals is 0 of a finite number alone; x is not finite where m is not.
    finite = finite && (v.at[c] - v.at[c]) + (x.at[c] - x.at[c]) == T(0);
  }
  *m_at = m;
  *v_at = v;
  return x;
}

// Notes the first worker of whom v or x is not finite in the columns from `column` on. The thread
// that finds something first notes the step.
template <class T, int width>
static __device__ void note_found(const T *x, int64_t x_stride, const T *v, int64_t v_stride,
                                  int workers, int32_t *guard, int64_t guard_stride, int32_t step) {
  int32_t own = 0; // 1 + the worker
  for (int i = workers - 1; i >= 0; i--)
    for (int c = 0; c < width; c++)
      if (!isfinite(x[i * x_stride + c]) || !isfinite(v[i * v_stride + c])) own = i + 1;
  note_found_of(pk_guard{guard, guard_stride}, own, step);
}

// The mixed columns y of worker i, but its own where a column is not finite in all workers.
template <class T, int width>
static __device__ pk_pack<T, width> kept_apart(const pk_pack<T, width> *x, int64_t workers,
                                               int64_t i, pk_pack<T, width> y) {
  for (int c = 0; c < width; c++) {
    bool finite = true;
    for (int64_t j = 0; j < workers; j++) finite = finite && isfinite(x[j * blockDim.x].at[c]);
    if (!finite) y.at[c] = x[i * blockDim.x].at[c];
  }
  return y;
}

template <class T, int width>
static __device__ void write_bf16(const pk_rows &copy, int64_t worker, int64_t column,
                                  pk_pack<T, width> x) {
  pk_pack<pk_bf16, width> rounded;
#pragma unroll
  for (int c = 0; c < width; c++) rounded.at[c] = pk_to<pk_bf16>(x.at[c]);
  *reinterpret_cast<pk_pack<pk_bf16, width> *>(static_cast<pk_bf16 *>(copy.at) +
                                               worker * copy.stride + column) = rounded;
}

// A larger mixing matrix than this is read where it is.
static __host__ __device__ bool holds_matrix(int64_t workers) {
  return workers <= 64;
}

// Numbers in front of the columns in shared memory, so many that those start at 16 bytes.
static __host__ __device__ int64_t head_numbers(int64_t workers) {
  int64_t matrix = holds_matrix(workers) ? workers * workers : 0;
  return (matrix + workers * OWN_NUMBERS + 1) / 2 * 2;
}

// Dynamic shared memory: the mixing matrix, what each worker has of its own, hyperparameters,
// then the columns [workers][threads].
template <class T, int width>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? 6 : 5) step(pk_step_job job) {
  PK_DYNAMIC_SHARED(double, shared);
  if (job.guard.at[GUARD_STOPPED * job.guard.stride] != 0) return;
  if (!job.adapts && job.guard.at[GUARD_FOUND * job.guard.stride] != 0) return;
  int64_t n = job.workers;
  double *matrix = shared, *own = holds_matrix(n) ? matrix + n * n : shared;
  pk_pack<T, width> *x =
      reinterpret_cast<pk_pack<T, width> *>(shared + head_numbers(n)) + threadIdx.x;
  PK_SHARED(Adamw<T>, hyper, [1]);
  bool mixes = job.mixes_first || job.mixes_last;
  if (mixes && holds_matrix(n))
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x)
      matrix[i] = job.mixing.at[i / n * job.mixing.stride + i % n];
  for (int64_t i = threadIdx.x; i < n && job.adapts; i += blockDim.x) {
    double rate = rate_of(job.scalars, job.rates, i);
    own[i * OWN_NUMBERS + OWN_FACTOR] =
        job.clips ? gradient_factor(job.scale, job.norm, job.scalars, i) : 1.0;
    own[i * OWN_NUMBERS + OWN_RATE] = rate;
    own[i * OWN_NUMBERS + OWN_DECAY] = 1 - rate * job.scalars.at[SCALAR_DECAY * job.scalars.stride];
  }
  if (job.adapts && threadIdx.x == 0) hyper[0] = adamw_of<T>(job.scalars);
  __syncthreads();
  int64_t packs = job.columns / width;
  int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; p < packs;
       p += stride) {
    int64_t column = p * width;
    bool decays = job.adapts && job.blocks[column / 64 * job.blocks_stride] != 0;
    bool finite = true; // what AdamW gives
    for (int64_t i = 0; i < n; i++) x[i * blockDim.x] = *place<T, width>(job.x, i, column);
    if (job.mixes_last)
      for (int64_t i = 0; i < n && job.adapts; i++)
        x[i * blockDim.x] = adapted(job, hyper[0], decays, own + i * OWN_NUMBERS, i, column,
                                    x[i * blockDim.x], finite);
    for (int64_t i = 0; i < n; i++) {
      const double *weights =
          holds_matrix(n) ? matrix + i * n : job.mixing.at + i * job.mixing.stride;
      pk_pack<T, width> y = mixes ? mixed<T, width>(weights, x, n) : x[i * blockDim.x];
      if (job.mixes_last && !finite) y = kept_apart<T, width>(x, n, i, y);
      if (job.adapts && !job.mixes_last)
        y = adapted(job, hyper[0], decays, own + i * OWN_NUMBERS, i, column, y, finite);
      *place<T, width>(job.x, i, column) = y;
      if (job.bf16.at) write_bf16<T, width>(job.bf16, i, column, y);
    }
    if (!finite)
      note_found<T, width>(static_cast<const T *>(job.x.at) + column, job.x.stride,
                           static_cast<const T *>(job.v.at) + column, job.v.stride,
                           static_cast<int>(n), job.guard.at, job.guard.stride,
                           step_of(job.scalars));
  }
}

template <class T, int width>
static cudaError_t launch(const pk_step_job *job, cudaStream_t stream) {
  constexpr int64_t each = width * static_cast<int64_t>(sizeof(T));
  int64_t threads = THREADS;
  while (threads > 32 && job->workers * threads * each > MOST_SHARED) threads /= 2;
  int64_t blocks = (job->columns / width + threads - 1) / threads;
  if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
  if (blocks < 1) return cudaSuccess;
  size_t shared =
      static_cast<size_t>(head_numbers(job->workers) * 8 + job->workers * threads * each);
  return pk_launch(step<T, width>, dim3(static_cast<unsigned>(blocks)),
                   dim3(static_cast<unsigned>(threads)), shared, stream, *job);
}

template <class T> static cudaError_t launch(const pk_step_job *job, cudaStream_t stream) {
  constexpr int width = 16 / sizeof(T);
  bool aligned = job->columns % width == 0 && pk_rows_fit(job->bf16, 2, width);
  const pk_rows arenas[] = {job->x, job->g, job->m, job->v};
  for (const pk_rows &arena : arenas) aligned = aligned && pk_rows_fit(arena, sizeof(T), width);
  return aligned ? launch<T, width>(job, stream) : launch<T, 1>(job, stream);
}

extern "C" cudaError_t pk_launch_step(const pk_step_job *job, cudaStream_t stream) {
  return job->dtype == PK_F64 ? launch<double>(job, stream) : launch<float>(job, stream);
}
