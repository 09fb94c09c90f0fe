/* What the shape rules share: checks that name operation and input, and which rule each operation
 * follows. */
#ifndef PK_SHAPES_H
#define PK_SHAPES_H

#include "core/core.h"

/* Sets of dtypes, one bit per pk_dtype. */
enum {
  PK_ARITHMETIC = 1 << PK_F64 | 1 << PK_F32,
  PK_REALS = PK_ARITHMETIC | 1 << PK_BF16,
  PK_INDICES = 1 << PK_I32,
  PK_ANY_DTYPE = PK_REALS | PK_INDICES
};

/* Fails with "operation: message". */
pk_status pk_shape_refuse(const pk_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Name of input i as ops.def has it, without marks, into text. Returns text. */
const char *pk_shape_input_name(const pk_call *call, int i, char text[32]);

/* Input i has one of the dtypes in set. */
pk_status pk_shape_expect_dtype(const pk_call *call, int i, int set);

/* Inputs i and j have the same dtype. */
pk_status pk_shape_expect_same_dtype(const pk_call *call, int i, int j);

/* Input i has this rank; wanted says how the operation writes the shape, such as "[N, R, d]". */
pk_status pk_shape_expect_rank(const pk_call *call, int i, int rank, const char *wanted);

/* Input i has exactly this shape; from names what the shape follows from, such as "x". */
pk_status pk_shape_expect(const pk_call *call, int i, int rank, const int64_t *extents,
                          const char *from);

/* Sets an output, refusing negative extents, too many dimensions and sizes beyond 64 bits. */
pk_status pk_shape_set(const pk_call *call, pk_shape *output, int dtype, int64_t rank,
                       const int64_t *extents);

/* Output as input i. */
pk_status pk_shape_like(const pk_call *call, pk_shape *output, int i);

/* axis is one of input i's dimensions. */
pk_status pk_shape_expect_axis(const pk_call *call, int i, int64_t axis);

/* The dtype that products of operands of dtype give: f32 for bf16. */
int pk_shape_product_dtype(int dtype);

/* One rule per family (shapes.c, shapes_model.c, shapes_train.c). */
pk_status pk_shape_broadcast(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_map(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_cast(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_copy(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_reduce(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_sum_to(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_reshape(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_transpose(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_slice(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_pad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_concat(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_expand(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_causal_mask(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_fill(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_random(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_matmul(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_embedding(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_embedding_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_pick(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_unpick(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_rmsnorm(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_add_rmsnorm(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_rmsnorm_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_rope(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_rope_split(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_rope_join(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_swiglu(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_swiglu_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_swiglu_split(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_swiglu_split_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_attention(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_attention_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_cross_entropy(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_cross_entropy_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_linear_cross_entropy(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_linear_cross_entropy_grad(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_linear_cross_entropy_step(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_inverse_count(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_sum_squares(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_gradient_norm(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_check_arena(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_check_finite(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_clip(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_mix(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_adamw(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_sgd(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_blend(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_update(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_gather_columns(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_scatter_columns(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_topk_mask(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_random_columns(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_average(const pk_call *call, pk_shape *outputs);
pk_status pk_shape_consensus_distance(const pk_call *call, pk_shape *outputs);

/* Operations that follow the rule of a family. */
#define pk_shape_add pk_shape_broadcast
#define pk_shape_subtract pk_shape_broadcast
#define pk_shape_multiply pk_shape_broadcast
#define pk_shape_divide pk_shape_broadcast
#define pk_shape_minimum pk_shape_broadcast
#define pk_shape_maximum pk_shape_broadcast
#define pk_shape_less pk_shape_broadcast
#define pk_shape_where pk_shape_broadcast
#define pk_shape_affine pk_shape_map
#define pk_shape_negate pk_shape_map
#define pk_shape_abs pk_shape_map
#define pk_shape_sign pk_shape_map
#define pk_shape_round pk_shape_map
#define pk_shape_floor pk_shape_map
#define pk_shape_exp pk_shape_map
#define pk_shape_log pk_shape_map
#define pk_shape_sqrt pk_shape_map
#define pk_shape_rsqrt pk_shape_map
#define pk_shape_sigmoid pk_shape_map
#define pk_shape_silu pk_shape_map
#define pk_shape_sum pk_shape_reduce
#define pk_shape_mean pk_shape_reduce
#define pk_shape_max pk_shape_reduce
#define pk_shape_random_normal pk_shape_random
#define pk_shape_random_uniform pk_shape_random

#endif
