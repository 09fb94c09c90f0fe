/* What is read over the workers: their average and how far they are from it. */
#include "cpu/cpu.h"

enum { COLUMNS = 512, PIECE = 16384 };

typedef struct workers_job {
  const pk_tensor *x, *y;
  double *partial; /* of the distance, one for each piece */
} workers_job;

/* Sums of count <= COLUMNS columns over the workers, in order. */
static void sum_columns(const pk_tensor *x, int64_t first, int64_t count, double *restrict sums) {
  for (int64_t c = 0; c < count; c++) sums[c] = 0;
  for (int64_t worker = 0; worker < x->shape[0]; worker++) {
    if (x->dtype == PK_F32) {
      const float *row = (const float *)pk_tensor_data(x) + worker * x->stride + first;
      for (int64_t c = 0; c < count; c++) sums[c] += row[c];
    } else {
      const double *row = (const double *)pk_tensor_data(x) + worker * x->stride + first;
      for (int64_t c = 0; c < count; c++) sums[c] += row[c];
    }
  }
}

/* Adds the squared distance of one worker's columns from mean to totals, column by column. */
static void add_distances(const pk_tensor *x, int64_t worker, int64_t first, int64_t count,
                          const double *restrict mean, double *restrict totals) {
  if (x->dtype == PK_F32) {
    const float *row = (const float *)pk_tensor_data(x) + worker * x->stride + first;
    for (int64_t c = 0; c < count; c++) totals[c] += (row[c] - mean[c]) * (row[c] - mean[c]);
  } else {
    const double *row = (const double *)pk_tensor_data(x) + worker * x->stride + first;
    for (int64_t c = 0; c < count; c++) totals[c] += (row[c] - mean[c]) * (row[c] - mean[c]);
  }
}

static int64_t end_of(const pk_tensor *x, int64_t piece) {
  int64_t end = (piece + 1) * PIECE, columns = pk_tensor_inner(x);
  return end < columns ? end : columns;
}

static void average_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const workers_job *job = argument;
  double sums[COLUMNS], workers = (double)job->x->shape[0];
  int64_t end = end_of(job->x, piece);
  for (int64_t first = piece * PIECE; first < end; first += COLUMNS) {
    int64_t count = end - first < COLUMNS ? end - first : COLUMNS;
    sum_columns(job->x, first, count, sums);
    if (job->y->dtype == PK_F32) {
      float *y = (float *)pk_tensor_data(job->y) + first;
      for (int64_t c = 0; c < count; c++) y[c] = (float)(sums[c] / workers);
    } else {
      double *y = (double *)pk_tensor_data(job->y) + first;
      for (int64_t c = 0; c < count; c++) y[c] = sums[c] / workers;
    }
  }
}

pk_status PK_KERNEL(average)(const pk_call *call) {
  workers_job job = {.x = call->inputs[0], .y = call->outputs[0]};
  int64_t pieces = (pk_tensor_inner(job.x) + PIECE - 1) / PIECE;
  pk_parallel_for(pk_cpu_threads(call), pieces, average_piece, &job);
  return PK_OK;
}

static void distance_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const workers_job *job = argument;
  double mean[COLUMNS], totals[COLUMNS] = {0}, workers = (double)job->x->shape[0];
  int64_t end = end_of(job->x, piece);
  for (int64_t first = piece * PIECE; first < end; first += COLUMNS) {
    int64_t count = end - first < COLUMNS ? end - first : COLUMNS;
    sum_columns(job->x, first, count, mean);
    for (int64_t c = 0; c < count; c++) mean[c] /= workers;
    for (int64_t worker = 0; worker < job->x->shape[0]; worker++)
      add_distances(job->x, worker, first, count, mean, totals);
  }
  double total = 0;
  for (int c = 0; c < COLUMNS; c++) total += totals[c];
  job->partial[piece] = total;
}

int64_t PK_WORKSPACE_OF(consensus_distance)(const pk_call *call) {
  return (pk_tensor_inner(call->inputs[0]) + PIECE - 1) / PIECE * (int64_t)sizeof(double);
}

pk_status PK_KERNEL(consensus_distance)(const pk_call *call) {
  workers_job job = {.x = call->inputs[0], .y = call->outputs[0]};
  int64_t pieces = (pk_tensor_inner(job.x) + PIECE - 1) / PIECE;
  job.partial = call->workspace;
  pk_parallel_for(pk_cpu_threads(call), pieces, distance_piece, &job);
  double total = 0;
  for (int64_t piece = 0; piece < pieces; piece++) total += job.partial[piece];
  *(double *)pk_tensor_data(job.y) = sqrt(total / (double)job.x->shape[0]);
  return PK_OK;
}
