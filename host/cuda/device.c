/* A CUDA device: finding and opening it, its memory and its stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device_library.h"
#include "cuda/cudnn_attention.h"
#include "cuda/products.h"
#include "kernels/elementwise.h"

#ifndef PK_CUDA_ARCHITECTURES
#define PK_CUDA_ARCHITECTURES "80 90 100"
#endif

enum { MARGIN_BYTES = 256 << 20, LEAST_SM = 80 };

PK_DEVICE_EXPORT const char pk_device_version[] = PK_VERSION;

pk_cuda_device *pk_cuda_of(const pk_call *call) {
  pk_cuda_device *cuda = (pk_cuda_device *)pk_context_get_device(call->context);
  if (!cuda->forecast) cudaSetDevice(cuda->ordinal);
  return cuda;
}

/* --- memory and time --- */

static pk_status allocate(pk_device *device, int64_t bytes, void **memory) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  if (error == cudaSuccess) error = cudaMalloc(memory, (size_t)bytes);
  return pk_cuda_check(error, "cudaMalloc");
}

static void release(pk_device *device, void *memory, int64_t bytes) {
  (void)bytes;
  cudaSetDevice(((pk_cuda_device *)device)->ordinal);
  cudaFree(memory);
}

static pk_status zero(pk_device *device, void *memory, int64_t bytes) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  if (bytes == 0) return PK_OK;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, (size_t)bytes, cuda->stream);
  return pk_cuda_check(error, "clearing memory");
}

static pk_status synchronize(pk_device *device) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  if (cuda->forecast) return PK_OK;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  if (error == cudaSuccess) error = cudaStreamSynchronize(cuda->stream);
  return pk_cuda_check(error, "waiting for the device");
}

static void destroy(pk_device *device) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  if (!cuda->forecast) {
    cudaSetDevice(cuda->ordinal);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
  }
  pk_cuda_cudnn_free(cuda->cudnn);
  pk_cuda_trace_free(cuda->trace);
  pk_cuda_ranges_end(cuda);
  if (!cuda->forecast) {
    pk_cuda_products_free(cuda->products);
    pk_cuda_staging_free(cuda->staging);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
  }
  free(cuda);
}

/* --- finding devices --- */

/* Why there is no device at all, from what counting them returned. */
static pk_status refuse_driver(cudaError_t error) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  int version = 0;
  cudaDriverGetVersion(&version);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver && version > 0) {
    return pk_fail(PK_UNSUPPORTED,
                   "the driver is too old: it supports CUDA up to %d.%d, this build needs %d.%d. "
                   "Update the driver, or build with an older CUDA",
                   version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                   CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaErrorInsufficientDriver) {
    return pk_fail(PK_UNSUPPORTED, "there is no NVIDIA driver on this machine");
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return pk_fail(PK_UNSUPPORTED, "the driver shows no GPU%s%s",
                   visible ? "; CUDA_VISIBLE_DEVICES is " : "", visible ? visible : "");
  }
  return pk_cuda_check(error, "looking for devices");
}

static pk_status count_devices(int *count) {
  *count = 0;
  cudaError_t error = cudaGetDeviceCount(count);
  return error == cudaSuccess && *count > 0 ? PK_OK : refuse_driver(error);
}

/* The number in "cuda:1"; 0 for a name without one. */
static pk_status parse_ordinal(const char *name, int *ordinal) {
  const char *colon = strchr(name, ':');
  *ordinal = 0;
  if (!colon) return PK_OK;
  char *end;
  long number = strtol(colon + 1, &end, 10);
  if (colon[1] < '0' || colon[1] > '9' || *end || number > 1023) {
    return pk_fail(PK_INVALID, "after cuda: comes a number, counted from 0, not '%s'", colon + 1);
  }
  *ordinal = (int)number;
  return PK_OK;
}

static void format_uuid(const cudaUUID_t *uuid, char text[48]) {
  int used = snprintf(text, 48, "GPU-");
  for (int i = 0; i < 16; i++) {
    bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    used += snprintf(text + used, 48 - (size_t)used, "%s%02x", dash ? "-" : "",
                     (unsigned char)uuid->bytes[i]);
  }
}

static pk_status read_properties(int ordinal, pk_cuda_properties *properties) {
  struct cudaDeviceProp read;
  pk_status status = pk_cuda_check(cudaGetDeviceProperties(&read, ordinal), "asking the device");
  if (status != PK_OK) return status;
  *properties = (pk_cuda_properties){.memory = (int64_t)read.totalGlobalMem,
                                     .l2_bytes = read.l2CacheSize,
                                     .shared_bytes = (int64_t)read.sharedMemPerBlockOptin,
                                     .sm = 10 * read.major + read.minor,
                                     .multiprocessors = read.multiProcessorCount};
  snprintf(properties->name, sizeof properties->name, "%s", read.name);
  format_uuid(&read.uuid, properties->uuid);
  if (properties->sm >= LEAST_SM) return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "%s is an sm_%d: this build has kernels for sm_ %s and newer",
                 properties->name, properties->sm, PK_CUDA_ARCHITECTURES);
}

/* What a forecast assumes where there is no device: an H200. */
static pk_cuda_properties assumed_properties(void) {
  return (pk_cuda_properties){.name = "NVIDIA H200 (assumed)",
                              .uuid = "no device asked",
                              .memory = (int64_t)139 << 30,
                              .l2_bytes = 50 << 20,
                              .shared_bytes = 227 << 10,
                              .sm = 90,
                              .multiprocessors = 132};
}

/* Finds the device that a name means, and reads what it can do. */
static pk_status find_properties(const char *name, pk_cuda_device *cuda) {
  int count;
  pk_status status = parse_ordinal(name, &cuda->ordinal);
  if (status == PK_OK) status = count_devices(&count);
  if (status == PK_OK && cuda->ordinal >= count) {
    status = pk_fail(PK_INVALID, "there %s %d CUDA device%s, counted from cuda:0",
                     count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  }
  if (status == PK_OK) status = read_properties(cuda->ordinal, &cuda->properties);
  if (status == PK_OK || !cuda->forecast || status == PK_INVALID) return status;
  cuda->properties = assumed_properties();
  return PK_OK;
}

/* --- opening one --- */

static pk_status start(pk_cuda_device *cuda) {
  pk_status status = pk_cuda_check(cudaSetDevice(cuda->ordinal), "opening the device");
  if (status == PK_OK) status = pk_cuda_check(pk_launch_probe(), "opening the device");
  if (status == PK_OK) {
    status = pk_cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
                           "making a stream");
  }
  if (status == PK_OK) status = pk_cuda_staging_create(&cuda->staging, cuda->stream);
  size_t left = 0, total = 0;
  if (status == PK_OK) {
    status = pk_cuda_check(cudaMemGetInfo(&left, &total), "asking for the device's memory");
  }
  int64_t usable = (int64_t)left - MARGIN_BYTES;
  cuda->base.memory_available = usable > 0 ? usable : 0;
  return status;
}

/* cuDNN's attention if it is to be had and not unwanted. */
static pk_status choose_attention(pk_cuda_device *cuda, int64_t wanted) {
  cuda->base.attention = "flash";
  cuda->must_use_cudnn = wanted == PK_ATTENTION_CUDNN;
  if (wanted == PK_ATTENTION_FLASH) return PK_OK;
  pk_status status = pk_cuda_cudnn_find(cuda);
  if (status != PK_OK) return cuda->must_use_cudnn ? status : PK_OK;
  cuda->base.attention = "cudnn";
  return PK_OK;
}

static void describe(pk_cuda_device *cuda, const char *name) {
  const pk_cuda_properties *properties = &cuda->properties;
  bool numbered = strncmp(name, "cuda", 4) == 0;
  if (numbered)
    snprintf(cuda->name, sizeof cuda->name, "cuda:%d", cuda->ordinal);
  else
    snprintf(cuda->name, sizeof cuda->name, "%s", name);
  snprintf(cuda->isa, sizeof cuda->isa, "sm_%d", properties->sm);
  snprintf(cuda->description, sizeof cuda->description, "%s, %s, %.1f GiB, %s", properties->name,
           properties->uuid, (double)properties->memory / 1073741824.0, cuda->isa);
}

PK_DEVICE_EXPORT pk_status pk_device_open(const pk_context_options *options, pk_device **device) {
  pk_cuda_device *cuda = calloc(1, sizeof *cuda);
  if (!cuda) return pk_fail(PK_NO_MEMORY, "no host memory for the CUDA device");
  cuda->forecast = options->forecast != 0;
  cuda->deterministic = options->deterministic != 0;
  cuda->base = (pk_device){.name = cuda->name,
                           .description = cuda->description,
                           .isa = cuda->isa,
                           .has_bf16 = true,
                           .threads = 1,
                           .kernels = pk_cuda_kernels,
                           .workspaces = pk_cuda_workspaces,
                           .allocate = allocate,
                           .release = release,
                           .zero = zero,
                           .upload = pk_cuda_upload,
                           .download = pk_cuda_download,
                           .synchronize = synchronize,
                           .destroy = destroy,
                           .trace_begin = pk_cuda_trace_begin,
                           .trace_before = pk_cuda_trace_before,
                           .trace_after = pk_cuda_trace_after,
                           .trace_end = pk_cuda_trace_end,
                           .graph_begin = pk_cuda_graph_begin,
                           .graph_end = pk_cuda_graph_end,
                           .graph_launch = pk_cuda_graph_launch,
                           .graph_free = pk_cuda_graph_free};
  pk_status status = find_properties(options->device, cuda);
  if (status == PK_OK) describe(cuda, options->device);
  cuda->base.memory_available = cuda->properties.memory;
  if (status == PK_OK) status = choose_attention(cuda, options->attention);
  if (status == PK_OK && !cuda->forecast) status = start(cuda);
  if (status != PK_OK) {
    destroy(&cuda->base);
    return pk_fail_within(status, "device '%s'", options->device);
  }
  if (!cuda->forecast) pk_cuda_ranges_begin(cuda);
  *device = &cuda->base;
  return PK_OK;
}

PK_DEVICE_EXPORT pk_status pk_device_usable(const char *name) {
  pk_cuda_device cuda = {.forecast = false};
  return find_properties(name, &cuda);
}

PK_DEVICE_EXPORT void pk_device_list(const char *prefix, char *text, int64_t size) {
  int count;
  pk_status status = count_devices(&count);
  int64_t used = 0;
  for (int d = 0; d < count && used < size; d++) {
    pk_cuda_device cuda = {.ordinal = d};
    char name[32];
    snprintf(name, sizeof name, "%s", prefix);
    if (read_properties(d, &cuda.properties) != PK_OK) {
      used += snprintf(text + used, (size_t)(size - used), "cuda:%d: %s\n", d, pk_error_message());
      continue;
    }
    describe(&cuda, name);
    used += snprintf(text + used, (size_t)(size - used), "%s: %s\n", cuda.name, cuda.description);
  }
  if (status != PK_OK)
    snprintf(text, (size_t)size, "%s: not usable: %s\n", prefix, pk_error_message());
}
