/* Cross-entropy of x times the head's weight, without ever holding the logits of all rows.
 *
 * Logits exist as tiles of some rows and tokens that stay in a core's cache. Forward: blocks of
 * rows, each over the tiles of the vocabulary with a running log-sum-exp. Backward: chunks of rows,
 * one after the other; within a chunk groups of the vocabulary in parallel, each making its tiles
 * of logit gradients and using them up in both products. A group owns its rows of weight_grad and
 * has a share of x_grad; the shares are added in order. Tiles, groups and chunks depend on shapes
 * alone. */
#include "cpu/loss.h"
#include "cpu/vmath.h"
#include "cpu/widen.h"

enum {
  TILE_ROWS = 256,
  TOKENS = 512,
  TILE_LD = TOKENS + PK_SCRATCH_GAP,
  MOST_ROWS = 512,          /* in a block of the forward pass: weights are widened once for each */
  MOST_GROUPS = 32,         /* of the vocabulary */
  SHARE_ELEMENTS = 1 << 18, /* of x_grad in one group's share, about */
  ADD_ROWS = 32
};

typedef struct linear_job {
  const pk_tensor *x, *weight, *targets, *g, *lse;
  pk_tensor *x_grad, *weight_grad;
  int64_t rows, width, vocabulary;
  int64_t tokens; /* in a tile */
  char *scratch;  /* [threads, scratch_bytes]: a tile, widened weight and x */
  int64_t scratch_bytes;
  bool rounds, is_f64;
  /* forward */
  double *picked; /* the target's logit [N, R] */
  int64_t block_rows, blocks;
  /* backward */
  void *partials; /* [groups, chunk_rows, d] */
  float *wide_x;  /* [chunk_rows, d] of bf16 x */
  const void *x_chunk;
  int64_t most_rows;                 /* in a chunk */
  int64_t worker, first, chunk_rows; /* where the chunk is */
  int64_t groups, group_tokens;
  bool accumulate_x, accumulate_weight;
} linear_job;

static int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t at_least(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static const int32_t *targets_of(const linear_job *job, int64_t worker) {
  return (const int32_t *)pk_tensor_data(job->targets) + worker * job->targets->stride;
}

#include "cpu/real_f32.h"

#include "cpu/row_real.h"

#include "cpu/linear_real.h"

#include "cpu/real_f64.h"

#include "cpu/row_real.h"

#include "cpu/linear_real.h"

static int64_t size_of(const linear_job *job) {
  return job->is_f64 ? 8 : 4;
}

/* Small vocabularies are cut into smaller tiles, so that there is something to share out. */
static int64_t tile_tokens(int64_t vocabulary) {
  int64_t sixteenth = (vocabulary + 255) / 256 * 16;
  return at_most(at_least(sixteenth, 64), TOKENS);
}

/* From input `from` on: x, weight, targets. */
static linear_job job_of(const pk_call *call, int from) {
  const pk_tensor *x = call->inputs[from], *weight = call->inputs[from + 1];
  return (linear_job){.x = x,
                      .weight = weight,
                      .targets = call->inputs[from + 2],
                      .rows = x->shape[1],
                      .width = x->shape[2],
                      .vocabulary = weight->shape[1],
                      .tokens = tile_tokens(weight->shape[1]),
                      .rounds = x->dtype == PK_BF16,
                      .is_f64 = x->dtype == PK_F64};
}

/* A tile, a widened tile of weight, and x_rows widened rows of x, for one thread. */
static int64_t scratch_bytes(const linear_job *job, int64_t x_rows) {
  int64_t wide = job->rounds ? (TOKENS + x_rows) * job->width : 0;
  return pk_aligned((TILE_ROWS * TILE_LD + wide) * size_of(job));
}

static linear_job forward_job(const pk_call *call) {
  linear_job job = job_of(call, 0);
  job.lse = call->outputs[2];
  job.block_rows = at_most(at_least(job.rows / 8 / 64 * 64, 64), MOST_ROWS);
  job.blocks = (job.rows + job.block_rows - 1) / job.block_rows;
  job.scratch_bytes = scratch_bytes(&job, job.block_rows);
  return job;
}

static void forward_piece(void *argument, int64_t piece, int thread) {
  const linear_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * job->block_rows;
  int64_t rows = at_most(job->rows - first, job->block_rows);
  void *scratch = job->scratch + thread * job->scratch_bytes;
  if (job->is_f64)
    forward_block_f64(job, worker, first, rows, scratch);
  else
    forward_block_f32(job, worker, first, rows, scratch);
}

static int64_t picked_bytes(const linear_job *job) {
  return pk_aligned(job->targets->numel * (int64_t)sizeof(double));
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy)(const pk_call *call) {
  linear_job job = forward_job(call);
  return picked_bytes(&job) + pk_threads_count(pk_cpu_threads(call)) * job.scratch_bytes;
}

pk_status PK_KERNEL(linear_cross_entropy)(const pk_call *call) {
  linear_job job = forward_job(call);
  pk_status status = PK_KERNEL(check_targets)(call, job.targets, job.vocabulary);
  if (status != PK_OK) return status;
  job.picked = call->workspace;
  job.scratch = (char *)call->workspace + picked_bytes(&job);
  pk_parallel_for(pk_cpu_threads(call), job.x->shape[0] * job.blocks, forward_piece, &job);
  PK_KERNEL(sum_losses)(job.targets, job.lse, job.picked, call->outputs[0], call->outputs[1]);
  return PK_OK;
}

static void group_piece(void *argument, int64_t group, int thread) {
  const linear_job *job = argument;
  void *scratch = job->scratch + thread * job->scratch_bytes;
  if (job->is_f64)
    backward_group_f64(job, group, scratch);
  else
    backward_group_f32(job, group, scratch);
}

static void add_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const linear_job *job = argument;
  int64_t row = piece * ADD_ROWS, rows = at_most(job->chunk_rows - row, ADD_ROWS);
  if (job->is_f64)
    add_partials_f64(job, row, rows);
  else
    add_partials_f32(job, row, rows);
}

static void backward_chunk(pk_threads *threads, linear_job *job, int64_t worker, int64_t first,
                           int64_t rows) {
  job->worker = worker;
  job->first = first;
  job->chunk_rows = rows;
  job->x_chunk = pk_widened(job->x, worker * job->x->stride + first * job->width, rows * job->width,
                            job->wide_x);
  pk_parallel_for(threads, job->groups, group_piece, job);
  pk_parallel_for(threads, (rows + ADD_ROWS - 1) / ADD_ROWS, add_piece, job);
}

static linear_job backward_job(const pk_call *call) {
  linear_job job = job_of(call, 1);
  job.g = call->inputs[0];
  job.lse = call->inputs[4];
  job.x_grad = call->outputs[0];
  job.weight_grad = call->outputs[1];
  job.accumulate_x = call->attributes.accumulate & 1;
  job.accumulate_weight = call->attributes.accumulate & 2;
  int64_t tiles = (job.vocabulary + job.tokens - 1) / job.tokens;
  job.group_tokens = (tiles + MOST_GROUPS - 1) / MOST_GROUPS * job.tokens;
  if (tiles > 0) job.groups = (job.vocabulary + job.group_tokens - 1) / job.group_tokens;
  int64_t most = SHARE_ELEMENTS / at_least(job.width, 1) / TILE_ROWS * TILE_ROWS;
  job.most_rows = at_most(job.rows, at_least(most, TILE_ROWS));
  job.scratch_bytes = scratch_bytes(&job, 0);
  return job;
}

static int64_t all_scratch_bytes(const pk_call *call, const linear_job *job) {
  return pk_threads_count(pk_cpu_threads(call)) * job->scratch_bytes;
}

static int64_t partials_bytes(const linear_job *job) {
  return pk_aligned(job->groups * job->most_rows * job->width * size_of(job));
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy_grad)(const pk_call *call) {
  linear_job job = backward_job(call);
  int64_t wide = job.rounds ? job.most_rows * job.width * (int64_t)sizeof(float) : 0;
  return all_scratch_bytes(call, &job) + partials_bytes(&job) + wide;
}

pk_status PK_KERNEL(linear_cross_entropy_grad)(const pk_call *call) {
  linear_job job = backward_job(call);
  pk_status status = PK_KERNEL(check_targets)(call, job.targets, job.vocabulary);
  if (status != PK_OK) return status;
  job.scratch = call->workspace;
  char *partials = job.scratch + all_scratch_bytes(call, &job);
  job.partials = partials;
  job.wide_x = (float *)(void *)(partials + partials_bytes(&job));
  pk_threads *threads = pk_cpu_threads(call);
  for (int64_t worker = 0; worker < job.x->shape[0]; worker++)
    for (int64_t first = 0; first < job.rows; first += job.most_rows)
      backward_chunk(threads, &job, worker, first, at_most(job.rows - first, job.most_rows));
  return PK_OK;
}
