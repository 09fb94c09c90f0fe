/* Columns of arenas: some of them taken and put back, and random numbers for all. */
#include "core/random.h"
#include "cpu/adamw.h"
#include "cpu/arena.h"

/* --- gather_columns and scatter_columns --- */

enum { PLACES = 16384 }; /* in a piece */

static int32_t column_at(const pk_tensor *index, int64_t place) {
  return ((const int32_t *)pk_tensor_data(index))[place * index->stride];
}

static pk_status check_range(const pk_call *call) {
  int64_t columns = call->inputs[0]->shape[1];
  const pk_tensor *index = call->inputs[1];
  for (int64_t k = 0; k < index->shape[0]; k++) {
    int32_t column = column_at(index, k);
    if (column >= 0 && column < columns) continue;
    return pk_fail(PK_INVALID, "%s: index %lld is %d, not in 0 .. %lld",
                   pk_op_describe(call->op)->name, (long long)k, column, (long long)columns - 1);
  }
  return PK_OK;
}

static int64_t pieces_per_row(const pk_tensor *index) {
  return (index->shape[0] + PLACES - 1) / PLACES;
}

static void gather_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *index = call->inputs[1];
  int64_t row = piece / pieces_per_row(index), first = piece % pieces_per_row(index) * PLACES;
  int64_t last = first + PLACES < index->shape[0] ? first + PLACES : index->shape[0];
  const char *x = pk_arena_columns(call->inputs[0], row, 0);
  char *y = pk_arena_columns(call->outputs[0], row, 0);
  if (call->inputs[0]->dtype == PK_F32)
    for (int64_t k = first; k < last; k++)
      ((float *)y)[k] = ((const float *)x)[column_at(index, k)];
  else
    for (int64_t k = first; k < last; k++)
      ((double *)y)[k] = ((const double *)x)[column_at(index, k)];
}

pk_status PK_KERNEL(gather_columns)(const pk_call *call) {
  pk_status status = check_range(call);
  if (status != PK_OK) return status;
  pk_parallel_for(pk_cpu_threads(call), call->inputs[0]->shape[0] * pieces_per_row(call->inputs[1]),
                  gather_piece, (void *)call);
  return PK_OK;
}

/* A row by one thread. */
static void scatter_row(void *argument, int64_t row, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *index = call->inputs[1], *values = call->inputs[2];
  char *x = pk_arena_columns(call->inputs[0], row, 0);
  const char *from = pk_arena_columns(values, values->shape[0] == 1 ? 0 : row, 0);
  if (values->dtype == PK_F32)
    for (int64_t k = 0; k < index->shape[0]; k++)
      ((float *)x)[column_at(index, k)] = ((const float *)from)[k];
  else
    for (int64_t k = 0; k < index->shape[0]; k++)
      ((double *)x)[column_at(index, k)] = ((const double *)from)[k];
}

pk_status PK_KERNEL(scatter_columns)(const pk_call *call) {
  if (call->inputs[3] && pk_is_stopped(call->inputs[3])) return PK_OK;
  pk_status status = check_range(call);
  if (status != PK_OK) return status;
  pk_parallel_for(pk_cpu_threads(call), call->inputs[0]->shape[0], scatter_row, (void *)call);
  return PK_OK;
}

/* --- random_columns --- */

static void random_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *y = call->outputs[0];
  uint32_t key[2], words[4];
  pk_random_key((uint64_t)call->attributes.integers[1], "", key);
  uint32_t step = pk_random_step_of(pk_number_at(call->inputs[0], 0));
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
