/* Builds the graphs of attention (host/cuda/cudnn_graphs.c) with cuDNN itself and makes its plans
 * for devices that are described and not there; scripts/cudnn_check.sh builds and runs this.
 * Nothing is computed. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cudnn.h"
#include "cuda/libraries.h"

typedef struct described {
  const char *name;
  int version, multiprocessors, shared_bytes, l2_bytes;
} described;

static const described devices[] = {
    {"A100", 800, 108, 166912, 41943040},
    {"H200", 900, 132, 232448, 62914560},
    {"B200", 1000, 148, 232448, 132644864},
};

typedef struct kind {
  const char *name;
  bool backward, deterministic;
} kind;

static const kind kinds[] = {
    {"forward", false, false}, {"backward", true, false}, {"deterministic backward", true, true}};

/* The 20m model's attention at N = 4 and 8, wider heads, and a length that is no multiple of
 * anything. */
static const pk_dnn_attention shapes[] = {{32, 1024, 5, 64}, {8, 1024, 8, 128}, {6, 200, 2, 64}};

/* --- what the rest of packlua would give --- */

pk_status pk_fail(pk_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  return status;
}

void *pk_cuda_symbol(pk_cuda_library library, const char *name) {
  static void *handle;
  if (!handle) handle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  return handle && library == PK_CUDNN ? dlsym(handle, name) : NULL;
}

/* --- the checks --- */

static pk_status describe(pk_cudnn *dnn, const described *device) {
  char text[1024];
  int length = snprintf(
      text, sizeof text,
      "{\"deviceName\":\"%s\",\"cudaDeviceId\":0,\"deviceVer\":%d,\"multiProcessorCount\":%d,"
      "\"driverVer\":13000,\"maxSharedMemoryPerBlockOptin\":%d,\"totalGlobalMem\":80000000000,"
      "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
      "\"regsPerBlock\":65536,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
      "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
      "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"smClockRateKHz\":1980000,"
      "\"memClockRateKHz\":3201000,\"l2CacheSize\":%d,\"pciDeviceId\":0,\"isTccDriver\":0,"
      "\"supportCoopLaunch\":1}",
      device->name, device->version, device->multiprocessors, device->shared_bytes,
      device->l2_bytes);
  cudnnStatus_t status = dnn->create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &dnn->properties);
  if (!status)
    status = dnn->set(dnn->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                      length, text);
  if (!status) status = dnn->finalize(dnn->properties);
  return pk_cudnn_check(dnn, status, "describing a device");
}

static pk_status make_plan(const pk_cudnn *dnn, const kind *wanted, const pk_dnn_attention *shape,
                           int sm, int64_t *workspace) {
  pk_dnn_graph graph = {.dnn = dnn};
  if (wanted->backward)
    pk_dnn_attention_backward(&graph, shape, wanted->deterministic);
  else
    pk_dnn_attention_forward(&graph, shape);
  int64_t most = pk_dnn_attention_workspace(shape, wanted->backward, wanted->deterministic, sm);
  pk_status status = pk_dnn_plan(&graph, most);
  *workspace = graph.workspace;
  pk_dnn_graph_free(&graph);
  return status;
}

int main(void) {
  pk_cudnn dnn;
  int missing = 0;
  if (pk_cudnn_find(&dnn) != PK_OK) return 3;
  for (size_t d = 0; d < sizeof devices / sizeof devices[0]; d++) {
    if (describe(&dnn, &devices[d]) != PK_OK) return 1;
    size_t count = devices[d].version == 900 ? sizeof shapes / sizeof shapes[0] : 1; /* time */
    for (size_t s = 0; s < count; s++) {
      for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        int64_t workspace = 0;
        pk_status status =
            make_plan(&dnn, &kinds[k], &shapes[s], devices[d].version / 10, &workspace);
        missing += status != PK_OK;
        printf("%s, [%lld, %lld, %lld, %lld], %s: %s, workspace %lld bytes\n", devices[d].name,
               (long long)shapes[s].batch, (long long)shapes[s].length, (long long)shapes[s].heads,
               (long long)shapes[s].width, kinds[k].name, status == PK_OK ? "a plan" : "NO PLAN",
               (long long)workspace);
      }
    }
    dnn.destroy(dnn.properties);
  }
  printf("%d plans missing with cuDNN %zu\n", missing, dnn.version());
  return missing ? 1 : 0;
}
