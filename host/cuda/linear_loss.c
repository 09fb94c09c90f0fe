/* The head with its loss on a CUDA device: linear_cross_entropy, its gradients, and both in one.
 *
 * The logits of a chunk of rows are a product in the workspace. One kernel makes of them, in place,
 * the log-sum-exps and the gradients, in bf16 for bf16 operands, which two more products use up. A
 * chunk is as many rows of one worker as twice the L2 cache holds: with fewer, the gradient of the
 * weights, which every chunk adds to, would cost more traffic than the cache saves. Small workers
 * share a chunk. All three operations have the same chunks and kernels, and so the same bits. */
#include "kernels/linear_loss.h"
#include "cuda/products.h"

enum { ROWS = 128 }; /* a chunk's rows are a multiple of this where there are enough */

typedef struct head {
  const pk_tensor *x, *weight, *targets, *g, *lse;
  pk_tensor *x_grad, *weight_grad;
  int64_t workers, rows, width, vocabulary, ld;
  int64_t chunk_workers, chunk_rows;
  int dtype; /* of logits */
  bool accumulate_x, accumulate_weight;
  pk_logits_work work;
  /* parts of the workspace */
  double *terms; /* [workers, rows] */
  void *logits, *products;
} head;

static int64_t at_least(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* --- shapes --- */

static void choose_chunks(const pk_cuda_device *cuda, head *job) {
  int64_t row_bytes = at_least(job->ld * pk_dtype_size(job->dtype), 1);
  int64_t most = at_least(2 * cuda->properties.l2_bytes / row_bytes / ROWS, 1) * ROWS;
  if (job->rows <= most) {
    job->chunk_rows = job->rows;
    job->chunk_workers = at_most(job->workers, most / at_least(job->rows, 1));
    return;
  }
  int64_t chunks = (job->rows + most - 1) / most, each = (job->rows + chunks - 1) / chunks;
  job->chunk_rows = (each + ROWS - 1) / ROWS * ROWS;
  job->chunk_workers = 1;
}

/* From input `from` on: x, weight, targets. */
static head head_of(const pk_call *call, int from, pk_logits_work work) {
  const pk_tensor *x = call->inputs[from], *weight = call->inputs[from + 1];
  int64_t vocabulary = weight->shape[1];
  head job = {.x = x,
              .weight = weight,
              .targets = call->inputs[from + 2],
              .workers = x->shape[0],
              .rows = x->shape[1],
              .width = x->shape[2],
              .vocabulary = vocabulary,
              .ld = (vocabulary + PK_LOGITS_ALIGNMENT - 1) / PK_LOGITS_ALIGNMENT *
                    PK_LOGITS_ALIGNMENT,
              .dtype = x->dtype == PK_F64 ? PK_F64 : PK_F32,
              .work = work};
  choose_chunks(pk_cuda_of(call), &job);
  return job;
}

/* The gradients are outputs `to` and the one after it. */
static void take_gradients(const pk_call *call, head *job, int to) {
  job->g = call->inputs[0];
  job->x_grad = call->outputs[to];
  job->weight_grad = call->outputs[to + 1];
  job->accumulate_x = call->attributes.accumulate >> to & 1;
  job->accumulate_weight = call->attributes.accumulate >> (to + 1) & 1;
}

/* --- the products of a chunk --- */

typedef struct chunk {
  int64_t worker, workers, row, rows;
} chunk;

/* Rows of width columns of a tensor [N, R, width], from a worker's row on. */
static pk_operand rows_of(const pk_tensor *tensor, int64_t worker, int64_t row, int64_t width) {
  char *at = pk_tensor_data(tensor);
  at += (worker * tensor->stride + row * width) * pk_dtype_size(tensor->dtype);
  return (pk_operand){.at = at, .ld = width, .stride = tensor->stride};
}

static pk_operand weight_of(const head *job, const pk_tensor *tensor, const chunk *part) {
  return rows_of(tensor, part->worker, 0, job->width);
}

static pk_operand logits_of(const head *job, const chunk *part) {
  return (pk_operand){.at = job->logits, .ld = job->ld, .stride = part->rows * job->ld};
}

/* The logits' gradients in their place. */
static pk_operand slopes_of(const head *job, const chunk *part) {
  int64_t share = job->x->dtype == PK_BF16 ? 2 : 1; /* of the room of a logit */
  return (pk_operand){
      .at = job->logits, .ld = share * job->ld, .stride = share * part->rows * job->ld};
}

static pk_status make_logits(const pk_call *call, const head *job, const chunk *part) {
  pk_product product = {.a = rows_of(job->x, part->worker, part->row, job->width),
                        .b = weight_of(job, job->weight, part),
                        .c = logits_of(job, part),
                        .m = part->rows,
                        .p = job->vocabulary,
                        .k = job->width,
                        .batch = part->workers,
                        .dtype = job->x->dtype,
                        .c_dtype = job->dtype,
                        .transpose_b = true};
  return pk_cuda_product(call, &product, job->products);
}

static pk_status use_slopes(const pk_call *call, const head *job, const chunk *part) {
  pk_product product = {.a = slopes_of(job, part),
                        .b = weight_of(job, job->weight, part),
                        .c = rows_of(job->x_grad, part->worker, part->row, job->width),
                        .m = part->rows,
                        .p = job->width,
                        .k = job->vocabulary,
                        .batch = part->workers,
                        .dtype = job->x->dtype,
                        .c_dtype = job->dtype,
                        .accumulate = job->accumulate_x};
  pk_status status = pk_cuda_product(call, &product, job->products);
  if (status != PK_OK) return status;
  product.b = rows_of(job->x, part->worker, part->row, job->width);
  product.c = weight_of(job, job->weight_grad, part);
  product.m = job->vocabulary;
  product.k = part->rows;
  product.transpose_a = true;
  product.accumulate = job->accumulate_weight || part->row > 0;
  return pk_cuda_product(call, &product, job->products);
}

/* --- running --- */

static pk_logits rows_to_work_on(const head *job, const chunk *part) {
  int64_t size = pk_dtype_size(job->dtype);
  pk_logits rows = {.at = job->logits,
                    .workers = part->workers,
                    .rows = part->rows,
                    .vocabulary = job->vocabulary,
                    .ld = job->ld,
                    .targets = (const int32_t *)pk_tensor_data(job->targets) +
                               part->worker * job->targets->stride + part->row,
                    .targets_stride = job->targets->stride,
                    .lse = (char *)pk_tensor_data(job->lse) +
                           (part->worker * job->lse->stride + part->row) * size,
                    .lse_stride = job->lse->stride,
                    .dtype = job->dtype,
                    .grad_dtype = job->x->dtype};
  if (job->work & PK_LOGITS_LOSS) {
    rows.terms = job->terms + part->worker * job->rows + part->row;
    rows.terms_stride = job->rows;
  }
  if (job->work & PK_LOGITS_GRADIENT) {
    rows.g = (const char *)pk_tensor_data(job->g) + part->worker * job->g->stride * size;
    rows.g_stride = job->g->stride;
  }
  return rows;
}

static pk_status run_chunk(const pk_call *call, const head *job, const chunk *part) {
  pk_status status = make_logits(call, job, part);
  pk_logits rows = rows_to_work_on(job, part);
  if (status == PK_OK) {
    cudaError_t error = pk_launch_logits(&rows, job->work, pk_cuda_of(call)->stream);
    status = pk_cuda_launched(call, error);
  }
  if (status != PK_OK || !(job->work & PK_LOGITS_GRADIENT)) return status;
  return use_slopes(call, job, part);
}

/* Zeros the gradient of weights that have met no rows. */
static pk_status run_nothing(const pk_call *call, const head *job) {
  if (!(job->work & PK_LOGITS_GRADIENT)) return PK_OK;
  chunk all = {.workers = job->workers};
  pk_product product = {.c = weight_of(job, job->weight_grad, &all),
                        .m = job->vocabulary,
                        .p = job->width,
                        .batch = job->workers,
                        .c_dtype = job->dtype,
                        .accumulate = job->accumulate_weight};
  return pk_cuda_product(call, &product, NULL);
}

static pk_status sum_losses(const pk_call *call, const head *job) {
  const pk_tensor *loss = call->outputs[0], *count = call->outputs[1];
  pk_loss_sums sums = {.terms = job->terms,
                       .targets = pk_tensor_data(job->targets),
                       .loss = pk_tensor_data(loss),
                       .count = pk_tensor_data(count),
                       .workers = job->workers,
                       .rows = job->rows,
                       .terms_stride = job->rows,
                       .targets_stride = job->targets->stride,
                       .loss_stride = loss->stride,
                       .count_stride = count->stride,
                       .dtype = loss->dtype};
  return pk_cuda_launched(call, pk_launch_loss_sums(&sums, pk_cuda_of(call)->stream));
}

static pk_status run(const pk_call *call, const head *job) {
  if (job->workers == 0) return PK_OK;
  pk_status status = job->rows == 0 ? run_nothing(call, job) : PK_OK;
  for (int64_t w = 0; w < job->workers && job->rows > 0; w += job->chunk_workers) {
    for (int64_t r = 0; r < job->rows && status == PK_OK; r += job->chunk_rows) {
      chunk part = {.worker = w,
                    .workers = at_most(job->workers - w, job->chunk_workers),
                    .row = r,
                    .rows = at_most(job->rows - r, job->chunk_rows)};
      status = run_chunk(call, job, &part);
    }
  }
  if (status != PK_OK || !(job->work & PK_LOGITS_LOSS)) return status;
  return sum_losses(call, job);
}

/* --- workspace --- */

/* The largest that one of a chunk's products wants. */
static int64_t product_bytes(const pk_cuda_device *cuda, const head *job) {
  int64_t extents[3][2] = {{job->chunk_rows, job->vocabulary},
                           {job->chunk_rows, job->width},
                           {job->vocabulary, job->width}};
  int64_t most = 0;
  for (int i = 0; i < (job->work & PK_LOGITS_GRADIENT ? 3 : 1); i++) {
    pk_product product = {.m = extents[i][0], .p = extents[i][1], .batch = job->chunk_workers};
    most = at_least(most, pk_cuda_product_workspace(cuda, &product));
  }
  return most;
}

/* Gives the job its parts of a workspace, whose bytes it returns. */
static int64_t take_workspace(const pk_call *call, head *job) {
  char *workspace = call->workspace;
  int64_t terms = job->work & PK_LOGITS_LOSS ? job->workers * job->rows * 8 : 0;
  int64_t logits = job->chunk_workers * job->chunk_rows * job->ld * pk_dtype_size(job->dtype);
  int64_t bytes = pk_aligned(terms) + pk_aligned(logits);
  if (workspace) {
    job->terms = (double *)(void *)workspace;
    job->logits = workspace + pk_aligned(terms);
    job->products = workspace + bytes;
  }
  return bytes + product_bytes(pk_cuda_of(call), job);
}

/* --- the operations --- */

int64_t pk_cuda_workspace_linear_cross_entropy(const pk_call *call) {
  head job = head_of(call, 0, PK_LOGITS_LOSS);
  return take_workspace(call, &job);
}

pk_status pk_cuda_linear_cross_entropy(const pk_call *call) {
  head job = head_of(call, 0, PK_LOGITS_LOSS);
  job.lse = call->outputs[2];
  take_workspace(call, &job);
  return run(call, &job);
}

int64_t pk_cuda_workspace_linear_cross_entropy_grad(const pk_call *call) {
  head job = head_of(call, 1, PK_LOGITS_GRADIENT);
  return take_workspace(call, &job);
}

pk_status pk_cuda_linear_cross_entropy_grad(const pk_call *call) {
  head job = head_of(call, 1, PK_LOGITS_GRADIENT);
  job.lse = call->inputs[4];
  take_gradients(call, &job, 0);
  take_workspace(call, &job);
  return run(call, &job);
}

int64_t pk_cuda_workspace_linear_cross_entropy_step(const pk_call *call) {
  head job = head_of(call, 1, PK_LOGITS_STEP);
  return take_workspace(call, &job);
}

pk_status pk_cuda_linear_cross_entropy_step(const pk_call *call) {
  head job = head_of(call, 1, PK_LOGITS_STEP);
  job.lse = call->outputs[2];
  take_gradients(call, &job, 3);
  take_workspace(call, &job);
  return run(call, &job);
}
