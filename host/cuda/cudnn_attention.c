/* Attention by cuDNN: bf16 operands of heads that its engines take. Its results are bf16, ours f32,
 * so they are made in the workspace and widened; gradients of f32 results are rounded there first.
 * Plans are made once per shape. */
#include "cuda/cudnn_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cudnn.h"
#include "cuda/strided.h"
#include "kernels/elementwise.h"

#ifdef PK_HAVE_CUDNN

enum {
  WIDEST = 128,
  LAST_OF_WHOLE_TILES = 91500, /* up to this version lengths must be multiples of 128 */
  MOST_TENSORS = PK_DNN_NUMBERS
};

typedef struct planned {
  pk_dnn_attention shape;
  bool backward;
  pk_dnn_graph graph; /* without a plan where cuDNN has none */
  struct planned *next;
} planned;

struct pk_cuda_cudnn {
  pk_cudnn dnn;
  planned *plans;
};

void pk_cuda_cudnn_free(pk_cuda_cudnn *cudnn) {
  if (!cudnn) return;
  planned *next;
  for (planned *plan = cudnn->plans; plan; plan = next) {
    next = plan->next;
    pk_dnn_graph_free(&plan->graph);
    free(plan);
  }
  if (cudnn->dnn.handle) cudnn->dnn.destroy_handle(cudnn->dnn.handle);
  free(cudnn);
}

pk_status pk_cuda_cudnn_find(pk_cuda_device *cuda) {
  pk_cuda_cudnn *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no host memory for cuDNN");
  pk_status status = pk_cudnn_find(&made->dnn);
  if (status == PK_OK)
    cuda->cudnn = made;
  else
    free(made);
  return status;
}

static pk_status open_handle(pk_cuda_device *cuda) {
  pk_cudnn *dnn = &cuda->cudnn->dnn;
  if (dnn->handle) return PK_OK;
  cudnnStatus_t said = dnn->create_handle(&dnn->handle);
  if (!said) said = dnn->set_stream(dnn->handle, cuda->stream);
  return pk_cudnn_check(dnn, said, "opening it");
}

/* --- what is asked of cuDNN --- */

static bool is_dense(const pk_tensor *tensor) {
  return tensor->shape[0] <= 1 || tensor->stride == pk_tensor_inner(tensor);
}

/* Whether the workers of a call lie together, so that their sequences are one batch. */
static bool is_together(const pk_call *call, int first, const pk_tensor *lse) {
  for (int i = first; i < first + 3; i++)
    if (!is_dense(call->inputs[i])) return false;
  return is_dense(lse);
}

/* Sequences of all workers. */
static pk_dnn_attention whole_shape(const pk_tensor *q) {
  return (pk_dnn_attention){.batch = q->shape[0] * q->shape[1],
                            .length = q->shape[2],
                            .heads = q->shape[3],
                            .width = q->shape[4]};
}

bool pk_cuda_cudnn_takes(const pk_cuda_device *cuda, const pk_tensor *q) {
  if (!cuda->cudnn || q->dtype != PK_BF16 || q->numel == 0) return false;
  bool whole = q->shape[2] % 128 == 0;
  if (!whole && cuda->cudnn->dnn.version() <= LAST_OF_WHOLE_TILES) return false;
  return q->shape[4] % 8 == 0 && q->shape[4] <= WIDEST;
}

/* The plan of a shape, made at its first use; one that cuDNN lacks is remembered too. */
static pk_status find_plan(pk_cuda_device *cuda, const pk_dnn_attention *shape, bool backward,
                           planned **found) {
  pk_status status = open_handle(cuda);
  if (status != PK_OK) return status;
  for (planned *plan = cuda->cudnn->plans; plan; plan = plan->next) {
    if (plan->backward != backward || memcmp(&plan->shape, shape, sizeof *shape) != 0) continue;
    *found = plan;
    return PK_OK;
  }
  planned *plan = calloc(1, sizeof *plan);
  if (!plan) return pk_fail(PK_NO_MEMORY, "no host memory to plan attention");
  *plan = (planned){.shape = *shape,
                    .backward = backward,
                    .graph = {.dnn = &cuda->cudnn->dnn},
                    .next = cuda->cudnn->plans};
  int64_t most =
      pk_dnn_attention_workspace(shape, backward, cuda->deterministic, cuda->properties.sm);
  if (backward)
    pk_dnn_attention_backward(&plan->graph, shape, cuda->deterministic);
  else
    pk_dnn_attention_forward(&plan->graph, shape);
  pk_dnn_plan(&plan->graph, most);
  cuda->cudnn->plans = plan;
  *found = plan;
  return PK_OK;
}

/* Operands of one run of a plan. */
typedef struct operands {
  int count;
  int64_t numbers[MOST_TENSORS];
  void *memory[MOST_TENSORS];
} operands;

static void give(operands *all, int64_t number, void *memory) {
  all->numbers[all->count] = number;
  all->memory[all->count++] = memory;
}

static char *worker_of(const pk_tensor *tensor, int64_t worker) {
  return (char *)pk_tensor_data(tensor) + worker * tensor->stride * pk_dtype_size(tensor->dtype);
}

static bool is_aligned(const operands *all) {
  uintptr_t bits = 0;
  for (int i = 0; i < all->count; i++)
    if (all->numbers[i] < PK_DNN_SCALE) bits |= (uintptr_t)all->memory[i];
  return bits % 16 == 0;
}

/* A dense bf16 copy of a tensor, or the tensor of one. */
static pk_status cast(const pk_call *call, const pk_tensor *tensor, void *bf16, bool back) {
  pk_block blocks[2] = {pk_block_of(tensor), pk_block_of(tensor)};
  blocks[1].data = bf16;
  blocks[1].size = 2;
  blocks[1].strides[0] = pk_tensor_inner(tensor);
  pk_strided walk;
  cudaStream_t stream = pk_cuda_of(call)->stream;
  if (!pk_cuda_strided(&walk, 2, blocks)) return PK_OK;
  if (back)
    return pk_cuda_launched(
        call, pk_launch_cast(tensor->dtype, PK_BF16, blocks[0].data, bf16, &walk, stream));
  pk_block turned[2] = {blocks[1], blocks[0]};
  pk_cuda_strided(&walk, 2, turned);
  return pk_cuda_launched(
      call, pk_launch_cast(PK_BF16, tensor->dtype, bf16, blocks[0].data, &walk, stream));
}

/* --- workspace --- */

/* Parts of the workspace: bf16 copies of o and, backward, of g and the gradients; sums. */
typedef struct parts {
  char *o, *g, *grads[3], *q_sums, *row_sums, *plan;
  int64_t bytes;
} parts;

static char *take(parts *all, char *workspace, int64_t bytes) {
  char *part = workspace + all->bytes;
  all->bytes += (bytes + 255) / 256 * 256;
  return part;
}

static parts parts_of(const pk_cuda_device *cuda, const pk_tensor *q, bool backward,
                      void *workspace) {
  pk_dnn_attention shape = whole_shape(q);
  char *start = workspace;
  parts all = {0};
  all.o = take(&all, start, 2 * q->numel);
  if (backward) {
    all.g = take(&all, start, 2 * q->numel);
    for (int i = 0; i < 3; i++) all.grads[i] = take(&all, start, 2 * q->numel);
    all.q_sums = take(&all, start, cuda->deterministic ? 0 : 4 * q->numel);
    all.row_sums = take(&all, start, 4 * shape.batch * shape.heads * shape.length);
  }
  all.plan =
      take(&all, start,
           pk_dnn_attention_workspace(&shape, backward, cuda->deterministic, cuda->properties.sm));
  return all;
}

int64_t pk_cuda_cudnn_workspace(const pk_cuda_device *cuda, const pk_tensor *q, bool backward) {
  /* Offsets alone: addresses from a base that is never read. */
  static char base[1];
  return parts_of(cuda, q, backward, base).bytes;
}

/* --- running --- */

typedef struct job {
  const pk_tensor *q, *k, *v, *lse;
  parts parts;
  float scale, masked, one;
  bool backward;
} job;

static void gather(job *run, int64_t worker, operands *all) {
  int64_t each = 2 * pk_tensor_inner(run->q) * worker,
          rows = 4 * pk_tensor_inner(run->lse) * worker;
  give(all, PK_DNN_Q, worker_of(run->q, worker));
  give(all, PK_DNN_K, worker_of(run->k, worker));
  give(all, PK_DNN_V, worker_of(run->v, worker));
  give(all, PK_DNN_O, run->parts.o + each);
  give(all, PK_DNN_LSE, worker_of(run->lse, worker));
  if (run->backward) {
    give(all, PK_DNN_G, run->parts.g + each);
    for (int i = 0; i < 3; i++) give(all, PK_DNN_Q_GRAD + i, run->parts.grads[i] + each);
    give(all, PK_DNN_ROW_SUMS, run->parts.row_sums + rows);
    give(all, PK_DNN_ONE, &run->one);
  }
  give(all, PK_DNN_SCALE, &run->scale);
  give(all, PK_DNN_MASKED, &run->masked);
}

/* Runs the plan for all workers at once, or one by one. *done stays false where cuDNN has no plan
 * and the device's own kernels may be used instead. */
static pk_status run_plans(const pk_call *call, job *run, bool together, bool *done) {
  pk_cuda_device *cuda = pk_cuda_of(call);
  pk_dnn_attention shape = whole_shape(run->q);
  int64_t times = together ? 1 : run->q->shape[0];
  shape.batch /= times;
  planned *plan = NULL;
  pk_status status = find_plan(cuda, &shape, run->backward, &plan);
  if (status != PK_OK) return status;
  for (int64_t worker = 0; worker < times && status == PK_OK; worker++) {
    operands all = {0};
    gather(run, worker, &all);
    if (run->backward && !cuda->deterministic)
      give(&all, PK_DNN_Q_SUMS, run->parts.q_sums + 4 * pk_tensor_inner(run->q) * worker);
    if (!plan->graph.plan || !is_aligned(&all)) {
      *done = false;
      if (!cuda->must_use_cudnn) return PK_OK;
      return pk_fail(PK_UNSUPPORTED,
                     "%s: cuDNN %zu has no plan for [%lld, %lld, %lld, %lld] at these addresses "
                     "(runtime.attention = auto or flash has)",
                     pk_op_describe(call->op)->name, plan->graph.dnn->version(),
                     (long long)shape.batch, (long long)shape.length, (long long)shape.heads,
                     (long long)shape.width);
    }
    status = pk_dnn_run(&plan->graph, all.count, all.numbers, all.memory, run->parts.plan);
  }
  *done = status == PK_OK;
  return status == PK_OK ? PK_OK : pk_fail_within(status, "%s", pk_op_describe(call->op)->name);
}

static job job_of(const pk_call *call, int first, const pk_tensor *lse, bool backward) {
  return (job){.q = call->inputs[first],
               .k = call->inputs[first + 1],
               .v = call->inputs[first + 2],
               .lse = lse,
               .parts = parts_of(pk_cuda_of(call), call->inputs[first], backward, call->workspace),
               .scale = (float)call->attributes.numbers[0],
               .masked = -INFINITY,
               .one = 1,
               .backward = backward};
}

pk_status pk_cuda_cudnn_attention(const pk_call *call, bool *done) {
  job run = job_of(call, 0, call->outputs[1], false);
  pk_status status = run_plans(call, &run, is_together(call, 0, run.lse), done);
  if (status != PK_OK || !*done) return status;
  return cast(call, call->outputs[0], run.parts.o, true);
}

pk_status pk_cuda_cudnn_attention_grad(const pk_call *call, bool *done) {
  job run = job_of(call, 1, call->inputs[5], true);
  pk_status status = cast(call, call->inputs[0], run.parts.g, false);
  if (status == PK_OK) status = cast(call, call->inputs[4], run.parts.o, false);
  if (status == PK_OK) status = run_plans(call, &run, is_together(call, 1, run.lse), done);
  for (int i = 0; i < 3 && *done && status == PK_OK; i++)
    status = cast(call, call->outputs[i], run.parts.grads[i], true);
  return status;
}

#else /* built without cuDNN's headers */

void pk_cuda_cudnn_free(pk_cuda_cudnn *cudnn) {
  (void)cudnn;
}

pk_status pk_cuda_cudnn_find(pk_cuda_device *cuda) {
  (void)cuda;
  return pk_fail(PK_UNSUPPORTED, "this build is without cuDNN: its headers, of 9.8 or newer, were "
                                 "not beside CUDA's");
}

bool pk_cuda_cudnn_takes(const pk_cuda_device *cuda, const pk_tensor *q) {
  (void)cuda;
  (void)q;
  return false;
}

int64_t pk_cuda_cudnn_workspace(const pk_cuda_device *cuda, const pk_tensor *q, bool backward) {
  (void)cuda;
  (void)q;
  (void)backward;
  return 0;
}

pk_status pk_cuda_cudnn_attention(const pk_call *call, bool *done) {
  (void)call;
  *done = false;
  return PK_OK;
}

pk_status pk_cuda_cudnn_attention_grad(const pk_call *call, bool *done) {
  return pk_cuda_cudnn_attention(call, done);
}

#endif
