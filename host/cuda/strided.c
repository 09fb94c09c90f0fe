/* Making the walks of kernels over strided operands. */
#include "cuda/strided.h"

bool pk_cuda_strided(pk_strided *walk, int count, const pk_block *blocks) {
  pk_block joined[PK_STRIDED_OPERANDS];
  for (int d = 0; d < blocks[0].rank; d++)
    if (blocks[0].extents[d] == 0) return false;
  for (int b = 0; b < count; b++) joined[b] = blocks[b];
  int rank = pk_block_join(count, joined);
  *walk = (pk_strided){.count = 1, .rank = rank > 0 ? rank : 1, .extents = {1}};
  for (int d = 0; d < rank; d++) {
    walk->count *= joined[0].extents[d];
    walk->extents[d] = joined[0].extents[d];
    for (int b = 0; b < count; b++) walk->strides[b][d] = joined[b].strides[d];
  }
  if (rank == 0) walk->strides[0][0] = 1;
  return true;
}
