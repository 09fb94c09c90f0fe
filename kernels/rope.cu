// Rotary position embedding in its half-split form (Su et al. 2021, arXiv:2104.09864): element k of
// a head's first half and element k of its second are turned by position * theta^(-2k/K).
#include <math.h>

#include "device.h"
#include "pack.h"
#include "rope.h"

static constexpr int THREADS = 256, PACKS_OF_BLOCK = 1024;

// Angles in f64, so that late positions are as exact as early ones.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    fill_table(T *cosines, int64_t length, int64_t pairs, double theta, bool inverse) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= length * pairs) return;
  double place = static_cast<double>(i % pairs) / static_cast<double>(pairs);
  double angle = static_cast<double>(i / pairs) * pow(theta, -place);
  cosines[i] = pk_to<T>(cos(angle));
  cosines[length * pairs + i] = pk_to<T>(inverse ? -sin(angle) : sin(angle));
}

// The start of a head of a worker's row.
template <class T>
static __device__ __forceinline__ T *head_at(const pk_rope_side &side, int64_t worker, int64_t row,
                                             unsigned head, int64_t width) {
  return pk_row<T>(side.parts[head / side.heads], worker) +
         (row * side.heads + head % side.heads) * width;
}

// A block has some rows with all their heads; a thread turns `width` pairs of elements.
template <class X, class Y, int width>
static __global__ void __launch_bounds__(THREADS) turn(pk_rope_job job, int rows_of_block) {
  typedef pk_pack<X, width> From;
  typedef pk_pack<Y, width> To;
  const X *cosines = static_cast<const X *>(job.table), *sines = cosines + job.length * job.half;
  unsigned packs = static_cast<unsigned>(job.half / width);
  unsigned of_row = static_cast<unsigned>(job.heads) * packs;
  int64_t first = static_cast<int64_t>(blockIdx.x) * rows_of_block;
  for (unsigned i = threadIdx.x; i < of_row * rows_of_block; i += THREADS) {
    int64_t index = first + i / of_row;
    if (index >= job.workers * job.rows) break;
    int64_t worker = index / job.rows, row = index % job.rows;
    unsigned head = i % of_row / packs, k = i % packs * width;
    const X *x = head_at<const X>(job.x, worker, row, head, 2 * job.half) + k;
    From a = *reinterpret_cast<const From *>(x);
    From b = *reinterpret_cast<const From *>(x + job.half);
    To first_half, second_half;
    if (head < job.turned) {
      int64_t angle = row % job.length * job.half + k;
      From c = *reinterpret_cast<const From *>(cosines + angle);
      From s = *reinterpret_cast<const From *>(sines + angle);
#pragma unroll
      for (int e = 0; e < width; e++) {
        first_half.at[e] = pk_to<Y>(a.at[e] * c.at[e] - b.at[e] * s.at[e]);
        second_half.at[e] = pk_to<Y>(b.at[e] * c.at[e] + a.at[e] * s.at[e]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < width; e++) {
        first_half.at[e] = pk_to<Y>(a.at[e]);
        second_half.at[e] = pk_to<Y>(b.at[e]);
      }
    }
    Y *y = head_at<Y>(job.y, worker, row, head, 2 * job.half) + k;
    *reinterpret_cast<To *>(y) = first_half;
    *reinterpret_cast<To *>(y + job.half) = second_half;
  }
}

template <class T> static cudaError_t make_table(const pk_rope_job &job, cudaStream_t stream) {
  return pk_launch(fill_table<T>, dim3(pk_grid_for(job.length * job.half, THREADS)), dim3(THREADS),
                   0, stream, static_cast<T *>(job.table), job.length, job.half, job.theta,
                   job.inverse);
}

template <class X, class Y, int width>
static cudaError_t run(const pk_rope_job &job, cudaStream_t stream) {
  int64_t of_row = job.heads * (job.half / width);
  int rows_of_block = of_row < PACKS_OF_BLOCK ? static_cast<int>(PACKS_OF_BLOCK / of_row) : 1;
  return pk_launch(turn<X, Y, width>, dim3(pk_grid_for(job.workers * job.rows, rows_of_block)),
                   dim3(THREADS), 0, stream, job, rows_of_block);
}

// Whether four elements at once are aligned in every part; those that are not there are.
static bool fits(const pk_rope_side &side, int64_t size) {
  for (const pk_rows &part : side.parts)
    if (!pk_rows_fit(part, size, 4)) return false;
  return true;
}

extern "C" cudaError_t pk_launch_rope(const pk_rope_job *job, cudaStream_t stream) {
  bool wide = job->dtype == PK_F64, to_bf16 = job->y_dtype == PK_BF16;
  cudaError_t error = wide ? make_table<double>(*job, stream) : make_table<float>(*job, stream);
  if (error != cudaSuccess) return error;
  if (wide) return run<double, double, 1>(*job, stream);
  bool packed = job->half % 4 == 0 && fits(job->x, 4) && fits(job->y, to_bf16 ? 2 : 4);
  if (to_bf16)
    return packed ? run<float, pk_bf16, 4>(*job, stream) : run<float, pk_bf16, 1>(*job, stream);
  return packed ? run<float, float, 4>(*job, stream) : run<float, float, 1>(*job, stream);
}
