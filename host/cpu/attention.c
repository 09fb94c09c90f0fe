/* Causal attention, one head of one sequence at a time in blocks of query rows, and its gradients.
 *
 * A block holds the scores of its rows against all keys that they see, so that the softmax is the
 * plain one and masked blocks cost nothing; no [T, T] matrix exists. The backward pass makes the
 * scores again from the saved log-sum-exp (Dao et al. 2022, arXiv:2205.14135), and adds to the
 * gradients of keys and values block after block. bf16 operands are multiplied in f32, with
 * roundings to bf16 where operands of products have them: weights before division by their sum, g,
 * and the gradients of scores. */
#include "cpu/vmath.h"
#include "cpu/widen.h"

enum { ROWS = 64 };

typedef struct attention_job {
  const pk_tensor *q, *k, *v, *g; /* [N, B, T, H, K] */
  const pk_tensor *lse;           /* [N, B, H, T] */
  pk_tensor *out[3];              /* o and lse, or the gradients of q, k, v */
  char *scratch;                  /* [threads, scratch_bytes] */
  int64_t scratch_bytes;
  int64_t sequences, length, heads, width;
  int64_t ld; /* elements from one row of scores to the next */
  double scale;
  bool rounds, is_f64;
} attention_job;

/* Where head number `head` of all workers starts, in elements, for tensors [N, B, T, H, K] and
 * [N, B, H, T] of this worker stride. */
static int64_t head_start(const attention_job *job, int64_t head, int64_t stride) {
  int64_t per_worker = job->sequences * job->heads;
  int64_t sequence = head % per_worker / job->heads;
  int64_t row = sequence * job->length * job->heads + head % job->heads;
  return head / per_worker * stride + row * job->width;
}

static int64_t lse_start(const attention_job *job, int64_t head, int64_t stride) {
  int64_t per_worker = job->sequences * job->heads;
  return head / per_worker * stride + head % per_worker * job->length;
}

#include "cpu/real_f32.h"

#include "cpu/row_real.h"

#include "cpu/attention_real.h"

#include "cpu/real_f64.h"

#include "cpu/row_real.h"

#include "cpu/attention_real.h"

/* panels of scores and copies of one head's rows are what a thread works in. */
static attention_job job_of(const pk_call *call, const pk_tensor *q, int panels, int copies) {
  attention_job job = {.q = q,
                       .scratch = call->workspace,
                       .sequences = q->shape[1],
                       .length = q->shape[2],
                       .heads = q->shape[3],
                       .width = q->shape[4],
                       .ld = q->shape[2] + PK_SCRATCH_GAP,
                       .scale = call->attributes.numbers[0],
                       .rounds = q->dtype == PK_BF16,
                       .is_f64 = q->dtype == PK_F64};
  int64_t elements = panels * ROWS * job.ld + copies * job.length * job.width;
  job.scratch_bytes = pk_aligned(elements * (job.is_f64 ? 8 : 4));
  return job;
}

static attention_job forward_job(const pk_call *call) {
  attention_job job = job_of(call, call->inputs[0], 1, 3);
  job.k = call->inputs[1];
  job.v = call->inputs[2];
  for (int o = 0; o < 2; o++) job.out[o] = call->outputs[o];
  return job;
}

static attention_job backward_job(const pk_call *call) {
  attention_job job = job_of(call, call->inputs[1], 2, 6);
  job.g = call->inputs[0];
  job.k = call->inputs[2];
  job.v = call->inputs[3];
  job.lse = call->inputs[5];
  for (int o = 0; o < 3; o++) job.out[o] = call->outputs[o];
  return job;
}

static void forward_piece(void *argument, int64_t head, int thread) {
  const attention_job *job = argument;
  void *scratch = job->scratch + thread * job->scratch_bytes;
  if (job->is_f64)
    head_forward_f64(job, head, scratch);
  else
    head_forward_f32(job, head, scratch);
}

static void backward_piece(void *argument, int64_t head, int thread) {
  const attention_job *job = argument;
  void *scratch = job->scratch + thread * job->scratch_bytes;
  if (job->is_f64)
    head_backward_f64(job, head, scratch);
  else
    head_backward_f32(job, head, scratch);
}

static int64_t workspace_of(const pk_call *call, const attention_job *job) {
  return pk_threads_count(pk_cpu_threads(call)) * job->scratch_bytes;
}

static pk_status run(const pk_call *call, attention_job *job, pk_piece piece) {
  int64_t heads = job->q->shape[0] * job->sequences * job->heads;
  pk_parallel_for(pk_cpu_threads(call), heads, piece, job);
  return pk_cpu_products_end();
}

int64_t PK_WORKSPACE_OF(attention)(const pk_call *call) {
  attention_job job = forward_job(call);
  return workspace_of(call, &job);
}

pk_status PK_KERNEL(attention)(const pk_call *call) {
  attention_job job = forward_job(call);
  return run(call, &job, forward_piece);
}

int64_t PK_WORKSPACE_OF(attention_grad)(const pk_call *call) {
  attention_job job = backward_job(call);
  return workspace_of(call, &job);
}

pk_status PK_KERNEL(attention_grad)(const pk_call *call) {
  attention_job job = backward_job(call);
  return run(call, &job, backward_piece);
}
