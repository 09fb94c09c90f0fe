/* blend: y <- own y + c x in place, under the guard. What algorithms change their state with. */
#include "cpu/adamw.h"
#include "cpu/arena.h"

/* own 0 does not read y, and 1 does not round it again; neither does coefficient 1 x. */
PK_INLINE void blend_f32(float *y, const float *x, int64_t count, float own, float coefficient) {
  if (own == 0) {
    for (int64_t c = 0; c < count; c++) y[c] = coefficient * x[c];
  } else {
    for (int64_t c = 0; c < count; c++) y[c] = own * y[c] + coefficient * x[c];
  }
}

PK_INLINE void blend_f64(double *y, const double *x, int64_t count, double own,
                         double coefficient) {
  if (own == 0) {
    for (int64_t c = 0; c < count; c++) y[c] = coefficient * x[c];
  } else {
    for (int64_t c = 0; c < count; c++) y[c] = own * y[c] + coefficient * x[c];
  }
}

static void blend_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const pk_call *call = argument;
  const pk_tensor *y = call->inputs[0], *x = call->inputs[1], *factor = call->inputs[3];
  pk_arena_part part = pk_arena_part_of(piece, pk_tensor_inner(y));
  double own = call->attributes.numbers[0], coefficient = call->attributes.numbers[1];
  if (factor) coefficient *= pk_number_at(factor, factor->numel == 1 ? 0 : part.worker);
  if (call->attributes.integers[0]) own = 1 - coefficient;
  char *into = pk_arena_columns(y, part.worker, part.first);
  const char *from = pk_arena_columns(x, x->shape[0] == 1 ? 0 : part.worker, part.first);
  if (y->dtype == PK_F32)
    blend_f32((float *)into, (const float *)from, part.count, (float)own, (float)coefficient);
  else
    blend_f64((double *)into, (const double *)from, part.count, own, coefficient);
}

pk_status PK_KERNEL(blend)(const pk_call *call) {
  if (pk_is_stopped(call->inputs[2])) return PK_OK;
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(call->inputs[0]), blend_piece,
                  (void *)call);
  return PK_OK;
}
