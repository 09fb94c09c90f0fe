/* Launchers of the operations that choose columns of arenas [N, D]. */
#ifndef PK_KERNELS_COLUMNS_H
#define PK_KERNELS_COLUMNS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns index [count] of x [rows, columns], and their values [rows, count]; values.stride is 0
 * where they are the same for all rows. Nothing is done where *stopped, if there is such, is not 0.
 */
typedef struct pk_columns_job {
  pk_rows x, values;
  const int32_t *index;
  int64_t index_stride;
  int64_t rows, columns, count;
  int dtype;
  const int32_t *stopped;
} pk_columns_job;

/* values = x; NaN for an index that x has not. */
cudaError_t pk_launch_gather_columns(const pk_columns_job *job, cudaStream_t stream);

/* x = values; an index that x has not is left out. */
cudaError_t pk_launch_scatter_columns(const pk_columns_job *job, cudaStream_t stream);

/* 1 at the count largest magnitudes of each row, the first of equal ones, else 0; workspace:
 * pk_topk_workspace bytes. */
int64_t pk_topk_workspace(int64_t rows, int64_t columns);
cudaError_t pk_launch_topk_mask(pk_rows x, pk_rows y, int64_t rows, int64_t columns, int64_t count,
                                int dtype, void *workspace, cudaStream_t stream);

/* Uniforms in [0, 1) for what *counter says. */
cudaError_t pk_launch_random_columns(void *y, int64_t columns, int dtype, const uint32_t key[2],
                                     const double *counter, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
