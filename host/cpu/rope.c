/* Rotary position embedding in its half-split form (Su et al. 2021, arXiv:2104.09864): element k of
 * a head's first half and element k of its second are turned by position * theta^(-2k/K). */
#include "cpu/cpu.h"

enum { ROWS = 32 };

typedef struct rope_job {
  const pk_tensor *x;
  pk_tensor *y;
  double *table; /* [T, K/2] of cosine and sine, in pairs */
  double theta;
  bool inverse;
} rope_job;

/* Angles in f64, so that late positions are as exact as early ones. */
static void table_piece(void *argument, int64_t position, int thread) {
  (void)thread;
  const rope_job *job = argument;
  int64_t half = job->x->shape[4] / 2;
  double *pairs = job->table + position * half * 2;
  for (int64_t k = 0; k < half; k++) {
    double angle = (double)position * pow(job->theta, -(double)k / (double)half);
    pairs[2 * k] = cos(angle);
    pairs[2 * k + 1] = job->inverse ? -sin(angle) : sin(angle);
  }
}

static void turn_f32(const float *x, float *y, const double *pairs, int64_t half) {
  PK_EACH
  for (int64_t k = 0; k < half; k++) {
    float c = (float)pairs[2 * k], s = (float)pairs[2 * k + 1];
    float first = x[k] * c - x[k + half] * s, second = x[k + half] * c + x[k] * s;
    y[k] = first;
    y[k + half] = second;
  }
}

static void turn_half(const float *restrict x, uint16_t *restrict y, const double *restrict pairs,
                      int64_t half) {
  for (int64_t k = 0; k < half; k++) {
    float c = (float)pairs[2 * k], s = (float)pairs[2 * k + 1];
    y[k] = pk_bf16_from_f32(x[k] * c - x[k + half] * s);
    y[k + half] = pk_bf16_from_f32(x[k + half] * c + x[k] * s);
  }
}

static void turn_f64(const double *x, double *y, const double *pairs, int64_t half) {
  PK_EACH
  for (int64_t k = 0; k < half; k++) {
    double c = pairs[2 * k], s = pairs[2 * k + 1];
    double first = x[k] * c - x[k + half] * s, second = x[k + half] * c + x[k] * s;
    y[k] = first;
    y[k + half] = second;
  }
}

/* ROWS positions of one worker, in all of their heads. */
static void turn_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const rope_job *job = argument;
  const int64_t *shape = job->x->shape;
  int64_t rows = shape[1] * shape[2], heads = shape[3], width = shape[4];
  int64_t blocks = (rows + ROWS - 1) / ROWS;
  int64_t worker = piece / blocks, first = piece % blocks * ROWS;
  for (int64_t row = first; row < first + ROWS && row < rows; row++) {
    const double *pairs = job->table + row % shape[2] * width;
    for (int64_t head = 0; head < heads; head++) {
      int64_t place = (row * heads + head) * width;
      int64_t from = worker * job->x->stride + place, to = worker * job->y->stride + place;
      if (job->x->dtype == PK_F64)
        turn_f64((const double *)pk_tensor_data(job->x) + from,
                 (double *)pk_tensor_data(job->y) + to, pairs, width / 2);
      else if (job->y->dtype == PK_BF16)
        turn_half((const float *)pk_tensor_data(job->x) + from,
                  (uint16_t *)pk_tensor_data(job->y) + to, pairs, width / 2);
      else
        turn_f32((const float *)pk_tensor_data(job->x) + from, (float *)pk_tensor_data(job->y) + to,
                 pairs, width / 2);
    }
  }
}

int64_t PK_WORKSPACE_OF(rope)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return x->shape[2] * x->shape[4] * (int64_t)sizeof(double);
}

pk_status PK_KERNEL(rope)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  rope_job job = {.x = x,
                  .y = call->outputs[0],
                  .theta = call->attributes.numbers[0],
                  .inverse = call->attributes.integers[0]};
  int64_t positions = x->shape[2], rows = x->shape[1] * positions;
  job.table = call->workspace;
  pk_parallel_for(pk_cpu_threads(call), positions, table_piece, &job);
  pk_parallel_for(pk_cpu_threads(call), x->shape[0] * ((rows + ROWS - 1) / ROWS), turn_piece, &job);
  return PK_OK;
}
