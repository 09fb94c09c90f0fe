/* Tensors made from nothing on a CUDA device: constants and random numbers. */
#include <string.h>

#include "core/bf16.h"
#include "core/random.h"
#include "kernels/fill.h"

#include "cuda/cuda.h"
#include "cuda/strided.h"

pk_status pk_cuda_fill_block(const pk_call *call, const pk_block *y, uint64_t bits) {
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 1, y)) return PK_OK;
  return pk_cuda_launched(call,
                          pk_launch_fill(y->size, y->data, bits, &walk, pk_cuda_of(call)->stream));
}

/* A value as an element of dtype; it fits, as the shape rule saw to. */
static uint64_t bits_of(int dtype, double value) {
  uint64_t bits = 0;
  float single = (float)value;
  int32_t whole = dtype == PK_I32 ? (int32_t)value : 0;
  switch (dtype) {
  case PK_F64:
    memcpy(&bits, &value, sizeof value);
    break;
  case PK_F32:
    memcpy(&bits, &single, sizeof single);
    break;
  case PK_BF16:
    bits = pk_bf16_from_f32(pk_f32_to_odd(value));
    break;
  default:
    memcpy(&bits, &whole, sizeof whole);
  }
  return bits;
}

pk_status pk_cuda_fill(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  return pk_cuda_fill_block(call, &y,
                            bits_of(call->outputs[0]->dtype, call->attributes.numbers[0]));
}

static pk_status run_random(const pk_call *call, bool normal) {
  const pk_tensor *y = call->outputs[0];
  if (y->numel == 0) return PK_OK;
  pk_random_job job = {.y = {pk_tensor_data(y), y->stride},
                       .count = y->numel,
                       .inner = pk_tensor_inner(y),
                       .dtype = y->dtype,
                       .normal = normal,
                       .mean = call->attributes.numbers[0],
                       .deviation = call->attributes.numbers[1]};
  pk_random_key((uint64_t)call->attributes.integers[1], "", job.key);
  return pk_cuda_launched(call, pk_launch_random(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_random_normal(const pk_call *call) {
  return run_random(call, true);
}

pk_status pk_cuda_random_uniform(const pk_call *call) {
  return run_random(call, false);
}
