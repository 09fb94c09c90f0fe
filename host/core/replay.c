/* Running recorded operations: one by one, or as one graph of the device (replay.h). */
#include "core/replay.h"

#include <stdio.h>

#include "core/trace.h"

/* Runs the kernels of all operations; those before `interruptible` look for a request to stop. */
static pk_status run_each(pk_recorded *const *operations, int64_t count, int64_t interruptible) {
  for (int64_t i = 0; i < count; i++) {
    pk_status status = i < interruptible ? pk_interrupt_check() : PK_OK;
    if (status != PK_OK) return status;
    status = pk_call_run(&operations[i]->call);
    if (status != PK_OK)
      return pk_fail_within(status, "operation %lld of a recorded program", (long long)i + 1);
  }
  return PK_OK;
}

/* Makes the graph, or notes why there is none. */
static void capture(pk_replay *replay, pk_device *device, pk_recorded *const *operations,
                    int64_t count) {
  pk_status status = device->graph_begin(device);
  bool begun = status == PK_OK;
  if (begun) status = run_each(operations, count, 0);
  bool noted = status == PK_OK;
  if (noted) status = device->graph_end(device, &replay->graph);
  if (status == PK_OK) return;
  replay->refused = true;
  snprintf(replay->remark, sizeof replay->remark, "%s", pk_error_message());
  if (begun && !noted) device->graph_end(device, NULL);
}

pk_status pk_replay_run(pk_replay *replay, pk_context *context, pk_recorded *const *operations,
                        int64_t count, int64_t commit) {
  pk_device *device = context->device;
  bool as_graph = device->graph_begin && replay->ran && !replay->refused && !context->trace;
  if (as_graph && !replay->graph) capture(replay, device, operations, count);
  if (as_graph && replay->graph) {
    pk_status status = pk_interrupt_check();
    if (status == PK_OK) status = device->graph_launch(device, replay->graph);
    return status == PK_OK ? PK_OK : pk_fail_within(status, "a recorded program");
  }
  pk_status status = run_each(operations, count, commit + 1);
  if (status == PK_OK) replay->ran = true;
  return status;
}

void pk_replay_free(pk_replay *replay, pk_context *context) {
  if (replay->graph) context->device->graph_free(context->device, replay->graph);
  replay->graph = NULL;
}
