/* Operands of products on a processor without bf16 arithmetic: bf16 tensors as f32 copies. */
#ifndef PK_OPERAND_H
#define PK_OPERAND_H

#include "cpu/cpu.h"

/* A tensor as a product reads it: f64 or f32 elements, stride elements from one worker to the next.
 */
typedef struct pk_operand {
  const void *data;
  int64_t stride;
} pk_operand;

/* Workspace that reading a tensor as an operand takes: room for an f32 copy of a bf16 one, or, when
 * round is set, of an f32 one. */
static inline int64_t pk_operand_bytes(const pk_tensor *tensor, bool round) {
  bool copied = tensor->dtype == PK_BF16 || round;
  return copied ? pk_aligned(tensor->numel * (int64_t)sizeof(float)) : 0;
}

/* Reads f64 and f32 tensors in place; widens bf16 ones, or rounds f32 ones to bf16 values first
 * when round is set, into *workspace, which moves on by pk_operand_bytes. */
pk_operand PK_KERNEL(operand)(const pk_call *call, const pk_tensor *tensor, bool round,
                              char **workspace);

#endif
