// Sums and largest values over axes, in f64 and rounded once, in an order that the shape fixes.
#include <math.h>

#include "device.h"
#include "pack.h"
#include "reduce.h"

static constexpr int THREADS = 256, WARPS = THREADS / 32;
// Parts that keep a GPU busy, and the fewest elements that are worth one: for threads that have a
// result each, and for warps that have one.
static constexpr int64_t THREAD_PARTS = 1 << 17, THREAD_LEAST = 32;
static constexpr int64_t WARP_PARTS = 1 << 13, WARP_LEAST = 512;

// A NaN stays: nothing compares greater.
static __device__ __forceinline__ double combine(bool largest, double a, double b) {
  if (!largest) return a + b;
  return b > a || b != b ? b : a;
}

// The end of a chunk's elements.
static __device__ __forceinline__ int64_t end_of(const pk_reduction &job, int64_t chunk) {
  int64_t end = (chunk + 1) * job.chunk_length;
  return end < job.reduced.count ? end : job.reduced.count;
}

static __device__ __forceinline__ void keep(const pk_reduction &job, void *y, int64_t place,
                                            int64_t result, int64_t chunk, double value) {
  if (job.chunks > 1) {
    job.partial[chunk * job.kept.count + result] = value;
    return;
  }
  value /= job.divisor;
  if (job.dtype == PK_F64) {
    double *to = static_cast<double *>(y) + place;
    *to = job.accumulate ? *to + value : value;
  } else {
    float *to = static_cast<float *>(y) + place, single = pk_to<float>(value);
    *to = job.accumulate ? *to + single : single;
  }
}

// Combines elements first, first + step, ... below end of those that one result is made of; x is
// where the first of them all is. Elements at equal distances need no division to be found.
template <class T>
static __device__ __forceinline__ double total_of(const pk_reduction &job, const T *x,
                                                  int64_t first, int64_t end, int step) {
  double total = job.largest ? -INFINITY : 0;
  if (job.reduced.rank == 1) {
    int64_t stride = job.reduced.strides[0][0];
#pragma unroll 4
    for (int64_t i = first; i < end; i += step) total = combine(job.largest, total, x[i * stride]);
    return total;
  }
#pragma unroll 1
  for (int64_t i = first; i < end; i += step) {
    int64_t at[1];
    pk_strided_offsets(job.reduced, i, at);
    total = combine(job.largest, total, x[at[0]]);
  }
  return total;
}

// A thread per result and chunk, so that neighbours read neighbours.
template <class T>
static __global__ void __launch_bounds__(THREADS) columns(pk_reduction job, void *y, const T *x) {
  int64_t items = job.kept.count * job.chunks, step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; item < items;
       item += step) {
    int64_t result = item % job.kept.count, chunk = item / job.kept.count, place[2];
    pk_strided_offsets(job.kept, result, place);
    double total = total_of(job, x + place[1], chunk * job.chunk_length, end_of(job, chunk), 1);
    keep(job, y, place[0], result, chunk, total);
  }
}

// A warp per result and chunk.
template <class T>
static __global__ void __launch_bounds__(THREADS) rows(pk_reduction job, void *y, const T *x) {
  int lane = threadIdx.x % 32;
  int64_t items = job.kept.count * job.chunks, step = static_cast<int64_t>(gridDim.x) * WARPS;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32; item < items;
       item += step) {
    int64_t result = item % job.kept.count, chunk = item / job.kept.count, place[2];
    pk_strided_offsets(job.kept, result, place);
    double total =
        total_of(job, x + place[1], chunk * job.chunk_length + lane, end_of(job, chunk), 32);
    for (int apart = 16; apart > 0; apart /= 2) {
      double other = __shfl_xor_sync(0xffffffffu, total, apart);
      total = combine(job.largest, total, other);
    }
    if (lane == 0) keep(job, y, place[0], result, chunk, total);
  }
}

extern "C" void pk_plan_reduction(pk_reduction *job) {
  int64_t results = job->kept.count, count = job->reduced.count;
  int64_t parts = job->columns ? THREAD_PARTS : WARP_PARTS;
  int64_t least = job->columns ? THREAD_LEAST : WARP_LEAST;
  int64_t chunks = parts / results;
  if (chunks > count / least) chunks = count / least;
  if (chunks < 1) chunks = 1;
  job->chunk_length = (count + chunks - 1) / chunks;
  job->chunks = count > 0 ? (count + job->chunk_length - 1) / job->chunk_length : 1;
}

template <class T>
static cudaError_t reduce(const pk_reduction &job, void *y, const void *x, cudaStream_t stream) {
  int64_t items = job.kept.count * job.chunks;
  return pk_launch(job.columns ? columns<T> : rows<T>,
                   dim3(pk_grid_for(items, job.columns ? THREADS : WARPS)), dim3(THREADS), 0,
                   stream, job, y, static_cast<const T *>(x));
}

// The reduction of the chunks' results.
static pk_reduction of_partial(const pk_reduction &job) {
  pk_reduction last = job;
  int64_t stride = 1;
  for (int d = last.kept.rank - 1; d >= 0; d--) {
    last.kept.strides[1][d] = stride;
    stride *= last.kept.extents[d];
  }
  last.reduced.rank = 1;
  last.reduced.count = last.reduced.extents[0] = last.chunk_length = job.chunks;
  last.reduced.strides[0][0] = job.kept.count;
  last.chunks = 1;
  last.columns = false;
  return last;
}

extern "C" cudaError_t pk_launch_reduction(const pk_reduction *job, void *y, const void *x,
                                           cudaStream_t stream) {
  cudaError_t error =
      job->dtype == PK_F64 ? reduce<double>(*job, y, x, stream) : reduce<float>(*job, y, x, stream);
  if (error != cudaSuccess || job->chunks == 1) return error;
  return reduce<double>(of_partial(*job), y, job->partial, stream);
}
