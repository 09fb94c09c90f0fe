/* The fused update: clip, mixing, AdamW and the bf16 copy in one pass over the arenas. */
#include "cpu/adamw.h"
#include "cpu/dtype.h"

typedef struct update_job {
  const pk_tensor *x, *g, *m, *v, *scale, *norm, *blocks, *scalars, *bf16;
  pk_mixing mixing;
  pk_adamw adamw; /* without a rate */
  double clip;
  bool mixes, last; /* W is not the identity; mixing comes last (ATC) */
  pk_found found;   /* the first worker with a result that is not finite */
  char *scratch;    /* [threads, N, columns] */
  int64_t columns;
} update_job;

static char *at(const pk_tensor *x, int64_t worker, int64_t column) {
  return (char *)pk_tensor_data(x) + (worker * x->stride + column) * pk_dtype_size(x->dtype);
}

/* AdamW of one worker from the weights at from, into x. Returns whether all results are finite. */
static bool adapt(update_job *job, int64_t i, int64_t first, int64_t count, const char *from) {
  double factor =
      pk_gradient_factor(pk_number_at(job->scale, i), pk_number_at(job->norm, i), job->clip);
  pk_adamw adamw = pk_adamw_with(job->adamw, job->scalars, i);
  bool finite = pk_adamw_columns(job->x->dtype, &adamw, job->blocks, first, factor, count, from,
                                 at(job->g, i, first), at(job->m, i, first), at(job->v, i, first),
                                 at(job->x, i, first));
  if (!finite) pk_find(&job->found, i);
  return finite;
}

static bool is_finite_at(const pk_tensor *x, int64_t i, int64_t column) {
  const char *value = at(x, i, column);
  return x->dtype == PK_F32 ? isfinite(*(const float *)value) : isfinite(*(const double *)value);
}

/* Of columns that are not finite in all workers, puts each worker's own in place of the mixed. */
static void keep_apart(const update_job *job, int64_t first, int64_t count, char *mixed) {
  int64_t workers = job->x->shape[0], size = pk_dtype_size(job->x->dtype);
  for (int64_t c = 0; c < count; c++) {
    bool finite = true;
    for (int64_t i = 0; i < workers; i++) finite = finite && is_finite_at(job->x, i, first + c);
    for (int64_t i = 0; !finite && i < workers; i++)
      memcpy(mixed + (i * job->columns + c) * size, at(job->x, i, first + c), (size_t)size);
  }
}

static void write_bf16(const update_job *job, int64_t i, int64_t first, int64_t count) {
  uint16_t *restrict bf16 = (uint16_t *)at(job->bf16, i, first);
  const char *x = at(job->x, i, first);
  if (job->x->dtype == PK_F32)
    for (int64_t c = 0; c < count; c++) bf16[c] = pk_bf16_from_f32(((const float *)x)[c]);
  else
    for (int64_t c = 0; c < count; c++) pk_store_f64(PK_BF16, bf16, c, ((const double *)x)[c]);
}

/* All workers of some columns: they stay in the cache from the first step to the last. */
static void update_piece(void *argument, int64_t piece, int thread) {
  update_job *job = argument;
  const pk_tensor *x = job->x;
  int64_t workers = x->shape[0], size = pk_dtype_size(x->dtype);
  int64_t first = piece * job->columns, count = x->shape[1] - first;
  bool finite = true;
  if (count > job->columns) count = job->columns;
  int64_t mixed_stride = job->columns * size;
  char *mixed = job->scratch + thread * workers * mixed_stride;

  if (job->last || !job->mixes)
    for (int64_t i = 0; i < workers; i++) finite &= adapt(job, i, first, count, at(x, i, first));
  for (int64_t i = 0; job->mixes && i < workers; i++)
    pk_mix_columns(x->dtype, &job->mixing, i, at(x, 0, first), x->stride, count,
                   mixed + i * mixed_stride);
  if (job->mixes && !finite) keep_apart(job, first, count, mixed);
  for (int64_t i = 0; job->mixes && i < workers; i++) {
    if (job->last)
      memcpy(at(x, i, first), mixed + i * mixed_stride, (size_t)(count * size));
    else
      adapt(job, i, first, count, mixed + i * mixed_stride);
  }
  for (int64_t i = 0; job->bf16 && i < workers; i++) write_bf16(job, i, first, count);
}

int64_t PK_WORKSPACE_OF(update)(const pk_call *call) {
  return pk_update_workspace(call, call->inputs[0]);
}

pk_status PK_KERNEL(update)(const pk_call *call) {
  const pk_tensor *const *inputs = call->inputs, *scalars = inputs[8], *guard = inputs[9];
  if (pk_is_stopped(guard)) return PK_OK;
  pk_update_scratch scratch = pk_update_scratch_of(call, inputs[0]);
  update_job job = {.x = inputs[0],
                    .g = inputs[1],
                    .m = inputs[2],
                    .v = inputs[3],
                    .scale = inputs[4],
                    .norm = inputs[5],
                    .mixing = pk_mixing_read(inputs[6], scratch.mixing),
                    .blocks = inputs[7],
                    .bf16 = inputs[10],
                    .scalars = scalars,
                    .adamw = pk_adamw_of(scalars),
                    .clip = pk_number_at(scalars, PK_SCALAR_CLIP),
                    .last = call->attributes.integers[0] != 0,
                    .scratch = scratch.columns,
                    .columns = pk_update_columns(inputs[0]),
                    .found = INT64_MAX};
  job.mixes = !job.mixing.identity;
  int64_t pieces = (job.x->shape[1] + job.columns - 1) / job.columns;
  pk_parallel_for(pk_cpu_threads(call), pieces, update_piece, &job);
  pk_note_found(guard, scalars, job.found);
  return PK_OK;
}
