/* Rotary position embedding in its half-split form (Su et al. 2021, arXiv:2104.09864): element k of
 * a head's first half and element k of its second are turned by position * theta^(-2k/K). */
#include "cpu/cpu.h"

enum { ROWS = 32 };

/* Heads in one tensor, or one after the other in several of `heads` heads each. */
typedef struct rope_side {
  const pk_tensor *parts[3];
  int64_t heads;
} rope_side;

typedef struct rope_job {
  rope_side x, y;
  const int64_t *shape;  /* [N, B, T, H, K] of x's first part */
  int64_t heads, turned; /* in a row; the first so many of them are turned, the others moved */
  double *table;         /* [T, K/2] of cosine and sine, in pairs */
  double theta;
  bool inverse;
} rope_job;

/* Angles in f64, so that late positions are as exact as early ones. */
static void table_piece(void *argument, int64_t position, int thread) {
  (void)thread;
  const rope_job *job = argument;
  int64_t half = job->shape[4] / 2;
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

static void turn_bf16(const float *restrict x, uint16_t *restrict y, const double *restrict pairs,
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

static void move_bf16(const float *restrict x, uint16_t *restrict y, int64_t count) {
  for (int64_t k = 0; k < count; k++) y[k] = pk_bf16_from_f32(x[k]);
}

static void *head_at(const rope_side *side, const rope_job *job, int64_t worker, int64_t row,
                     int64_t head) {
  const pk_tensor *part = side->parts[head / side->heads];
  int64_t place = (row * side->heads + head % side->heads) * job->shape[4];
  return (char *)pk_tensor_data(part) +
         (worker * part->stride + place) * pk_dtype_size(part->dtype);
}

static void turn_head(const rope_job *job, const void *x, void *y, const double *pairs) {
  int64_t half = job->shape[4] / 2;
  if (job->x.parts[0]->dtype == PK_F64)
    turn_f64(x, y, pairs, half);
  else if (job->y.parts[0]->dtype == PK_BF16)
    turn_bf16(x, y, pairs, half);
  else
    turn_f32(x, y, pairs, half);
}

static void move_head(const rope_job *job, const void *x, void *y) {
  const pk_tensor *from = job->x.parts[0];
  if (job->y.parts[0]->dtype != from->dtype)
    move_bf16(x, y, job->shape[4]);
  else
    memcpy(y, x, (size_t)(job->shape[4] * pk_dtype_size(from->dtype)));
}

/* ROWS positions of one worker, in all of their heads. */
static void turn_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const rope_job *job = argument;
  int64_t length = job->shape[2], rows = job->shape[1] * length;
  int64_t blocks = (rows + ROWS - 1) / ROWS;
  int64_t worker = piece / blocks, first = piece % blocks * ROWS;
  for (int64_t row = first; row < first + ROWS && row < rows; row++) {
    const double *pairs = job->table + row % length * job->shape[4];
    for (int64_t head = 0; head < job->heads; head++) {
      const void *x = head_at(&job->x, job, worker, row, head);
      void *y = head_at(&job->y, job, worker, row, head);
      if (head < job->turned)
        turn_head(job, x, y, pairs);
      else
        move_head(job, x, y);
    }
  }
}

static rope_side joined(const pk_tensor *x) {
  return (rope_side){{x}, x->shape[3]};
}

static rope_side split(const pk_tensor *q, const pk_tensor *k, const pk_tensor *v) {
  return (rope_side){{q, k, v}, q->shape[3]};
}

/* Turns the first `turned` of so many heads of each row. */
static void turn(const pk_call *call, rope_side x, rope_side y, int64_t heads, int64_t turned) {
  rope_job job = {.x = x,
                  .y = y,
                  .shape = call->inputs[0]->shape,
                  .heads = heads,
                  .turned = turned,
                  .table = call->workspace,
                  .theta = call->attributes.numbers[0],
                  .inverse = call->attributes.integers[0]};
  int64_t length = job.shape[2], rows = job.shape[1] * length;
  pk_parallel_for(pk_cpu_threads(call), length, table_piece, &job);
  pk_parallel_for(pk_cpu_threads(call), job.shape[0] * ((rows + ROWS - 1) / ROWS), turn_piece,
                  &job);
}

int64_t PK_WORKSPACE_OF(rope)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return x->shape[2] * x->shape[4] * (int64_t)sizeof(double);
}

int64_t PK_WORKSPACE_OF(rope_split)(const pk_call *call) {
  return PK_WORKSPACE_OF(rope)(call);
}

int64_t PK_WORKSPACE_OF(rope_join)(const pk_call *call) {
  return PK_WORKSPACE_OF(rope)(call);
}

pk_status PK_KERNEL(rope)(const pk_call *call) {
  int64_t heads = call->inputs[0]->shape[3];
  turn(call, joined(call->inputs[0]), joined(call->outputs[0]), heads, heads);
  return PK_OK;
}

pk_status PK_KERNEL(rope_split)(const pk_call *call) {
  pk_tensor *const *parts = call->outputs;
  int64_t heads = parts[0]->shape[3];
  turn(call, joined(call->inputs[0]), split(parts[0], parts[1], parts[2]), 3 * heads, 2 * heads);
  return PK_OK;
}

pk_status PK_KERNEL(rope_join)(const pk_call *call) {
  const pk_tensor *const *parts = call->inputs;
  int64_t heads = parts[0]->shape[3];
  turn(call, split(parts[0], parts[1], parts[2]), joined(call->outputs[0]), 3 * heads, 2 * heads);
  return PK_OK;
}
