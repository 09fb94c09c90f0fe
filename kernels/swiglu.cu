// SwiGLU (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, and its gradients.
#include <math.h>

#include "device.h"
#include "pack.h"
#include "swiglu.h"

static constexpr int THREADS = 256;

// From e^-|x|, which neither overflows nor loses the small values at negative x.
static __device__ __forceinline__ float logistic(float x) {
  float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
static __device__ __forceinline__ double logistic(double x) {
  double e = exp(-fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

// The elements of a thread: where they start in a worker's row of y or g, and in one of gate or up.
struct Place {
  int64_t worker, element;
};
template <int width>
static __device__ __forceinline__ Place place_of(const pk_swiglu_job &job, int64_t index) {
  if (job.workers == 1) return {0, index * width};
  int64_t packs = job.inner / width;
  return {index / packs, index % packs * width};
}
static __device__ __forceinline__ Place spread(const pk_swiglu_job &job, Place place) {
  if (job.row > 0) place.element += place.element / job.row * job.row;
  return place;
}

template <class T, int width>
static __device__ __forceinline__ pk_pack<T, width> load(const pk_rows &rows, Place place) {
  return *reinterpret_cast<const pk_pack<T, width> *>(pk_row<const T>(rows, place.worker) +
                                                      place.element);
}
template <class T, int width>
static __device__ __forceinline__ void store(const pk_rows &rows, Place place,
                                             const pk_pack<T, width> &values) {
  *reinterpret_cast<pk_pack<T, width> *>(pk_row<T>(rows, place.worker) + place.element) = values;
}

template <class X, class Y, int width>
static __global__ void __launch_bounds__(THREADS) forward(pk_swiglu_job job, int64_t packs) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < packs; i += step) {
    Place place = place_of<width>(job, i), wide = spread(job, place);
    pk_pack<X, width> gate = load<X, width>(job.gate, wide), up = load<X, width>(job.up, wide);
    pk_pack<Y, width> y;
#pragma unroll
    for (int e = 0; e < width; e++)
      y.at[e] = pk_to<Y>(gate.at[e] * logistic(gate.at[e]) * up.at[e]);
    store(job.y, place, y);
  }
}

// d silu(x) / dx = s + x s (1 - s) with s = sigmoid(x).
template <class X, class Y, int width>
static __global__ void __launch_bounds__(THREADS) backward(pk_swiglu_job job, int64_t packs) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < packs; i += step) {
    Place place = place_of<width>(job, i), wide = spread(job, place);
    pk_pack<X, width> gate = load<X, width>(job.gate, wide), up = load<X, width>(job.up, wide);
    pk_pack<X, width> g = load<X, width>(job.g, place);
    pk_pack<Y, width> of_gate, of_up;
#pragma unroll
    for (int e = 0; e < width; e++) {
      X s = logistic(gate.at[e]), silu = gate.at[e] * s;
      of_gate.at[e] = pk_to<Y>(g.at[e] * up.at[e] * (s + silu * (X(1) - s)));
      of_up.at[e] = pk_to<Y>(g.at[e] * silu);
    }
    store(job.gate_grad, wide, of_gate);
    store(job.up_grad, wide, of_up);
  }
}

// One of a job's operands.
struct Operand {
  pk_rows rows;
  bool is_result, is_wide; // is_wide: of gate and up
};

// The job as one worker's where there is no space between the workers' elements.
static pk_swiglu_job joined(const pk_swiglu_job &job, int count, const Operand *operands) {
  pk_swiglu_job one = job;
  for (int i = 0; i < count; i++) {
    int64_t dense = operands[i].is_wide && job.row > 0 ? 2 * job.inner : job.inner;
    if (operands[i].rows.stride != dense) return one;
  }
  one.inner *= one.workers;
  one.workers = 1;
  return one;
}

static bool fits(const pk_swiglu_job &job, int count, const Operand *operands) {
  if (job.dtype != PK_F32 || job.inner % 4 || job.row % 4) return false;
  for (int i = 0; i < count; i++) {
    int64_t size = operands[i].is_result && job.y_dtype != PK_F32 ? 2 : 4;
    if (!pk_rows_fit(operands[i].rows, size, 4)) return false;
  }
  return true;
}

typedef void (*kernel)(pk_swiglu_job job, int64_t packs);

static cudaError_t run(kernel made, const pk_swiglu_job &job, int width, cudaStream_t stream) {
  int64_t packs = job.workers * job.inner / width;
  return pk_launch(made, dim3(pk_grid_for(packs, THREADS)), dim3(THREADS), 0, stream, job, packs);
}

extern "C" cudaError_t pk_launch_swiglu(const pk_swiglu_job *wanted, cudaStream_t stream) {
  const Operand operands[3] = {
      {wanted->gate, false, true}, {wanted->up, false, true}, {wanted->y, true, false}};
  pk_swiglu_job job = joined(*wanted, 3, operands);
  bool packed = fits(job, 3, operands), to_bf16 = job.y_dtype == PK_BF16;
  if (job.dtype == PK_F64) return run(forward<double, double, 1>, job, 1, stream);
  if (packed)
    return run(to_bf16 ? forward<float, pk_bf16, 4> : forward<float, float, 4>, job, 4, stream);
  return run(to_bf16 ? forward<float, pk_bf16, 1> : forward<float, float, 1>, job, 1, stream);
}

extern "C" cudaError_t pk_launch_swiglu_grad(const pk_swiglu_job *wanted, cudaStream_t stream) {
  const Operand operands[5] = {{wanted->g, false, false},
                               {wanted->gate, false, true},
                               {wanted->up, false, true},
                               {wanted->gate_grad, true, true},
                               {wanted->up_grad, true, true}};
  pk_swiglu_job job = joined(*wanted, 5, operands);
  bool packed = fits(job, 5, operands), to_bf16 = job.y_dtype == PK_BF16;
  if (job.dtype == PK_F64) return run(backward<double, double, 1>, job, 1, stream);
  if (packed)
    return run(to_bf16 ? backward<float, pk_bf16, 4> : backward<float, float, 4>, job, 4, stream);
  return run(to_bf16 ? backward<float, pk_bf16, 1> : backward<float, float, 1>, job, 1, stream);
}
