/* Elementwise operations, casts and copies on a CUDA device. */
#include "kernels/elementwise.h"

#include "cuda/cuda.h"
#include "cuda/strided.h"

static pk_status run_pair(const pk_call *call, pk_pair pair) {
  pk_cuda_device *cuda = pk_cuda_of(call);
  pk_block blocks[3] = {pk_block_of(call->outputs[0])};
  for (int i = 0; i < 2; i++)
    blocks[1 + i] =
        pk_block_spread(pk_block_of(call->inputs[i]), blocks[0].rank, blocks[0].extents);
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 3, blocks)) return PK_OK;
  return pk_cuda_launched(call,
                          pk_launch_pair(pair, call->outputs[0]->dtype, blocks[0].data,
                                         blocks[1].data, blocks[2].data, &walk, cuda->stream));
}

pk_status pk_cuda_add(const pk_call *call) {
  return run_pair(call, PK_PAIR_ADD);
}

pk_status pk_cuda_subtract(const pk_call *call) {
  return run_pair(call, PK_PAIR_SUBTRACT);
}

pk_status pk_cuda_multiply(const pk_call *call) {
  return run_pair(call, PK_PAIR_MULTIPLY);
}

pk_status pk_cuda_divide(const pk_call *call) {
  return run_pair(call, PK_PAIR_DIVIDE);
}

pk_status pk_cuda_minimum(const pk_call *call) {
  return run_pair(call, PK_PAIR_MINIMUM);
}

pk_status pk_cuda_maximum(const pk_call *call) {
  return run_pair(call, PK_PAIR_MAXIMUM);
}

pk_status pk_cuda_less(const pk_call *call) {
  return run_pair(call, PK_PAIR_LESS);
}

pk_status pk_cuda_where(const pk_call *call) {
  pk_block blocks[4] = {pk_block_of(call->outputs[0])};
  for (int i = 0; i < 3; i++)
    blocks[1 + i] =
        pk_block_spread(pk_block_of(call->inputs[i]), blocks[0].rank, blocks[0].extents);
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 4, blocks)) return PK_OK;
  return pk_cuda_launched(call, pk_launch_where(call->outputs[0]->dtype, blocks[0].data,
                                                blocks[1].data, blocks[2].data, blocks[3].data,
                                                &walk, pk_cuda_of(call)->stream));
}

static pk_status run_map(const pk_call *call, pk_map map) {
  pk_cuda_device *cuda = pk_cuda_of(call);
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  const double *numbers = call->attributes.numbers;
  return pk_cuda_launched(call, pk_launch_map(map, call->outputs[0]->dtype, blocks[0].data,
                                              blocks[1].data, numbers[0], numbers[1], &walk,
                                              cuda->stream));
}

pk_status pk_cuda_affine(const pk_call *call) {
  return run_map(call, PK_MAP_AFFINE);
}

pk_status pk_cuda_negate(const pk_call *call) {
  return run_map(call, PK_MAP_NEGATE);
}

pk_status pk_cuda_abs(const pk_call *call) {
  return run_map(call, PK_MAP_ABS);
}

pk_status pk_cuda_sign(const pk_call *call) {
  return run_map(call, PK_MAP_SIGN);
}

pk_status pk_cuda_round(const pk_call *call) {
  return run_map(call, PK_MAP_ROUND);
}

pk_status pk_cuda_floor(const pk_call *call) {
  return run_map(call, PK_MAP_FLOOR);
}

pk_status pk_cuda_exp(const pk_call *call) {
  return run_map(call, PK_MAP_EXP);
}

pk_status pk_cuda_log(const pk_call *call) {
  return run_map(call, PK_MAP_LOG);
}

pk_status pk_cuda_sqrt(const pk_call *call) {
  return run_map(call, PK_MAP_SQRT);
}

pk_status pk_cuda_rsqrt(const pk_call *call) {
  return run_map(call, PK_MAP_RSQRT);
}

pk_status pk_cuda_sigmoid(const pk_call *call) {
  return run_map(call, PK_MAP_SIGMOID);
}

pk_status pk_cuda_silu(const pk_call *call) {
  return run_map(call, PK_MAP_SILU);
}

pk_status pk_cuda_copy_block(const pk_call *call, const pk_block *y, const pk_block *x) {
  const pk_block blocks[2] = {*y, *x};
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  return pk_cuda_launched(
      call, pk_launch_copy(y->size, y->data, x->data, &walk, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_copy(const pk_call *call) {
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  if (!call->attributes.accumulate) return pk_cuda_copy_block(call, &blocks[0], &blocks[1]);
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  return pk_cuda_launched(call,
                          pk_launch_accumulate(call->outputs[0]->dtype, blocks[0].data,
                                               blocks[1].data, &walk, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_cast(const pk_call *call) {
  int to = call->outputs[0]->dtype, from = call->inputs[0]->dtype;
  if (to == from) return pk_cuda_copy(call);
  const pk_block blocks[2] = {pk_block_of(call->outputs[0]), pk_block_of(call->inputs[0])};
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  return pk_cuda_launched(call, pk_launch_cast(to, from, blocks[0].data, blocks[1].data, &walk,
                                               pk_cuda_of(call)->stream));
}
