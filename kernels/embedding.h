/* Launchers of embedding.cu: rows and entries looked up by number, and put back. */
#ifndef PK_KERNELS_EMBEDDING_H
#define PK_KERNELS_EMBEDDING_H

#include <cuda_runtime_api.h>

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a table [N, V, d] by ids [N, R]. */
typedef struct pk_embedding_job {
  pk_rows ids;
  pk_rows table; /* weight, or weight_grad */
  pk_rows rows;  /* y, or g, [N, R, d] */
  int64_t workers, count, vocabulary, width;
  int64_t element_bytes;
  void *workspace; /* of the gradient: pk_embedding_grad_workspace bytes */
} pk_embedding_job;

/* rows = table at ids, of elements of 2, 4 or 8 bytes; NaN where an id is not in the table. */
cudaError_t pk_launch_embedding(const pk_embedding_job *job, cudaStream_t stream);

/* At most this many ids of a worker. */
#define PK_EMBEDDING_MOST INT32_MAX

int64_t pk_embedding_grad_workspace(const pk_embedding_job *job);

/* table += rows at ids, of f32 or f64; ids that are not in the table are left out. */
cudaError_t pk_launch_embedding_grad(const pk_embedding_job *job, cudaStream_t stream);

/* Entries [N, R] of wide [N, R, V] at index [N, R], of elements of 4 or 8 bytes. */
typedef struct pk_entries_job {
  pk_rows wide, narrow, index;
  int64_t workers, rows, vocabulary;
  int32_t ignored; /* an index that stands for none */
  int64_t element_bytes;
} pk_entries_job;

/* narrow = the entries; 0 where the index is ignored, NaN where it is none of the row. */
cudaError_t pk_launch_pick(const pk_entries_job *job, cudaStream_t stream);

/* wide = the entries among zeros. */
cudaError_t pk_launch_unpick(const pk_entries_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
