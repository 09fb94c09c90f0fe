/* topk_mask: 1 at the largest magnitudes of each row, found digit by digit without sorting. */
#include <string.h>

#include "cpu/arena.h"

/* Magnitudes as whole numbers in the same order: the bits of |x|, all of them for any NaN. */
static inline uint32_t key_f32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= UINT32_C(0x7FFFFFFF);
  return bits > UINT32_C(0x7F800000) ? UINT32_C(0x7FFFFFFF) : bits;
}

static inline uint64_t key_f64(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= UINT64_C(0x7FFFFFFFFFFFFFFF);
  return bits > UINT64_C(0x7FF0000000000000) ? UINT64_C(0x7FFFFFFFFFFFFFFF) : bits;
}

static inline uint64_t key_of(int dtype, const char *row, int64_t column) {
  return dtype == PK_F32 ? key_f32(((const float *)row)[column])
                         : key_f64(((const double *)row)[column]);
}

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* One row: digits of the smallest key that is among the largest are found from the highest on. */
typedef struct row_job {
  const pk_tensor *x, *y;
  int64_t row, pieces;
  uint64_t prefix; /* the digits that are known, as a key */
  int shift;       /* of the digit that is looked for */
  int64_t *counts; /* [pieces, DIGITS], then [pieces] */
  int64_t *totals; /* [DIGITS] of all pieces */
} row_job;

/* Of the keys that equal the smallest one, as many as there are. */
#define ALL INT64_MAX

static int64_t piece_count(const row_job *job, int64_t first) {
  int64_t left = job->x->shape[1] - first;
  return left < PK_ARENA_PIECE ? left : PK_ARENA_PIECE;
}

/* Counts the digits of the keys that have the known prefix. */
static void count_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  row_job *job = argument;
  int64_t *counts = job->counts + piece * DIGITS, first = piece * PK_ARENA_PIECE;
  const char *x = pk_arena_columns(job->x, job->row, first);
  int64_t count = piece_count(job, first);
  int dtype = job->x->dtype, shift = job->shift;
  uint64_t known = job->prefix >> shift >> DIGIT_BITS;
  memset(counts, 0, DIGITS * sizeof *counts);
  for (int64_t c = 0; c < count; c++) {
    uint64_t digits = key_of(dtype, x, c) >> shift;
    if (digits >> DIGIT_BITS == known) counts[digits & (DIGITS - 1)]++;
  }
}

/* Counts the keys that equal the smallest one that is chosen. */
static void count_equal_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  row_job *job = argument;
  int64_t first = piece * PK_ARENA_PIECE, equal = 0;
  const char *x = pk_arena_columns(job->x, job->row, first);
  int64_t count = piece_count(job, first);
  for (int64_t c = 0; c < count; c++) equal += key_of(job->x->dtype, x, c) == job->prefix;
  job->counts[piece] = equal;
}

static void mark_f32(float *y, const float *x, int64_t count, uint32_t least) {
  for (int64_t c = 0; c < count; c++) y[c] = key_f32(x[c]) >= least ? 1.0f : 0.0f;
}

static void mark_f64(double *y, const double *x, int64_t count, uint64_t least) {
  for (int64_t c = 0; c < count; c++) y[c] = key_f64(x[c]) >= least ? 1.0 : 0.0;
}

/* Writes the mask; counts has how many equal ones a piece takes, the first ones. */
static void write_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const row_job *job = argument;
  int64_t first = piece * PK_ARENA_PIECE, left = job->counts[piece];
  const char *x = pk_arena_columns(job->x, job->row, first);
  char *y = pk_arena_columns(job->y, job->row, first);
  int64_t count = piece_count(job, first);
  uint64_t least = left == ALL ? job->prefix : job->prefix + 1;
  if (job->y->dtype == PK_F32)
    mark_f32((float *)y, (const float *)x, count, (uint32_t)least);
  else
    mark_f64((double *)y, (const double *)x, count, least);
  if (left == ALL) return;
  for (int64_t c = 0; c < count && left > 0; c++) {
    if (key_of(job->x->dtype, x, c) != job->prefix) continue;
    left--;
    if (job->y->dtype == PK_F32)
      ((float *)y)[c] = 1;
    else
      ((double *)y)[c] = 1;
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
    memset(job->totals, 0, DIGITS * sizeof *job->totals);
    for (int64_t p = 0; p < job->pieces; p++)
      for (int d = 0; d < DIGITS; d++) job->totals[d] += job->counts[p * DIGITS + d];
    int digit = DIGITS - 1;
    while (digit > 0 && job->totals[digit] < left) left -= job->totals[digit--];
    job->prefix |= (uint64_t)digit << job->shift;
  }
  return left;
}

/* Deals the equal ones that are chosen out to the pieces, in order. */
static void deal(const row_job *job, int64_t left) {
  for (int64_t p = 0; p < job->pieces; p++) {
    int64_t equal = job->counts[p];
    job->counts[p] = equal <= left ? ALL : left;
    left -= equal <= left ? equal : left;
  }
}

static int64_t pieces_of(const pk_tensor *x) {
  return (x->shape[1] + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE;
}

int64_t PK_WORKSPACE_OF(topk_mask)(const pk_call *call) {
  return (pieces_of(call->inputs[0]) + 1) * DIGITS * (int64_t)sizeof(int64_t);
}

pk_status PK_KERNEL(topk_mask)(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  int64_t count = call->attributes.integers[0];
  if (x->numel == 0) return PK_OK;
  pk_threads *threads = pk_cpu_threads(call);
  row_job job = {.x = x, .y = call->outputs[0], .pieces = pieces_of(x), .counts = call->workspace};
  job.totals = job.counts + job.pieces * DIGITS;
  for (job.row = 0; job.row < x->shape[0]; job.row++) {
    if (count == 0) {
      memset(pk_arena_columns(job.y, job.row, 0), 0,
             (size_t)(x->shape[1] * pk_dtype_size(x->dtype)));
      continue;
    }
    int64_t left = find_smallest(&job, threads, count);
    pk_parallel_for(threads, job.pieces, count_equal_piece, &job);
    deal(&job, left);
    pk_parallel_for(threads, job.pieces, write_piece, &job);
  }
  return PK_OK;
}
