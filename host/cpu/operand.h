/* Operands of products on a processor without bf16 arithmetic: bf16 tensors as f32 copies. */
#ifndef PK_OPERAND_H
#define PK_OPERAND_H

#include "cpu/cpu.h"

/* A tensor as a product reads it: f64 or f32 elements, stride elements from one worker to the next.
 */
typedef struct pk_operand {
  const void *data;
  int64_t stride;
  void *copy; /* workspace that holds the f32 copy of a bf16 tensor, or NULL */
  int64_t bytes;
} pk_operand;

/* Reads f64 and f32 tensors in place; widens bf16 ones, or rounds f32 ones to bf16 values first
 * when round is set. Give it back with PK_KERNEL(operand_give), also after a failure. */
pk_status PK_KERNEL(operand_take)(const pk_call *call, const pk_tensor *tensor, bool round,
                                  pk_operand *operand);
void PK_KERNEL(operand_give)(const pk_call *call, pk_operand *operand);

#endif
