/* The tables of the CPU's kernels and their workspaces in this compilation's instruction set. */
#include "cpu/cpu.h"

extern const pk_kernel PK_KERNEL(kernels)[PK_OP_COUNT];

const pk_kernel PK_KERNEL(kernels)[PK_OP_COUNT] = {
#define PK_OP(name, inputs, outputs, attributes, flags, summary) [PK_OP_##name] = PK_KERNEL(name),
#include "ops.def"
#undef PK_OP
};

/* The operations whose kernels work in memory of their own. */
#define WITH_WORKSPACE(row)                                                                        \
  row(attention) row(attention_grad) row(consensus_distance) row(cross_entropy) row(gradient_norm) \
      row(linear_cross_entropy) row(linear_cross_entropy_grad) row(linear_cross_entropy_step)      \
          row(matmul) row(max) row(mean) row(mix) row(rmsnorm_grad) row(rope) row(rope_join)       \
              row(rope_split) row(sum) row(sum_squares) row(sum_to) row(topk_mask) row(update)

#define DECLARE(name) int64_t PK_WORKSPACE_OF(name)(const pk_call *call);
WITH_WORKSPACE(DECLARE)

extern const pk_workspace_rule PK_KERNEL(workspaces)[PK_OP_COUNT];

#define ENTRY(name) [PK_OP_##name] = PK_WORKSPACE_OF(name),
const pk_workspace_rule PK_KERNEL(workspaces)[PK_OP_COUNT] = {WITH_WORKSPACE(ENTRY)};
