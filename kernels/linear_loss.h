/* Launchers of the head's loss: what happens to a chunk of logits between its products. */
#ifndef PK_KERNELS_LINEAR_LOSS_H
#define PK_KERNELS_LINEAR_LOSS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Elements from one row of logits to the next are a multiple of this, so that all is read and
 * written in packs; what is past the vocabulary is not looked at. */
enum { PK_LOGITS_ALIGNMENT = 64 };

/* Rows of logits [workers, rows, ld] of one chunk, and what belongs to them. Strides are elements
 * from one worker to the next; the other arrays start at the chunk's first row. */
typedef struct pk_logits {
  void *at;
  int64_t workers, rows, vocabulary, ld;
  const int32_t *targets;
  void *lse;     /* of the logits' dtype */
  double *terms; /* each row's loss, 0 where it is ignored, NaN where there is no such target */
  const void *g; /* [workers] of the logits' dtype */
  int64_t targets_stride, lse_stride, terms_stride, g_stride;
  int dtype;      /* PK_F32 or PK_F64 */
  int grad_dtype; /* the same, or PK_BF16 */
} pk_logits;

/* What is made of the logits: lse and terms; their gradients, in place, from lse; or all of it. A
 * row's gradients in bf16 are the first half of its memory: rows are 2 ld elements apart. */
typedef enum pk_logits_work {
  PK_LOGITS_LOSS = 1,
  PK_LOGITS_GRADIENT = 2,
  PK_LOGITS_STEP = 3
} pk_logits_work;

cudaError_t pk_launch_logits(const pk_logits *logits, pk_logits_work work, cudaStream_t stream);

/* The sums of terms [workers, rows], and the counts of targets that are not ignored. */
typedef struct pk_loss_sums {
  const double *terms;
  const int32_t *targets;
  void *loss;
  double *count;
  int64_t workers, rows, terms_stride, targets_stride, loss_stride, count_stride;
  int dtype; /* of loss */
} pk_loss_sums;

cudaError_t pk_launch_loss_sums(const pk_loss_sums *sums, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
