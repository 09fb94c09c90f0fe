/* Operations that move elements on a CUDA device: copies between strided blocks. */
#include "kernels/move.h"

#include "cuda/cuda.h"
#include "cuda/strided.h"

/* The copying case: an output is given, or x's stride allows no view. */
pk_status pk_cuda_reshape(const pk_call *call) {
  pk_block to, from;
  pk_status status = pk_block_reshape(call, &to, &from);
  return status == PK_OK ? pk_cuda_copy_block(call, &to, &from) : status;
}

pk_status pk_cuda_transpose(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x = pk_block_turn(pk_block_of(call->inputs[0]), call->attributes.list);
  const pk_block blocks[2] = {y, x};
  pk_strided walk;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  if (!pk_turns(&walk)) return pk_cuda_copy_block(call, &y, &x);
  return pk_cuda_launched(call,
                          pk_launch_turn(y.size, y.data, x.data, &walk, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_slice(const pk_call *call) {
  const int64_t *integers = call->attributes.integers;
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x =
      pk_block_narrow(pk_block_of(call->inputs[0]), (int)integers[0], integers[1], integers[2]);
  return pk_cuda_copy_block(call, &y, &x);
}

pk_status pk_cuda_pad(const pk_call *call) {
  int axis = (int)call->attributes.integers[0];
  int64_t before = call->attributes.integers[1], after = call->attributes.integers[2];
  pk_block y = pk_block_of(call->outputs[0]), x = pk_block_of(call->inputs[0]);
  pk_block middle = pk_block_narrow(y, axis, before, x.extents[axis]);
  pk_block sides[2] = {pk_block_narrow(y, axis, 0, before),
                       pk_block_narrow(y, axis, before + x.extents[axis], after)};
  pk_status status = pk_cuda_copy_block(call, &middle, &x);
  for (int s = 0; s < 2 && status == PK_OK; s++) status = pk_cuda_fill_block(call, &sides[s], 0);
  return status;
}

pk_status pk_cuda_concat(const pk_call *call) {
  int axis = (int)call->attributes.integers[0];
  pk_block y = pk_block_of(call->outputs[0]);
  pk_status status = PK_OK;
  int64_t start = 0;
  for (int i = 0; i < call->n_inputs && status == PK_OK; i++) {
    pk_block x = pk_block_of(call->inputs[i]);
    pk_block part = pk_block_narrow(y, axis, start, x.extents[axis]);
    status = pk_cuda_copy_block(call, &part, &x);
    start += x.extents[axis];
  }
  return status;
}

pk_status pk_cuda_expand(const pk_call *call) {
  pk_block y = pk_block_of(call->outputs[0]);
  pk_block x = pk_block_spread(pk_block_of(call->inputs[0]), y.rank, y.extents);
  return pk_cuda_copy_block(call, &y, &x);
}

pk_status pk_cuda_causal_mask(const pk_call *call) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (x->numel == 0) return PK_OK;
  pk_rows from = {pk_tensor_data(x), x->stride}, to = {pk_tensor_data(y), y->stride};
  return pk_cuda_launched(call,
                          pk_launch_causal_mask(x->dtype, to, from, x->numel, pk_tensor_inner(x),
                                                x->shape[x->rank - 1], call->attributes.numbers[0],
                                                pk_cuda_of(call)->stream));
}
