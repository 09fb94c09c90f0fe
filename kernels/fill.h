/* Launchers of fill.cu: tensors made from nothing. */
#ifndef PK_KERNELS_FILL_H
#define PK_KERNELS_FILL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "rows.h"
#include "strided.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The element whose bits are given, of 2, 4 or 8 bytes, everywhere; operand 0 of the walk is y. */
cudaError_t pk_launch_fill(int64_t element_bytes, void *y, uint64_t bits, const pk_strided *walk,
                           cudaStream_t stream);

/* The first count values of a stream of random numbers (host/core/random.c). */
typedef struct pk_random_job {
  pk_rows y;
  int64_t count, inner; /* elements of all workers, of one */
  int dtype;            /* f64, f32 or bf16 */
  uint32_t key[2];
  bool normal; /* else uniform */
  double mean, deviation;
} pk_random_job;

cudaError_t pk_launch_random(const pk_random_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
