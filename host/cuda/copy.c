/* Copies between host and device.
 *
 * Up: data are copied into pinned memory, so that the caller may go on at once; a stream of their
 * own brings them to the device while it computes, and the computing stream takes them from there
 * when it comes to it, in the order of the calls. Pinned memory has two halves: when one is full,
 * the next waits for the uses of the other, long past unless the host is far ahead.
 *
 * Down: what is small lands in pinned memory, so that several small copies are under way at once
 * and one wait is for all of them. */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

enum { HALF_BYTES = 4 << 20, READ_BYTES = 64 << 10, PART_ALIGNMENT = 256 };

typedef struct half {
  char *host, *device;
  int64_t used;      /* bytes */
  cudaEvent_t taken; /* when the computing stream has taken all of it */
} half;

struct pk_cuda_staging {
  cudaStream_t stream, copies;
  cudaEvent_t copied;
  half halves[2];
  int current;
  char *read; /* pinned, for small results */
};

static pk_status create_half(half *made) {
  const char *what = "pinned memory for copies";
  pk_status status =
      pk_cuda_check(cudaHostAlloc((void **)&made->host, HALF_BYTES, cudaHostAllocDefault), what);
  if (status == PK_OK) {
    status = pk_cuda_check(cudaMalloc((void **)&made->device, HALF_BYTES), what);
  }
  if (status == PK_OK) {
    status = pk_cuda_check(cudaEventCreateWithFlags(&made->taken, cudaEventDisableTiming), what);
  }
  return status;
}

pk_status pk_cuda_staging_create(pk_cuda_staging **staging, cudaStream_t stream) {
  pk_cuda_staging *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no host memory for copies to the device");
  const char *what = "the stream for copies";
  made->stream = stream;
  pk_status status =
      pk_cuda_check(cudaStreamCreateWithFlags(&made->copies, cudaStreamNonBlocking), what);
  if (status == PK_OK) {
    status = pk_cuda_check(cudaEventCreateWithFlags(&made->copied, cudaEventDisableTiming), what);
  }
  for (int h = 0; h < 2 && status == PK_OK; h++) status = create_half(&made->halves[h]);
  if (status == PK_OK) {
    status = pk_cuda_check(cudaHostAlloc((void **)&made->read, READ_BYTES, cudaHostAllocDefault),
                           "pinned memory for results");
  }
  if (status != PK_OK) {
    pk_cuda_staging_free(made);
    return status;
  }
  *staging = made;
  return PK_OK;
}

void pk_cuda_staging_free(pk_cuda_staging *staging) {
  if (!staging) return;
  for (int h = 0; h < 2; h++) {
    half *freed = &staging->halves[h];
    if (freed->host) cudaFreeHost(freed->host);
    if (freed->device) cudaFree(freed->device);
    if (freed->taken) cudaEventDestroy(freed->taken);
  }
  if (staging->read) cudaFreeHost(staging->read);
  if (staging->copied) cudaEventDestroy(staging->copied);
  if (staging->copies) cudaStreamDestroy(staging->copies);
  free(staging);
}

cudaStream_t pk_cuda_staging_stream(const pk_cuda_staging *staging) {
  return staging->copies;
}

/* Goes over to the other half, once nothing uses it any more. */
static pk_status next_half(pk_cuda_staging *staging) {
  const char *what = "a copy to the device";
  half *full = &staging->halves[staging->current];
  pk_status status = pk_cuda_check(cudaEventRecord(full->taken, staging->stream), what);
  if (status != PK_OK) return status;
  staging->current ^= 1;
  half *other = &staging->halves[staging->current];
  cudaError_t error = cudaEventQuery(other->taken);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    error = cudaEventSynchronize(other->taken);
  }
  other->used = 0;
  return pk_cuda_check(error, what);
}

/* Copies what fits into the current half, at most bytes of them. */
static pk_status upload_part(pk_cuda_staging *staging, char *memory, const char *data,
                             int64_t bytes) {
  half *own = &staging->halves[staging->current];
  char *host = own->host + own->used, *device = own->device + own->used;
  cudaStream_t stream = staging->stream, copies = staging->copies;
  memcpy(host, data, (size_t)bytes);
  own->used += (bytes + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
  cudaError_t error = cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, copies);
  if (error == cudaSuccess) error = cudaEventRecord(staging->copied, copies);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, staging->copied, 0);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(memory, device, (size_t)bytes, cudaMemcpyDeviceToDevice, stream);
  return pk_cuda_check(error, "a copy to the device");
}

pk_status pk_cuda_upload(pk_device *device, void *memory, const void *data, int64_t bytes) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  pk_cuda_staging *staging = cuda->staging;
  pk_status status = pk_cuda_check(cudaSetDevice(cuda->ordinal), "a copy to the device");
  for (int64_t done = 0; done < bytes && status == PK_OK;) {
    int64_t room = HALF_BYTES - staging->halves[staging->current].used;
    int64_t part = bytes - done < room ? bytes - done : room;
    if (part == 0) {
      status = next_half(staging);
      continue;
    }
    status = upload_part(staging, (char *)memory + done, (const char *)data + done, part);
    done += part;
  }
  return status;
}

/* Where a part lands: in the pinned memory for results after *used bytes of it, as long as there is
 * room, else where it belongs. */
static void *landing(pk_cuda_staging *staging, const pk_part *part, int64_t *used) {
  int64_t start = *used, end = start + pk_aligned(part->bytes);
  if (end > READ_BYTES) return part->data;
  *used = end;
  return staging->read + start;
}

pk_status pk_cuda_download(pk_device *device, const pk_part *parts, int64_t count) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  int64_t used = 0;
  for (int64_t p = 0; p < count && error == cudaSuccess; p++) {
    if (parts[p].bytes == 0) continue;
    error = cudaMemcpyAsync(landing(cuda->staging, &parts[p], &used), parts[p].memory,
                            (size_t)parts[p].bytes, cudaMemcpyDeviceToHost, cuda->stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(cuda->stream);
  used = 0;
  for (int64_t p = 0; p < count && error == cudaSuccess; p++) {
    const void *landed = landing(cuda->staging, &parts[p], &used);
    if (landed != parts[p].data) memcpy(parts[p].data, landed, (size_t)parts[p].bytes);
  }
  return pk_cuda_check(error, "a copy from the device");
}
