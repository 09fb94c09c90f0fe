/* Launchers of elementwise.cu. dtype is a pk_dtype; operand 0 of the walk is y, then come a and b.
 */
#ifndef PK_KERNELS_ELEMENTWISE_H
#define PK_KERNELS_ELEMENTWISE_H

#include <cuda_runtime_api.h>

#include "strided.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pk_pair {
  PK_PAIR_ADD,
  PK_PAIR_SUBTRACT,
  PK_PAIR_MULTIPLY,
  PK_PAIR_DIVIDE,
  PK_PAIR_MINIMUM,
  PK_PAIR_MAXIMUM,
  PK_PAIR_LESS
} pk_pair;

/* y = a (pair) b of f32 or f64. */
cudaError_t pk_launch_pair(pk_pair pair, int dtype, void *y, const void *a, const void *b,
                           const pk_strided *walk, cudaStream_t stream);

typedef enum pk_map {
  PK_MAP_AFFINE,
  PK_MAP_NEGATE,
  PK_MAP_ABS,
  PK_MAP_SIGN,
  PK_MAP_ROUND,
  PK_MAP_FLOOR,
  PK_MAP_EXP,
  PK_MAP_LOG,
  PK_MAP_SQRT,
  PK_MAP_RSQRT,
  PK_MAP_SIGMOID,
  PK_MAP_SILU
} pk_map;

/* y = map(x) of f32 or f64; scale and shift are affine's. */
cudaError_t pk_launch_map(pk_map map, int dtype, void *y, const void *x, double scale, double shift,
                          const pk_strided *walk, cudaStream_t stream);

/* y = a where condition is not 0, else b, of f32 or f64; operands of the walk in that order. */
cudaError_t pk_launch_where(int dtype, void *y, const void *condition, const void *a, const void *b,
                            const pk_strided *walk, cudaStream_t stream);

/* y = x in another dtype, rounded once. */
cudaError_t pk_launch_cast(int to, int from, void *y, const void *x, const pk_strided *walk,
                           cudaStream_t stream);

/* y = x, elements of 2, 4 or 8 bytes. */
cudaError_t pk_launch_copy(int64_t element_bytes, void *y, const void *x, const pk_strided *walk,
                           cudaStream_t stream);

/* y = y + x of f32 or f64. */
cudaError_t pk_launch_accumulate(int dtype, void *y, const void *x, const pk_strided *walk,
                                 cudaStream_t stream);

/* Whether this device can run these kernels at all: cudaErrorNoKernelImageForDevice if it is of an
 * architecture that they were not built for. */
cudaError_t pk_launch_probe(void);

#ifdef __cplusplus
}
#endif
#endif
