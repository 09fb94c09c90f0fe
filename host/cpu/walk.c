/* Walking strided blocks row by row in fixed pieces over the threads, and copying one to another.
 */
#include "cpu/walk.h"

enum { PIECE = 32768 }; /* elements in one piece, about */

typedef struct walk_job {
  int count; /* of blocks */
  pk_block blocks[PK_WALK_BLOCKS];
  pk_walk_row row;
  const void *options;
  int outer; /* dimensions around the rows */
  int64_t rows, length;
  int64_t rows_per_piece, pieces_per_row, piece_length;
} walk_job;

static void set_pointers(const walk_job *job, int64_t row, int64_t column, char **data) {
  for (int b = 0; b < job->count; b++) {
    const pk_block *block = &job->blocks[b];
    int64_t offset = pk_block_offset(block, job->outer, row) + column * block->strides[job->outer];
    data[b] = block->data + offset * block->size;
  }
}

static void walk_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const walk_job *job = argument;
  int64_t strides[PK_WALK_BLOCKS] = {0};
  for (int b = 0; b < job->count; b++) strides[b] = job->blocks[b].strides[job->outer];
  int64_t first = piece / job->pieces_per_row * job->rows_per_piece;
  int64_t last = first + job->rows_per_piece;
  int64_t column = piece % job->pieces_per_row * job->piece_length;
  int64_t length = job->length - column;
  if (length > job->piece_length) length = job->piece_length;
  for (int64_t row = first; row < last && row < job->rows; row++) {
    char *data[PK_WALK_BLOCKS] = {NULL};
    set_pointers(job, row, column, data);
    job->row(job->options, length, data, strides);
  }
}

void pk_walk(pk_threads *threads, int count, const pk_block *blocks, pk_walk_row row,
             const void *options) {
  walk_job job = {.count = count, .row = row, .options = options, .rows = 1};
  for (int d = 0; d < blocks[0].rank; d++)
    if (blocks[0].extents[d] == 0) return;
  for (int b = 0; b < count; b++) job.blocks[b] = blocks[b];
  int rank = pk_block_join(count, job.blocks);
  if (rank == 0) {
    /* One element: a row of length 1. */
    for (int b = 0; b < count; b++) {
      job.blocks[b].extents[0] = 1;
      job.blocks[b].strides[0] = 0;
    }
    rank = 1;
  }
  job.outer = rank - 1;
  job.length = job.blocks[0].extents[rank - 1];
  for (int d = 0; d < job.outer; d++) job.rows *= job.blocks[0].extents[d];
  job.pieces_per_row = (job.length + PIECE - 1) / PIECE;
  job.piece_length = job.length < PIECE ? job.length : PIECE;
  job.rows_per_piece = PIECE / job.piece_length;
  int64_t groups = (job.rows + job.rows_per_piece - 1) / job.rows_per_piece;
  pk_parallel_for(threads, groups * job.pieces_per_row, walk_piece, &job);
}

static void copy_row(const void *options, int64_t count, char *const data[PK_WALK_BLOCKS],
                     const int64_t strides[PK_WALK_BLOCKS]) {
  const int64_t size = *(const int64_t *)options, sy = strides[0], sx = strides[1];
  if (sy == 1 && sx == 1) {
    memcpy(data[0], data[1], (size_t)(count * size));
  } else if (size == 8) {
    uint64_t *y = (uint64_t *)data[0];
    const uint64_t *x = (const uint64_t *)data[1];
    for (int64_t i = 0; i < count; i++) y[i * sy] = x[i * sx];
  } else if (size == 4) {
    uint32_t *y = (uint32_t *)data[0];
    const uint32_t *x = (const uint32_t *)data[1];
    for (int64_t i = 0; i < count; i++) y[i * sy] = x[i * sx];
  } else {
    uint16_t *y = (uint16_t *)data[0];
    const uint16_t *x = (const uint16_t *)data[1];
    for (int64_t i = 0; i < count; i++) y[i * sy] = x[i * sx];
  }
}

void pk_block_copy(pk_threads *threads, const pk_block *y, const pk_block *x) {
  const pk_block blocks[2] = {*y, *x};
  pk_walk(threads, 2, blocks, copy_row, &y->size);
}
