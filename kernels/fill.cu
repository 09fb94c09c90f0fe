// Tensors made from nothing: constants and random numbers.
#include "device.h"

#include "core/random.h"
#include "fill.h"
#include "pack.h"

static constexpr int THREADS = 256;

// --- constants ---

typedef pk_pack<uint64_t, 2> Bits16;

template <class T>
static __global__ void __launch_bounds__(THREADS) fill(T *y, T value, pk_strided walk) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < walk.count;
       i += step) {
    int64_t at[1];
    pk_strided_offsets(walk, i, at);
    y[at[0]] = value;
  }
}

// The same walk in steps of 16 bytes. False if its rows do not consist of such.
static bool widen(pk_strided *walk, const void *y, int64_t element_bytes) {
  int64_t width = 16 / element_bytes;
  int last = walk->rank - 1;
  if (reinterpret_cast<uintptr_t>(y) % 16 || walk->strides[0][last] != 1) return false;
  if (walk->extents[last] % width) return false;
  for (int d = 0; d < last; d++)
    if (walk->strides[0][d] % width) return false;
  for (int d = 0; d < last; d++) walk->strides[0][d] /= width;
  walk->extents[last] /= width;
  walk->count /= width;
  return true;
}

template <class T>
static cudaError_t fill_with(void *y, T value, const pk_strided &walk, cudaStream_t stream) {
  return pk_launch(fill<T>, dim3(pk_grid_for(walk.count, THREADS)), dim3(THREADS), 0, stream,
                   static_cast<T *>(y), value, walk);
}

extern "C" cudaError_t pk_launch_fill(int64_t element_bytes, void *y, uint64_t bits,
                                      const pk_strided *walk, cudaStream_t stream) {
  pk_strided wide = *walk;
  if (widen(&wide, y, element_bytes)) {
    for (int64_t have = element_bytes * 8; have < 64; have *= 2) bits |= bits << have;
    return fill_with(y, Bits16{{bits, bits}}, wide, stream);
  }
  switch (element_bytes) {
  case 8:
    return fill_with(y, bits, *walk, stream);
  case 4:
    return fill_with(y, static_cast<uint32_t>(bits), *walk, stream);
  default:
    return fill_with(y, static_cast<uint16_t>(bits), *walk, stream);
  }
}

// --- random numbers ---

// Uniforms are cut to the dtype's multiples of its spacing below 1: rounding could reach 1.
template <class T> struct Spacing;
template <> struct Spacing<double> {
  static constexpr double steps = 4294967296.0; // all bits of a word
};
template <> struct Spacing<float> { static constexpr double steps = 16777216.0; };
template <> struct Spacing<pk_bf16> { static constexpr double steps = 256.0; };

template <class T>
static __device__ __forceinline__ void four_values(const pk_random_job &job, uint64_t block,
                                                   double values[4]) {
  uint32_t words[4];
  pk_random_words(job.key, block, words);
  if (job.normal) {
    pk_random_normal_pair(words, values);
    pk_random_normal_pair(words + 2, values + 2);
    for (int i = 0; i < 4; i++) values[i] = job.mean + job.deviation * values[i];
  } else {
    for (int i = 0; i < 4; i++)
      values[i] = floor(words[i] * 0x1p-32 * Spacing<T>::steps) / Spacing<T>::steps;
  }
}

template <class T>
static __global__ void __launch_bounds__(THREADS) random_values(pk_random_job job) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
       block * 4 < job.count; block += step) {
    double values[4];
    four_values<T>(job, static_cast<uint64_t>(block), values);
    for (int i = 0; i < 4; i++) {
      int64_t element = block * 4 + i;
      if (element >= job.count) break;
      pk_row<T>(job.y, element / job.inner)[element % job.inner] = pk_to<T>(values[i]);
    }
  }
}

extern "C" cudaError_t pk_launch_random(const pk_random_job *job, cudaStream_t stream) {
  auto kernel = job->dtype == PK_F64   ? random_values<double>
                : job->dtype == PK_F32 ? random_values<float>
                                       : random_values<pk_bf16>;
  return pk_launch(kernel, dim3(pk_grid_for(job->count, THREADS * 4)), dim3(THREADS), 0, stream,
                   *job);
}
