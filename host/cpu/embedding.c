/* Looking rows and entries up by number, and the gradients that put them back. */
#include "cpu/cpu.h"

enum { ROWS = 64, PARTS = 16 };

/* Numbers [N, ...] of a tensor that may have a stride of its own for dimension 0. */
static const int32_t *numbers_of(const pk_tensor *ids, int64_t worker) {
  return (const int32_t *)pk_tensor_data(ids) + worker * ids->stride;
}

/* Every id is in 0 .. vocabulary-1, or PK_IGNORED where that is allowed. */
static pk_status check_range(const pk_call *call, const pk_tensor *ids, int64_t vocabulary,
                             bool ignored_allowed) {
  int64_t inner = pk_tensor_inner(ids);
  for (int64_t worker = 0; worker < ids->shape[0]; worker++) {
    const int32_t *numbers = numbers_of(ids, worker);
    for (int64_t i = 0; i < inner; i++) {
      if (numbers[i] >= 0 && numbers[i] < vocabulary) continue;
      if (ignored_allowed && numbers[i] == PK_IGNORED) continue;
      int64_t place[PK_MAX_RANK] = {worker}, rest = i;
      for (int d = ids->rank - 1; d > 0; d--) {
        place[d] = rest % ids->shape[d];
        rest /= ids->shape[d];
      }
      char text[PK_SHAPE_TEXT];
      return pk_fail(PK_INVALID, "%s: id %d at %s is not in 0 .. %lld (vocabulary %lld)",
                     pk_op_describe(call->op)->name, numbers[i],
                     pk_shape_text(text, ids->rank, place), (long long)vocabulary - 1,
                     (long long)vocabulary);
    }
  }
  return PK_OK;
}

/* --- rows --- */

typedef struct rows_job {
  const pk_tensor *ids;
  const char *from; /* weight or g */
  char *to;         /* y or weight_grad */
  int64_t stride_from, stride_to, width;
  int64_t size, inner, pieces_per_worker;
  int64_t vocabulary;
  int dtype;
  bool accumulate;
} rows_job;

static void gather_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const rows_job *job = argument;
  int64_t worker = piece / job->pieces_per_worker;
  int64_t first = piece % job->pieces_per_worker * ROWS, last = first + ROWS;
  int64_t bytes = job->width * job->size;
  const int32_t *numbers = numbers_of(job->ids, worker);
  const char *from = job->from + worker * job->stride_from * job->size;
  char *to = job->to + worker * job->stride_to * job->size;
  for (int64_t i = first; i < last && i < job->inner; i++)
    memcpy(to + i * bytes, from + numbers[i] * bytes, (size_t)bytes);
}

pk_status PK_KERNEL(embedding)(const pk_call *call) {
  const pk_tensor *weight = call->inputs[0], *ids = call->inputs[1];
  pk_status status = check_range(call, ids, weight->shape[1], false);
  if (status != PK_OK) return status;
  int64_t inner = pk_tensor_inner(ids);
  rows_job job = {.ids = ids,
                  .from = pk_tensor_data(weight),
                  .to = pk_tensor_data(call->outputs[0]),
                  .stride_from = weight->stride,
                  .stride_to = call->outputs[0]->stride,
                  .width = weight->shape[2],
                  .size = pk_dtype_size(weight->dtype),
                  .inner = inner,
                  .pieces_per_worker = (inner + ROWS - 1) / ROWS};
  pk_parallel_for(pk_cpu_threads(call), ids->shape[0] * job.pieces_per_worker, gather_piece, &job);
  return PK_OK;
}

static void add_row_f32(float *restrict y, const float *restrict x, int64_t count) {
  for (int64_t i = 0; i < count; i++) y[i] += x[i];
}

static void add_row_f64(double *restrict y, const double *restrict x, int64_t count) {
  for (int64_t i = 0; i < count; i++) y[i] += x[i];
}

/* One worker's ids within one part of the vocabulary, in order: no two pieces write to one row, and
 * the order of additions does not depend on the parts. */
static void scatter_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const rows_job *job = argument;
  int64_t worker = piece / PARTS, part = piece % PARTS, bytes = job->width * job->size;
  int64_t first = job->vocabulary * part / PARTS, last = job->vocabulary * (part + 1) / PARTS;
  const int32_t *numbers = numbers_of(job->ids, worker);
  const char *from = job->from + worker * job->stride_from * job->size;
  char *to = job->to + worker * job->stride_to * job->size;
  if (!job->accumulate) memset(to + first * bytes, 0, (size_t)((last - first) * bytes));
  for (int64_t i = 0; i < job->inner; i++) {
    if (numbers[i] < first || numbers[i] >= last) continue;
    char *row = to + numbers[i] * bytes;
    if (job->dtype == PK_F32)
      add_row_f32((float *)row, (const float *)(from + i * bytes), job->width);
    else
      add_row_f64((double *)row, (const double *)(from + i * bytes), job->width);
  }
}

pk_status PK_KERNEL(embedding_grad)(const pk_call *call) {
  const pk_tensor *g = call->inputs[0], *ids = call->inputs[1];
  int64_t vocabulary = call->attributes.integers[0];
  pk_status status = check_range(call, ids, vocabulary, false);
  if (status != PK_OK) return status;
  rows_job job = {.ids = ids,
                  .from = pk_tensor_data(g),
                  .to = pk_tensor_data(call->outputs[0]),
                  .stride_from = g->stride,
                  .stride_to = call->outputs[0]->stride,
                  .width = g->shape[g->rank - 1],
                  .size = pk_dtype_size(g->dtype),
                  .inner = pk_tensor_inner(ids),
                  .vocabulary = vocabulary,
                  .dtype = g->dtype,
                  .accumulate = call->attributes.accumulate != 0};
  pk_parallel_for(pk_cpu_threads(call), ids->shape[0] * PARTS, scatter_piece, &job);
  return PK_OK;
}

/* --- entries: x [N, R, V] and its entries [N, R] at index --- */

typedef struct entries_job {
  const pk_call *call;
  const pk_tensor *wide, *narrow, *index; /* [N, R, V], [N, R], [N, R] */
  int64_t size, pieces_per_worker;
} entries_job;

static char *entry_of(const entries_job *job, int64_t worker, int64_t row, int64_t column) {
  const pk_tensor *wide = job->wide;
  int64_t element = worker * wide->stride + row * wide->shape[2] + column;
  return (char *)pk_tensor_data(wide) + element * job->size;
}

static void entries_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const entries_job *job = argument;
  int64_t worker = piece / job->pieces_per_worker;
  int64_t first = piece % job->pieces_per_worker * ROWS, last = first + ROWS;
  const int32_t *numbers = numbers_of(job->index, worker);
  char *narrow = (char *)pk_tensor_data(job->narrow) + worker * job->narrow->stride * job->size;
  for (int64_t row = first; row < last && row < job->index->shape[1]; row++) {
    char *single = narrow + row * job->size;
    bool ignored = numbers[row] == PK_IGNORED;
    if (job->call->op == PK_OP_unpick) {
      memset(entry_of(job, worker, row, 0), 0, (size_t)(job->wide->shape[2] * job->size));
      if (!ignored) memcpy(entry_of(job, worker, row, numbers[row]), single, (size_t)job->size);
    } else if (ignored) {
      memset(single, 0, (size_t)job->size);
    } else {
      memcpy(single, entry_of(job, worker, row, numbers[row]), (size_t)job->size);
    }
  }
}

static pk_status run_entries(const pk_call *call, const pk_tensor *wide, const pk_tensor *narrow) {
  const pk_tensor *index = call->inputs[1];
  pk_status status = check_range(call, index, wide->shape[2], true);
  if (status != PK_OK) return status;
  entries_job job = {.call = call,
                     .wide = wide,
                     .narrow = narrow,
                     .index = index,
                     .size = pk_dtype_size(wide->dtype),
                     .pieces_per_worker = (index->shape[1] + ROWS - 1) / ROWS};
  pk_parallel_for(pk_cpu_threads(call), index->shape[0] * job.pieces_per_worker, entries_piece,
                  &job);
  return PK_OK;
}

pk_status PK_KERNEL(pick)(const pk_call *call) {
  return run_entries(call, call->inputs[0], call->outputs[0]);
}

pk_status PK_KERNEL(unpick)(const pk_call *call) {
  return run_entries(call, call->outputs[0], call->inputs[0]);
}
