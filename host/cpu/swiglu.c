/* SwiGLU (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, and its gradients. */
#include "cpu/cpu.h"
#include "cpu/vmath.h"

enum { PIECE = 16384 };

/* gate and up, and their gradients, are tensors of their own or the halves of the rows of one. */
typedef struct swiglu_job swiglu_job;
struct swiglu_job {
  const pk_tensor *g, *gate, *up;
  pk_tensor *y, *gate_grad, *up_grad;
  int64_t inner, pieces_per_worker; /* elements of a worker's y, or g */
  int64_t row;                      /* of them one after the other in every tensor */
  bool halves;
  /* Computes count elements from element `first` of a worker's y, or g, on. */
  void (*run)(const swiglu_job *job, int64_t worker, int64_t first, int64_t count);
};

static void *at(const pk_tensor *tensor, int64_t worker, int64_t first) {
  return (char *)pk_tensor_data(tensor) +
         (worker * tensor->stride + first) * pk_dtype_size(tensor->dtype);
}

/* Where element `first` of a worker's y has its gate, in the tensor of gates, and its up. */
static void *gate_at(const swiglu_job *job, const pk_tensor *gate, int64_t worker, int64_t first) {
  return at(gate, worker, job->halves ? first + first / job->row * job->row : first);
}

static void *up_at(const swiglu_job *job, const pk_tensor *up, int64_t worker, int64_t first) {
  return at(up, worker, job->halves ? first + (first / job->row + 1) * job->row : first);
}

static void forward_f32(const float *gate, const float *up, float *y, int64_t count) {
  PK_EACH
  for (int64_t i = 0; i < count; i++) y[i] = gate[i] * pk_sigmoid_f32(gate[i]) * up[i];
}

static void forward_f64(const double *gate, const double *up, double *y, int64_t count) {
  PK_EACH
  for (int64_t i = 0; i < count; i++) y[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}

static void forward_bf16(const float *restrict gate, const float *restrict up, uint16_t *restrict y,
                         int64_t count) {
  for (int64_t i = 0; i < count; i++)
    y[i] = pk_bf16_from_f32(gate[i] * pk_sigmoid_f32(gate[i]) * up[i]);
}

static void forward(const swiglu_job *job, int64_t worker, int64_t first, int64_t count) {
  void *gate = gate_at(job, job->gate, worker, first), *up = up_at(job, job->up, worker, first);
  if (job->y->dtype == PK_F64)
    forward_f64(gate, up, at(job->y, worker, first), count);
  else if (job->y->dtype == PK_BF16)
    forward_bf16(gate, up, at(job->y, worker, first), count);
  else
    forward_f32(gate, up, at(job->y, worker, first), count);
}

/* d silu(x) / dx = s + x s (1 - s) with s = sigmoid(x). */
static void backward_f32(const float *g, const float *gate, const float *up, float *gate_grad,
                         float *up_grad, int64_t count) {
  PK_EACH
  for (int64_t i = 0; i < count; i++) {
    float s = pk_sigmoid_f32(gate[i]), silu = gate[i] * s;
    float of_gate = g[i] * up[i] * (s + silu * (1 - s)), of_up = g[i] * silu;
    gate_grad[i] = of_gate;
    up_grad[i] = of_up;
  }
}

static void backward_f64(const double *g, const double *gate, const double *up, double *gate_grad,
                         double *up_grad, int64_t count) {
  PK_EACH
  for (int64_t i = 0; i < count; i++) {
    double s = 1 / (1 + exp(-gate[i])), silu = gate[i] * s;
    double of_gate = g[i] * up[i] * (s + silu * (1 - s)), of_up = g[i] * silu;
    gate_grad[i] = of_gate;
    up_grad[i] = of_up;
  }
}

static void backward_bf16(const float *restrict g, const float *restrict gate,
                          const float *restrict up, uint16_t *restrict gate_grad,
                          uint16_t *restrict up_grad, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    float s = pk_sigmoid_f32(gate[i]), silu = gate[i] * s;
    gate_grad[i] = pk_bf16_from_f32(g[i] * up[i] * (s + silu * (1 - s)));
    up_grad[i] = pk_bf16_from_f32(g[i] * silu);
  }
}

static void backward(const swiglu_job *job, int64_t worker, int64_t first, int64_t count) {
  void *g = at(job->g, worker, first), *gate = gate_at(job, job->gate, worker, first);
  void *up = up_at(job, job->up, worker, first);
  void *gate_grad = gate_at(job, job->gate_grad, worker, first);
  void *up_grad = up_at(job, job->up_grad, worker, first);
  if (job->gate->dtype == PK_F64)
    backward_f64(g, gate, up, gate_grad, up_grad, count);
  else if (job->gate_grad->dtype == PK_BF16)
    backward_bf16(g, gate, up, gate_grad, up_grad, count);
  else
    backward_f32(g, gate, up, gate_grad, up_grad, count);
}

/* PIECE elements of one worker, row by row. */
static void run_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const swiglu_job *job = argument;
  int64_t worker = piece / job->pieces_per_worker;
  int64_t first = piece % job->pieces_per_worker * PIECE;
  int64_t end = job->inner - first < PIECE ? job->inner : first + PIECE;
  while (first < end) {
    int64_t left = job->row - first % job->row, count = end - first < left ? end - first : left;
    job->run(job, worker, first, count);
    first += count;
  }
}

/* Runs a job of y, or g, like this tensor. */
static void run(const pk_call *call, swiglu_job *job, const pk_tensor *like) {
  int64_t workers = like->rank > 0 ? like->shape[0] : 1;
  job->inner = pk_tensor_inner(like);
  job->row = job->halves ? like->shape[like->rank - 1] : job->inner;
  job->pieces_per_worker = (job->inner + PIECE - 1) / PIECE;
  pk_parallel_for(pk_cpu_threads(call), workers * job->pieces_per_worker, run_piece, job);
}

pk_status PK_KERNEL(swiglu)(const pk_call *call) {
  swiglu_job job = {
      .gate = call->inputs[0], .up = call->inputs[1], .y = call->outputs[0], .run = forward};
  run(call, &job, job.y);
  return PK_OK;
}

pk_status PK_KERNEL(swiglu_grad)(const pk_call *call) {
  swiglu_job job = {.g = call->inputs[0],
                    .gate = call->inputs[1],
                    .up = call->inputs[2],
                    .gate_grad = call->outputs[0],
                    .up_grad = call->outputs[1],
                    .run = backward};
  run(call, &job, job.g);
  return PK_OK;
}

pk_status PK_KERNEL(swiglu_split)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  swiglu_job job = {.gate = x, .up = x, .y = call->outputs[0], .halves = true, .run = forward};
  run(call, &job, job.y);
  return PK_OK;
}

pk_status PK_KERNEL(swiglu_split_grad)(const pk_call *call) {
  const pk_tensor *x = call->inputs[1];
  pk_tensor *grad = call->outputs[0];
  swiglu_job job = {.g = call->inputs[0],
                    .gate = x,
                    .up = x,
                    .gate_grad = grad,
                    .up_grad = grad,
                    .halves = true,
                    .run = backward};
  run(call, &job, job.g);
  return PK_OK;
}
