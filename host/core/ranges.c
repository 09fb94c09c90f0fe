/* Ranges for tools that are attached to the process: names for what the host does. */
#include <stdio.h>

#include "core/trace.h"

enum { NAME_BYTES = 512 };

void pk_range_enter(pk_context *context, const char *name) {
  if (context->device->range_push) context->device->range_push(context->device, name);
}

void pk_range_leave(pk_context *context) {
  if (context->device->range_pop) context->device->range_pop(context->device);
}

void pk_range_step(pk_context *context, int64_t step) {
  if (context->device->range_step) context->device->range_step(context->device, step);
}

/* "matmul f32 [2, 3] f32 [3, 4]" of a call. */
static void name_call(const pk_call *call, char name[NAME_BYTES]) {
  char shape[PK_SHAPE_TEXT];
  int used = snprintf(name, NAME_BYTES, "%s", pk_op_describe(call->op)->name);
  for (int i = 0; i < call->n_inputs && used < NAME_BYTES; i++) {
    const pk_tensor *input = call->inputs[i];
    if (!input) continue;
    used += snprintf(name + used, (size_t)(NAME_BYTES - used), " %s %s",
                     pk_dtype_name(input->dtype), pk_shape_text(shape, input->rank, input->shape));
  }
}

pk_status pk_watched_run(const pk_call *call) {
  pk_context *context = call->context;
  if (context->device->range_push) {
    char name[NAME_BYTES];
    name_call(call, name);
    pk_range_enter(context, name);
  }
  pk_status status = PK_OK;
  if (context->trace)
    status = pk_trace_run(context->trace, call);
  else if (!context->forecast)
    status = context->device->kernels[call->op](call);
  pk_range_leave(context);
  return status;
}
