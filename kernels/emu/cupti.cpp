// CUPTI on the CPU, as much of it as packlua uses: records of what the emulated device did, of
// calls that carry a number of the caller's, and callbacks for the nodes of graphs. Like the real
// one it numbers calls only while these are asked for, and knows an executable graph's nodes as
// copies, made after the graph's own.
#include "cupti.h"

#if __has_include(<cupti.h>)

#include <algorithm>
#include <cstring>
#include <ctime>
#include <set>
#include <vector>

#include <cupti.h>

namespace {

#if CUPTI_API_VERSION >= 130000
using Kernel = CUpti_ActivityKernel10;
using Copy = CUpti_ActivityMemcpy6;
#else
using Kernel = CUpti_ActivityKernel9;
using Copy = CUpti_ActivityMemcpy5;
#endif
using Fill = CUpti_ActivityMemset4;
using External = CUpti_ActivityExternalCorrelation;

// Calls of the runtime that come here hold its lock.
struct {
  CUpti_CallbackFunc callback = nullptr;
  void *data = nullptr;
  std::set<CUpti_CallbackId> watched;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc clock = nullptr;
  std::set<int> kinds;
  std::vector<std::pair<int, uint64_t>> numbers; // pushed
  uint8_t *buffer = nullptr;
  size_t size = 0, used = 0, dropped = 0;
  int64_t losing = 0;
  uint32_t calls = 0;
  uint64_t nodes = 0;
} state;

// Names stay for as long as the process.
const char *keep(const std::string &name) {
  static std::set<std::string> *names = new std::set<std::string>;
  return names->insert(name).first->c_str();
}

bool wants(CUpti_ActivityKind kind) {
  return state.kinds.count(kind) > 0;
}

void give_back() {
  if (state.buffer) state.complete(nullptr, 0, state.buffer, state.size, state.used);
  state.buffer = nullptr;
}

template <class Record> void note(const Record &record) {
  if (state.losing > 0) {
    state.losing--;
    state.dropped++;
    return;
  }
  if (state.buffer && state.used + sizeof record > state.size) give_back();
  if (!state.buffer) {
    size_t most = 0;
    state.used = 0;
    state.request(&state.buffer, &state.size, &most);
  }
  memcpy(state.buffer + state.used, &record, sizeof record);
  state.used += sizeof record;
}

size_t size_of(const CUpti_Activity *record) {
  switch (record->kind) {
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    return sizeof(Kernel);
  case CUPTI_ACTIVITY_KIND_MEMCPY:
    return sizeof(Copy);
  case CUPTI_ACTIVITY_KIND_MEMSET:
    return sizeof(Fill);
  case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
    return sizeof(External);
  default:
    return sizeof(CUpti_ActivityAPI);
  }
}

// Nodes are their ids.
CUgraphNode handle_of(uint64_t id) {
  return reinterpret_cast<CUgraphNode>(id);
}

void tell(CUpti_CallbackId what, uint64_t node, uint64_t original) {
  if (!state.callback || state.watched.count(what) == 0) return;
  CUpti_GraphData graph = {};
  graph.node = handle_of(node);
  graph.originalNode = handle_of(original);
  CUpti_ResourceData resource = {};
  resource.resourceDescriptor = &graph;
  state.callback(state.data, CUPTI_CB_DOMAIN_RESOURCE, what, &resource);
}

// --- what packlua calls ---

CUptiResult get_version(uint32_t *version) {
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult result_string(CUptiResult, const char **text) {
  *text = "an error of the emulated CUPTI";
  return CUPTI_SUCCESS;
}
CUptiResult subscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *data) {
  if (state.callback) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  state.callback = callback;
  state.data = data;
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&state);
  return CUPTI_SUCCESS;
}
CUptiResult unsubscribe(CUpti_SubscriberHandle) {
  state.callback = nullptr;
  state.watched.clear();
  return CUPTI_SUCCESS;
}
CUptiResult enable_callback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                            CUpti_CallbackId id) {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable)
    state.watched.insert(id);
  else
    state.watched.erase(id);
  return CUPTI_SUCCESS;
}
CUptiResult register_buffers(CUpti_BuffersCallbackRequestFunc request,
                             CUpti_BuffersCallbackCompleteFunc complete) {
  state.request = request;
  state.complete = complete;
  return CUPTI_SUCCESS;
}
CUptiResult register_clock(CUpti_TimestampCallbackFunc clock) {
  if (!state.kinds.empty()) return CUPTI_ERROR_INVALID_OPERATION; // too late
  state.clock = clock;
  return CUPTI_SUCCESS;
}
CUptiResult enable_kind(CUpti_ActivityKind kind) {
  if (!state.request) return CUPTI_ERROR_INVALID_OPERATION;
  state.kinds.insert(kind);
  return CUPTI_SUCCESS;
}
CUptiResult disable_kind(CUpti_ActivityKind kind) {
  state.kinds.erase(kind);
  return CUPTI_SUCCESS;
}
CUptiResult push(CUpti_ExternalCorrelationKind kind, uint64_t number) {
  state.numbers.push_back({kind, number});
  return CUPTI_SUCCESS;
}
CUptiResult pop(CUpti_ExternalCorrelationKind, uint64_t *last) {
  if (state.numbers.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = state.numbers.back().second;
  state.numbers.pop_back();
  return CUPTI_SUCCESS;
}
CUptiResult next_record(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
  uint8_t *next = *record ? reinterpret_cast<uint8_t *>(*record) + size_of(*record) : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity *>(next);
  return CUPTI_SUCCESS;
}
CUptiResult get_dropped(CUcontext, uint32_t, size_t *dropped) {
  *dropped = state.dropped;
  state.dropped = 0;
  return CUPTI_SUCCESS;
}
CUptiResult flush(uint32_t) {
  give_back();
  return CUPTI_SUCCESS;
}
CUptiResult node_id(CUgraphNode node, uint64_t *id) {
  *id = reinterpret_cast<uint64_t>(node);
  return CUPTI_SUCCESS;
}
CUptiResult stream_id(CUcontext, CUstream stream, uint8_t, uint32_t *number) {
  *number = emu::number_of(stream);
  return CUPTI_SUCCESS;
}

} // namespace

namespace emu {

uint32_t cupti_call(bool of_runtime) {
  if (!wants(of_runtime ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER)) return 0;
  state.calls++;
  if (!state.numbers.empty() && wants(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    External external = {};
    external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    external.externalKind = static_cast<CUpti_ExternalCorrelationKind>(state.numbers.back().first);
    external.externalId = state.numbers.back().second;
    external.correlationId = state.calls;
    note(external);
  }
  CUpti_ActivityAPI call = {};
  call.kind = of_runtime ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER;
  call.correlationId = state.calls;
  note(call);
  return state.calls;
}

uint64_t cupti_clock() {
  if (state.clock) return state.clock();
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void cupti_done(const Activity &activity, uint32_t stream, uint64_t start, uint64_t end) {
  auto fill_in = [&](auto record, CUpti_ActivityKind kind) {
    record.kind = kind;
    record.start = start;
    record.end = end;
    record.streamId = stream;
    record.correlationId = activity.call;
    record.graphNodeId = activity.node;
    return record;
  };
  if (activity.deed == Deed::kernel && wants(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) {
    Kernel kernel = fill_in(Kernel{}, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    kernel.name = keep(activity.name);
    note(kernel);
  }
  if (activity.deed == Deed::copy && wants(CUPTI_ACTIVITY_KIND_MEMCPY)) {
    Copy copy = fill_in(Copy{}, CUPTI_ACTIVITY_KIND_MEMCPY);
    copy.bytes = activity.bytes;
    copy.copyKind = activity.copy_kind == cudaMemcpyHostToDevice ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                    : activity.copy_kind == cudaMemcpyDeviceToHost
                        ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                        : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
    note(copy);
  }
  if (activity.deed == Deed::fill && wants(CUPTI_ACTIVITY_KIND_MEMSET)) {
    Fill fill = fill_in(Fill{}, CUPTI_ACTIVITY_KIND_MEMSET);
    fill.bytes = activity.bytes;
    note(fill);
  }
}

uint64_t cupti_node() {
  uint64_t id = ++state.nodes;
  tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, id, 0);
  return id;
}

uint64_t cupti_copy_of_node(uint64_t original) {
  uint64_t id = cupti_node(); // the real one tells of both, too
  tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, id, original);
  return id;
}

void cupti_lose(int64_t records) {
  state.losing = records;
}

void *cupti_symbol(const char *name) {
  static const struct {
    const char *name;
    void *address;
  } known[] = {
      {"cuptiGetVersion", reinterpret_cast<void *>(get_version)},
      {"cuptiGetResultString", reinterpret_cast<void *>(result_string)},
      {"cuptiSubscribe", reinterpret_cast<void *>(subscribe)},
      {"cuptiUnsubscribe", reinterpret_cast<void *>(unsubscribe)},
      {"cuptiEnableCallback", reinterpret_cast<void *>(enable_callback)},
      {"cuptiActivityRegisterCallbacks", reinterpret_cast<void *>(register_buffers)},
      {"cuptiActivityRegisterTimestampCallback", reinterpret_cast<void *>(register_clock)},
      {"cuptiActivityEnable", reinterpret_cast<void *>(enable_kind)},
      {"cuptiActivityDisable", reinterpret_cast<void *>(disable_kind)},
      {"cuptiActivityPushExternalCorrelationId", reinterpret_cast<void *>(push)},
      {"cuptiActivityPopExternalCorrelationId", reinterpret_cast<void *>(pop)},
      {"cuptiActivityGetNextRecord", reinterpret_cast<void *>(next_record)},
      {"cuptiActivityGetNumDroppedRecords", reinterpret_cast<void *>(get_dropped)},
      {"cuptiActivityFlushAll", reinterpret_cast<void *>(flush)},
      {"cuptiGetGraphNodeId", reinterpret_cast<void *>(node_id)},
      {"cuptiGetStreamIdEx", reinterpret_cast<void *>(stream_id)},
  };
  for (const auto &entry : known)
    if (strcmp(entry.name, name) == 0) return entry.address;
  return nullptr;
}

} // namespace emu

#else

namespace emu {
uint32_t cupti_call(bool) {
  return 0;
}
uint64_t cupti_clock() {
  return 0;
}
void cupti_done(const Activity &, uint32_t, uint64_t, uint64_t) {}
uint64_t cupti_node() {
  return 0;
}
uint64_t cupti_copy_of_node(uint64_t) {
  return 0;
}
void cupti_lose(int64_t) {}
void *cupti_symbol(const char *) {
  return nullptr;
}
} // namespace emu

#endif
