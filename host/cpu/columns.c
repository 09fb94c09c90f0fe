/* Choices of columns: the largest magnitudes of a row, and random ones. */
#include <math.h>
#include <string.h>

#include "core/random.h"
#include "cpu/adamw.h"
#include "cpu/arena.h"

/* --- topk_mask --- */

/* Magnitudes as whole numbers in the same order: the bits of |x|, those of NaN being largest. */
static uint64_t key_of(int dtype, const char *row, int64_t column) {
  if (dtype == PK_F64) {
    uint64_t bits;
    memcpy(&bits, row + column * 8, 8);
    return bits & UINT64_C(0x7FFFFFFFFFFFFFFF);
  }
  uint32_t bits;
  memcpy(&bits, row + column * 4, 4);
  return bits & UINT32_C(0x7FFFFFFF);
}

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* One row: digits of the smallest key that is among the largest are found from the highest on. */
typedef struct row_job {
  const pk_tensor *x, *y;
  int64_t row, pieces;
  uint64_t prefix; /* the digits that are known, as a key */
  int shift;       /* of the digit that is looked for; -1: none is left */
  int64_t *counts; /* [pieces, DIGITS], then [pieces] */
} row_job;

static const char *row_of(const row_job *job) {
  return pk_arena_columns(job->x, job->row, 0);
}

static void piece_range(const row_job *job, int64_t piece, int64_t *first, int64_t *last) {
  int64_t columns = job->x->shape[1];
  *first = piece * PK_ARENA_PIECE;
  *last = *first + PK_ARENA_PIECE < columns ? *first + PK_ARENA_PIECE : columns;
}

/* Counts the digits of the keys that have the known prefix. */
static void count_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  row_job *job = argument;
  int64_t *counts = job->counts + piece * DIGITS, first, last;
  const char *row = row_of(job);
  memset(counts, 0, DIGITS * sizeof *counts);
  piece_range(job, piece, &first, &last);
  uint64_t known = job->prefix >> job->shift >> DIGIT_BITS;
  for (int64_t c = first; c < last; c++) {
    uint64_t key = key_of(job->x->dtype, row, c);
    if (key >> job->shift >> DIGIT_BITS == known) counts[key >> job->shift & (DIGITS - 1)]++;
  }
}

/* Counts the keys that equal the smallest one that is chosen. */
static void count_equal_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  row_job *job = argument;
  int64_t first, last, equal = 0;
  const char *row = row_of(job);
  piece_range(job, piece, &first, &last);
  for (int64_t c = first; c < last; c++) equal += key_of(job->x->dtype, row, c) == job->prefix;
  job->counts[piece] = equal;
}

/* Writes the mask; counts has how many equal ones a piece takes. */
static void write_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  row_job *job = argument;
  int64_t first, last, left = job->counts[piece];
  const char *row = row_of(job);
  char *y = pk_arena_columns(job->y, job->row, 0);
  piece_range(job, piece, &first, &last);
  for (int64_t c = first; c < last; c++) {
    uint64_t key = key_of(job->x->dtype, row, c);
    bool chosen = key > job->prefix || (key == job->prefix && left-- > 0);
    if (job->y->dtype == PK_F64)
      ((double *)y)[c] = chosen;
    else
      ((float *)y)[c] = chosen;
  }
}

/* Finds the key of rank `left` from the largest; returns how many of those equal to it are chosen.
 */
static int64_t find_smallest(row_job *job, pk_threads *threads, int64_t left) {
  int bits = job->x->dtype == PK_F64 ? 63 : 31;
  job->prefix = 0;
  for (int top = (bits + DIGIT_BITS - 1) / DIGIT_BITS; top-- > 0;) {
    job->shift = top * DIGIT_BITS;
    pk_parallel_for(threads, job->pieces, count_piece, job);
    int digit = DIGITS;
    int64_t here = 0;
    while (digit > 0) {
      digit--;
      here = 0;
      for (int64_t p = 0; p < job->pieces; p++) here += job->counts[p * DIGITS + digit];
      if (here >= left) break;
      left -= here;
    }
    job->prefix |= (uint64_t)digit << job->shift;
  }
  return left;
}

int64_t PK_WORKSPACE_OF(topk_mask)(const pk_call *call) {
  int64_t pieces = (call->inputs[0]->shape[1] + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE;
  return pieces * DIGITS * (int64_t)sizeof(int64_t);
}

pk_status PK_KERNEL(topk_mask)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  int64_t count = call->attributes.integers[0];
  if (x->numel == 0) return PK_OK;
  pk_threads *threads = pk_cpu_threads(call);
  row_job job = {.x = x,
                 .y = call->outputs[0],
                 .pieces = (x->shape[1] + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE,
                 .counts = call->workspace};
  for (job.row = 0; job.row < x->shape[0]; job.row++) {
    int64_t left = 0;
    job.prefix = UINT64_MAX; /* above every key */
    if (count > 0) {
      left = find_smallest(&job, threads, count);
      pk_parallel_for(threads, job.pieces, count_equal_piece, &job);
    }
    for (int64_t p = 0; p < job.pieces; p++) {
      int64_t equal = count > 0 ? job.counts[p] : 0;
      job.counts[p] = equal < left ? equal : left;
      left -= job.counts[p];
    }
    pk_parallel_for(threads, job.pieces, write_piece, &job);
  }
  return PK_OK;
}

/* --- random_columns --- */

static void random_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *y = call->outputs[0];
  uint32_t key[2], words[4];
  pk_random_key((uint64_t)call->attributes.integers[1], "", key);
  uint32_t step = (uint32_t)pk_number_at(call->inputs[0], PK_SCALAR_STEP);
  int64_t last = (piece + 1) * PK_ARENA_PIECE < y->numel ? (piece + 1) * PK_ARENA_PIECE : y->numel;
  for (int64_t c = piece * PK_ARENA_PIECE; c < last; c++) {
    if (c % 4 == 0) pk_random_step_words(key, (uint64_t)c / 4, step, words);
    double value = pk_random_column(words[c % 4]);
    if (y->dtype == PK_F64)
      ((double *)pk_tensor_data(y))[c] = value;
    else
      ((float *)pk_tensor_data(y))[c] = (float)value;
  }
}

pk_status PK_KERNEL(random_columns)(const pk_call *call) {
  int64_t pieces = (call->outputs[0]->numel + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE;
  pk_parallel_for(pk_cpu_threads(call), pieces, random_piece, (void *)call);
  return PK_OK;
}
