/* Cross-entropy of x times the head's weight, without ever holding the logits of all rows.
 *
 * Forward: blocks of rows, each over tiles of the vocabulary with a running log-sum-exp. Backward:
 * chunks of rows whose logit gradients [rows, V] are made tile by tile and then used up by the two
 * products. */
#include <float.h>

#include "cpu/loss.h"
#include "cpu/operand.h"
#include "cpu/vmath.h"

enum { FORWARD_ROWS = 256, CHUNK_ROWS = 256, X_ROWS = 64, TOKENS = 1024, LANES = 16 };

typedef struct linear_job {
  pk_operand x, weight;
  const pk_tensor *targets, *g, *lse;
  pk_tensor *x_grad, *weight_grad;
  double *picked;                    /* forward: the target's logit [N, R] */
  char *scratch;                     /* forward: [threads, FORWARD_ROWS, TOKENS] */
  void *chunk;                       /* backward: [CHUNK_ROWS, V] */
  int64_t worker, first, chunk_rows; /* backward: where the chunk is */
  int64_t rows, width, vocabulary, blocks, tiles;
  bool accumulate_x, accumulate_weight, rounds, is_f64;
} linear_job;

static const int32_t *targets_of(const linear_job *job, int64_t worker) {
  return (const int32_t *)pk_tensor_data(job->targets) + worker * job->targets->stride;
}

static void round_to_bf16(float *restrict row, int64_t count) {
  for (int64_t j = 0; j < count; j++) row[j] = pk_bf16_to_f32(pk_bf16_from_f32(row[j]));
}

#define REAL float
#define REAL_EXP pk_exp_f32
#define REAL_LARGEST FLT_MAX
#define REAL_GEMM pk_cpu_gemm_f32
#define NAMED(name) name##_f32
#include "cpu/linear_real.h"
#undef REAL
#undef REAL_EXP
#undef REAL_LARGEST
#undef REAL_GEMM
#undef NAMED

#define REAL double
#define REAL_EXP exp
#define REAL_LARGEST DBL_MAX
#define REAL_GEMM pk_cpu_gemm_f64
#define NAMED(name) name##_f64
#include "cpu/linear_real.h"
#undef REAL
#undef REAL_EXP
#undef REAL_LARGEST
#undef REAL_GEMM
#undef NAMED

static int64_t size_of(const linear_job *job) {
  return job->is_f64 ? 8 : 4;
}

static int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static void forward_piece(void *argument, int64_t piece, int thread) {
  const linear_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * FORWARD_ROWS;
  int64_t rows = at_most(job->rows - first, FORWARD_ROWS);
  void *logits = job->scratch + thread * FORWARD_ROWS * TOKENS * size_of(job);
  if (job->is_f64)
    forward_rows_f64(job, worker, first, rows, logits);
  else
    forward_rows_f32(job, worker, first, rows, logits);
}

/* Checks targets and reads the operands, from input `from` on: x, weight, targets. *workspace moves
 * on. */
static pk_status begin(const pk_call *call, int from, linear_job *job, char **workspace) {
  const pk_tensor *x = call->inputs[from], *weight = call->inputs[from + 1];
  *job = (linear_job){.targets = call->inputs[from + 2],
                      .rows = x->shape[1],
                      .width = x->shape[2],
                      .vocabulary = weight->shape[1],
                      .blocks = (x->shape[1] + FORWARD_ROWS - 1) / FORWARD_ROWS,
                      .tiles = (weight->shape[1] + TOKENS - 1) / TOKENS,
                      .rounds = x->dtype == PK_BF16,
                      .is_f64 = x->dtype == PK_F64};
  pk_status status = PK_KERNEL(check_targets)(call, job->targets, job->vocabulary);
  if (status != PK_OK) return status;
  job->x = PK_KERNEL(operand)(call, x, false, workspace);
  job->weight = PK_KERNEL(operand)(call, weight, false, workspace);
  return PK_OK;
}

/* Workspace of the operands x and weight, from input `from` on. */
static int64_t operand_bytes(const pk_call *call, int from) {
  return pk_operand_bytes(call->inputs[from], false) +
         pk_operand_bytes(call->inputs[from + 1], false);
}

static int64_t element_size(const pk_tensor *x) {
  return x->dtype == PK_F64 ? 8 : 4;
}

static int64_t forward_scratch(const pk_call *call) {
  int64_t threads = pk_threads_count(pk_cpu_threads(call));
  return threads * FORWARD_ROWS * TOKENS * element_size(call->inputs[0]);
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy)(const pk_call *call) {
  int64_t picked = call->inputs[2]->numel * (int64_t)sizeof(double);
  return operand_bytes(call, 0) + forward_scratch(call) + picked;
}

pk_status PK_KERNEL(linear_cross_entropy)(const pk_call *call) {
  linear_job job;
  char *workspace = call->workspace;
  pk_status status = begin(call, 0, &job, &workspace);
  if (status != PK_OK) return status;
  job.lse = call->outputs[2];
  job.scratch = workspace;
  job.picked = (double *)(workspace + forward_scratch(call));
  int64_t workers = call->inputs[0]->shape[0];
  pk_parallel_for(pk_cpu_threads(call), workers * job.blocks, forward_piece, &job);
  PK_KERNEL(sum_losses)(job.targets, job.lse, job.picked, call->outputs[0], call->outputs[1]);
  return PK_OK;
}

static void tile_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const linear_job *job = argument;
  int64_t v = piece * TOKENS, tokens = at_most(job->vocabulary - v, TOKENS);
  if (job->is_f64)
    gradient_tile_f64(job, v, tokens);
  else
    gradient_tile_f32(job, v, tokens);
}

/* The chunk's two products: first the tiles of weight_grad, then blocks of rows of x_grad. */
static void product_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const linear_job *job = argument;
  if (piece < job->tiles) {
    int64_t v = piece * TOKENS, tokens = at_most(job->vocabulary - v, TOKENS);
    if (job->is_f64)
      weight_gradient_f64(job, v, tokens);
    else
      weight_gradient_f32(job, v, tokens);
  } else {
    int64_t row = (piece - job->tiles) * X_ROWS, rows = at_most(job->chunk_rows - row, X_ROWS);
    if (job->is_f64)
      x_gradient_f64(job, row, rows);
    else
      x_gradient_f32(job, row, rows);
  }
}

static void backward_chunk(pk_threads *threads, linear_job *job, int64_t worker, int64_t first) {
  job->worker = worker;
  job->first = first;
  job->chunk_rows = at_most(job->rows - first, CHUNK_ROWS);
  int64_t row_pieces = (job->chunk_rows + X_ROWS - 1) / X_ROWS;
  pk_parallel_for(threads, job->tiles, tile_piece, job);
  pk_parallel_for(threads, job->tiles + row_pieces, product_piece, job);
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy_grad)(const pk_call *call) {
  const pk_tensor *x = call->inputs[1], *weight = call->inputs[2];
  return operand_bytes(call, 1) + CHUNK_ROWS * weight->shape[1] * element_size(x);
}

pk_status PK_KERNEL(linear_cross_entropy_grad)(const pk_call *call) {
  linear_job job;
  char *workspace = call->workspace;
  pk_status status = begin(call, 1, &job, &workspace);
  if (status != PK_OK) return status;
  job.g = call->inputs[0];
  job.lse = call->inputs[4];
  job.x_grad = call->outputs[0];
  job.weight_grad = call->outputs[1];
  job.accumulate_x = call->attributes.accumulate & 1;
  job.accumulate_weight = call->attributes.accumulate & 2;
  job.chunk = workspace;
  pk_threads *threads = pk_cpu_threads(call);
  for (int64_t worker = 0; worker < call->inputs[1]->shape[0]; worker++)
    for (int64_t first = 0; first < job.rows; first += CHUNK_ROWS)
      backward_chunk(threads, &job, worker, first);
  return PK_OK;
}
