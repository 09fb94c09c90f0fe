/* What a test may ask of the emulated runtime, besides what CUDA has. */
#ifndef PK_EMU_CONTROL_H
#define PK_EMU_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls of the runtime so far. */
typedef struct pk_emu_counters {
  int64_t launches; /* of kernels and library calls, not those inside a replayed graph */
  int64_t graph_launches;
  int64_t captures;
  int64_t allocations, releases;
  int64_t uploads, downloads, copies, fills; /* host to device, back, on the device, memset */
  int64_t upload_bytes;
  int64_t synchronizations; /* waits of the host for a stream, an event or the device */
  int64_t held_bytes;       /* of the device's memory, by whoever */
} pk_emu_counters;

void pk_emu_read_counters(pk_emu_counters *counters);

/* Lets the calls-th next call of a runtime function, such as "cudaMalloc", return error (a
 * cudaError_t). One after which a real context is lost, such as cudaErrorIllegalAddress, is
 * returned by every later call too. NULL forgets all of this. */
void pk_emu_fail(const char *function, int64_t calls, int error);

/* What the emulated machine looks like. */
typedef struct pk_emu_machine {
  int64_t memory; /* bytes of the device */
  int devices;
  int driver; /* the newest CUDA that it supports, 13000 for 13.0; 0: there is no driver */
  int sm;     /* 90 for sm_90 */
  int cublas; /* whether cuBLASLt is installed */
  int cupti;  /* and CUPTI */
} pk_emu_machine;

/* Makes it look like that; NULL: as at first. For devices that are opened afterwards. */
void pk_emu_pretend(const pk_emu_machine *machine);

/* Lets CUPTI lose the next count records. */
void pk_emu_lose_records(int64_t count);

/* The ranges that NVTX was told of, a line each: "push NAME" and "pop", "start NAME" and "end".
 * Empty unless NVTX_INJECTION64_PATH names this library (nvtx.cpp). */
const char *pk_emu_ranges(void);

#ifdef __cplusplus
}
#endif
#endif
