/* The tables of the CUDA device's kernels and their workspaces. */
#include "cuda/cuda.h"

/* The operations that the device has, a family a line; then those whose kernels work in memory of
 * their own. */
/* clang-format off */
#define WITH_KERNEL(row)                                                                           \
  row(add) row(subtract) row(multiply) row(divide) row(minimum) row(maximum) row(less) row(where)  \
  row(affine) row(negate) row(abs) row(sign) row(round) row(floor)                                 \
  row(exp) row(log) row(sqrt) row(rsqrt) row(sigmoid) row(silu)            \
  row(cast) row(copy)                                                                              \
  row(sum) row(mean) row(max) row(sum_to)                                                          \
  row(reshape) row(transpose) row(slice) row(pad) row(concat) row(expand) row(causal_mask)         \
  row(fill) row(random_normal) row(random_uniform)                                                 \
  row(matmul)                                                                                      \
  row(embedding) row(embedding_grad) row(pick) row(unpick)                                         \
  row(rmsnorm) row(add_rmsnorm) row(rmsnorm_grad) row(rope) row(rope_split) row(rope_join)         \
  row(swiglu) row(swiglu_grad) row(swiglu_split) row(swiglu_split_grad)                            \
  row(attention) row(attention_grad)                                                               \
  row(cross_entropy) row(cross_entropy_grad)                                                       \
  row(linear_cross_entropy) row(linear_cross_entropy_grad) row(linear_cross_entropy_step)          \
  row(inverse_count) row(gradient_norm) row(sum_squares) row(check_arena) row(check_finite) row(clip) row(mix)      \
  row(adamw) row(sgd) row(blend) row(update)                                 \
  row(gather_columns) row(scatter_columns) row(topk_mask) row(random_columns)                      \
  row(average) row(consensus_distance)

#define WITH_WORKSPACE(row)                                                                        \
  row(sum) row(mean) row(max) row(sum_to) row(matmul)                                          \
  row(embedding_grad) row(rmsnorm_grad) row(rope) row(rope_split) row(rope_join)                   \
  row(attention) row(attention_grad)                                                               \
  row(linear_cross_entropy) row(linear_cross_entropy_grad) row(linear_cross_entropy_step)          \
  row(gradient_norm) row(sum_squares) row(check_arena) row(topk_mask) row(consensus_distance)
/* clang-format on */

#define ENTRY(name) [PK_OP_##name] = pk_cuda_##name,
const pk_kernel pk_cuda_kernels[PK_OP_COUNT] = {WITH_KERNEL(ENTRY)};
#undef ENTRY

#define DECLARE(name) int64_t pk_cuda_workspace_##name(const pk_call *call);
WITH_WORKSPACE(DECLARE)

#define ENTRY(name) [PK_OP_##name] = pk_cuda_workspace_##name,
const pk_workspace_rule pk_cuda_workspaces[PK_OP_COUNT] = {WITH_WORKSPACE(ENTRY)};
