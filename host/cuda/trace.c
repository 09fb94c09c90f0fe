/* Traces of the device: its kernels, copies and fills as CUPTI tells of them, on a lane for each
 * stream, each with its operation, whose time is from the first of them to the last. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/trace.h"
#include "cuda/cuda.h"
#include "cuda/cupti.h"

struct pk_cuda_trace {
  pk_cupti_log log;
  bool running;             /* CUPTI collects */
  uint32_t compute, copies; /* CUPTI's numbers of the streams */
};

#define COMPUTE_LANE "compute stream"
#define COPY_LANE "copy stream"
enum { NAME_BYTES = 256 };

/* --- names --- */

typedef char *(*demangler)(const char *, char *, size_t *, int *);

/* The function of the C++ library that the device's library is linked to; NULL if it is none. */
static demangler find_demangler(void) {
  void *symbol = dlsym(RTLD_DEFAULT, "__cxa_demangle");
  demangler found;
  memcpy(&found, &symbol, sizeof found);
  return found;
}

/* Where the parameters of "void family::kernel<float>(float *, int)" begin, or its end. */
static const char *find_parameters(const char *name) {
  const char *end = name + strlen(name), *at = end;
  if (at == name || at[-1] != ')') return end;
  for (int depth = 0; at > name;) {
    at--;
    depth += (*at == ')') - (*at == '(');
    if (depth == 0) return at;
  }
  return end;
}

/* A kernel's name as its source has it, without result, parameters and namespace of its file. */
static void show_name(const char *mangled, char name[NAME_BYTES]) {
  demangler demangle = strncmp(mangled, "_Z", 2) == 0 ? find_demangler() : NULL;
  int failed = 1;
  char *plain = demangle ? demangle(mangled, NULL, NULL, &failed) : NULL;
  const char *from = plain && !failed ? plain : mangled;
  const char *end = plain && !failed ? find_parameters(from) : from + strlen(from);
  static const char *const prefixes[] = {"void ", "(anonymous namespace)::"};
  for (int p = 0; p < 2; p++)
    if (strncmp(from, prefixes[p], strlen(prefixes[p])) == 0) from += strlen(prefixes[p]);
  size_t length = (size_t)(end - from) < NAME_BYTES ? (size_t)(end - from) : NAME_BYTES - 1;
  memcpy(name, from, length);
  name[length] = 0;
  free(plain);
}

/* --- beginning --- */

/* Without CUPTI operations are waited for, so that their times are at least above the true ones. */
pk_status pk_cuda_trace_begin(pk_device *device, pk_trace *trace) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  if (cuda->forecast) return PK_OK;
  if (!cuda->trace) cuda->trace = calloc(1, sizeof *cuda->trace);
  if (!cuda->trace) return pk_fail(PK_NO_MEMORY, "no host memory for a trace of the device");
  pk_cuda_trace *own = cuda->trace;
  cudaSetDevice(cuda->ordinal);
  cudaStreamSynchronize(cuda->stream); /* what was launched before is no part of it */
  if (pk_cupti_begin(&own->log) != PK_OK) {
    pk_trace_wait(trace);
    pk_trace_remark(trace,
                    "Without CUPTI there are no kernels in this trace, graphs are not used, and "
                    "each operation's time has launching it and waiting for it in it: %s.",
                    pk_error_message());
    return PK_OK;
  }
  own->compute = own->copies = UINT32_MAX;
  pk_cupti_stream(cuda->stream, &own->compute);
  pk_cupti_stream(pk_cuda_staging_stream(cuda->staging), &own->copies);
  static const char *const lanes[] = {PK_TRACE_LAUNCHES, COMPUTE_LANE, COPY_LANE};
  for (int l = 0; l < 3; l++) pk_trace_name_lane(trace, lanes[l]);
  own->running = true;
  device->traces_graphs = true;
  return PK_OK;
}

static bool is_tracing(const pk_cuda_device *cuda) {
  return cuda->trace && cuda->trace->running;
}

static bool is_capturing(const pk_cuda_device *cuda) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(cuda->stream, &status);
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive;
}

void pk_cuda_trace_before(pk_device *device, int64_t operation) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  if (!is_tracing(cuda)) return;
  if (is_capturing(cuda)) cuda->trace->log.capturing = operation;
  if (cuda->trace->log.capturing < 0) pk_cupti_push(operation);
}

void pk_cuda_trace_after(pk_device *device, pk_trace *trace, int64_t operation) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  (void)trace;
  (void)operation;
  if (!is_tracing(cuda)) return;
  if (cuda->trace->log.capturing < 0) pk_cupti_pop();
  cuda->trace->log.capturing = -1;
}

/* --- ending --- */

/* Others may use the device too: what is neither for an operation nor on a stream of this device is
 * not shown. */
static bool is_own(const pk_cuda_trace *own, const pk_cupti_record *record) {
  return record->operation >= 0 || record->stream == own->compute || record->stream == own->copies;
}

static void add_record(const pk_cuda_trace *own, pk_trace *trace, const pk_cupti_record *record) {
  char name[NAME_BYTES], lane[32];
  if (record->stream == own->compute)
    snprintf(lane, sizeof lane, COMPUTE_LANE);
  else if (record->stream == own->copies)
    snprintf(lane, sizeof lane, COPY_LANE);
  else
    snprintf(lane, sizeof lane, "stream %u", record->stream);
  show_name(record->name, name);
  pk_activity activity = {.start = record->start,
                          .end = record->end,
                          .operation = record->operation,
                          .bytes = record->bytes,
                          .lane = lane,
                          .name = name};
  pk_trace_add_activity(trace, &activity);
}

/* Gives operations the time from their first record to their last; records are in order. */
static void set_times(const pk_cupti_log *log, pk_trace *trace) {
  int64_t operations = pk_trace_next(trace);
  pk_busy *times = calloc((size_t)operations + 1, sizeof *times);
  if (!times) {
    pk_trace_remark(trace, "Operations have the times of their launches: no host memory for more.");
    return;
  }
  for (int64_t r = 0; r < log->count; r++) {
    const pk_cupti_record *record = &log->records[r];
    if (record->operation < 0 || record->operation >= operations) continue;
    pk_busy *time = &times[record->operation];
    if (!time->end) time->start = record->start;
    if (record->end > time->end) time->end = record->end;
  }
  pk_trace_set_times(trace, times, operations);
  free(times);
}

void pk_cuda_trace_end(pk_device *device, pk_trace *trace) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  device->traces_graphs = false;
  if (!is_tracing(cuda)) return;
  pk_cuda_trace *own = cuda->trace;
  cudaSetDevice(cuda->ordinal);
  cudaStreamSynchronize(cuda->stream);
  pk_cupti_end(&own->log);
  own->running = false;
  set_times(&own->log, trace);
  for (int64_t r = 0; r < own->log.count; r++)
    if (is_own(own, &own->log.records[r])) add_record(own, trace, &own->log.records[r]);
  pk_trace_lose(trace, own->log.lost);
  if (own->log.lost > 0)
    pk_trace_remark(trace, "%lld records of CUPTI were lost.", (long long)own->log.lost);
  if (own->log.strange > 0) {
    pk_trace_remark(trace,
                    "Of %lld kernels of graphs it is not known which operation they are for.",
                    (long long)own->log.strange);
  }
}

void pk_cuda_trace_free(pk_cuda_trace *trace) {
  if (!trace) return;
  pk_cupti_log_free(&trace->log);
  free(trace);
}
