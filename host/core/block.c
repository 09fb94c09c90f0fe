/* Blocks that are walked together: joining their dimensions, and the two sides of a reshape. */
#include "core/block.h"

int pk_block_join(int count, pk_block *blocks) {
  int rank = 0;
  for (int d = 0; d < blocks[0].rank; d++) {
    int64_t extent = blocks[0].extents[d];
    if (extent == 1) continue;
    bool joins = rank > 0;
    for (int b = 0; joins && b < count; b++)
      joins = blocks[b].strides[rank - 1] == blocks[b].strides[d] * extent;
    int place = joins ? rank - 1 : rank++;
    for (int b = 0; b < count; b++) {
      blocks[b].extents[place] = joins ? blocks[b].extents[place] * extent : extent;
      blocks[b].strides[place] = blocks[b].strides[d];
    }
  }
  for (int b = 0; b < count; b++) blocks[b].rank = rank;
  return rank;
}

/* A dense block in the shape of another one. */
static pk_block dense_like(const pk_block *shape, void *data) {
  pk_block block = *shape;
  int64_t stride = 1;
  block.data = data;
  for (int d = block.rank - 1; d >= 0; d--) {
    block.strides[d] = stride;
    stride *= block.extents[d];
  }
  return block;
}

pk_status pk_block_reshape(const pk_call *call, pk_block *to, pk_block *from) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  *from = pk_block_of(x);
  *to = pk_block_of(y);
  if (pk_tensor_is_dense(y)) {
    *to = dense_like(from, to->data);
  } else if (pk_tensor_is_dense(x)) {
    *from = dense_like(to, from->data);
  } else if (x->rank > 0 && x->shape[0] == y->shape[0]) {
    *from = dense_like(to, from->data);
    from->strides[0] = x->stride;
  } else {
    return pk_fail(PK_UNSUPPORTED, "reshape: neither x nor the output given is dense");
  }
  return PK_OK;
}
