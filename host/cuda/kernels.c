/* The tables of the CUDA device's kernels and their workspaces. */
#include "cuda/cuda.h"

/* The operations that the device has, by family; then those whose kernels work in memory of their
 * own. */
#define WITH_KERNEL(row)                                                                           \
  row(add) row(subtract) row(multiply) row(divide) row(affine) row(negate) row(exp) row(log)       \
      row(sqrt) row(rsqrt) row(sigmoid) row(silu) row(cast) row(copy) row(attention)               \
          row(attention_grad)

#define WITH_WORKSPACE(row) row(attention_grad)

#define ENTRY(name) [PK_OP_##name] = pk_cuda_##name,
const pk_kernel pk_cuda_kernels[PK_OP_COUNT] = {WITH_KERNEL(ENTRY)};
#undef ENTRY

#define DECLARE(name) int64_t pk_cuda_workspace_##name(const pk_call *call);
WITH_WORKSPACE(DECLARE)

#define ENTRY(name) [PK_OP_##name] = pk_cuda_workspace_##name,
const pk_workspace_rule pk_cuda_workspaces[PK_OP_COUNT] = {WITH_WORKSPACE(ENTRY)};
