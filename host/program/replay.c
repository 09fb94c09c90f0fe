/* Running recorded operations: one by one, or as one graph of the device (replay.h). */
#include "program/replay.h"

#include <stdio.h>

#include "core/trace.h"

static pk_status name_operation(pk_status status, int64_t i) {
  return pk_fail_within(status, "operation %lld of a recorded program", (long long)i + 1);
}

/* Runs the kernels of all operations; those before `interruptible` look for a request to stop. */
static pk_status run_each(pk_recorded *const *operations, int64_t count, int64_t interruptible) {
  for (int64_t i = 0; i < count; i++) {
    pk_status status = i < interruptible ? pk_interrupt_check() : PK_OK;
    if (status != PK_OK) return status;
    status = pk_call_run(&operations[i]->call);
    if (status != PK_OK) return name_operation(status, i);
  }
  return PK_OK;
}

/* Lets the device note all operations; a device that is traced learns which is which. */
static pk_status capture_each(pk_device *device, bool traced, pk_recorded *const *operations,
                              int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const pk_call *call = &operations[i]->call;
    if (traced && device->trace_before) device->trace_before(device, i);
    pk_status status = device->kernels[call->op](call);
    if (traced && device->trace_after) device->trace_after(device, call->context->trace, i);
    if (status != PK_OK) return name_operation(status, i);
  }
  return PK_OK;
}

/* Makes the graph, or notes why there is none. */
static void capture(pk_replay *replay, pk_context *context, pk_recorded *const *operations,
                    int64_t count) {
  pk_device *device = context->device;
  replay->traced = context->trace != NULL;
  pk_status status = device->graph_begin(device);
  bool begun = status == PK_OK;
  if (begun) status = capture_each(device, replay->traced, operations, count);
  bool noted = status == PK_OK;
  if (noted) status = device->graph_end(device, &replay->graph);
  if (status == PK_OK) return;
  replay->refused = true;
  snprintf(replay->remark, sizeof replay->remark, "%s", pk_error_message());
  if (begun && !noted) device->graph_end(device, NULL);
}

/* Launches the graph and notes its operations, which the device tells apart. */
static pk_status launch_traced(pk_graph *graph, pk_context *context, pk_recorded *const *operations,
                               int64_t count) {
  pk_device *device = context->device;
  pk_trace *trace = context->trace;
  int64_t first = pk_trace_next(trace);
  if (device->trace_before) device->trace_before(device, first);
  int64_t start = pk_nanoseconds();
  pk_status status = device->graph_launch(device, graph);
  pk_activity launch = {.start = start,
                        .end = pk_nanoseconds(),
                        .operation = -1,
                        .lane = PK_TRACE_LAUNCHES,
                        .name = "graph"};
  pk_trace_add_activity(trace, &launch);
  if (device->trace_after) device->trace_after(device, trace, first);
  for (int64_t i = 0; i < count && status == PK_OK; i++)
    pk_trace_add_operation(trace, &operations[i]->call, start);
  return status;
}

/* Whether the program is to be run as a graph now. While it is traced, that needs a device that
 * tells a graph's operations apart. */
static bool wants_graph(const pk_replay *replay, const pk_context *context) {
  const pk_device *device = context->device;
  if (!device->graph_begin || !replay->ran || replay->refused) return false;
  return !context->trace || device->traces_graphs;
}

pk_status pk_replay_run(pk_replay *replay, pk_context *context, pk_recorded *const *operations,
                        int64_t count, int64_t commit) {
  pk_device *device = context->device;
  bool as_graph = wants_graph(replay, context);
  /* What is in a graph that was made while nobody looked is not known. */
  if (as_graph && context->trace && !replay->traced) pk_replay_free(replay, context);
  if (as_graph && !replay->graph) capture(replay, context, operations, count);
  if (as_graph && replay->graph) {
    pk_status status = pk_interrupt_check();
    pk_range_enter(context, "recorded program");
    if (status == PK_OK) {
      status = context->trace ? launch_traced(replay->graph, context, operations, count)
                              : device->graph_launch(device, replay->graph);
    }
    pk_range_leave(context);
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
