/* Joining the dimensions of blocks that are walked together. */
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
