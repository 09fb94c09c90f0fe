/* The table of the CPU's kernels in this compilation's instruction set. */
#include "cpu/cpu.h"

extern const pk_kernel PK_KERNEL(kernels)[PK_OP_COUNT];

const pk_kernel PK_KERNEL(kernels)[PK_OP_COUNT] = {
#define PK_OP(name, inputs, outputs, attributes, flags, summary) [PK_OP_##name] = PK_KERNEL(name),
#include "ops.def"
#undef PK_OP
};
