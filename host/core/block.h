/* Tensors as strided blocks of elements: what devices walk over. */
#ifndef PK_BLOCK_H
#define PK_BLOCK_H

#include "core/core.h"

/* A rectangle of elements somewhere in memory; strides are in elements, 0 where it repeats. */
typedef struct pk_block {
  char *data;
  int64_t size; /* bytes of one element */
  int rank;
  int64_t extents[PK_MAX_RANK];
  int64_t strides[PK_MAX_RANK];
} pk_block;

static inline pk_block pk_block_of(const pk_tensor *tensor) {
  pk_block block = {
      .data = pk_tensor_data(tensor), .size = pk_dtype_size(tensor->dtype), .rank = tensor->rank};
  int64_t stride = 1;
  for (int d = tensor->rank - 1; d >= 0; d--) {
    block.extents[d] = tensor->shape[d];
    block.strides[d] = d == 0 ? tensor->stride : stride;
    stride *= tensor->shape[d];
  }
  return block;
}

/* The count entries of axis from start. */
static inline pk_block pk_block_narrow(pk_block block, int axis, int64_t start, int64_t count) {
  block.data += start * block.strides[axis] * block.size;
  block.extents[axis] = count;
  return block;
}

/* The block repeated to extents: aligned at the right, extents 1 or missing repeat. */
static inline pk_block pk_block_spread(pk_block block, int rank, const int64_t *extents) {
  pk_block wide = {.data = block.data, .size = block.size, .rank = rank};
  for (int d = 0; d < rank; d++) {
    int source = d - (rank - block.rank);
    wide.extents[d] = extents[d];
    wide.strides[d] = source >= 0 && block.extents[source] != 1 ? block.strides[source] : 0;
  }
  return wide;
}

/* The block with its dimensions in another order: dimension i is dimension permutation[i]. */
static inline pk_block pk_block_turn(pk_block block, const int64_t *permutation) {
  pk_block turned = block;
  for (int d = 0; d < block.rank; d++) {
    turned.extents[d] = block.extents[permutation[d]];
    turned.strides[d] = block.strides[permutation[d]];
  }
  return turned;
}

/* Where the element at index of the first rank dimensions is, in elements from data. */
static inline int64_t pk_block_offset(const pk_block *block, int rank, int64_t index) {
  int64_t offset = 0;
  for (int d = rank - 1; d > 0; d--) {
    offset += index % block->extents[d] * block->strides[d];
    index /= block->extents[d];
  }
  return rank > 0 ? offset + index * block->strides[0] : 0;
}

/* Drops extents of 1 from blocks of the same extents and joins each dimension to the one before
 * where all blocks run through. Returns the rank that is left. */
int pk_block_join(int count, pk_block *blocks);

/* A reshape that copies, as a copy between blocks of the same extents. Errors: neither x nor the
 * output is dense. */
pk_status pk_block_reshape(const pk_call *call, pk_block *to, pk_block *from);

#endif
