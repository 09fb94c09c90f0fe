/* Ranges for tools such as Nsight Systems, by NVTX, which is headers alone: it looks for a tool
 * when it is first called, and without one there is no domain and nothing is ever called again. */
#include "cuda/cuda.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define PK_HAVE_NVTX 1
#endif
#endif

#ifdef PK_HAVE_NVTX

#include <stdio.h>

static nvtxEventAttributes_t attributes_of(const char *name) {
  nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                      .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                      .messageType = NVTX_MESSAGE_TYPE_ASCII};
  attributes.message.ascii = name;
  return attributes;
}

static void push(pk_device *device, const char *name) {
  nvtxEventAttributes_t attributes = attributes_of(name);
  nvtxDomainRangePushEx(((pk_cuda_device *)device)->ranges, &attributes);
}

static void pop(pk_device *device) {
  nvtxDomainRangePop(((pk_cuda_device *)device)->ranges);
}

/* A range of its own that is over when the next step begins, so that it may be left in any way. */
static void step(pk_device *device, int64_t number) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  char name[32];
  snprintf(name, sizeof name, "step %lld", (long long)number);
  nvtxEventAttributes_t attributes = attributes_of(name);
  if (cuda->in_step) nvtxDomainRangeEnd(cuda->ranges, cuda->step_range);
  cuda->step_range = nvtxDomainRangeStartEx(cuda->ranges, &attributes);
  cuda->in_step = true;
}

void pk_cuda_ranges_begin(pk_cuda_device *cuda) {
  cuda->ranges = nvtxDomainCreateA("packlua");
  if (!cuda->ranges) return;
  cuda->base.range_push = push;
  cuda->base.range_pop = pop;
  cuda->base.range_step = step;
}

void pk_cuda_ranges_end(pk_cuda_device *cuda) {
  if (cuda->in_step) nvtxDomainRangeEnd(cuda->ranges, cuda->step_range);
  if (cuda->ranges) nvtxDomainDestroy(cuda->ranges);
}

#else

void pk_cuda_ranges_begin(pk_cuda_device *cuda) {
  (void)cuda;
}

void pk_cuda_ranges_end(pk_cuda_device *cuda) {
  (void)cuda;
}

#endif
