/* Launchers of move.cu. */
#ifndef PK_KERNELS_MOVE_H
#define PK_KERNELS_MOVE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "rows.h"
#include "strided.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x [N, ..., length, length] of f32 or f64, with fill where column > row. */
cudaError_t pk_launch_causal_mask(int dtype, pk_rows y, pk_rows x, int64_t count, int64_t inner,
                                  int64_t length, double fill, cudaStream_t stream);

/* Whether a copy of operand 1 to operand 0 of a walk turns a matrix: neighbours in y are apart in
 * x, and the other way round. */
bool pk_turns(const pk_strided *walk);

/* Such a copy, by tiles in shared memory; element_bytes is 8, 4 or 2. */
cudaError_t pk_launch_turn(int64_t element_bytes, void *y, const void *x, const pk_strided *walk,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
