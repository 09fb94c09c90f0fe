/* Launchers of the operations of a training step on whole arenas [N, D]. */
#ifndef PK_KERNELS_TRAIN_H
#define PK_KERNELS_TRAIN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* N numbers in f64, and the elements between them. */
typedef struct pk_vector {
  double *at;
  int64_t stride;
} pk_vector;

/* Where worker i's learning rate is among the scalars: first + i * step, by which all workers may
 * have one. */
typedef struct pk_rates {
  int64_t first, step;
} pk_rates;

/* i32 [8], see ops.def. */
typedef struct pk_guard {
  int32_t *at;
  int64_t stride;
} pk_guard;

/* mix, adamw and update, which is both and the clip: what is not wanted is false, or NULL. */
typedef struct pk_step_job {
  pk_rows x, g, m, v;
  pk_rows bf16; /* copy of x in bf16, or NULL */
  pk_vector scale, norm, scalars;
  pk_rates rates;
  pk_vector mixing;      /* [N, N]: stride between its rows */
  const int32_t *blocks; /* [D / 64] */
  int64_t blocks_stride;
  pk_guard guard;
  int64_t workers, columns;
  int dtype; /* of x, g, m and v */
  bool clips, mixes_first, adapts, mixes_last;
} pk_step_job;

/* The most workers that a step is made for. */
enum { PK_STEP_WORKERS = 256 };

cudaError_t pk_launch_step(const pk_step_job *job, cudaStream_t stream);

/* scale = 1 / count, 0 where count is 0. */
cudaError_t pk_launch_inverse_count(pk_vector scale, pk_vector count, int64_t workers,
                                    cudaStream_t stream);

/* norm of scale * g; workspace: pk_gradient_norm_workspace bytes. */
int64_t pk_gradient_norm_workspace(int64_t workers, int64_t columns);
cudaError_t pk_launch_gradient_norm(pk_rows g, pk_vector scale, pk_vector norm, int64_t workers,
                                    int64_t columns, int dtype, void *workspace,
                                    cudaStream_t stream);

/* sums of squares of x; workspace: pk_sum_squares_workspace bytes. */
int64_t pk_sum_squares_workspace(int64_t workers, int64_t columns);
cudaError_t pk_launch_sum_squares(pk_rows x, pk_vector sums, int64_t workers, int64_t columns,
                                  int dtype, void *workspace, cudaStream_t stream);

/* Stops at the first worker with an element that is not finite; workspace:
 * pk_check_arena_workspace bytes. */
int64_t pk_check_arena_workspace(int64_t workers, int64_t columns);
cudaError_t pk_launch_check_arena(pk_rows x, pk_vector scalars, pk_guard guard, int64_t workers,
                                  int64_t columns, int dtype, int reason, void *workspace,
                                  cudaStream_t stream);

/* loss is f32 or f64; largest is what a clipped norm may be. */
cudaError_t pk_launch_check_finite(pk_rows loss, int dtype, pk_vector norm, pk_vector scalars,
                                   pk_guard guard, int64_t workers, double largest,
                                   cudaStream_t stream);

cudaError_t pk_launch_clip(pk_rows g, pk_vector scale, pk_vector norm, pk_vector scalars,
                           pk_guard guard, int64_t workers, int64_t columns, int dtype,
                           cudaStream_t stream);

/* m <- momentum m + g; x <- x - rate (decay x + d); m.at may be NULL. */
typedef struct pk_sgd_job {
  pk_rows x, g, m;
  const int32_t *blocks; /* [D / 64] */
  int64_t blocks_stride;
  pk_vector scalars;
  pk_rates rates;
  pk_guard guard;
  int64_t workers, columns;
  int dtype;
  bool nesterov;
} pk_sgd_job;

cudaError_t pk_launch_sgd(const pk_sgd_job *job, cudaStream_t stream);

/* y <- own y + c x, c = scale factor, or (1 - c) y + c x; strides of x and factor are 0 where they
 * have one row for all, factor.at may be NULL. */
typedef struct pk_blend_job {
  pk_rows y, x;
  pk_vector factor;
  pk_guard guard;
  int64_t rows, columns;
  int dtype;
  double own, scale;
  bool lerps;
} pk_blend_job;

cudaError_t pk_launch_blend(const pk_blend_job *job, cudaStream_t stream);

/* y = mean over workers of x [N, D]. */
cudaError_t pk_launch_average(pk_rows x, void *y, int64_t workers, int64_t columns, int dtype,
                              cudaStream_t stream);

/* y = sqrt(mean_i |x_i - mean|^2); workspace: pk_consensus_workspace bytes. */
int64_t pk_consensus_workspace(int64_t columns);
cudaError_t pk_launch_consensus_distance(pk_rows x, double *y, int64_t workers, int64_t columns,
                                         int dtype, void *workspace, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
