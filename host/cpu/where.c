/* where: elements of one tensor or another, as a condition says. */
#include "cpu/walk.h"

#define INLINE static inline __attribute__((always_inline))

/* The strides are constants where rows are dense, so that the compiler vectorises each. */
INLINE void choose_f32(int64_t count, char *const data[PK_WALK_BLOCKS], int64_t sy, int64_t sc,
                       int64_t sa, int64_t sb) {
  float *y = (float *)data[0];
  const float *c = (const float *)data[1], *a = (const float *)data[2], *b = (const float *)data[3];
  PK_EACH
  for (int64_t i = 0; i < count; i++) y[i * sy] = c[i * sc] != 0 ? a[i * sa] : b[i * sb];
}

INLINE void choose_f64(int64_t count, char *const data[PK_WALK_BLOCKS], int64_t sy, int64_t sc,
                       int64_t sa, int64_t sb) {
  double *y = (double *)data[0];
  const double *c = (const double *)data[1], *a = (const double *)data[2],
               *b = (const double *)data[3];
  PK_EACH
  for (int64_t i = 0; i < count; i++) y[i * sy] = c[i * sc] != 0 ? a[i * sa] : b[i * sb];
}

INLINE void choose(int dtype, int64_t count, char *const data[PK_WALK_BLOCKS], int64_t sy,
                   int64_t sc, int64_t sa, int64_t sb) {
  if (dtype == PK_F32)
    choose_f32(count, data, sy, sc, sa, sb);
  else
    choose_f64(count, data, sy, sc, sa, sb);
}

static void choose_row(const void *options, int64_t count, char *const data[PK_WALK_BLOCKS],
                       const int64_t strides[PK_WALK_BLOCKS]) {
  int dtype = ((const pk_call *)options)->outputs[0]->dtype;
  int64_t sy = strides[0], sc = strides[1], sa = strides[2], sb = strides[3];
  bool dense = sy == 1 && sc == 1;
  if (dense && sa == 1 && sb == 1)
    choose(dtype, count, data, 1, 1, 1, 1);
  else if (dense && sa == 1 && sb == 0)
    choose(dtype, count, data, 1, 1, 1, 0);
  else if (dense && sa == 0 && sb == 1)
    choose(dtype, count, data, 1, 1, 0, 1);
  else
    choose(dtype, count, data, sy, sc, sa, sb);
}

pk_status PK_KERNEL(where)(const pk_call *call) {
  pk_block blocks[4] = {pk_block_of(call->outputs[0])};
  for (int i = 0; i < 3; i++)
    blocks[1 + i] =
        pk_block_spread(pk_block_of(call->inputs[i]), blocks[0].rank, blocks[0].extents);
  pk_walk(pk_cpu_threads(call), 4, blocks, choose_row, call);
  return PK_OK;
}
