/* The steps of training on whole arenas, one operation each: norm, finiteness, clip, mixing, AdamW.
 * The fused form is update.c. */
#include "cpu/adamw.h"
#include "cpu/arena.h"

enum { LANES = 8 };

/* --- inverse_count --- */

pk_status PK_KERNEL(inverse_count)(const pk_call *call) {
  const pk_tensor *count = call->inputs[0], *scale = call->outputs[0];
  for (int64_t worker = 0; worker < count->shape[0]; worker++) {
    double targets = ((const double *)pk_tensor_data(count))[worker * count->stride];
    ((double *)pk_tensor_data(scale))[worker * scale->stride] = targets == 0 ? 0 : 1 / targets;
  }
  return PK_OK;
}

/* --- gradient_norm --- */

/* Sum of squares, in LANES accumulators added in order. */
static double squares_f32(const float *x, int64_t count) {
  double lanes[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int k = 0; k < LANES; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];
  for (; i < count; i++) lanes[i % LANES] += (double)x[i] * (double)x[i];
  double total = lanes[0];
  for (int k = 1; k < LANES; k++) total += lanes[k];
  return total;
}

static double squares_f64(const double *x, int64_t count, double scale) {
  double lanes[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int k = 0; k < LANES; k++) {
      double value = x[i + k] * scale;
      lanes[k] += value * value;
    }
  for (; i < count; i++) {
    double value = x[i] * scale;
    lanes[i % LANES] += value * value;
  }
  double total = lanes[0];
  for (int k = 1; k < LANES; k++) total += lanes[k];
  return total;
}

typedef struct norm_job {
  const pk_tensor *g;
  double *partial; /* one for each piece */
} norm_job;

static void norm_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const norm_job *job = argument;
  pk_arena_part part = pk_arena_part_of(piece, pk_tensor_inner(job->g));
  const char *g = pk_arena_columns(job->g, part.worker, part.first);
  job->partial[piece] = job->g->dtype == PK_F32 ? squares_f32((const float *)g, part.count)
                                                : squares_f64((const double *)g, part.count, 1);
}

/* The norm of f64 values whose squares leave the range of f64: scaled by a power of two near the
 * largest. */
static double scaled_norm(const double *g, int64_t count, double plain) {
  double largest = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(g[i])) return plain;
    if (fabs(g[i]) > largest) largest = fabs(g[i]);
  }
  if (largest == 0) return plain;
  int exponent;
  frexp(largest, &exponent);
  if (exponent < -1000) exponent = -1000; /* so that 2^-exponent is finite */
  double total = 0;
  for (int64_t first = 0; first < count; first += PK_ARENA_PIECE)
    total += squares_f64(g + first, count - first < PK_ARENA_PIECE ? count - first : PK_ARENA_PIECE,
                         ldexp(1.0, -exponent));
  return ldexp(sqrt(total), exponent);
}

/* The pieces' sums of a worker, in order. */
static double total_of(const norm_job *job, int64_t worker) {
  int64_t pieces = pk_arena_pieces(job->g) / job->g->shape[0];
  double total = 0;
  for (int64_t p = 0; p < pieces; p++) total += job->partial[worker * pieces + p];
  return total;
}

static norm_job sum_pieces(const pk_call *call) {
  norm_job job = {.g = call->inputs[0], .partial = call->workspace};
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(job.g), norm_piece, &job);
  return job;
}

int64_t PK_WORKSPACE_OF(gradient_norm)(const pk_call *call) {
  return pk_arena_pieces(call->inputs[0]) * (int64_t)sizeof(double);
}

pk_status PK_KERNEL(gradient_norm)(const pk_call *call) {
  const pk_tensor *g = call->inputs[0], *norm = call->outputs[0];
  int64_t columns = pk_tensor_inner(g);
  norm_job job = sum_pieces(call);
  for (int64_t worker = 0; worker < g->shape[0]; worker++) {
    double total = total_of(&job, worker), result = sqrt(total);
    /* Squares of f32 fit in f64; those of f64 may have overflowed or vanished. */
    if (g->dtype == PK_F64 && !(total > 1e-280 && total < INFINITY))
      result = scaled_norm((const double *)pk_arena_columns(g, worker, 0), columns, result);
    ((double *)pk_tensor_data(norm))[worker * norm->stride] =
        result * fabs(pk_number_at(call->inputs[1], worker));
  }
  return PK_OK;
}

/* --- sum_squares --- */

int64_t PK_WORKSPACE_OF(sum_squares)(const pk_call *call) {
  return pk_arena_pieces(call->inputs[0]) * (int64_t)sizeof(double);
}

pk_status PK_KERNEL(sum_squares)(const pk_call *call) {
  const pk_tensor *y = call->outputs[0];
  norm_job job = sum_pieces(call);
  for (int64_t row = 0; row < y->shape[0]; row++)
    ((double *)pk_tensor_data(y))[row * y->stride] = total_of(&job, row);
  return PK_OK;
}

/* --- check_finite --- */

static double loss_at(const pk_tensor *loss, int64_t worker) {
  if (loss->dtype == PK_F64) return pk_number_at(loss, worker);
  return ((const float *)pk_tensor_data(loss))[worker * loss->stride];
}

pk_status PK_KERNEL(check_finite)(const pk_call *call) {
  const pk_tensor *loss = call->inputs[0], *norm = call->inputs[1], *guard = call->inputs[3];
  const pk_tensor *scalars = call->inputs[2];
  double clip = pk_number_at(scalars, PK_SCALAR_CLIP), largest = call->attributes.numbers[0];
  int32_t found = *pk_guard_at(guard, PK_GUARD_FOUND);
  if (pk_is_stopped(guard)) return PK_OK;
  if (found) {
    pk_stop(guard, found - 1, *pk_guard_at(guard, PK_GUARD_STEP), PK_REASON_UPDATE);
    return PK_OK;
  }
  for (int64_t worker = 0; worker < loss->shape[0]; worker++) {
    double own = pk_number_at(norm, worker), clipped = clip > 0 && clip < own ? clip : own;
    int32_t reason = !isfinite(loss_at(loss, worker)) ? PK_REASON_LOSS
                     : !isfinite(own)                 ? PK_REASON_NORM
                     : clipped > largest              ? PK_REASON_LARGE_NORM
                                                      : 0;
    if (!reason) continue;
    pk_stop(guard, worker, (int64_t)pk_number_at(scalars, PK_SCALAR_STEP), reason);
    return PK_OK;
  }
  pk_count_step(guard, scalars);
  return PK_OK;
}

/* --- check_arena --- */

typedef struct arena_job {
  const pk_tensor *x;
  pk_found found;
} arena_job;

static bool all_finite_f32(const float *x, int64_t count) {
  int spoiled = 0;
  for (int64_t i = 0; i < count; i++) spoiled |= x[i] - x[i] != 0;
  return !spoiled;
}

static bool all_finite_f64(const double *x, int64_t count) {
  int64_t spoiled = 0;
  for (int64_t i = 0; i < count; i++) spoiled |= x[i] - x[i] != 0;
  return !spoiled;
}

static void arena_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  arena_job *job = argument;
  pk_arena_part part = pk_arena_part_of(piece, pk_tensor_inner(job->x));
  const char *x = pk_arena_columns(job->x, part.worker, part.first);
  bool finite = job->x->dtype == PK_F32 ? all_finite_f32((const float *)x, part.count)
                                        : all_finite_f64((const double *)x, part.count);
  if (!finite) pk_find(&job->found, part.worker);
}

pk_status PK_KERNEL(check_arena)(const pk_call *call) {
  const pk_tensor *scalars = call->inputs[1], *guard = call->inputs[2];
  if (pk_is_stopped(guard)) return PK_OK;
  arena_job job = {.x = call->inputs[0], .found = INT64_MAX};
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(job.x), arena_piece, &job);
  if (job.found != INT64_MAX)
    pk_stop(guard, job.found, (int64_t)pk_number_at(scalars, PK_SCALAR_STEP),
            (int32_t)call->attributes.integers[0]);
  return PK_OK;
}

/* --- clip --- */

static void clip_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *g = call->inputs[0];
  pk_arena_part part = pk_arena_part_of(piece, pk_tensor_inner(g));
  double factor = pk_gradient_factor(pk_number_at(call->inputs[1], part.worker),
                                     pk_number_at(call->inputs[2], part.worker),
                                     pk_number_at(call->inputs[3], PK_SCALAR_CLIP));
  char *data = pk_arena_columns(g, part.worker, part.first);
  if (g->dtype == PK_F32) {
    float rounded = (float)factor;
    for (int64_t c = 0; c < part.count; c++) ((float *)data)[c] *= rounded;
  } else {
    for (int64_t c = 0; c < part.count; c++) ((double *)data)[c] *= factor;
  }
}

pk_status PK_KERNEL(clip)(const pk_call *call) {
  if (pk_is_stopped(call->inputs[4])) return PK_OK;
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(call->inputs[0]), clip_piece, (void *)call);
  return PK_OK;
}

/* --- mix --- */

typedef struct mix_job {
  const pk_tensor *x;
  pk_mixing mixing;
  char *scratch;   /* [threads, N, columns] */
  int64_t columns; /* in a piece */
} mix_job;

/* All workers of some columns are read before any is written. */
static void mix_piece(void *argument, int64_t piece, int thread) {
  const mix_job *job = argument;
  const pk_tensor *x = job->x;
  int64_t workers = x->shape[0], size = pk_dtype_size(x->dtype);
  int64_t first = piece * job->columns, count = pk_tensor_inner(x) - first;
  if (count > job->columns) count = job->columns;
  char *mixed = job->scratch + thread * workers * job->columns * size;
  for (int64_t i = 0; i < workers; i++)
    pk_mix_columns(x->dtype, &job->mixing, i, pk_arena_columns(x, 0, first), x->stride, count,
                   mixed + i * job->columns * size);
  for (int64_t i = 0; i < workers; i++)
    memcpy(pk_arena_columns(x, i, first), mixed + i * job->columns * size, (size_t)(count * size));
}

int64_t PK_WORKSPACE_OF(mix)(const pk_call *call) {
  return pk_update_workspace(call, call->inputs[0]);
}

pk_status PK_KERNEL(mix)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *matrix = call->inputs[1], *guard = call->inputs[3];
  if (pk_is_stopped(guard) || *pk_guard_at(guard, PK_GUARD_FOUND)) return PK_OK;
  pk_update_scratch scratch = pk_update_scratch_of(call, x);
  mix_job job = {.x = x,
                 .mixing = pk_mixing_read(matrix, scratch.mixing),
                 .scratch = scratch.columns,
                 .columns = pk_update_columns(x)};
  int64_t pieces = (pk_tensor_inner(x) + job.columns - 1) / job.columns;
  if (!job.mixing.identity) pk_parallel_for(pk_cpu_threads(call), pieces, mix_piece, &job);
  return PK_OK;
}

/* --- adamw --- */

typedef struct adamw_job {
  const pk_call *call;
  pk_found found;
} adamw_job;

static void adamw_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  adamw_job *job = argument;
  const pk_call *call = job->call;
  const pk_tensor *x = call->inputs[0], *blocks = call->inputs[4];
  pk_arena_part part = pk_arena_part_of(piece, x->shape[1]);
  const pk_tensor *scalars = call->inputs[5];
  pk_adamw adamw = pk_adamw_with(pk_adamw_of(scalars), scalars, part.worker);
  char *data[4];
  for (int i = 0; i < 4; i++) data[i] = pk_arena_columns(call->inputs[i], part.worker, part.first);
  if (!pk_adamw_columns(x->dtype, &adamw, blocks, part.first, 1.0, part.count, data[0], data[1],
                        data[2], data[3], data[0]))
    pk_find(&job->found, part.worker);
}

pk_status PK_KERNEL(adamw)(const pk_call *call) {
  const pk_tensor *guard = call->inputs[6];
  if (pk_is_stopped(guard)) return PK_OK;
  adamw_job job = {.call = call, .found = INT64_MAX};
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(call->inputs[0]), adamw_piece, &job);
  pk_note_found(guard, call->inputs[5], job.found);
  return PK_OK;
}
