/* Graphs and plans of cuDNN's backend API (cudnn.h). */
#include "cuda/cudnn.h"

#ifdef PK_HAVE_CUDNN

#include <string.h>

#include "cuda/libraries.h"

enum { MOST_CONFIGURATIONS = 8 };

/* --- the library --- */

static bool find(const char *name, void *function) {
  void *symbol = pk_cuda_symbol(PK_CUDNN, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

pk_status pk_cudnn_find(pk_cudnn *dnn) {
  *dnn = (pk_cudnn){0};
  bool found =
      find("cudnnGetVersion", &dnn->version) && find("cudnnGetErrorString", &dnn->error_string) &&
      find("cudnnGetLastErrorString", &dnn->last_error) &&
      find("cudnnCreate", &dnn->create_handle) && find("cudnnDestroy", &dnn->destroy_handle) &&
      find("cudnnSetStream", &dnn->set_stream) &&
      find("cudnnBackendCreateDescriptor", &dnn->create) &&
      find("cudnnBackendDestroyDescriptor", &dnn->destroy) &&
      find("cudnnBackendFinalize", &dnn->finalize) && find("cudnnBackendSetAttribute", &dnn->set) &&
      find("cudnnBackendGetAttribute", &dnn->get) && find("cudnnBackendExecute", &dnn->execute);
  if (!found) return PK_UNSUPPORTED;
  if (dnn->version() >= PK_DNN_LEAST_VERSION) return PK_OK;
  return pk_fail(PK_UNSUPPORTED, "cuDNN %zu is too old: %d is the oldest that is used",
                 dnn->version(), PK_DNN_LEAST_VERSION);
}

pk_status pk_cudnn_check(const pk_cudnn *dnn, cudnnStatus_t status, const char *what) {
  if (status == CUDNN_STATUS_SUCCESS) return PK_OK;
  char says[512] = "";
  dnn->last_error(says, sizeof says);
  bool lacks = CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
  return pk_fail(lacks ? PK_UNSUPPORTED : PK_DEVICE, "cuDNN, %s: %s %s", what,
                 dnn->error_string(status), says);
}

/* --- descriptors --- */

static pk_dnn create(pk_dnn_graph *graph, cudnnBackendDescriptorType_t type) {
  pk_dnn made = NULL;
  if (graph->status != PK_OK) return NULL;
  if (graph->count == PK_DNN_DESCRIPTORS) {
    graph->status = pk_fail(PK_INVALID, "a graph of more than %d descriptors", PK_DNN_DESCRIPTORS);
    return NULL;
  }
  graph->status = pk_cudnn_check(graph->dnn, graph->dnn->create(type, &made), "a descriptor");
  if (graph->status == PK_OK) graph->all[graph->count++] = made;
  return made;
}

static void set(pk_dnn_graph *graph, pk_dnn descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *value) {
  if (graph->status != PK_OK) return;
  cudnnStatus_t status = graph->dnn->set(descriptor, name, type, count, value);
  graph->status = pk_cudnn_check(graph->dnn, status, "an attribute");
}

static void set_descriptor(pk_dnn_graph *graph, pk_dnn descriptor, cudnnBackendAttributeName_t name,
                           pk_dnn value) {
  if (value) set(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(pk_dnn_graph *graph, pk_dnn descriptor, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value) {
  set(graph, descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

static void finish(pk_dnn_graph *graph, pk_dnn descriptor, const char *what) {
  if (graph->status != PK_OK) return;
  graph->status = pk_cudnn_check(graph->dnn, graph->dnn->finalize(descriptor), what);
}

static void add_operation(pk_dnn_graph *graph, pk_dnn operation) {
  finish(graph, operation, "an operation");
  if (graph->status != PK_OK) return;
  if (graph->operations == PK_DNN_OPERATIONS)
    graph->status = pk_fail(PK_INVALID, "a graph of more than %d operations", PK_DNN_OPERATIONS);
  else
    graph->list[graph->operations++] = operation;
}

/* --- tensors and operations --- */

static pk_dnn make_tensor(pk_dnn_graph *graph, int64_t number, cudnnDataType_t type,
                          const int64_t dimensions[4], const int64_t strides[4], bool by_value) {
  pk_dnn tensor = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  bool is_virtual = number == 0;
  int64_t alignment = 16, id = is_virtual ? PK_DNN_NUMBERS + graph->next++ : number;
  set_type(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dimensions);
  set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  finish(graph, tensor, "a tensor");
  return tensor;
}

pk_dnn pk_dnn_tensor(pk_dnn_graph *graph, int64_t number, cudnnDataType_t type,
                     const int64_t dimensions[4], const int64_t strides[4]) {
  return make_tensor(graph, number, type, dimensions, strides, false);
}

pk_dnn pk_dnn_scalar(pk_dnn_graph *graph, int64_t number) {
  static const int64_t ones[4] = {1, 1, 1, 1};
  return make_tensor(graph, number, CUDNN_DATA_FLOAT, ones, ones, true);
}

void pk_dnn_matmul(pk_dnn_graph *graph, pk_dnn a, pk_dnn b, pk_dnn c) {
  pk_dnn matmul = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set_type(graph, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  finish(graph, matmul, "a product");
  pk_dnn operation = create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  add_operation(graph, operation);
}

void pk_dnn_pointwise(pk_dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                      int64_t axis, pk_dnn x, pk_dnn b, pk_dnn t, pk_dnn y) {
  pk_dnn pointwise = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(graph, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set_type(graph, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
  if (axis >= 0) set(graph, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  finish(graph, pointwise, "an elementwise operation");
  pk_dnn operation = create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  add_operation(graph, operation);
}

void pk_dnn_reduce(pk_dnn_graph *graph, cudnnReduceTensorOp_t operator, pk_dnn x, pk_dnn y) {
  pk_dnn reduction = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(graph, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
      &operator);
  set_type(graph, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  finish(graph, reduction, "a reduction");
  pk_dnn operation = create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  add_operation(graph, operation);
}

void pk_dnn_reshape(pk_dnn_graph *graph, pk_dnn x, pk_dnn y) {
  pk_dnn operation = create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set_descriptor(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  add_operation(graph, operation);
}

/* --- plans --- */

/* Makes a configuration the graph's plan if it can be run here. */
static void try_plan(pk_dnn_graph *graph, pk_dnn configuration, int64_t workspace) {
  const pk_cudnn *dnn = graph->dnn;
  pk_dnn plan = create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  int64_t count = 0, wanted = 0;
  if (dnn->handle)
    set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
  else
    set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, dnn->properties);
  set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  if (graph->status != PK_OK || dnn->finalize(plan) != CUDNN_STATUS_SUCCESS) return;
  cudnnStatus_t status = dnn->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                  1, &count, &wanted);
  if (status != CUDNN_STATUS_SUCCESS || wanted > workspace) return;
  graph->plan = plan;
  graph->workspace = wanted;
}

/* What cuDNN proposes for the graph, best first. */
static int64_t propose(pk_dnn_graph *graph, pk_dnn configurations[MOST_CONFIGURATIONS]) {
  const pk_cudnn *dnn = graph->dnn;
  pk_dnn heuristics = create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  int64_t count = 0;
  set_descriptor(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph->graph);
  set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!dnn->handle)
    set_descriptor(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, dnn->properties);
  finish(graph, heuristics, "looking for a plan");
  for (int i = 0; i < MOST_CONFIGURATIONS; i++)
    configurations[i] = create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  if (graph->status != PK_OK) return 0;
  cudnnStatus_t status =
      dnn->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               MOST_CONFIGURATIONS, &count, configurations);
  graph->status = pk_cudnn_check(dnn, status, "looking for a plan");
  if (graph->status != PK_OK) return 0;
  return count < MOST_CONFIGURATIONS ? count : MOST_CONFIGURATIONS;
}

pk_status pk_dnn_plan(pk_dnn_graph *graph, int64_t workspace) {
  const pk_cudnn *dnn = graph->dnn;
  graph->graph = create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, graph->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      graph->operations, graph->list);
  if (dnn->handle)
    set(graph, graph->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
  finish(graph, graph->graph, "a graph of operations");
  pk_dnn configurations[MOST_CONFIGURATIONS] = {0};
  int64_t count = propose(graph, configurations);
  for (int64_t i = 0; i < count && graph->status == PK_OK && !graph->plan; i++)
    try_plan(graph, configurations[i], workspace);
  if (graph->status != PK_OK || graph->plan) return graph->status;
  graph->status =
      pk_fail(PK_UNSUPPORTED, "cuDNN %zu has no plan: of %lld proposed, none can be run",
              dnn->version(), (long long)count);
  return graph->status;
}

pk_status pk_dnn_run(const pk_dnn_graph *graph, int count, const int64_t *numbers,
                     void *const *memory, void *workspace) {
  pk_dnn_graph pack = {.dnn = graph->dnn};
  pk_dnn variant = create(&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, numbers);
  set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, memory);
  set(&pack, variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  finish(&pack, variant, "its operands");
  if (pack.status == PK_OK)
    pack.status =
        pk_cudnn_check(graph->dnn, graph->dnn->execute(graph->dnn->handle, graph->plan, variant),
                       "running a plan");
  pk_dnn_graph_free(&pack);
  return pack.status;
}

void pk_dnn_graph_free(pk_dnn_graph *graph) {
  while (graph->count > 0) graph->dnn->destroy(graph->all[--graph->count]);
}

#endif
