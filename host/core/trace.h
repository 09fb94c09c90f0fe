/* Traces, for what runs kernels and for devices with lanes of their own. */
#ifndef PK_TRACE_H
#define PK_TRACE_H

#include "core/context.h"

/* Runs the kernel of a call and notes it; in a forecast it is noted alone. */
pk_status pk_trace_run(pk_trace *trace, const pk_call *call);

/* The same within a range for a tool, and without a trace where there is none (ranges.c). */
pk_status pk_watched_run(const pk_call *call);

/* Runs the kernel of a call, whose device has one. */
static inline pk_status pk_call_run(const pk_call *call) {
  const pk_context *context = call->context;
  if (context->watched) return pk_watched_run(call);
  return context->forecast ? PK_OK : context->device->kernels[call->op](call);
}

/* The number that the next operation gets. */
int64_t pk_trace_next(const pk_trace *trace);

/* Notes a call that a launch of a graph does; when it ran the device says later
 * (pk_trace_set_times). */
void pk_trace_add_operation(pk_trace *trace, const pk_call *call, int64_t launched);

/* --- for devices; times are pk_nanoseconds --- */

/* Notes what a thread of the device did for an operation (the number that pk_device.trace_after was
 * given). */
void pk_trace_add_lane(pk_trace *trace, int lane, int64_t operation, const pk_busy *busy);

/* Something with a name that was done on a lane. */
typedef struct pk_activity {
  int64_t start, end;
  int64_t operation; /* or -1 */
  int64_t bytes;     /* of a copy or a fill */
  const char *lane, *name;
} pk_activity;

/* Gives a lane the next number, if it has none yet; activities do so too. */
void pk_trace_name_lane(pk_trace *trace, const char *lane);

void pk_trace_add_activity(pk_trace *trace, const pk_activity *activity);

/* The lane of what the host asks a device to do, for devices that do it later. */
#define PK_TRACE_LAUNCHES "launches"

/* When the device was at work for operations number 0 .. count - 1, one after the other; those of
 * which it knows nothing have end 0. Until then an operation's time is that of its launch, which
 * becomes an activity. */
void pk_trace_set_times(pk_trace *trace, const pk_busy *times, int64_t count);

/* From now on the device is waited for after each operation, so that times mean something. */
void pk_trace_wait(pk_trace *trace);

/* count events are missing. */
void pk_trace_lose(pk_trace *trace, int64_t count);

/* Adds a sentence to what pk_trace_note says. */
void pk_trace_remark(pk_trace *trace, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
