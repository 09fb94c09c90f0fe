/* Sums, means and largest values over axes.
 *
 * Both dtypes are accumulated in f64 and rounded once. The order is fixed by the shape alone:
 * results that are few and long are cut into chunks of the reduced elements, added in order at the
 * end. Within a chunk, neighbours that are reduced go to LANES accumulators in turn, added in
 * order; where neighbours belong to different results, each result adds its elements in order. */
#include "cpu/dtype.h"
#include "cpu/walk.h"

#define INLINE static inline __attribute__((always_inline))

enum {
  LANES = 8,
  COLUMNS = 128,           /* neighbouring results worked on together */
  CHUNK = 65536,           /* reduced neighbours in a chunk */
  CHUNK_OF_COLUMNS = 1024, /* reduced elements of each result in a chunk */
  FEW_RESULTS = 1024,
  PIECE = 32768 /* elements in a piece of work, about */
};

typedef struct reduce_job {
  bool largest; /* the largest instead of the sum */
  int dtype;
  pk_block kept;          /* x without its reduced dimensions */
  pk_block reduced;       /* x without its kept dimensions */
  pk_block y;             /* in the kept dimensions */
  bool columns;           /* neighbours belong to different results */
  int64_t results, count; /* and the elements of each */
  int64_t chunks, chunk_length;
  int64_t units, units_per_row, units_per_piece; /* a unit is one result, or up to COLUMNS */
  double *partial;                               /* [chunks, results], if there are chunks */
  double divisor;
  bool accumulate;
} reduce_job;

INLINE double combine(bool largest, double a, double b) {
  if (!largest) return a + b;
  return b > a || b != b ? b : a; /* a NaN in a stays: nothing compares greater */
}

static double start_of(const reduce_job *job) {
  return job->largest ? -INFINITY : 0.0;
}

static void finish(const reduce_job *job, int64_t result, double value) {
  char *y = job->y.data + pk_block_offset(&job->y, job->y.rank, result) * job->y.size;
  value /= job->divisor;
  if (job->dtype == PK_F32)
    *(float *)y = job->accumulate ? *(float *)y + (float)value : (float)value;
  else
    *(double *)y = job->accumulate ? *(double *)y + value : value;
}

static void keep_result(const reduce_job *job, int64_t chunk, int64_t result, double value) {
  if (job->chunks > 1)
    job->partial[chunk * job->results + result] = value;
  else
    finish(job, result, value);
}

/* Results that are neighbours in an f32 output. */
static void finish_dense_f32(const reduce_job *job, int64_t result, int64_t count,
                             const double *restrict values) {
  float *restrict y = (float *)job->y.data + pk_block_offset(&job->y, job->y.rank, result);
  if (job->accumulate)
    for (int64_t i = 0; i < count; i++) y[i] += (float)(values[i] / job->divisor);
  else
    for (int64_t i = 0; i < count; i++) y[i] = (float)(values[i] / job->divisor);
}

static void keep_columns(const reduce_job *job, int64_t chunk, int64_t result, int64_t count,
                         const double *values) {
  bool dense = job->y.rank > 0 && job->y.strides[job->y.rank - 1] == 1;
  if (job->chunks == 1 && dense && job->dtype == PK_F32)
    finish_dense_f32(job, result, count, values);
  else
    for (int64_t i = 0; i < count; i++) keep_result(job, chunk, result + i, values[i]);
}

/* count neighbours into the lanes. */
INLINE void run_into_lanes(bool largest, int dtype, double lanes[LANES], const char *data,
                           int64_t count, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + LANES <= count; i += LANES)
      for (int k = 0; k < LANES; k++)
        lanes[k] = combine(largest, lanes[k], pk_load_f64(dtype, data, i + k));
  }
  for (; i < count; i++)
    lanes[i % LANES] = combine(largest, lanes[i % LANES], pk_load_f64(dtype, data, i * stride));
}

INLINE void reduce_lanes(bool largest, int dtype, const reduce_job *job, int64_t result,
                         int64_t chunk) {
  const pk_block *reduced = &job->reduced;
  int inner = reduced->rank - 1;
  int64_t length = inner >= 0 ? reduced->extents[inner] : 1;
  int64_t stride = inner >= 0 ? reduced->strides[inner] : 1;
  const char *data =
      job->kept.data + pk_block_offset(&job->kept, job->kept.rank, result) * job->kept.size;
  int64_t index = chunk * job->chunk_length, last = index + job->chunk_length;
  if (last > job->count) last = job->count;
  double lanes[LANES];
  for (int k = 0; k < LANES; k++) lanes[k] = start_of(job);
  while (index < last) {
    int64_t column = index % length, run = length - column;
    if (run > last - index) run = last - index;
    int64_t offset = pk_block_offset(reduced, inner, index / length) + column * stride;
    run_into_lanes(largest, dtype, lanes, data + offset * reduced->size, run, stride);
    index += run;
  }
  double total = lanes[0];
  for (int k = 1; k < LANES; k++) total = combine(largest, total, lanes[k]);
  keep_result(job, chunk, result, total);
}

INLINE void reduce_columns(bool largest, int dtype, const reduce_job *job, int64_t unit,
                           int64_t chunk) {
  int inner = job->kept.rank - 1;
  int64_t width = job->kept.extents[inner];
  int64_t row = unit / job->units_per_row, column = unit % job->units_per_row * COLUMNS;
  int64_t count = width - column < COLUMNS ? width - column : COLUMNS;
  const char *data =
      job->kept.data + (pk_block_offset(&job->kept, inner, row) + column) * job->kept.size;
  int64_t first = chunk * job->chunk_length, last = first + job->chunk_length;
  if (last > job->count) last = job->count;
  double totals[COLUMNS];
  for (int64_t i = 0; i < count; i++) totals[i] = start_of(job);
  for (int64_t index = first; index < last; index++) {
    const char *x =
        data + pk_block_offset(&job->reduced, job->reduced.rank, index) * job->reduced.size;
    for (int64_t i = 0; i < count; i++)
      totals[i] = combine(largest, totals[i], pk_load_f64(dtype, x, i));
  }
  keep_columns(job, chunk, row * width + column, count, totals);
}

static void reduce_unit(const reduce_job *job, int64_t unit, int64_t chunk) {
  if (job->columns && job->largest && job->dtype == PK_F32)
    reduce_columns(true, PK_F32, job, unit, chunk);
  else if (job->columns && job->largest)
    reduce_columns(true, PK_F64, job, unit, chunk);
  else if (job->columns && job->dtype == PK_F32)
    reduce_columns(false, PK_F32, job, unit, chunk);
  else if (job->columns)
    reduce_columns(false, PK_F64, job, unit, chunk);
  else if (job->largest && job->dtype == PK_F32)
    reduce_lanes(true, PK_F32, job, unit, chunk);
  else if (job->largest)
    reduce_lanes(true, PK_F64, job, unit, chunk);
  else if (job->dtype == PK_F32)
    reduce_lanes(false, PK_F32, job, unit, chunk);
  else
    reduce_lanes(false, PK_F64, job, unit, chunk);
}

static void reduce_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const reduce_job *job = argument;
  int64_t first = piece * job->units_per_piece, last = first + job->units_per_piece;
  for (int64_t item = first; item < last && item < job->units * job->chunks; item++)
    reduce_unit(job, item % job->units, item / job->units);
}

static void plan(reduce_job *job) {
  pk_block kept[2] = {job->kept, job->y};
  pk_block_join(2, kept);
  job->kept = kept[0];
  job->y = kept[1];
  pk_block_join(1, &job->reduced);
  int inner = job->kept.rank - 1;
  job->columns = inner >= 0 && job->kept.strides[inner] == 1;
  job->results = job->count = 1;
  for (int d = 0; d <= inner; d++) job->results *= job->kept.extents[d];
  for (int d = 0; d < job->reduced.rank; d++) job->count *= job->reduced.extents[d];
  job->units = job->results;
  int64_t unit = job->count;
  if (job->columns) {
    int64_t width = job->kept.extents[inner];
    job->units_per_row = (width + COLUMNS - 1) / COLUMNS;
    job->units = width > 0 ? job->results / width * job->units_per_row : 0;
    unit *= width < COLUMNS ? width : COLUMNS;
  }
  job->chunks = 1;
  job->chunk_length = job->count;
  int64_t chunk_length = job->columns ? CHUNK_OF_COLUMNS : CHUNK;
  if (job->results < FEW_RESULTS && job->count > chunk_length) {
    job->chunks = (job->count + chunk_length - 1) / chunk_length;
    job->chunk_length = chunk_length;
    unit = PIECE;
  }
  job->units_per_piece = unit > 0 && unit < PIECE ? PIECE / unit : 1;
}

/* Room for the partial results of rows that are cut into chunks. */
static int64_t partial_bytes(const reduce_job *job) {
  return job->chunks > 1 ? job->chunks * job->results * (int64_t)sizeof(double) : 0;
}

static pk_status run(const pk_call *call, reduce_job *job) {
  job->partial = call->workspace;
  int64_t items = job->units * job->chunks;
  int64_t pieces = (items + job->units_per_piece - 1) / job->units_per_piece;
  pk_parallel_for(pk_cpu_threads(call), pieces, reduce_piece, job);
  if (job->chunks == 1) return PK_OK;
  for (int64_t result = 0; result < job->results; result++) {
    double total = job->partial[result];
    for (int64_t chunk = 1; chunk < job->chunks; chunk++)
      total = combine(job->largest, total, job->partial[chunk * job->results + result]);
    finish(job, result, total);
  }
  return PK_OK;
}

/* Sorts dimension d of x into kept, as dimension y_dimension of the output, or reduced. */
static void sort_dimension(reduce_job *job, const pk_block *x, const pk_block *y, int d,
                           bool reduced, int y_dimension) {
  pk_block *to = reduced ? &job->reduced : &job->kept;
  to->extents[to->rank] = x->extents[d];
  to->strides[to->rank++] = x->strides[d];
  if (reduced) return;
  job->y.extents[job->y.rank] = x->extents[d];
  job->y.strides[job->y.rank++] = y->strides[y_dimension];
}

static reduce_job job_of(const pk_call *call, const pk_block *x, const pk_block *y) {
  const pk_block empty_x = {.data = x->data, .size = x->size};
  const pk_block empty_y = {.data = y->data, .size = y->size};
  return (reduce_job){.largest = call->op == PK_OP_max,
                      .dtype = call->inputs[0]->dtype,
                      .kept = empty_x,
                      .reduced = empty_x,
                      .y = empty_y,
                      .divisor = 1,
                      .accumulate = call->attributes.accumulate != 0};
}

static reduce_job over_axes(const pk_call *call) {
  const pk_attributes *attributes = &call->attributes;
  pk_block x = pk_block_of(call->inputs[0]), y = pk_block_of(call->outputs[0]);
  reduce_job job = job_of(call, &x, &y);
  for (int d = 0, next = 0; d < x.rank; d++) {
    bool reduced = attributes->list_count == 0;
    for (int i = 0; i < attributes->list_count; i++) reduced |= attributes->list[i] == d;
    sort_dimension(&job, &x, &y, d, reduced, next);
    next += !reduced || attributes->integers[0];
    if (reduced && call->op == PK_OP_mean) job.divisor *= (double)x.extents[d];
  }
  plan(&job);
  return job;
}

static pk_status run_over_axes(const pk_call *call) {
  reduce_job job = over_axes(call);
  return run(call, &job);
}

static int64_t workspace_over_axes(const pk_call *call) {
  reduce_job job = over_axes(call);
  return partial_bytes(&job);
}

pk_status PK_KERNEL(sum)(const pk_call *call) {
  return run_over_axes(call);
}

pk_status PK_KERNEL(mean)(const pk_call *call) {
  return run_over_axes(call);
}

pk_status PK_KERNEL(max)(const pk_call *call) {
  return run_over_axes(call);
}

int64_t PK_WORKSPACE_OF(sum)(const pk_call *call) {
  return workspace_over_axes(call);
}

int64_t PK_WORKSPACE_OF(mean)(const pk_call *call) {
  return workspace_over_axes(call);
}

int64_t PK_WORKSPACE_OF(max)(const pk_call *call) {
  return workspace_over_axes(call);
}

/* *any says whether anything is summed at all. */
static reduce_job to_shape(const pk_call *call, bool *any) {
  pk_block x = pk_block_of(call->inputs[0]), y = pk_block_of(call->outputs[0]);
  reduce_job job = job_of(call, &x, &y);
  *any = false;
  for (int d = 0; d < x.rank; d++) {
    int target = d - (x.rank - y.rank);
    bool reduced = target < 0 || (y.extents[target] == 1 && x.extents[d] != 1);
    *any |= reduced;
    sort_dimension(&job, &x, &y, d, reduced, target);
  }
  plan(&job);
  return job;
}

pk_status PK_KERNEL(sum_to)(const pk_call *call) {
  bool any;
  reduce_job job = to_shape(call, &any);
  return any ? run(call, &job) : PK_KERNEL(copy)(call);
}

int64_t PK_WORKSPACE_OF(sum_to)(const pk_call *call) {
  bool any;
  reduce_job job = to_shape(call, &any);
  return any ? partial_bytes(&job) : 0;
}
