/* Rotary position embedding on a CUDA device. */
#include "kernels/rope.h"

#include "cuda/cuda.h"

int64_t pk_cuda_workspace_rope(const pk_call *call) {
  const pk_tensor *x = call->inputs[0];
  return x->shape[2] * x->shape[4] * pk_dtype_size(x->dtype);
}

int64_t pk_cuda_workspace_rope_split(const pk_call *call) {
  return pk_cuda_workspace_rope(call);
}

int64_t pk_cuda_workspace_rope_join(const pk_call *call) {
  return pk_cuda_workspace_rope(call);
}

/* Tensors [N, B, T, H, K] whose heads follow each other: one, or three. */
static pk_rope_side side_of(int count, const pk_tensor *const *parts) {
  pk_rope_side side = {.heads = (unsigned)parts[0]->shape[3]};
  for (int i = 0; i < count; i++)
    side.parts[i] = (pk_rows){pk_tensor_data(parts[i]), parts[i]->stride};
  return side;
}

/* Turns the heads of n_x inputs to those of n_y outputs; of three parts the last one is moved as it
 * is. */
static pk_status turn(const pk_call *call, int n_x, int n_y) {
  const pk_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (x->numel == 0) return PK_OK;
  const pk_tensor *const *outputs = (const pk_tensor *const *)call->outputs;
  int64_t heads = n_x * x->shape[3];
  bool parts = n_x > 1 || n_y > 1;
  pk_rope_job job = {.x = side_of(n_x, call->inputs),
                     .y = side_of(n_y, outputs),
                     .workers = x->shape[0],
                     .rows = x->shape[1] * x->shape[2],
                     .length = x->shape[2],
                     .heads = heads,
                     .turned = parts ? heads / 3 * 2 : heads,
                     .half = x->shape[4] / 2,
                     .theta = call->attributes.numbers[0],
                     .inverse = call->attributes.integers[0],
                     .dtype = x->dtype,
                     .y_dtype = y->dtype,
                     .table = call->workspace};
  return pk_cuda_launched(call, pk_launch_rope(&job, pk_cuda_of(call)->stream));
}

pk_status pk_cuda_rope(const pk_call *call) {
  return turn(call, 1, 1);
}

pk_status pk_cuda_rope_split(const pk_call *call) {
  return turn(call, 1, 3);
}

pk_status pk_cuda_rope_join(const pk_call *call) {
  return turn(call, 3, 1);
}
