/* Launchers of move.cu. */
#ifndef PK_KERNELS_MOVE_H
#define PK_KERNELS_MOVE_H

#include <cuda_runtime_api.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x [N, ..., length, length] of f32 or f64, with fill where column > row. */
cudaError_t pk_launch_causal_mask(int dtype, pk_rows y, pk_rows x, int64_t count, int64_t inner,
                                  int64_t length, double fill, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
