/* From an operation's number to its kernel: the table of operations, and running one. */
#include <pthread.h>
#include <string.h>

#include "core/context.h"
#include "core/trace.h"

enum {
  D = PK_OP_DIFFERENTIABLE,
  A = PK_OP_ACCUMULATES,
  I = PK_OP_IN_PLACE,
  W = PK_OP_VIEW,
  V = PK_OP_VARIADIC,
  R = PK_OP_REUSES
};

static pk_op_info infos[PK_OP_COUNT] = {
#define PK_OP(op_name, op_inputs, op_outputs, op_attributes, op_flags, op_summary)                 \
  {.name = #op_name,                                                                               \
   .inputs = op_inputs,                                                                            \
   .outputs = op_outputs,                                                                          \
   .attributes = op_attributes,                                                                    \
   .summary = op_summary,                                                                          \
   .flags = op_flags},
#include "ops.def"
#undef PK_OP
};

static int count_words(const char *text) {
  int words = 0;
  for (const char *p = text; *p; p++) words += *p != ' ' && (p == text || p[-1] == ' ');
  return words;
}

/* The counts follow from the names, so that a row states them once. */
static void count_names(void) {
  for (int op = 0; op < PK_OP_COUNT; op++) {
    infos[op].n_inputs = count_words(infos[op].inputs);
    infos[op].n_outputs = count_words(infos[op].outputs);
  }
}

static const pk_op_info *table(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, count_names);
  return infos;
}

int pk_op_count(void) {
  return PK_OP_COUNT;
}

const pk_op_info *pk_op_describe(int op) {
  return op >= 0 && op < PK_OP_COUNT ? &table()[op] : NULL;
}

/* The word at index of names, and its length. */
static const char *name_at(const char *names, int index, int *length) {
  const char *start = names;
  for (int i = 0; i < index && start; i++) {
    start = strchr(start, ' ');
    if (start) start++;
  }
  if (!start) start = "";
  *length = (int)strcspn(start, " ");
  return start;
}

/* Whether an input's name carries a mark: '?' it may be absent, '!' it is written to. */
static bool input_is_marked(const pk_op_info *info, int index, char mark) {
  int length;
  const char *name = name_at(info->inputs, index, &length);
  return memchr(name, mark, (size_t)length) != NULL;
}

static pk_status check_inputs(const pk_call *call, const pk_op_info *info) {
  bool variadic = info->flags & V;
  if (variadic ? call->n_inputs < 1 || call->n_inputs > PK_MAX_INPUTS
               : call->n_inputs != info->n_inputs) {
    return pk_fail(PK_INVALID, "%s: %d inputs, not %d (%s)", info->name, call->n_inputs,
                   info->n_inputs, info->inputs);
  }
  for (int i = 0; i < call->n_inputs; i++) {
    const pk_tensor *input = call->inputs[i];
    int length;
    const char *name = name_at(info->inputs, variadic ? 0 : i, &length);
    if (!input && (variadic || !input_is_marked(info, i, '?'))) {
      return pk_fail(PK_INVALID, "%s: input %d (%.*s) is missing", info->name, i + 1, length, name);
    }
    const char *trouble = input ? pk_tensor_trouble(input) : NULL;
    if (trouble) {
      return pk_fail(PK_INVALID, "%s: input %d (%.*s) %s", info->name, i + 1, length, name,
                     trouble);
    }
    if (input && input->context != call->context) {
      return pk_fail(PK_INVALID, "%s: input %d (%.*s) belongs to another device context",
                     info->name, i + 1, length, name);
    }
  }
  return PK_OK;
}

/* Whether the elements of two tensors can meet. Columns of one arena interleave without meeting. */
static bool overlaps(const pk_tensor *a, const pk_tensor *b) {
  if (a->storage != b->storage || a->numel == 0 || b->numel == 0) return false;
  int64_t inner_a = pk_tensor_inner(a), inner_b = pk_tensor_inner(b);
  int64_t rows_a = a->rank ? a->shape[0] : 1, rows_b = b->rank ? b->shape[0] : 1;
  int64_t end_a = a->offset + (rows_a - 1) * a->stride + inner_a;
  int64_t end_b = b->offset + (rows_b - 1) * b->stride + inner_b;
  if (a->offset >= end_b || b->offset >= end_a) return false;
  if (rows_a > 1 && rows_b > 1 && a->stride == b->stride && a->dtype == b->dtype) {
    int64_t start_a = a->offset % a->stride, start_b = b->offset % a->stride;
    bool whole = start_a + inner_a <= a->stride && start_b + inner_b <= a->stride;
    if (whole) return start_a < start_b + inner_b && start_b < start_a + inner_a;
  }
  return true;
}

/* What an operation writes in place must not be what it reads elsewhere. */
static pk_status check_in_place(const pk_call *call, const pk_op_info *info) {
  for (int i = 0; i < call->n_inputs; i++) {
    if (!call->inputs[i] || !input_is_marked(info, i, '!')) continue;
    for (int j = 0; j < call->n_inputs; j++) {
      if (j == i || !call->inputs[j] || !overlaps(call->inputs[i], call->inputs[j])) continue;
      return pk_fail(PK_INVALID, "%s: input %d is written to and shares memory with input %d",
                     info->name, i + 1, j + 1);
    }
  }
  return PK_OK;
}

static pk_status check_output(const pk_call *call, const pk_op_info *info, int index,
                              const pk_shape *shape) {
  const pk_tensor *output = call->outputs[index];
  int length;
  const char *name = name_at(info->outputs, index, &length);
  const char *trouble = pk_tensor_trouble(output);
  if (trouble) return pk_fail(PK_INVALID, "%s: output %.*s %s", info->name, length, name, trouble);
  if (output->context != call->context) {
    return pk_fail(PK_INVALID, "%s: output %.*s belongs to another device context", info->name,
                   length, name);
  }
  bool same = output->dtype == shape->dtype && output->rank == shape->rank &&
              memcmp(output->shape, shape->extents, sizeof(int64_t) * (size_t)shape->rank) == 0;
  if (!same) {
    char given[PK_SHAPE_TEXT], wanted[PK_SHAPE_TEXT];
    return pk_fail(PK_INVALID, "%s: output %.*s is %s %s, not %s %s", info->name, length, name,
                   pk_dtype_name(output->dtype), pk_shape_text(given, output->rank, output->shape),
                   pk_dtype_name(shape->dtype), pk_shape_text(wanted, shape->rank, shape->extents));
  }
  for (int i = 0; i < call->n_inputs; i++) {
    if (call->inputs[i] && overlaps(output, call->inputs[i])) {
      return pk_fail(PK_INVALID, "%s: output %.*s shares memory with input %d; give another output",
                     info->name, length, name, i + 1);
    }
  }
  for (int o = 0; o < index; o++) {
    if (call->outputs[o] && overlaps(output, call->outputs[o])) {
      return pk_fail(PK_INVALID, "%s: outputs %d and %d share memory", info->name, o + 1,
                     index + 1);
    }
  }
  return PK_OK;
}

/* Makes missing outputs and checks those given; bit o of *made is set for each made here. */
static pk_status prepare_outputs(pk_call *call, const pk_op_info *info, const pk_shape *shapes,
                                 unsigned *made) {
  for (int o = 0; o < call->n_outputs; o++) {
    pk_status status = PK_OK;
    if (call->outputs[o]) {
      status = check_output(call, info, o, &shapes[o]);
    } else {
      status = pk_tensor_create_raw(call->context, &call->outputs[o], shapes[o].dtype,
                                    shapes[o].rank, shapes[o].extents, PK_ACTIVATIONS);
      if (status != PK_OK) return pk_fail_within(status, "%s", info->name);
      *made |= 1u << o;
    }
    if (status != PK_OK) return status;
    bool adds = call->attributes.accumulate >> o & 1;
    if (adds && (*made >> o & 1 || !(info->flags & A))) {
      return pk_fail(PK_INVALID, "%s: output %d cannot be added to: %s", info->name, o + 1,
                     info->flags & A ? "it was not given" : "the operation does not accumulate");
    }
  }
  return PK_OK;
}

/* reshape of a tensor whose elements are in order, or that keeps dimension 0, shares its storage.
 */
static bool can_share(const pk_tensor *input, const pk_shape *shape) {
  if (pk_tensor_is_dense(input)) return true;
  return shape->rank > 0 && shape->extents[0] == input->shape[0];
}

static pk_status share(pk_call *call, const pk_shape *shape) {
  const pk_tensor *input = call->inputs[0];
  bool keeps_rows = input->rank > 0 && shape->rank > 0 && shape->extents[0] == input->shape[0];
  int64_t stride = 1;
  for (int d = 1; d < shape->rank; d++) stride *= shape->extents[d];
  if (keeps_rows) stride = input->stride;
  return pk_tensor_view(input, &call->outputs[0], shape->rank, shape->extents, stride, 0);
}

bool pk_op_available(const pk_context *context, int op) {
  return context->device->kernels[op] && !context->without[op];
}

static pk_status check_available(const pk_call *call, const pk_op_info *info) {
  if (pk_op_available(call->context, call->op)) return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "%s is not available on device %s", info->name,
                 call->context->device->name);
}

static pk_status record(const pk_call *call, const pk_op_info *info) {
  pk_status status = check_available(call, info);
  return status == PK_OK ? call->context->record(call->context->recording, call) : status;
}

/* Runs the kernel with the workspace that it wants. */
static pk_status run_kernel(pk_call *call, const pk_op_info *info) {
  const pk_device *device = call->context->device;
  pk_status status = check_available(call, info);
  if (status != PK_OK) return status;
  pk_workspace_rule rule = device->workspaces[call->op];
  int64_t bytes = rule ? rule(call) : 0, room;
  if (bytes == 0) return pk_call_run(call);
  status = pk_memory_take(call->context, bytes, PK_WORKSPACE, &call->workspace, &room);
  if (status != PK_OK) return pk_fail_within(status, "%s", info->name);
  status = pk_call_run(call);
  pk_memory_give(call->context, call->workspace, bytes, room, PK_WORKSPACE);
  return status;
}

static void count_write(const pk_call *call, const pk_tensor *tensor) {
  if (call->context->recording)
    tensor->storage->noted++;
  else
    tensor->storage->writes++;
}

static void count_writes(const pk_call *call, const pk_op_info *info) {
  for (int o = 0; o < call->n_outputs; o++) count_write(call, call->outputs[o]);
  for (int i = 0; info->flags & I && i < call->n_inputs; i++)
    if (call->inputs[i] && input_is_marked(info, i, '!')) count_write(call, call->inputs[i]);
}

static pk_status run_call(pk_call *call, const pk_op_info *info, unsigned *made) {
  call->phase = call->context->phase;
  pk_shape shapes[PK_MAX_OUTPUTS];
  pk_status status = pk_shape_rules[call->op](call, shapes);
  if (status != PK_OK) return status;
  if (info->flags & I) status = check_in_place(call, info);
  if (status != PK_OK) return status;
  if (info->flags & W && !call->outputs[0] && can_share(call->inputs[0], &shapes[0])) {
    return share(call, &shapes[0]);
  }
  status = prepare_outputs(call, info, shapes, made);
  if (status != PK_OK) return status;
  count_writes(call, info);
  if (call->context->recording) return record(call, info);
  return run_kernel(call, info);
}

pk_status pk_op_run(pk_context *context, int op, const pk_tensor *const *inputs, int n_inputs,
                    pk_tensor **outputs, int n_outputs, const pk_attributes *attributes) {
  const pk_op_info *info = pk_op_describe(op);
  if (!info) return pk_fail(PK_INVALID, "operation %d: there are %d", op, PK_OP_COUNT);
  if (n_inputs < 0 || n_inputs > PK_MAX_INPUTS || n_outputs != info->n_outputs) {
    return pk_fail(PK_INVALID, "%s: %d inputs and %d outputs, not %d and %d", info->name, n_inputs,
                   n_outputs, info->n_inputs, info->n_outputs);
  }
  pk_call call = {.context = context, .op = op, .n_inputs = n_inputs, .n_outputs = n_outputs};
  for (int i = 0; i < n_inputs; i++) call.inputs[i] = inputs[i];
  for (int o = 0; o < n_outputs; o++) call.outputs[o] = outputs[o];
  if (attributes) call.attributes = *attributes;

  unsigned made = 0;
  pk_status status = check_inputs(&call, info);
  if (status == PK_OK && !context)
    status = pk_fail(PK_INVALID, "%s: the tensor that names the device was freed", info->name);
  if (status == PK_OK) status = pk_interrupt_check();
  if (status == PK_OK) status = run_call(&call, info, &made);
  if (status != PK_OK) {
    for (int o = 0; o < n_outputs; o++) {
      if (made >> o & 1) pk_tensor_free(call.outputs[o]);
    }
    return status;
  }
  for (int o = 0; o < n_outputs; o++) outputs[o] = call.outputs[o];
  return PK_OK;
}
