/* Causal attention, one head of one sequence at a time in blocks of query rows, and its gradients.
 *
 * A block holds the scores of its rows against all keys they see, so that the softmax is the plain
 * one and masked blocks cost nothing; no [T, T] matrix exists. The backward pass makes the scores
 * again from the saved log-sum-exp (Dao et al. 2022, arXiv:2205.14135). bf16 operands are computed
 * in f32 with the roundings to bf16 where operands of products have them. */
#include "cpu/operand.h"
#include "cpu/vmath.h"

enum { ROWS = 64, LANES = 16 };

enum { Q, K, V, G, O, LSE, OPERANDS };

typedef struct attention_job {
  pk_operand in[OPERANDS]; /* [N, B, T, H, K] apart from lse [N, B, H, T] */
  const void *full_g;      /* g before rounding */
  int64_t full_g_stride;
  pk_tensor *out[3]; /* o, lse or the gradients of q, k, v */
  char *panels;      /* [threads, panel_bytes] */
  int64_t panel_bytes;
  int64_t sequences, length, heads, width;
  int64_t ld, out_ld; /* elements from one position of a head to the next */
  double scale;
  bool rounds, is_f64;
} attention_job;

static void round_to_bf16(float *restrict row, int64_t count) {
  for (int64_t j = 0; j < count; j++) row[j] = pk_bf16_to_f32(pk_bf16_from_f32(row[j]));
}

#define REAL float
#define REAL_EXP pk_exp_f32
#define REAL_LOG pk_log_f32
#define REAL_GEMM pk_cpu_gemm_f32
#define NAMED(name) name##_f32
#include "cpu/attention_real.h"
#undef REAL
#undef REAL_EXP
#undef REAL_LOG
#undef REAL_GEMM
#undef NAMED

#define REAL double
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_GEMM pk_cpu_gemm_f64
#define NAMED(name) name##_f64
#include "cpu/attention_real.h"
#undef REAL
#undef REAL_EXP
#undef REAL_LOG
#undef REAL_GEMM
#undef NAMED

/* Where head `piece` starts in [N, B, T, H, K] and, for lse, in [N, B, H, T], given a stride. */
static int64_t head_start(const attention_job *job, int64_t piece, int64_t stride) {
  int64_t head = piece % job->heads, sequence = piece / job->heads % job->sequences;
  int64_t worker = piece / job->heads / job->sequences;
  return worker * stride + (sequence * job->length * job->heads + head) * job->width;
}

static int64_t lse_start(const attention_job *job, int64_t piece, int64_t stride) {
  int64_t per_worker = job->sequences * job->heads;
  return piece / per_worker * stride + piece % per_worker * job->length;
}

static void *in_at(const attention_job *job, int which, int64_t piece) {
  int64_t size = job->is_f64 ? 8 : 4;
  const pk_operand *operand = &job->in[which];
  int64_t start = which == LSE ? lse_start(job, piece, operand->stride)
                               : head_start(job, piece, operand->stride);
  return (char *)operand->data + start * size;
}

static void *out_at(const attention_job *job, int which, int64_t piece, bool is_lse) {
  const pk_tensor *tensor = job->out[which];
  int64_t start =
      is_lse ? lse_start(job, piece, tensor->stride) : head_start(job, piece, tensor->stride);
  return (char *)pk_tensor_data(tensor) + start * pk_dtype_size(tensor->dtype);
}

static void forward_piece(void *argument, int64_t piece, int thread) {
  const attention_job *job = argument;
  void *panel = job->panels + thread * job->panel_bytes;
  void *q = in_at(job, Q, piece), *k = in_at(job, K, piece), *v = in_at(job, V, piece);
  void *o = out_at(job, 0, piece, false), *lse = out_at(job, 1, piece, true);
  if (job->is_f64)
    head_forward_f64(job, q, k, v, o, lse, panel);
  else
    head_forward_f32(job, q, k, v, o, lse, panel);
}

static void clear_head(const attention_job *job, char *head) {
  int64_t size = job->is_f64 ? 8 : 4;
  for (int64_t i = 0; i < job->length; i++)
    memset(head + i * job->out_ld * size, 0, (size_t)(job->width * size));
}

static void backward_piece(void *argument, int64_t piece, int thread) {
  const attention_job *job = argument;
  void *panel = job->panels + thread * job->panel_bytes;
  void *q = in_at(job, Q, piece), *k = in_at(job, K, piece), *v = in_at(job, V, piece);
  void *g = in_at(job, G, piece), *o = in_at(job, O, piece), *lse = in_at(job, LSE, piece);
  const char *full_g = (const char *)job->full_g +
                       head_start(job, piece, job->full_g_stride) * (job->is_f64 ? 8 : 4);
  void *q_grad = out_at(job, 0, piece, false), *k_grad = out_at(job, 1, piece, false);
  void *v_grad = out_at(job, 2, piece, false);
  clear_head(job, k_grad);
  clear_head(job, v_grad);
  if (job->is_f64)
    head_backward_f64(job, q, k, v, g, (const double *)full_g, o, lse, q_grad, k_grad, v_grad,
                      panel);
  else
    head_backward_f32(job, q, k, v, g, (const float *)full_g, o, lse, q_grad, k_grad, v_grad,
                      panel);
}

static attention_job job_of(const pk_call *call, const pk_tensor *q) {
  return (attention_job){.sequences = q->shape[1],
                         .length = q->shape[2],
                         .heads = q->shape[3],
                         .width = q->shape[4],
                         .ld = q->shape[3] * q->shape[4],
                         .out_ld = q->shape[3] * q->shape[4],
                         .scale = call->attributes.numbers[0],
                         .rounds = q->dtype == PK_BF16,
                         .is_f64 = q->dtype == PK_F64};
}

static int64_t panel_bytes(const pk_tensor *q, int panels) {
  return panels * ROWS * q->shape[2] * (q->dtype == PK_F64 ? 8 : 4);
}

/* Runs every head with `panels` score panels per thread, which lie in workspace. */
static pk_status run(const pk_call *call, attention_job *job, int panels, char *workspace,
                     pk_piece piece) {
  int64_t heads = call->inputs[0]->shape[0] * job->sequences * job->heads;
  job->panel_bytes = panels * ROWS * job->length * (job->is_f64 ? 8 : 4);
  job->panels = workspace;
  pk_parallel_for(pk_cpu_threads(call), heads, piece, job);
  return PK_OK;
}

int64_t PK_WORKSPACE_OF(attention)(const pk_call *call) {
  int64_t bytes = pk_threads_count(pk_cpu_threads(call)) * panel_bytes(call->inputs[0], 1);
  for (int i = Q; i <= V; i++) bytes += pk_operand_bytes(call->inputs[i], false);
  return bytes;
}

pk_status PK_KERNEL(attention)(const pk_call *call) {
  attention_job job = job_of(call, call->inputs[0]);
  char *workspace = call->workspace;
  for (int i = Q; i <= V; i++)
    job.in[i] = PK_KERNEL(operand)(call, call->inputs[i], false, &workspace);
  job.out[0] = call->outputs[0];
  job.out[1] = call->outputs[1];
  return run(call, &job, 1, workspace, forward_piece);
}

/* Which input of attention_grad is which operand. */
static const int places[OPERANDS] = {[Q] = 1, [K] = 2, [V] = 3, [G] = 0, [O] = 4, [LSE] = 5};

/* Whether an operand is f32 and takes part in products of bf16: g. */
static bool rounds_first(const pk_call *call, int operand) {
  return operand == G && call->inputs[1]->dtype == PK_BF16;
}

int64_t PK_WORKSPACE_OF(attention_grad)(const pk_call *call) {
  int64_t bytes = pk_threads_count(pk_cpu_threads(call)) * panel_bytes(call->inputs[1], 2);
  for (int i = 0; i < OPERANDS; i++)
    bytes += pk_operand_bytes(call->inputs[places[i]], rounds_first(call, i));
  return bytes;
}

pk_status PK_KERNEL(attention_grad)(const pk_call *call) {
  attention_job job = job_of(call, call->inputs[1]);
  char *workspace = call->workspace;
  for (int i = 0; i < OPERANDS; i++)
    job.in[i] =
        PK_KERNEL(operand)(call, call->inputs[places[i]], rounds_first(call, i), &workspace);
  job.full_g = pk_tensor_data(call->inputs[0]);
  job.full_g_stride = call->inputs[0]->stride;
  for (int o = 0; o < 3; o++) job.out[o] = call->outputs[o];
  return run(call, &job, 2, workspace, backward_piece);
}
