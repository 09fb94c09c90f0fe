/* Operations that move elements: each is a copy between strided blocks, whatever the dtype. */
#include "cpu/walk.h"

/* The copying case: an output is given, or x's stride allows no view. */
pk_status PK_KERNEL(reshape)(const pk_call *call) {
  pk_block to, from;
  pk_status status = pk_block_reshape(call, &to, &from);
  if (status == PK_OK) pk_block_copy(pk_cpu_threads(call), &to, &from);
  return status;
}

pk_status PK_KERNEL(transpose)(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x = pk_block_turn(pk_block_of(call->inputs[0]), call->attributes.list);
  pk_block_copy(pk_cpu_threads(call), &y, &x);
  return PK_OK;
}

pk_status PK_KERNEL(slice)(const pk_call *call) {
  const int64_t *integers = call->attributes.integers;
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x =
      pk_block_narrow(pk_block_of(call->inputs[0]), (int)integers[0], integers[1], integers[2]);
  pk_block_copy(pk_cpu_threads(call), &y, &x);
  return PK_OK;
}

pk_status PK_KERNEL(pad)(const pk_call *call) {
  static const uint64_t zero = 0;
  int axis = (int)call->attributes.integers[0];
  int64_t before = call->attributes.integers[1], after = call->attributes.integers[2];
  pk_threads *threads = pk_cpu_threads(call);
  pk_block y = pk_block_of(call->outputs[0]), x = pk_block_of(call->inputs[0]);
  const pk_block zeros = {.data = (char *)&zero, .size = y.size};
  pk_block middle = pk_block_narrow(y, axis, before, x.extents[axis]);
  pk_block sides[2] = {pk_block_narrow(y, axis, 0, before),
                       pk_block_narrow(y, axis, before + x.extents[axis], after)};
  pk_block_copy(threads, &middle, &x);
  for (int s = 0; s < 2; s++) {
    pk_block repeated = pk_block_spread(zeros, y.rank, sides[s].extents);
    pk_block_copy(threads, &sides[s], &repeated);
  }
  return PK_OK;
}

pk_status PK_KERNEL(concat)(const pk_call *call) {
  int axis = (int)call->attributes.integers[0];
  pk_block y = pk_block_of(call->outputs[0]);
  int64_t start = 0;
  for (int i = 0; i < call->n_inputs; i++) {
    pk_block x = pk_block_of(call->inputs[i]);
    pk_block part = pk_block_narrow(y, axis, start, x.extents[axis]);
    pk_block_copy(pk_cpu_threads(call), &part, &x);
    start += x.extents[axis];
  }
  return PK_OK;
}

pk_status PK_KERNEL(expand)(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x = pk_block_spread(pk_block_of(call->inputs[0]), y.rank, y.extents);
  pk_block_copy(pk_cpu_threads(call), &y, &x);
  return PK_OK;
}

typedef struct mask_job {
  char *y;
  const char *x;
  int64_t size, length; /* of an element, of a row */
  int64_t rows, rows_per_worker, rows_per_piece;
  int64_t stride_y, stride_x;
  double fill;
} mask_job;

static void mask_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const mask_job *job = argument;
  int64_t first = piece * job->rows_per_piece, last = first + job->rows_per_piece;
  for (int64_t row = first; row < last && row < job->rows; row++) {
    int64_t worker = row / job->rows_per_worker;
    int64_t within = row % job->rows_per_worker * job->length;
    int64_t kept = row % job->length + 1;
    char *y = job->y + (worker * job->stride_y + within) * job->size;
    memcpy(y, job->x + (worker * job->stride_x + within) * job->size, (size_t)(kept * job->size));
    if (job->size == 8) {
      for (int64_t i = kept; i < job->length; i++) ((double *)y)[i] = job->fill;
    } else {
      for (int64_t i = kept; i < job->length; i++) ((float *)y)[i] = (float)job->fill;
    }
  }
}

pk_status PK_KERNEL(causal_mask)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (x->numel == 0) return PK_OK;
  int64_t length = x->shape[x->rank - 1];
  mask_job job = {.y = pk_tensor_data(y),
                  .x = pk_tensor_data(x),
                  .size = pk_dtype_size(x->dtype),
                  .length = length,
                  .rows = x->numel / length,
                  .rows_per_worker = x->numel / x->shape[0] / length,
                  .rows_per_piece = length < 32768 ? 32768 / length : 1,
                  .stride_y = y->stride,
                  .stride_x = x->stride,
                  .fill = call->attributes.numbers[0]};
  int64_t pieces = (job.rows + job.rows_per_piece - 1) / job.rows_per_piece;
  pk_parallel_for(pk_cpu_threads(call), pieces, mask_piece, &job);
  return PK_OK;
}
