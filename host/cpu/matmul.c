/* Batched matrix products, cut into tiles of the output. Tiles depend on one matrix's shape alone
 * and never split a sum, so that neither the number of threads nor that of workers changes a bit.
 * bf16 operands go to oneDNN where the processor multiplies them; elsewhere they are widened to f32
 * piece by piece, in the scratch memory of the thread that multiplies. */
#include "cpu/widen.h"

enum {
  MOST_ROWS = 512, /* of a tile: enough that packing and widening operands costs little */
  MOST_COLUMNS = 1024,
  LEAST_TILES = 4, /* in a matrix that can be cut into tiles of LEAST_SIDE */
  LEAST_SIDE = 64,
  WIDE_SUM = 512 /* products of bf16 operands widened at once */
};

typedef struct matmul_job {
  const pk_tensor *a, *b, *c;
  int64_t stride_a, stride_b, stride_c; /* elements from one matrix to the next */
  int64_t lda, ldb, ldc;                /* and from one row to the next */
  int64_t m, p, k, batch;
  int64_t tile_rows, tile_columns, row_tiles, column_tiles;
  char *scratch; /* [threads, scratch_bytes] for widened operands */
  int64_t scratch_bytes;
  bool transpose_a, transpose_b, accumulate;
  bool by_primitives; /* where oneDNN has them */
} matmul_job;

static int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* The side of equal tiles, a multiple of 16, of which count cover the extent. */
static int64_t side_of(int64_t extent, int64_t count) {
  int64_t side = (extent + count - 1) / count;
  return (side + 15) / 16 * 16;
}

static void choose_tiles(matmul_job *job) {
  job->row_tiles = (job->m + MOST_ROWS - 1) / MOST_ROWS;
  job->column_tiles = (job->p + MOST_COLUMNS - 1) / MOST_COLUMNS;
  if (job->row_tiles == 0 || job->column_tiles == 0) return;
  for (;;) {
    job->tile_rows = side_of(job->m, job->row_tiles);
    job->tile_columns = side_of(job->p, job->column_tiles);
    int64_t longer = job->tile_rows > job->tile_columns ? job->tile_rows : job->tile_columns;
    if (job->row_tiles * job->column_tiles >= LEAST_TILES || longer < 2 * LEAST_SIDE) break;
    if (longer == job->tile_rows)
      job->row_tiles *= 2;
    else
      job->column_tiles *= 2;
  }
  job->row_tiles = (job->m + job->tile_rows - 1) / job->tile_rows;
  job->column_tiles = (job->p + job->tile_columns - 1) / job->tile_columns;
}

/* A rectangle of an f32 operand, or of a bf16 one widened into scratch; *ld becomes that of the
 * result. */
static const float *rectangle(const pk_tensor *operand, int64_t start, int64_t rows,
                              int64_t columns, int64_t *ld, float *scratch) {
  if (operand->dtype == PK_F32) return (const float *)pk_tensor_data(operand) + start;
  const uint16_t *from = (const uint16_t *)pk_tensor_data(operand) + start;
  int64_t wide = columns + PK_SCRATCH_GAP;
  for (int64_t row = 0; row < rows; row++)
    pk_widen(from + row * *ld, scratch + row * wide, columns);
  *ld = wide;
  return scratch;
}

/* Room for the widened rows of one operand of a tile: its side times WIDE_SUM, either way round. */
static int64_t wide_elements(int64_t side) {
  return (side + PK_SCRATCH_GAP) * (WIDE_SUM + PK_SCRATCH_GAP);
}

/* Adds products first .. first+sum-1 of every sum of an f32 tile to it, or starts it with them. */
static void add_products(const matmul_job *job, int64_t a, int64_t b, float *c, int64_t rows,
                         int64_t columns, int64_t sum, bool adds, float *scratch) {
  int64_t lda = job->lda, ldb = job->ldb;
  const float *left = rectangle(job->a, a, job->transpose_a ? sum : rows,
                                job->transpose_a ? rows : sum, &lda, scratch);
  const float *right =
      rectangle(job->b, b, job->transpose_b ? columns : sum, job->transpose_b ? sum : columns, &ldb,
                scratch + wide_elements(job->tile_rows));
  pk_cpu_gemm_f32(job->transpose_a, job->transpose_b, rows, columns, sum, 1, left, lda, right, ldb,
                  adds, c, job->ldc);
}

/* A tile by a primitive, all of its sum at once; false where there is none. */
static bool multiply_by_primitive(const matmul_job *job, int64_t a, int64_t b, int64_t c,
                                  int64_t rows, int64_t columns) {
  const pk_product product = {.m = rows,
                              .p = columns,
                              .k = job->k,
                              .lda = job->lda,
                              .ldb = job->ldb,
                              .ldc = job->ldc,
                              .dtype = job->a->dtype,
                              .transpose_a = job->transpose_a,
                              .transpose_b = job->transpose_b,
                              .adds = job->accumulate};
  int64_t size = pk_dtype_size(job->a->dtype);
  return pk_cpu_primitive_gemm(&product, (const char *)pk_tensor_data(job->a) + a * size,
                               (const char *)pk_tensor_data(job->b) + b * size,
                               (float *)pk_tensor_data(job->c) + c);
}

static void matmul_piece(void *argument, int64_t piece, int thread) {
  const matmul_job *job = argument;
  int64_t tiles = job->row_tiles * job->column_tiles;
  int64_t worker = piece / tiles, tile = piece % tiles;
  int64_t row = tile / job->column_tiles * job->tile_rows;
  int64_t column = tile % job->column_tiles * job->tile_columns;
  int64_t rows = at_most(job->m - row, job->tile_rows);
  int64_t columns = at_most(job->p - column, job->tile_columns);
  int64_t a = worker * job->stride_a + (job->transpose_a ? row : row * job->lda);
  int64_t b = worker * job->stride_b + (job->transpose_b ? column * job->ldb : column);
  int64_t c = worker * job->stride_c + row * job->ldc + column;
  if (job->c->dtype == PK_F64) {
    pk_cpu_gemm_f64(job->transpose_a, job->transpose_b, rows, columns, job->k, 1,
                    (const double *)pk_tensor_data(job->a) + a, job->lda,
                    (const double *)pk_tensor_data(job->b) + b, job->ldb, job->accumulate,
                    (double *)pk_tensor_data(job->c) + c, job->ldc);
    return;
  }
  if (job->by_primitives && multiply_by_primitive(job, a, b, c, rows, columns)) return;
  float *scratch = (float *)(void *)(job->scratch + thread * job->scratch_bytes);
  int64_t step = job->a->dtype == PK_BF16 ? WIDE_SUM : job->k;
  int64_t first = 0;
  do { /* once at least: an empty sum is 0 */
    int64_t from_a = a + (job->transpose_a ? first * job->lda : first);
    int64_t from_b = b + (job->transpose_b ? first : first * job->ldb);
    add_products(job, from_a, from_b, (float *)pk_tensor_data(job->c) + c, rows, columns,
                 at_most(job->k - first, step), job->accumulate || first > 0, scratch);
    first += step;
  } while (first < job->k);
}

/* Elements from one row to the next: the stride where rows are dimension 0, else the width. */
static int64_t row_stride(const pk_tensor *tensor) {
  return tensor->rank == 2 ? tensor->stride : tensor->shape[2];
}

static int64_t matrix_stride(const pk_tensor *tensor) {
  return tensor->rank == 2 ? 0 : tensor->stride;
}

static matmul_job job_of(const pk_call *call) {
  const pk_tensor *a = call->inputs[0], *b = call->inputs[1];
  int row = a->rank - 2, column = a->rank - 1;
  matmul_job job = {.a = a,
                    .b = b,
                    .c = call->outputs[0],
                    .stride_a = matrix_stride(a),
                    .stride_b = matrix_stride(b),
                    .lda = row_stride(a),
                    .ldb = row_stride(b),
                    .batch = a->rank == 3 ? a->shape[0] : 1,
                    .scratch = call->workspace,
                    .transpose_a = call->attributes.integers[0],
                    .transpose_b = call->attributes.integers[1],
                    .accumulate = call->attributes.accumulate & 1};
  job.m = a->shape[job.transpose_a ? column : row];
  job.k = a->shape[job.transpose_a ? row : column];
  job.p = b->shape[job.transpose_b ? row : column];
  choose_tiles(&job);
  int64_t elements = wide_elements(job.tile_rows) + wide_elements(job.tile_columns);
  if (a->dtype == PK_BF16) job.scratch_bytes = pk_aligned(elements * (int64_t)sizeof(float));
  return job;
}

int64_t PK_WORKSPACE_OF(matmul)(const pk_call *call) {
  return pk_threads_count(pk_cpu_threads(call)) * job_of(call).scratch_bytes;
}

pk_status PK_KERNEL(matmul)(const pk_call *call) {
  matmul_job job = job_of(call);
  job.stride_c = matrix_stride(job.c);
  job.ldc = row_stride(job.c);
  job.by_primitives = job.k > 0 && pk_cpu_uses_primitives(job.a->dtype);
  pk_parallel_for(pk_cpu_threads(call), job.batch * job.row_tiles * job.column_tiles, matmul_piece,
                  &job);
  return pk_cpu_products_end();
}
