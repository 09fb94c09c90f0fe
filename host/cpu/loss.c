/* Cross-entropy of whole logits, and what it shares with the chunked form (linear_loss.c). */
#include "cpu/loss.h"
#include "cpu/dtype.h"
#include "cpu/vmath.h"

enum { ROWS = 16, PART = 256 };

typedef struct loss_job {
  const pk_tensor *g, *logits, *targets, *lse_in;
  pk_tensor *lse, *logits_grad;
  double *picked; /* [N, R] */
  int64_t rows, vocabulary, blocks;
} loss_job;

static const int32_t *targets_of(const pk_tensor *targets, int64_t worker) {
  return (const int32_t *)pk_tensor_data(targets) + worker * targets->stride;
}

pk_status PK_KERNEL(check_targets)(const pk_call *call, const pk_tensor *targets,
                                   int64_t vocabulary) {
  for (int64_t worker = 0; worker < targets->shape[0]; worker++) {
    const int32_t *row = targets_of(targets, worker);
    for (int64_t r = 0; r < targets->shape[1]; r++) {
      if (row[r] == PK_IGNORED || (row[r] >= 0 && row[r] < vocabulary)) continue;
      return pk_fail(PK_INVALID,
                     "%s: target %d of worker %lld, row %lld, is not in 0 .. %lld (vocabulary "
                     "%lld) and not %d (ignored)",
                     pk_op_describe(call->op)->name, row[r], (long long)worker, (long long)r,
                     (long long)vocabulary - 1, (long long)vocabulary, PK_IGNORED);
    }
  }
  return PK_OK;
}

void PK_KERNEL(sum_losses)(const pk_tensor *targets, const pk_tensor *lse, const double *picked,
                           pk_tensor *loss, pk_tensor *count) {
  int64_t rows = targets->shape[1];
  for (int64_t worker = 0; worker < targets->shape[0]; worker++) {
    const int32_t *row = targets_of(targets, worker);
    double sum = 0, valid = 0;
    for (int64_t r = 0; r < rows; r++) {
      if (row[r] == PK_IGNORED) continue;
      sum += pk_load_f64(lse->dtype, pk_tensor_data(lse), worker * lse->stride + r) -
             picked[worker * rows + r];
      valid++;
    }
    pk_store_f64(loss->dtype, pk_tensor_data(loss), worker * loss->stride, sum);
    ((double *)pk_tensor_data(count))[worker * count->stride] = valid;
  }
}

#include "cpu/real_f32.h"

#include "cpu/row_real.h"

#include "cpu/loss_real.h"

#include "cpu/real_f64.h"

#include "cpu/row_real.h"

#include "cpu/loss_real.h"

static void forward_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const loss_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * ROWS;
  const int32_t *targets = targets_of(job->targets, worker);
  int dtype = job->logits->dtype;
  for (int64_t r = first; r < first + ROWS && r < job->rows; r++) {
    int64_t start = worker * job->logits->stride + r * job->vocabulary;
    const void *logits = pk_tensor_data(job->logits);
    double lse = dtype == PK_F64 ? row_lse_f64((const double *)logits + start, job->vocabulary)
                                 : row_lse_f32((const float *)logits + start, job->vocabulary);
    pk_store_f64(dtype, pk_tensor_data(job->lse), worker * job->lse->stride + r, lse);
    job->picked[worker * job->rows + r] =
        targets[r] == PK_IGNORED ? 0 : pk_load_f64(dtype, logits, start + targets[r]);
  }
}

static loss_job job_of(const pk_tensor *logits, const pk_tensor *targets) {
  return (loss_job){.logits = logits,
                    .targets = targets,
                    .rows = logits->shape[1],
                    .vocabulary = logits->shape[2],
                    .blocks = (logits->shape[1] + ROWS - 1) / ROWS};
}

int64_t PK_WORKSPACE_OF(cross_entropy)(const pk_call *call) {
  return call->inputs[1]->numel * (int64_t)sizeof(double);
}

pk_status PK_KERNEL(cross_entropy)(const pk_call *call) {
  const pk_tensor *logits = call->inputs[0], *targets = call->inputs[1];
  loss_job job = job_of(logits, targets);
  job.lse = call->outputs[2];
  pk_status status = PK_KERNEL(check_targets)(call, targets, job.vocabulary);
  if (status != PK_OK) return status;
  job.picked = call->workspace;
  pk_parallel_for(pk_cpu_threads(call), logits->shape[0] * job.blocks, forward_piece, &job);
  PK_KERNEL(sum_losses)(targets, job.lse, job.picked, call->outputs[0], call->outputs[1]);
  return PK_OK;
}

static void backward_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const loss_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * ROWS;
  const int32_t *targets = targets_of(job->targets, worker);
  int dtype = job->logits->dtype;
  double g = pk_load_f64(dtype, pk_tensor_data(job->g), worker * job->g->stride);
  for (int64_t r = first; r < first + ROWS && r < job->rows; r++) {
    int64_t from = worker * job->logits->stride + r * job->vocabulary;
    int64_t to = worker * job->logits_grad->stride + r * job->vocabulary;
    double lse = pk_load_f64(dtype, pk_tensor_data(job->lse_in), worker * job->lse_in->stride + r);
    if (dtype == PK_F64)
      row_gradient_f64((const double *)pk_tensor_data(job->logits) + from,
                       (double *)pk_tensor_data(job->logits_grad) + to, job->vocabulary, lse, g,
                       targets[r]);
    else
      row_gradient_f32((const float *)pk_tensor_data(job->logits) + from,
                       (float *)pk_tensor_data(job->logits_grad) + to, job->vocabulary, (float)lse,
                       (float)g, targets[r]);
  }
}

pk_status PK_KERNEL(cross_entropy_grad)(const pk_call *call) {
  loss_job job = job_of(call->inputs[1], call->inputs[2]);
  job.g = call->inputs[0];
  job.lse_in = call->inputs[3];
  job.logits_grad = call->outputs[0];
  pk_status status = PK_KERNEL(check_targets)(call, job.targets, job.vocabulary);
  if (status != PK_OK) return status;
  pk_parallel_for(pk_cpu_threads(call), job.logits->shape[0] * job.blocks, backward_piece, &job);
  return PK_OK;
}
