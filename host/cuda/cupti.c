/* Collecting CUPTI's records (cupti.h). */
#include "cuda/cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/libraries.h"

#if defined(__has_include)
#if __has_include(<cupti.h>)
#include <cupti.h>
#if CUPTI_API_VERSION >= 19 /* CUDA 12.0 */
#define PK_HAVE_CUPTI 1
#endif
#endif
#endif

#ifdef PK_HAVE_CUPTI

/* Records grow at their ends from version to version. What is read here has been where it is since
 * CUDA 12.0, so that a CUPTI of either CUDA 12 or 13 can be read; a header that moves any of it
 * does not compile. */
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
typedef CUpti_ActivityMemcpy6 copy_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
typedef CUpti_ActivityMemcpy5 copy_record;
#endif
typedef CUpti_ActivityMemset4 fill_record;
typedef CUpti_ActivityExternalCorrelation call_record;

#define AT(type, field, place)                                                                     \
  _Static_assert(offsetof(type, field) == place, #type ": " #field " is elsewhere")
AT(kernel_record, start, 16);
AT(kernel_record, end, 24);
AT(kernel_record, streamId, 48);
AT(kernel_record, correlationId, 92);
AT(kernel_record, name, 104);
AT(kernel_record, graphNodeId, 144);
AT(copy_record, copyKind, 4);
AT(copy_record, bytes, 8);
AT(copy_record, start, 16);
AT(copy_record, end, 24);
AT(copy_record, streamId, 40);
AT(copy_record, correlationId, 44);
AT(copy_record, graphNodeId, 64);
AT(fill_record, bytes, 8);
AT(fill_record, start, 16);
AT(fill_record, end, 24);
AT(fill_record, streamId, 40);
AT(fill_record, correlationId, 44);
AT(fill_record, graphNodeId, 64);
AT(call_record, externalKind, 4);
AT(call_record, externalId, 8);
AT(call_record, correlationId, 16);
#undef AT

/* A buffer of records has 4 MiB: CUPTI's guide advises 1 to 10. */
enum { BUFFER_BYTES = 4 << 20, BUFFER_ALIGNMENT = 8, LEAST_VERSION = 19 };

static const CUpti_ExternalCorrelationKind OWN_KIND = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/* Calls are records too, without which CUPTI correlates nothing. */
static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                           CUPTI_ACTIVITY_KIND_RUNTIME,
                                           CUPTI_ACTIVITY_KIND_DRIVER,
                                           CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The library's functions, found once, and the log that is filled. CUPTI's callbacks get nothing
 * that would tell whose they are, so that this is the process's. */
static struct {
  __typeof__(cuptiGetVersion) *version;
  __typeof__(cuptiGetResultString) *result_string;
  __typeof__(cuptiSubscribe) *subscribe;
  __typeof__(cuptiUnsubscribe) *unsubscribe;
  __typeof__(cuptiEnableCallback) *enable_callback;
  __typeof__(cuptiActivityRegisterCallbacks) *register_buffers;
  __typeof__(cuptiActivityRegisterTimestampCallback) *register_clock;
  __typeof__(cuptiActivityEnable) *enable;
  __typeof__(cuptiActivityDisable) *disable;
  __typeof__(cuptiActivityPushExternalCorrelationId) *push;
  __typeof__(cuptiActivityPopExternalCorrelationId) *pop;
  __typeof__(cuptiActivityGetNextRecord) *next_record;
  __typeof__(cuptiActivityGetNumDroppedRecords) *dropped;
  __typeof__(cuptiActivityFlushAll) *flush;
  __typeof__(cuptiGetGraphNodeId) *node_id;
  __typeof__(cuptiGetStreamIdEx) *stream_id;
} cupti;

static struct {
  pthread_mutex_t lock;
  pk_cupti_log *log;
} collecting = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- the library --- */

static bool find(const char *name, void *function) {
  void *symbol = pk_cuda_symbol(PK_CUPTI, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static pk_status find_all(void) {
  bool found =
      find("cuptiGetVersion", &cupti.version) &&
      find("cuptiGetResultString", &cupti.result_string) &&
      find("cuptiSubscribe", &cupti.subscribe) && find("cuptiUnsubscribe", &cupti.unsubscribe) &&
      find("cuptiEnableCallback", &cupti.enable_callback) &&
      find("cuptiActivityRegisterCallbacks", &cupti.register_buffers) &&
      find("cuptiActivityRegisterTimestampCallback", &cupti.register_clock) &&
      find("cuptiActivityEnable", &cupti.enable) && find("cuptiActivityDisable", &cupti.disable) &&
      find("cuptiActivityPushExternalCorrelationId", &cupti.push) &&
      find("cuptiActivityPopExternalCorrelationId", &cupti.pop) &&
      find("cuptiActivityGetNextRecord", &cupti.next_record) &&
      find("cuptiActivityGetNumDroppedRecords", &cupti.dropped) &&
      find("cuptiActivityFlushAll", &cupti.flush) && find("cuptiGetGraphNodeId", &cupti.node_id) &&
      find("cuptiGetStreamIdEx", &cupti.stream_id);
  if (!found) return PK_UNSUPPORTED;
  uint32_t version = 0;
  if (cupti.version(&version) == CUPTI_SUCCESS && version >= LEAST_VERSION) return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "CUPTI of version %u is older than CUDA 12.0", version);
}

static pk_status check(CUptiResult result, const char *what) {
  if (result == CUPTI_SUCCESS) return PK_OK;
  const char *says = "no reason given";
  cupti.result_string(result, &says);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    says = "another profiler is attached to the process";
  return pk_fail(PK_UNSUPPORTED, "CUPTI, %s: %s", what, says);
}

/* --- records --- */

static void add_record(pk_cupti_log *log, const char *name, pk_cupti_record record) {
  if (log->count == log->room) {
    int64_t room = log->room ? 2 * log->room : 4096;
    pk_cupti_record *records = realloc(log->records, (size_t)room * sizeof *records);
    if (records) {
      log->records = records;
      log->room = room;
    }
  }
  record.name = name;
  if (record.end > 0 && log->count < log->room)
    log->records[log->count++] = record;
  else
    log->lost++;
}

static void add_kernel(pk_cupti_log *log, const kernel_record *kernel) {
  add_record(log, kernel->name ? kernel->name : "kernel",
             (pk_cupti_record){.start = (int64_t)kernel->start,
                               .end = (int64_t)kernel->end,
                               .node = kernel->graphNodeId,
                               .call = kernel->correlationId,
                               .stream = kernel->streamId});
}

static void add_copy(pk_cupti_log *log, const copy_record *copy) {
  const char *name = copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to the device"
                     : copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy from the device"
                     : copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD ? "copy on the device"
                                                                         : "copy";
  add_record(log, name,
             (pk_cupti_record){.start = (int64_t)copy->start,
                               .end = (int64_t)copy->end,
                               .bytes = (int64_t)copy->bytes,
                               .node = copy->graphNodeId,
                               .call = copy->correlationId,
                               .stream = copy->streamId});
}

static void add_fill(pk_cupti_log *log, const fill_record *fill) {
  add_record(log, "fill",
             (pk_cupti_record){.start = (int64_t)fill->start,
                               .end = (int64_t)fill->end,
                               .bytes = (int64_t)fill->bytes,
                               .node = fill->graphNodeId,
                               .call = fill->correlationId,
                               .stream = fill->streamId});
}

static void add_call(pk_cupti_log *log, const call_record *call) {
  if (call->externalKind != OWN_KIND) return;
  if (!pk_table_set(&log->calls, call->correlationId, (int64_t)call->externalId)) log->lost++;
}

static void read_record(pk_cupti_log *log, const CUpti_Activity *record) {
  switch (record->kind) {
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
  case CUPTI_ACTIVITY_KIND_KERNEL:
    add_kernel(log, (const kernel_record *)record);
    break;
  case CUPTI_ACTIVITY_KIND_MEMCPY:
    add_copy(log, (const copy_record *)record);
    break;
  case CUPTI_ACTIVITY_KIND_MEMSET:
    add_fill(log, (const fill_record *)record);
    break;
  case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
    add_call(log, (const call_record *)record);
    break;
  default:
    break;
  }
}

/* --- callbacks, some of them on a thread of CUPTI's --- */

static void give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
  void *made = NULL;
  if (posix_memalign(&made, BUFFER_ALIGNMENT, BUFFER_BYTES) != 0) made = NULL;
  *buffer = made;
  *size = made ? BUFFER_BYTES : 0;
  *most = 0; /* as many records as fit */
}

static void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                        size_t valid) {
  (void)size;
  pthread_mutex_lock(&collecting.lock);
  pk_cupti_log *log = collecting.log;
  CUpti_Activity *record = NULL;
  while (log && cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS)
    read_record(log, record);
  size_t dropped = 0;
  bool counted = cupti.dropped(context, stream, &dropped) == CUPTI_SUCCESS;
  if (log && counted) log->lost += (int64_t)dropped;
  pthread_mutex_unlock(&collecting.lock);
  free(buffer);
}

static uint64_t read_clock(void) {
  return (uint64_t)pk_nanoseconds();
}

/* A node of a graph was made. Instantiating a graph makes nodes too, outside of any operation:
 * those are copies, which the other callback is for. */
static void note_node(pk_cupti_log *log, CUgraphNode node) {
  uint64_t id = 0;
  if (log->capturing < 0 || cupti.node_id(node, &id) != CUPTI_SUCCESS) return;
  if (!pk_table_set(&log->nodes, id, log->capturing)) log->lost++;
}

static void note_copy(pk_cupti_log *log, CUgraphNode node, CUgraphNode original) {
  uint64_t id = 0, original_id = 0;
  bool known = cupti.node_id(node, &id) == CUPTI_SUCCESS &&
               cupti.node_id(original, &original_id) == CUPTI_SUCCESS;
  int64_t place = known ? pk_table_get(&log->nodes, original_id, -1) : -1;
  if (place >= 0 && !pk_table_set(&log->nodes, id, place)) log->lost++;
}

/* On the thread that captures. */
static void note_graph(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                       const void *what) {
  const CUpti_ResourceData *resource = what;
  if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
  const CUpti_GraphData *graph = resource->resourceDescriptor;
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) note_node(data, graph->node);
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) note_copy(data, graph->node, graph->originalNode);
}

/* --- beginning and ending --- */

/* Where another profiler is attached, what is asked for is its own. */
static void stop(pk_cupti_log *log) {
  for (int k = 0; k < KINDS && log->subscriber; k++) cupti.disable(kinds[k]);
  if (log->subscriber) cupti.unsubscribe(log->subscriber);
  log->subscriber = NULL;
  pthread_mutex_lock(&collecting.lock);
  collecting.log = NULL;
  pthread_mutex_unlock(&collecting.lock);
}

static pk_status start(pk_cupti_log *log) {
  CUpti_SubscriberHandle subscriber = NULL;
  pk_status status = check(cupti.subscribe(&subscriber, note_graph, log), "attaching");
  if (status != PK_OK) return status;
  log->subscriber = subscriber;
  static const CUpti_CallbackId graphs[] = {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                            CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED};
  for (int g = 0; g < 2 && status == PK_OK; g++)
    status = check(cupti.enable_callback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, graphs[g]),
                   "watching graphs");
  if (status == PK_OK)
    status = check(cupti.register_buffers(give_buffer, take_buffer), "giving buffers");
  if (status == PK_OK) status = check(cupti.register_clock(read_clock), "setting the clock");
  for (int k = 0; k < KINDS && status == PK_OK; k++)
    status = check(cupti.enable(kinds[k]), "asking for records");
  return status;
}

pk_status pk_cupti_begin(pk_cupti_log *log) {
  pk_status status = find_all();
  if (status != PK_OK) return status;
  log->count = log->lost = log->strange = 0;
  log->capturing = -1;
  pthread_mutex_lock(&collecting.lock);
  bool busy = collecting.log != NULL;
  if (!busy) collecting.log = log;
  pthread_mutex_unlock(&collecting.lock);
  if (busy) return pk_fail(PK_UNSUPPORTED, "CUPTI is tracing another context already");
  status = start(log);
  if (status != PK_OK) stop(log);
  return status;
}

static int by_start(const void *a, const void *b) {
  const pk_cupti_record *x = a, *y = b;
  return (x->start > y->start) - (x->start < y->start);
}

/* Finds the operation of a record; see the head of cupti.h. */
static void find_operation(pk_cupti_log *log, pk_cupti_record *record) {
  int64_t call = pk_table_get(&log->calls, record->call, -1);
  int64_t place = record->node ? pk_table_get(&log->nodes, record->node, -1) : 0;
  record->operation = call >= 0 && place >= 0 ? call + place : -1;
  if (call >= 0 && place < 0) log->strange++;
}

void pk_cupti_end(pk_cupti_log *log) {
  cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  stop(log);
  for (int64_t r = 0; r < log->count; r++) find_operation(log, &log->records[r]);
  pk_table_free(&log->calls);
  if (log->count > 0) qsort(log->records, (size_t)log->count, sizeof *log->records, by_start);
}

void pk_cupti_push(int64_t operation) {
  cupti.push(OWN_KIND, (uint64_t)operation);
}

void pk_cupti_pop(void) {
  cupti.pop(OWN_KIND, NULL);
}

bool pk_cupti_stream(cudaStream_t stream, uint32_t *number) {
  return cupti.stream_id(NULL, stream, 0, number) == CUPTI_SUCCESS;
}

#else

pk_status pk_cupti_begin(pk_cupti_log *log) {
  (void)log;
  return pk_fail(PK_UNSUPPORTED, "this build is without CUPTI, as its headers were not there");
}

void pk_cupti_end(pk_cupti_log *log) {
  (void)log;
}

void pk_cupti_push(int64_t operation) {
  (void)operation;
}

void pk_cupti_pop(void) {}

bool pk_cupti_stream(cudaStream_t stream, uint32_t *number) {
  (void)stream;
  (void)number;
  return false;
}

#endif

void pk_cupti_log_free(pk_cupti_log *log) {
  free(log->records);
  pk_table_free(&log->calls);
  pk_table_free(&log->nodes);
}
