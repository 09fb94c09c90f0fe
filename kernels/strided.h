/* Elements that a kernel visits in the order of their index, wherever they lie. */
#ifndef PK_STRIDED_H
#define PK_STRIDED_H

#include <stdint.h>

enum { PK_STRIDED_RANK = 6, PK_STRIDED_OPERANDS = 4 };

/* Made by pk_cuda_strided: extents of 1 are dropped and dimensions that follow each other in every
 * operand joined, so that dense operands have rank 1. rank is at least 1, count at least 1. */
typedef struct pk_strided {
  int64_t count;
  int32_t rank;
  int64_t extents[PK_STRIDED_RANK];
  int64_t strides[PK_STRIDED_OPERANDS][PK_STRIDED_RANK]; /* in elements, 0 where it repeats */
} pk_strided;

#ifdef __cplusplus
/* Where the element at index is in each of the operands, in elements. */
template <int operands>
static __device__ __forceinline__ void pk_strided_offsets(const pk_strided &walk, int64_t index,
                                                          int64_t (&offsets)[operands]) {
  uint64_t left = static_cast<uint64_t>(index);
  for (int o = 0; o < operands; o++) offsets[o] = 0;
  for (int d = walk.rank - 1; d >= 0; d--) {
    uint64_t extent = static_cast<uint64_t>(walk.extents[d]);
    int64_t at = static_cast<int64_t>(d > 0 ? left % extent : left);
    left /= extent;
    for (int o = 0; o < operands; o++) offsets[o] += at * walk.strides[o][d];
  }
}
#endif

#endif
