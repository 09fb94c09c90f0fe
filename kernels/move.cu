// The one moving operation that is more than a copy: the causal mask.
#include "device.h"

#include "move.h"
#include "pack.h"

static constexpr int THREADS = 256;

template <class T>
static __global__ void __launch_bounds__(THREADS)
    causal_mask(pk_rows y, pk_rows x, int64_t count, int64_t inner, int64_t length, T fill) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
    int64_t worker = i / inner, within = i % inner;
    bool masked = within % length > within / length % length;
    pk_row<T>(y, worker)[within] = masked ? fill : pk_row<T>(x, worker)[within];
  }
}

extern "C" cudaError_t pk_launch_causal_mask(int dtype, pk_rows y, pk_rows x, int64_t count,
                                             int64_t inner, int64_t length, double fill,
                                             cudaStream_t stream) {
  dim3 grid(pk_grid_for(count, THREADS)), block(THREADS);
  if (dtype == PK_F64)
    return pk_launch(causal_mask<double>, grid, block, 0, stream, y, x, count, inner, length, fill);
  return pk_launch(causal_mask<float>, grid, block, 0, stream, y, x, count, inner, length,
                   static_cast<float>(fill));
}
