/* Arenas [N, D] in pieces, each some columns of one worker, for threads to share. */
#ifndef PK_CPU_ARENA_H
#define PK_CPU_ARENA_H

#include "cpu/cpu.h"

enum { PK_ARENA_PIECE = 65536 };

/* One worker's part of a piece: columns first .. first+count-1. */
typedef struct pk_arena_part {
  int64_t worker, first, count;
} pk_arena_part;

/* Pieces go worker by worker, each of PK_ARENA_PIECE columns. */
static inline pk_arena_part pk_arena_part_of(int64_t piece, int64_t width) {
  int64_t per_worker = (width + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE;
  pk_arena_part part = {.worker = piece / per_worker, .first = piece % per_worker * PK_ARENA_PIECE};
  part.count = width - part.first < PK_ARENA_PIECE ? width - part.first : PK_ARENA_PIECE;
  return part;
}

static inline int64_t pk_arena_pieces(const pk_tensor *x) {
  return x->shape[0] * ((pk_tensor_inner(x) + PK_ARENA_PIECE - 1) / PK_ARENA_PIECE);
}

/* Where a worker's columns from `first` on are. */
static inline char *pk_arena_columns(const pk_tensor *x, int64_t worker, int64_t first) {
  return (char *)pk_tensor_data(x) + (worker * x->stride + first) * pk_dtype_size(x->dtype);
}

#endif
