// The CUDA runtime, as much of it as packlua uses, on the CPU. Streams are queues that run at once,
// or, with PACKLUA_EMU_LAZY=1, when somebody waits for them, so that a missing wait shows. Under
// AddressSanitizer the host cannot touch device memory. The prototypes are those of CUDA's own
// header.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "control.h"
#include "cupti.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

using emu::Activity;
using emu::Deed;

struct Work {
  std::function<void()> compute;
  Activity activity;
};

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  std::deque<Work> queue;
  uint64_t given = 0, done = 0;
  uint32_t number = 0;
  CUgraph_st *capture = nullptr;
};
struct CUevent_st {
  CUstream_st *stream = nullptr;
  uint64_t at = 0;
};

namespace {

// Everything is behind one lock, as in CUDA several threads may call; work that runs may submit
// none.
std::recursive_mutex lock;
CUstream_st default_stream;
std::set<CUstream_st *> streams = {&default_stream};
std::map<char *, size_t> device_memory;
size_t device_bytes = 0;
pk_emu_counters counters;
std::string failing;
int64_t failing_after = 0;
cudaError_t failing_with = cudaSuccess, lost = cudaSuccess, last = cudaSuccess;
int working = 0;

const pk_emu_machine usual_machine = {int64_t(8) << 30, 1, CUDART_VERSION, 90, 1, 1};
pk_emu_machine machine = usual_machine;
const size_t shared_optin = 227 << 10; // of Hopper

bool is_lazy() {
  static const bool lazy = [] {
    const char *text = getenv("PACKLUA_EMU_LAZY");
    return text && *text && *text != '0';
  }();
  return lazy;
}

bool loses_context(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
         error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
         error == cudaErrorMisalignedAddress || error == cudaErrorECCUncorrectable;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  return error;
}

// What a call returns before it does anything.
cudaError_t begin(const char *function) {
  if (lost != cudaSuccess) return lost;
  if (failing_after > 0 && failing == function && --failing_after == 0) {
    if (loses_context(failing_with)) lost = failing_with;
    return remember(failing_with);
  }
  return cudaSuccess;
}

// Opens device memory to what runs on the device, and closes it to the host again.
void open_memory(bool open) {
#ifdef __SANITIZE_ADDRESS__
  for (const auto &block : device_memory) {
    if (open)
      __asan_unpoison_memory_region(block.first, block.second);
    else
      __asan_poison_memory_region(block.first, block.second);
  }
#else
  (void)open;
#endif
}

void run(const Work &work, uint32_t stream) {
  if (working++ == 0) open_memory(true);
  uint64_t start = emu::cupti_clock();
  work.compute();
  emu::cupti_done(work.activity, stream, start, emu::cupti_clock());
  if (--working == 0) open_memory(false);
}

void drain(CUstream_st *stream, uint64_t upto) {
  while (stream->done < upto && !stream->queue.empty()) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->done++;
    run(work, stream->number);
  }
}

void drain_all() {
  for (CUstream_st *stream : streams) drain(stream, stream->given);
}

CUstream_st *stream_of(cudaStream_t stream) {
  bool standard = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return standard ? &default_stream : stream;
}

bool is_capturing() {
  for (CUstream_st *stream : streams)
    if (stream->capture) return true;
  return false;
}

// Waits are no nodes of graphs and nothing that is told of.
void submit_work(cudaStream_t handle, Work work) {
  CUstream_st *stream = stream_of(handle);
  if (stream->capture) {
    work.activity.node = emu::cupti_node();
    stream->capture->work.push_back(std::move(work));
    return;
  }
  stream->queue.push_back(std::move(work));
  stream->given++;
  if (!is_lazy()) drain(stream, stream->given);
}

bool is_device(const void *memory, size_t bytes) {
  auto next = device_memory.upper_bound(static_cast<char *>(const_cast<void *>(memory)));
  if (next == device_memory.begin()) return false;
  --next;
  return static_cast<const char *>(memory) + bytes <= next->first + next->second;
}

cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  bool wants_to = kind != cudaMemcpyDeviceToHost, wants_from = kind != cudaMemcpyHostToDevice;
  if (is_device(to, bytes) == wants_to && is_device(from, bytes) == wants_from) return cudaSuccess;
  fprintf(stderr,
          "emulation: a copy of %zu bytes, kind %d, is not within device memory as it says\n",
          bytes, static_cast<int>(kind));
  return remember(cudaErrorInvalidValue);
}

void count_copy(size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) counters.uploads++, counters.upload_bytes += (int64_t)bytes;
  if (kind == cudaMemcpyDeviceToHost) counters.downloads++;
  if (kind == cudaMemcpyDeviceToDevice) counters.copies++;
}

} // namespace

#define BEGIN                                                                                      \
  std::lock_guard<std::recursive_mutex> guard(lock);                                               \
  if (cudaError_t error = begin(__func__)) return error

namespace emu {

bool has_cublas() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return machine.cublas != 0;
}

bool has_cupti() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return machine.cupti != 0;
}

uint32_t number_of(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return stream_of(stream)->number;
}

static Activity kernel_of(const char *name, bool of_runtime) {
  Activity activity;
  activity.deed = Deed::kernel;
  activity.name = name;
  activity.call = cupti_call(of_runtime);
  return activity;
}

void submit(cudaStream_t stream, const char *name, std::function<void()> compute) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  counters.launches++;
  submit_work(stream, {std::move(compute), kernel_of(name, false)});
}

// What pk_launch returns: like cudaGetLastError after a launch.
cudaError_t launched(cudaStream_t stream, const char *text, std::function<void()> compute) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (cudaError_t error = begin("cudaLaunchKernel")) return error;
  counters.launches++;
  std::string name(text, strcspn(text, "<,"));
  submit_work(stream, {std::move(compute), kernel_of(name.c_str(), true)});
  return cudaSuccess;
}

cudaError_t check_launch(const void *kernel, dim3 grid, dim3 block, size_t shared) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  (void)kernel;
  uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  bool fits = threads >= 1 && threads <= 1024 && block.z <= 64 && grid.x >= 1 && grid.y >= 1 &&
              grid.z >= 1 && grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535;
  if (!fits) return remember(cudaErrorInvalidConfiguration);
  return shared <= shared_optin ? cudaSuccess : remember(cudaErrorInvalidValue);
}

} // namespace emu

extern "C" {

__attribute__((visibility("default"))) void pk_emu_read_counters(pk_emu_counters *read) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  *read = counters;
  read->held_bytes = static_cast<int64_t>(device_bytes);
}

__attribute__((visibility("default"))) void pk_emu_fail(const char *function, int64_t calls,
                                                        int error) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  failing = function ? function : "";
  failing_after = function ? calls : 0;
  failing_with = static_cast<cudaError_t>(error);
  if (!function) lost = last = cudaSuccess;
}

__attribute__((visibility("default"))) void pk_emu_pretend(const pk_emu_machine *wanted) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  machine = wanted ? *wanted : usual_machine;
}

__attribute__((visibility("default"))) void pk_emu_lose_records(int64_t count) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  emu::cupti_lose(count);
}

// --- devices ---

cudaError_t cudaGetDeviceCount(int *count) {
  BEGIN;
  *count = 0;
  if (machine.driver < CUDART_VERSION) return remember(cudaErrorInsufficientDriver);
  if (machine.devices == 0) return remember(cudaErrorNoDevice);
  *count = machine.devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return lost;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = machine.driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  BEGIN;
  *properties = cudaDeviceProp{};
  snprintf(properties->name, sizeof properties->name, "emulated GPU");
  memset(properties->uuid.bytes, 0xe0, sizeof properties->uuid.bytes);
  properties->totalGlobalMem = static_cast<size_t>(machine.memory);
  properties->major = machine.sm / 10;
  properties->minor = machine.sm % 10;
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = shared_optin;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  BEGIN;
  *attributes = cudaFuncAttributes{};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
  BEGIN;
  *total = static_cast<size_t>(machine.memory);
  *left = *total - std::min(*total, device_bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  BEGIN;
  counters.synchronizations++;
  drain_all();
  return cudaSuccess;
}

// --- memory ---

cudaError_t cudaMalloc(void **memory, size_t bytes) {
  BEGIN;
  if (is_capturing()) return remember(cudaErrorStreamCaptureUnsupported);
  counters.allocations++;
  void *block = nullptr;
  if (device_bytes + bytes > static_cast<size_t>(machine.memory) ||
      posix_memalign(&block, 256, bytes ? bytes : 1) != 0)
    return remember(cudaErrorMemoryAllocation);
  memset(block, 0xff, bytes); // NaN in every type
  device_memory[static_cast<char *>(block)] = bytes;
  device_bytes += bytes;
  if (working == 0) open_memory(false);
  *memory = block;
  return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
  if (!memory) return cudaSuccess;
  BEGIN;
  if (is_capturing()) return remember(cudaErrorStreamCaptureUnsupported);
  auto block = device_memory.find(static_cast<char *>(memory));
  if (block == device_memory.end()) return remember(cudaErrorInvalidValue);
  counters.releases++;
  drain_all();
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(memory, block->second);
#endif
  device_bytes -= block->second;
  device_memory.erase(block);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
  BEGIN;
  *memory = malloc(bytes);
  return *memory ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *memory) {
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  BEGIN;
  if (cudaError_t error = check_copy(to, from, bytes, kind)) return error;
  count_copy(bytes, kind);
  Activity activity;
  activity.deed = Deed::copy;
  activity.copy_kind = kind;
  activity.bytes = bytes;
  activity.call = emu::cupti_call(true);
  submit_work(stream, {[=] { memcpy(to, from, bytes); }, activity});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
  BEGIN;
  if (!is_device(memory, bytes)) return remember(cudaErrorInvalidValue);
  counters.fills++;
  Activity activity;
  activity.deed = Deed::fill;
  activity.bytes = bytes;
  activity.call = emu::cupti_call(true);
  submit_work(stream, {[=] { memset(memory, value, bytes); }, activity});
  return cudaSuccess;
}

// --- streams and events ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  BEGIN;
  static uint32_t made = 12; // as CUPTI counts, those of the driver come first
  *stream = new CUstream_st;
  (*stream)->number = ++made;
  streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  drain(stream, stream->given);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  BEGIN;
  CUstream_st *stream = stream_of(handle);
  if (stream->capture) return remember(cudaErrorStreamCaptureUnsupported);
  counters.synchronizations++;
  drain(stream, stream->given);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  BEGIN;
  *status =
      stream_of(stream)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  BEGIN;
  CUstream_st *other = event->stream;
  uint64_t at = event->at;
  if (other && !stream_of(stream)->capture) submit_work(stream, {[=] { drain(other, at); }, {}});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  BEGIN;
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  BEGIN;
  CUstream_st *stream = stream_of(handle);
  if (stream->capture) return cudaSuccess;
  event->stream = stream;
  event->at = stream->given;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEGIN;
  // Not remembered: that work goes on is no failure.
  return event->stream && event->stream->done < event->at ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEGIN;
  counters.synchronizations++;
  if (event->stream) drain(event->stream, event->at);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0.001f;
  return cudaSuccess;
}

// --- graphs ---

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  BEGIN;
  if (!stream || stream->capture) return remember(cudaErrorStreamCaptureUnsupported);
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  *graph = stream->capture;
  stream->capture = nullptr; // also where this fails
  if (cudaError_t error = begin(__func__)) {
    delete *graph;
    *graph = nullptr;
    return error;
  }
  counters.captures++;
  return *graph ? cudaSuccess : remember(cudaErrorIllegalState);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  BEGIN;
  *made = new CUgraphExec_st{graph->work};
  for (Work &work : (*made)->work) work.activity.node = emu::cupti_copy_of_node(work.activity.node);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  BEGIN;
  counters.graph_launches++;
  uint32_t call = emu::cupti_call(true);
  for (Work work : graph->work) {
    work.activity.call = call;
    submit_work(stream, std::move(work));
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

// --- errors ---

cudaError_t cudaGetLastError(void) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  cudaError_t error = lost != cudaSuccess ? lost : last;
  last = cudaSuccess;
  return error;
}
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(error)                                                                                \
  case error:                                                                                      \
    return #error
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInsufficientDriver);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorNoKernelImageForDevice);
    NAME(cudaErrorIllegalAddress);
    NAME(cudaErrorLaunchFailure);
    NAME(cudaErrorECCUncorrectable);
    NAME(cudaErrorInvalidConfiguration);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
#undef NAME
  default:
    return "cudaError";
  }
}
const char *cudaGetErrorString(cudaError_t) {
  return "an error of the emulated runtime";
}

} // extern "C"
