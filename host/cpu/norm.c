/* RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) and its gradients. */
#include "cpu/cpu.h"
#include "cpu/vmath.h"

enum { ROWS = 64 };

typedef struct norm_job {
  const void *x, *b, *weight, *g; /* b is added to x, if sum is there */
  void *y, *sum, *rstd;
  void *partials; /* [N, blocks, width] of the weight's gradient */
  char *scratch;  /* [threads, width] */
  int64_t x_stride, b_stride, weight_stride, g_stride, y_stride, sum_stride, rstd_stride;
  int64_t weight_grad_stride;
  int64_t rows, width, blocks;
  double eps;
  bool to_bf16, accumulate_x, accumulate_weight, is_f64;
} norm_job;

#include "cpu/real_f32.h"

#include "cpu/row_real.h"

#include "cpu/norm_real.h"

#include "cpu/real_f64.h"

#include "cpu/row_real.h"

#include "cpu/norm_real.h"

static int64_t end_of(const norm_job *job, int64_t first) {
  return first + ROWS < job->rows ? first + ROWS : job->rows;
}

static void norm_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const norm_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * ROWS;
  if (job->is_f64)
    norm_rows_f64(job, worker, first, end_of(job, first));
  else
    norm_rows_f32(job, worker, first, end_of(job, first));
}

static norm_job job_of(const pk_tensor *x, const pk_tensor *weight) {
  return (norm_job){.x = pk_tensor_data(x),
                    .weight = pk_tensor_data(weight),
                    .x_stride = x->stride,
                    .weight_stride = weight->stride,
                    .rows = x->shape[1],
                    .width = x->shape[2],
                    .blocks = (x->shape[1] + ROWS - 1) / ROWS,
                    .is_f64 = x->dtype == PK_F64};
}

/* y and rstd are outputs `to` and the one after. */
static pk_status run_norm(const pk_call *call, norm_job *job, int to) {
  const pk_tensor *y = call->outputs[to], *rstd = call->outputs[to + 1];
  job->y = pk_tensor_data(y);
  job->y_stride = y->stride;
  job->rstd = pk_tensor_data(rstd);
  job->rstd_stride = rstd->stride;
  job->eps = call->attributes.numbers[0];
  job->to_bf16 = y->dtype == PK_BF16;
  pk_parallel_for(pk_cpu_threads(call), y->shape[0] * job->blocks, norm_piece, job);
  return PK_OK;
}

pk_status PK_KERNEL(rmsnorm)(const pk_call *call) {
  norm_job job = job_of(call->inputs[0], call->inputs[1]);
  return run_norm(call, &job, 0);
}

pk_status PK_KERNEL(add_rmsnorm)(const pk_call *call) {
  const pk_tensor *b = call->inputs[1], *sum = call->outputs[0];
  norm_job job = job_of(call->inputs[0], call->inputs[2]);
  job.b = pk_tensor_data(b);
  job.b_stride = b->stride;
  job.sum = pk_tensor_data(sum);
  job.sum_stride = sum->stride;
  return run_norm(call, &job, 1);
}

static void norm_grad_piece(void *argument, int64_t piece, int thread) {
  const norm_job *job = argument;
  int64_t worker = piece / job->blocks, first = piece % job->blocks * ROWS;
  int64_t size = job->is_f64 ? sizeof(double) : sizeof(float);
  char *partial = (char *)job->partials + piece * job->width * size;
  char *scratch = job->scratch + thread * job->width * size;
  memset(partial, 0, (size_t)(job->width * size));
  if (job->is_f64)
    norm_grad_rows_f64(job, worker, first, end_of(job, first), (double *)partial,
                       (double *)scratch);
  else
    norm_grad_rows_f32(job, worker, first, end_of(job, first), (float *)partial, (float *)scratch);
}

int64_t PK_WORKSPACE_OF(rmsnorm_grad)(const pk_call *call) {
  const pk_tensor *x = call->inputs[1];
  int64_t pieces = x->shape[0] * ((x->shape[1] + ROWS - 1) / ROWS);
  int64_t rows = pieces + pk_threads_count(pk_cpu_threads(call));
  return rows * x->shape[2] * pk_dtype_size(x->dtype);
}

pk_status PK_KERNEL(rmsnorm_grad)(const pk_call *call) {
  const pk_tensor *g = call->inputs[0], *x = call->inputs[1], *rstd = call->inputs[3];
  pk_tensor *x_grad = call->outputs[0], *weight_grad = call->outputs[1];
  norm_job job = job_of(x, call->inputs[2]);
  job.g = pk_tensor_data(g);
  job.g_stride = g->stride;
  job.rstd = pk_tensor_data(rstd);
  job.rstd_stride = rstd->stride;
  job.y = pk_tensor_data(x_grad);
  job.y_stride = x_grad->stride;
  job.weight_grad_stride = weight_grad->stride;
  job.accumulate_x = call->attributes.accumulate & 1;
  job.accumulate_weight = call->attributes.accumulate & 2;

  int64_t pieces = x->shape[0] * job.blocks, size = pk_dtype_size(x->dtype);
  job.partials = call->workspace;
  job.scratch = (char *)call->workspace + pieces * job.width * size;
  pk_parallel_for(pk_cpu_threads(call), pieces, norm_grad_piece, &job);
  for (int64_t worker = 0; worker < x->shape[0]; worker++) {
    if (job.is_f64)
      add_partials_f64(&job, pk_tensor_data(weight_grad), worker);
    else
      add_partials_f32(&job, pk_tensor_data(weight_grad), worker);
  }
  return PK_OK;
}
