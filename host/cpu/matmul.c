/* Batched matrix products, cut into tiles of the output. The tiles depend on shapes alone and never
 * split a sum, so that the number of threads changes no bit. */
#include "cpu/operand.h"

enum { TALL_ROWS = 512, SHORT_ROWS = 128, TILE_COLUMNS = 1024 };

typedef struct matmul_job {
  pk_operand a, b;
  void *c;
  int64_t stride_c;
  int64_t m, p, k;
  int64_t lda, ldb, ldc; /* elements from one row to the next */
  int64_t tile_rows, row_tiles, column_tiles;
  bool transpose_a, transpose_b, accumulate, is_f64;
} matmul_job;

static int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static void matmul_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const matmul_job *job = argument;
  int64_t tiles = job->row_tiles * job->column_tiles;
  int64_t worker = piece / tiles, tile = piece % tiles;
  int64_t row = tile / job->column_tiles * job->tile_rows;
  int64_t column = tile % job->column_tiles * TILE_COLUMNS;
  int64_t rows = at_most(job->m - row, job->tile_rows);
  int64_t columns = at_most(job->p - column, TILE_COLUMNS);
  int64_t a = worker * job->a.stride + (job->transpose_a ? row : row * job->lda);
  int64_t b = worker * job->b.stride + (job->transpose_b ? column * job->ldb : column);
  int64_t c = worker * job->stride_c + row * job->ldc + column;
  if (job->is_f64) {
    pk_cpu_gemm_f64(job->transpose_a, job->transpose_b, rows, columns, job->k, 1,
                    (const double *)job->a.data + a, job->lda, (const double *)job->b.data + b,
                    job->ldb, job->accumulate, (double *)job->c + c, job->ldc);
  } else {
    pk_cpu_gemm_f32(job->transpose_a, job->transpose_b, rows, columns, job->k, 1,
                    (const float *)job->a.data + a, job->lda, (const float *)job->b.data + b,
                    job->ldb, job->accumulate, (float *)job->c + c, job->ldc);
  }
}

/* Elements between the rows of a matrix: its stride where rows are dimension 0, else its width. */
static int64_t row_stride(const pk_tensor *tensor, int64_t stride) {
  return tensor->rank == 2 ? stride : tensor->shape[2];
}

int64_t PK_WORKSPACE_OF(matmul)(const pk_call *call) {
  return pk_operand_bytes(call->inputs[0], false) + pk_operand_bytes(call->inputs[1], false);
}

pk_status PK_KERNEL(matmul)(const pk_call *call) {
  const pk_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
  bool batched = c->rank == 3;
  matmul_job job = {.c = pk_tensor_data(c),
                    .stride_c = batched ? c->stride : 0,
                    .m = c->shape[batched],
                    .p = c->shape[batched + 1],
                    .transpose_a = call->attributes.integers[0],
                    .transpose_b = call->attributes.integers[1],
                    .accumulate = call->attributes.accumulate & 1,
                    .is_f64 = c->dtype == PK_F64};
  job.k = a->shape[batched + !job.transpose_a];
  job.tile_rows = job.m > 2 * TALL_ROWS ? TALL_ROWS : SHORT_ROWS;
  job.row_tiles = (job.m + job.tile_rows - 1) / job.tile_rows;
  job.column_tiles = (job.p + TILE_COLUMNS - 1) / TILE_COLUMNS;
  int64_t batch = batched ? c->shape[0] : 1;
  char *workspace = call->workspace;
  job.a = PK_KERNEL(operand)(call, a, false, &workspace);
  job.b = PK_KERNEL(operand)(call, b, false, &workspace);
  job.lda = row_stride(a, job.a.stride);
  job.ldb = row_stride(b, job.b.stride);
  job.ldc = row_stride(c, c->stride);
  pk_parallel_for(pk_cpu_threads(call), batch * job.row_tiles * job.column_tiles, matmul_piece,
                  &job);
  return PK_OK;
}
