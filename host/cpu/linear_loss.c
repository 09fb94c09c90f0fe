/* Cross-entropy of x times the head's weight, without ever holding the logits of all rows.
 *
 * Logits exist as tiles of some rows and tokens that stay in a core's cache. Forward: blocks of
 * rows, each over the tiles of the vocabulary with a running log-sum-exp. Backward: chunks of rows,
 * one after the other; within a chunk groups of the vocabulary in parallel, each making its tiles
 * of logit gradients and using them up in both products. A group owns its rows of weight_grad and
 * has a share of x_grad; the shares are added in order. Forward and backward in one step: the tiles
 * of a chunk are kept from its log-sum-exp to its gradients, which take their place. Tiles, groups
 * and chunks depend on shapes alone, and all three operations have the same tiles: the same bits.
 */
#include "cpu/loss.h"
#include "cpu/vmath.h"
#include "cpu/widen.h"

enum {
  TILE_ROWS = 256,
  TOKENS = 512,
  MOST_ROWS = 512,          /* in a block of the forward pass: weights are widened once for each */
  MOST_GROUPS = 32,         /* of the vocabulary */
  SHARE_ELEMENTS = 1 << 18, /* of x_grad in one group's share, about */
  KEPT_ELEMENTS = 1 << 24,  /* of a chunk's logits, about */
  SOME_ROWS = 32
};

typedef struct linear_job {
  const pk_tensor *x, *weight, *targets, *g, *lse;
  pk_tensor *x_grad, *weight_grad;
  int64_t rows, width, vocabulary;
  int64_t tokens, tile_rows, ld; /* of a tile, and elements from one row of it to the next */
  char *scratch;                 /* [threads, scratch_bytes]: a tile, widened weight and x */
  int64_t scratch_bytes;
  bool rounds, is_f64;
  double *picked; /* the target's logit [N, R] */
  /* forward */
  int64_t block_rows, blocks;
  /* forward and backward in one */
  char *tiles;  /* the chunk's logits: [token tiles, row tiles, tile_rows, ld]; NULL if not kept */
  double *sums; /* [chunk_rows, token tiles] of e^(logit - top) */
  void *tops;   /* the largest logits, likewise */
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

static int64_t token_tiles(const linear_job *job) {
  return (job->vocabulary + job->tokens - 1) / job->tokens;
}

static double scaled(double sum, double exponent) {
  return sum == 0 || exponent == 0 ? sum : sum * exp(exponent);
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

/* And so are few rows. */
static int64_t tile_rows(int64_t rows) {
  return at_most(at_least(rows / 8 / 64 * 64, 64), TILE_ROWS);
}

/* From input `from` on: x, weight, targets. */
static linear_job job_of(const pk_call *call, int from) {
  const pk_tensor *x = call->inputs[from], *weight = call->inputs[from + 1];
  int64_t tokens = tile_tokens(weight->shape[1]);
  return (linear_job){.x = x,
                      .weight = weight,
                      .targets = call->inputs[from + 2],
                      .rows = x->shape[1],
                      .width = x->shape[2],
                      .vocabulary = weight->shape[1],
                      .tokens = tokens,
                      .tile_rows = tile_rows(x->shape[1]),
                      .ld = tokens + PK_SCRATCH_GAP,
                      .rounds = x->dtype == PK_BF16,
                      .is_f64 = x->dtype == PK_F64};
}

/* A tile, a widened tile of weight, and x_rows widened rows of x, for one thread. */
static int64_t scratch_bytes(const linear_job *job, int64_t x_rows) {
  int64_t wide = job->rounds ? (job->tokens + x_rows) * job->width : 0;
  return pk_aligned((job->tile_rows * job->ld + wide) * size_of(job));
}

static linear_job forward_job(const pk_call *call) {
  linear_job job = job_of(call, 0);
  job.lse = call->outputs[2];
  job.block_rows = job.tile_rows == TILE_ROWS ? MOST_ROWS : job.tile_rows;
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
  return pk_cpu_products_end();
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
  int64_t row = piece * SOME_ROWS, rows = at_most(job->chunk_rows - row, SOME_ROWS);
  if (job->is_f64)
    add_partials_f64(job, row, rows);
  else
    add_partials_f32(job, row, rows);
}

static void keep_piece(void *argument, int64_t group, int thread) {
  const linear_job *job = argument;
  void *scratch = job->scratch + thread * job->scratch_bytes;
  if (job->is_f64)
    keep_group_f64(job, group, scratch);
  else
    keep_group_f32(job, group, scratch);
}

static void lse_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const linear_job *job = argument;
  int64_t row = piece * SOME_ROWS, rows = at_most(job->chunk_rows - row, SOME_ROWS);
  if (job->is_f64)
    join_sums_f64(job, row, rows);
  else
    join_sums_f32(job, row, rows);
}

static void run_chunk(pk_threads *threads, linear_job *job, int64_t worker, int64_t first,
                      int64_t rows) {
  int64_t pieces = (rows + SOME_ROWS - 1) / SOME_ROWS;
  job->worker = worker;
  job->first = first;
  job->chunk_rows = rows;
  job->x_chunk = pk_widened(job->x, worker * job->x->stride + first * job->width, rows * job->width,
                            job->wide_x);
  if (job->tiles) {
    pk_parallel_for(threads, job->groups, keep_piece, job);
    pk_parallel_for(threads, pieces, lse_piece, job);
  }
  pk_parallel_for(threads, job->groups, group_piece, job);
  pk_parallel_for(threads, pieces, add_piece, job);
}

/* The weight's gradient is written with the first chunk, so without rows by nobody. */
static void clear_weight_grad(const linear_job *job) {
  const pk_tensor *grad = job->weight_grad;
  int64_t size = size_of(job);
  for (int64_t worker = 0; worker < grad->shape[0]; worker++) {
    char *memory = (char *)pk_tensor_data(grad) + worker * grad->stride * size;
    memset(memory, 0, (size_t)(pk_tensor_inner(grad) * size));
  }
}

static void run_chunks(const pk_call *call, linear_job *job) {
  pk_threads *threads = pk_cpu_threads(call);
  if (job->rows == 0 && !job->accumulate_weight) clear_weight_grad(job);
  for (int64_t worker = 0; worker < job->x->shape[0]; worker++)
    for (int64_t first = 0; first < job->rows; first += job->most_rows)
      run_chunk(threads, job, worker, first, at_most(job->rows - first, job->most_rows));
}

/* g, x, weight, targets; the gradients are outputs `to` and the one after. Chunks have at most
 * most_rows rows, a multiple of the tiles'. */
static linear_job backward_job(const pk_call *call, int to, int64_t most_rows) {
  linear_job job = job_of(call, 1);
  job.g = call->inputs[0];
  job.x_grad = call->outputs[to];
  job.weight_grad = call->outputs[to + 1];
  job.accumulate_x = call->attributes.accumulate >> to & 1;
  job.accumulate_weight = call->attributes.accumulate >> (to + 1) & 1;
  int64_t tiles = token_tiles(&job);
  job.group_tokens = (tiles + MOST_GROUPS - 1) / MOST_GROUPS * job.tokens;
  if (tiles > 0) job.groups = (job.vocabulary + job.group_tokens - 1) / job.group_tokens;
  int64_t most = at_most(SHARE_ELEMENTS / at_least(job.width, 1), most_rows);
  job.most_rows = at_most(job.rows, at_least(most / job.tile_rows, 1) * job.tile_rows);
  job.scratch_bytes = scratch_bytes(&job, 0);
  return job;
}

/* Where a kernel's parts of its workspace are, one after the other. */
typedef struct parts {
  char *workspace; /* NULL while they are counted */
  int64_t bytes;
} parts;

static void *take(parts *all, int64_t bytes) {
  char *part = all->workspace ? all->workspace + all->bytes : NULL;
  all->bytes += pk_aligned(bytes);
  return part;
}

static void take_backward_parts(const pk_call *call, linear_job *job, parts *all) {
  int64_t chunk = job->most_rows * job->width;
  job->scratch = take(all, pk_threads_count(pk_cpu_threads(call)) * job->scratch_bytes);
  job->partials = take(all, job->groups * chunk * size_of(job));
  job->wide_x = take(all, job->rounds ? chunk * (int64_t)sizeof(float) : 0);
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy_grad)(const pk_call *call) {
  linear_job job = backward_job(call, 0, INT64_MAX);
  parts all = {0};
  take_backward_parts(call, &job, &all);
  return all.bytes;
}

pk_status PK_KERNEL(linear_cross_entropy_grad)(const pk_call *call) {
  linear_job job = backward_job(call, 0, INT64_MAX);
  pk_status status = PK_KERNEL(check_targets)(call, job.targets, job.vocabulary);
  if (status != PK_OK) return status;
  job.lse = call->inputs[4];
  parts all = {.workspace = call->workspace};
  take_backward_parts(call, &job, &all);
  run_chunks(call, &job);
  return pk_cpu_products_end();
}

static linear_job step_job(const pk_call *call) {
  const pk_tensor *weight = call->inputs[2];
  linear_job job = backward_job(call, 3, KEPT_ELEMENTS / at_least(weight->shape[1], 1));
  job.lse = call->outputs[2];
  return job;
}

static void take_step_parts(const pk_call *call, linear_job *job, parts *all) {
  int64_t tiles = token_tiles(job),
          row_tiles = (job->most_rows + job->tile_rows - 1) / job->tile_rows;
  take_backward_parts(call, job, all);
  job->picked = take(all, job->targets->numel * (int64_t)sizeof(double));
  job->sums = take(all, job->most_rows * tiles * (int64_t)sizeof(double));
  job->tops = take(all, job->most_rows * tiles * size_of(job));
  job->tiles = take(all, tiles * row_tiles * job->tile_rows * job->ld * size_of(job));
}

int64_t PK_WORKSPACE_OF(linear_cross_entropy_step)(const pk_call *call) {
  linear_job job = step_job(call);
  parts all = {0};
  take_step_parts(call, &job, &all);
  return all.bytes;
}

pk_status PK_KERNEL(linear_cross_entropy_step)(const pk_call *call) {
  linear_job job = step_job(call);
  pk_status status = PK_KERNEL(check_targets)(call, job.targets, job.vocabulary);
  if (status != PK_OK) return status;
  parts all = {.workspace = call->workspace};
  take_step_parts(call, &job, &all);
  run_chunks(call, &job);
  PK_KERNEL(sum_losses)(job.targets, job.lse, job.picked, call->outputs[0], call->outputs[1]);
  return pk_cpu_products_end();
}
