/* bf16 operands of products as f32 copies. Products of bf16 values are exact in f32, so that a
 * product of the copies is what bf16 hardware with f32 accumulation computes, up to the order of
 * its sums. */
#include "cpu/operand.h"

enum { PIECE = 32768 };

typedef struct widen_job {
  const pk_tensor *tensor;
  float *copy;
  int64_t inner, pieces_per_row;
} widen_job;

static void widen_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  const widen_job *job = argument;
  int64_t row = piece / job->pieces_per_row, first = piece % job->pieces_per_row * PIECE;
  int64_t count = job->inner - first < PIECE ? job->inner - first : PIECE;
  float *restrict to = job->copy + row * job->inner + first;
  int64_t from = row * job->tensor->stride + first;
  if (job->tensor->dtype == PK_BF16) {
    const uint16_t *half = (const uint16_t *)pk_tensor_data(job->tensor) + from;
    for (int64_t i = 0; i < count; i++) to[i] = pk_bf16_to_f32(half[i]);
  } else {
    const float *whole = (const float *)pk_tensor_data(job->tensor) + from;
    for (int64_t i = 0; i < count; i++) to[i] = pk_bf16_to_f32(pk_bf16_from_f32(whole[i]));
  }
}

pk_operand PK_KERNEL(operand)(const pk_call *call, const pk_tensor *tensor, bool round,
                              char **workspace) {
  int64_t bytes = pk_operand_bytes(tensor, round);
  if (bytes == 0) return (pk_operand){.data = pk_tensor_data(tensor), .stride = tensor->stride};
  widen_job job = {.tensor = tensor, .copy = (float *)*workspace, .inner = pk_tensor_inner(tensor)};
  *workspace += bytes;
  job.pieces_per_row = (job.inner + PIECE - 1) / PIECE;
  int64_t rows = tensor->rank > 0 ? tensor->shape[0] : 1;
  pk_parallel_for(pk_cpu_threads(call), rows * job.pieces_per_row, widen_piece, &job);
  return (pk_operand){.data = job.copy, .stride = job.inner};
}
