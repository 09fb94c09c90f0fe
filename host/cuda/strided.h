/* From blocks of tensors to what kernels walk over. */
#ifndef PK_CUDA_STRIDED_H
#define PK_CUDA_STRIDED_H

#include "core/block.h"
#include "kernels/strided.h"

/* Makes the walk over blocks of the same extents, the result's first. False if they are empty:
 * there is nothing to launch. */
bool pk_cuda_strided(pk_strided *walk, int count, const pk_block *blocks);

#endif
