/* Tensors made from nothing: constants and random numbers. */
#include "cpu/dtype.h"
#include "cpu/walk.h"

pk_status PK_KERNEL(fill)(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  uint64_t value = 0; /* room for one element of any dtype */
  pk_store_f64(call->outputs[0]->dtype, &value, 0, call->attributes.numbers[0]);
  const pk_block one = {.data = (char *)&value, .size = y.size};
  pk_block repeated = pk_block_spread(one, y.rank, y.extents);
  pk_block_copy(pk_cpu_threads(call), &y, &repeated);
  return PK_OK;
}

enum { RANDOM_PIECE = 16384, RANDOM_BATCH = 512 };

/* Uniforms are cut to the dtype's multiples of its spacing below 1: rounding could reach 1. */
static void cut_to_spacing(int dtype, int64_t count, double *values) {
  if (dtype == PK_F64) return;
  double steps = dtype == PK_F32 ? 16777216.0 : 256.0;
  for (int64_t i = 0; i < count; i++) values[i] = floor(values[i] * steps) / steps;
}

/* Elements first .. of the stream, in batches through f64. */
static void random_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *y = call->outputs[0];
  const pk_attributes *attributes = &call->attributes;
  char *data = pk_tensor_data(y);
  int64_t inner = pk_tensor_inner(y), last = (piece + 1) * RANDOM_PIECE;
  if (last > y->numel) last = y->numel;
  for (int64_t first = piece * RANDOM_PIECE; first < last; first += RANDOM_BATCH) {
    double values[RANDOM_BATCH];
    int64_t count = last - first < RANDOM_BATCH ? last - first : RANDOM_BATCH;
    uint64_t seed = (uint64_t)attributes->integers[1];
    if (call->op == PK_OP_random_normal) {
      pk_random_normal(seed, "", first, count, attributes->numbers[0], attributes->numbers[1],
                       values);
    } else {
      pk_random_uniform(seed, "", first, count, values);
      cut_to_spacing(y->dtype, count, values);
    }
    for (int64_t i = 0; i < count; i++) {
      int64_t index = first + i;
      pk_store_f64(y->dtype, data, index / inner * y->stride + index % inner, values[i]);
    }
  }
}

static pk_status run_random(const pk_call *call) {
  int64_t pieces = (call->outputs[0]->numel + RANDOM_PIECE - 1) / RANDOM_PIECE;
  pk_parallel_for(pk_cpu_threads(call), pieces, random_piece, (void *)call);
  return PK_OK;
}

pk_status PK_KERNEL(random_normal)(const pk_call *call) {
  return run_random(call);
}

pk_status PK_KERNEL(random_uniform)(const pk_call *call) {
  return run_random(call);
}
