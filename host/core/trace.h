/* Traces, for what runs kernels and for devices with lanes of their own. */
#ifndef PK_TRACE_H
#define PK_TRACE_H

#include "core/context.h"

/* Runs the kernel of a call and notes it; in a forecast it is noted alone. */
pk_status pk_trace_run(pk_trace *trace, const pk_call *call);

/* Runs the kernel of a call, whose device has one. */
static inline pk_status pk_call_run(const pk_call *call) {
  const pk_context *context = call->context;
  if (context->trace) return pk_trace_run(context->trace, call);
  return context->forecast ? PK_OK : context->device->kernels[call->op](call);
}

/* Notes what a lane of the device did for an operation (the number that pk_device.trace_after was
 * given). start and end are pk_nanoseconds. */
void pk_trace_add_lane(pk_trace *trace, int lane, int64_t operation, const pk_busy *busy);

#endif
