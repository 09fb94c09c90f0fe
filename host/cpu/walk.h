/* Walking several strided blocks together, row by row, over the threads. */
#ifndef PK_WALK_H
#define PK_WALK_H

#include "core/block.h"
#include "cpu/cpu.h"

enum { PK_WALK_BLOCKS = 4 };

/* Works on one row of each block: count elements, the next one strides[b] elements further on. */
typedef void (*pk_walk_row)(const void *options, int64_t count, char *const data[PK_WALK_BLOCKS],
                            const int64_t strides[PK_WALK_BLOCKS]);

/* Calls row for all rows of up to PK_WALK_BLOCKS blocks of the same extents. Dimensions that follow
 * each other in every block are joined first, so that dense blocks are one long row; long rows are
 * cut and short ones grouped into pieces whose size does not depend on the number of threads. */
#define pk_walk PK_KERNEL(walk)
void pk_walk(pk_threads *threads, int count, const pk_block *blocks, pk_walk_row row,
             const void *options);

/* y <- x, of the same extents and element size. */
#define pk_block_copy PK_KERNEL(block_copy)
void pk_block_copy(pk_threads *threads, const pk_block *y, const pk_block *x);

#endif
