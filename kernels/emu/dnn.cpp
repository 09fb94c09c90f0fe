// cuDNN's backend API on the CPU, as much of it as attention uses: graphs of products, elementwise
// operations, reductions and reshapes over tensors of rank 4, computed one after the other. It is
// there only where PACKLUA_EMU_CUDNN is set, so that the device's own kernels run otherwise.
#include "dnn.h"

#if __has_include(<cudnn.h>)

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <cuda_bf16.h>
#include <cudnn.h>

namespace emu {
void submit(cudaStream_t stream, const char *name, std::function<void()> work);
}

namespace {

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> attributes;
  bool finished = false;

  template <class T> std::vector<T> list(cudnnBackendAttributeName_t name) const {
    auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    if (!values.empty()) memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
  template <class T> T one(cudnnBackendAttributeName_t name, T otherwise = T()) const {
    auto values = list<T>(name);
    return values.empty() ? otherwise : values[0];
  }
  const Descriptor *other(cudnnBackendAttributeName_t name) const {
    return one<const Descriptor *>(name, nullptr);
  }
};

struct Handle {
  cudaStream_t stream = nullptr;
};

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
  case CUDNN_TYPE_BACKEND_DESCRIPTOR:
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_HANDLE:
    return 8;
  case CUDNN_TYPE_BOOLEAN:
  case CUDNN_TYPE_CHAR:
    return 1;
  default:
    return 4;
  }
}

// A tensor's description, and its values in the order of its dimensions once they are known.
struct Tensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int64_t> dimensions, strides;
  bool is_virtual = false, by_value = false;

  explicit Tensor(const Descriptor *from)
      : id(from->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(from->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        dimensions(from->list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(from->list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        is_virtual(from->one<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0),
        by_value(from->one<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0) {}

  int64_t count() const { return dimensions[0] * dimensions[1] * dimensions[2] * dimensions[3]; }
  int64_t span() const {
    int64_t last = 0;
    for (int d = 0; d < 4; d++) last += (dimensions[d] - 1) * strides[d];
    return last + 1;
  }
  // Where the element at an index in the order of the dimensions lies.
  int64_t offset(int64_t index) const {
    int64_t at = 0;
    for (int d = 3; d >= 0; d--) {
      at += index % dimensions[d] * strides[d];
      index /= dimensions[d];
    }
    return at;
  }
  // The index here of an index of another tensor; dimensions of 1 repeat.
  int64_t repeated(int64_t index, const Tensor &of) const {
    int64_t at[4], own = 0;
    for (int d = 3; d >= 0; d--) {
      at[d] = index % of.dimensions[d];
      index /= of.dimensions[d];
    }
    for (int d = 0; d < 4; d++) own = own * dimensions[d] + (dimensions[d] == 1 ? 0 : at[d]);
    return own;
  }
  double rounded(double x) const {
    if (type == CUDNN_DATA_BFLOAT16)
      return __bfloat162float(__float2bfloat16(static_cast<float>(x)));
    return type == CUDNN_DATA_FLOAT ? static_cast<float>(x) : x;
  }
};

using Values = std::vector<double>;

// One run of a graph: the memory of tensors by number, and the values that were computed.
struct Run {
  std::map<int64_t, char *> memory;
  std::map<int64_t, float> scalars;
  std::map<int64_t, Values> known;

  Values read(const Tensor &tensor) {
    if (tensor.by_value) return Values(1, scalars.at(tensor.id));
    if (tensor.is_virtual) return known.at(tensor.id);
    const char *at = memory.at(tensor.id);
    Values values(static_cast<size_t>(tensor.count()));
    for (int64_t i = 0; i < tensor.count(); i++) {
      int64_t offset = tensor.offset(i);
      values[i] = tensor.type == CUDNN_DATA_BFLOAT16
                      ? __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(at)[offset])
                      : reinterpret_cast<const float *>(at)[offset];
    }
    return values;
  }

  void write(const Tensor &tensor, Values values) {
    for (double &x : values) x = tensor.rounded(x);
    if (!tensor.is_virtual) {
      char *at = memory.at(tensor.id);
      for (int64_t i = 0; i < tensor.count(); i++) {
        int64_t offset = tensor.offset(i);
        if (tensor.type == CUDNN_DATA_BFLOAT16)
          reinterpret_cast<__nv_bfloat16 *>(at)[offset] =
              __float2bfloat16(static_cast<float>(values[i]));
        else
          reinterpret_cast<float *>(at)[offset] = static_cast<float>(values[i]);
      }
    }
    known[tensor.id] = std::move(values);
  }

  void matmul(const Descriptor &op);
  void pointwise(const Descriptor &op);
  void reduce(const Descriptor &op);
  void reshape(const Descriptor &op);
};

void Run::matmul(const Descriptor &op) {
  Tensor a(op.other(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  Tensor b(op.other(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  Tensor c(op.other(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  Values left = read(a), right = read(b), made(static_cast<size_t>(c.count()), 0);
  int64_t rows = c.dimensions[2], columns = c.dimensions[3], terms = a.dimensions[3];
  for (int64_t m = 0; m < c.dimensions[0] * c.dimensions[1]; m++)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t l = 0; l < terms; l++) {
        double factor = left[(m * rows + i) * terms + l];
        for (int64_t j = 0; j < columns; j++)
          made[(m * rows + i) * columns + j] += factor * right[(m * terms + l) * columns + j];
      }
  write(c, std::move(made));
}

double combine(cudnnPointwiseMode_t mode, double x, double b, double t) {
  switch (mode) {
  case CUDNN_POINTWISE_ADD:
    return x + b;
  case CUDNN_POINTWISE_SUB:
    return x - b;
  case CUDNN_POINTWISE_MUL:
    return x * b;
  case CUDNN_POINTWISE_DIV:
    return x / b;
  case CUDNN_POINTWISE_EXP:
    return std::exp(x);
  case CUDNN_POINTWISE_LOG:
    return std::log(x);
  case CUDNN_POINTWISE_CMP_GE:
    return x >= b;
  case CUDNN_POINTWISE_BINARY_SELECT:
    return t != 0 ? x : b;
  default: // IDENTITY
    return x;
  }
}

void Run::pointwise(const Descriptor &op) {
  const Descriptor *kind = op.other(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  auto mode = kind->one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  Tensor y(op.other(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  Values made(static_cast<size_t>(y.count()));
  if (mode == CUDNN_POINTWISE_GEN_INDEX) {
    int64_t axis = kind->one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS), inner = 1;
    for (int d = 3; d > axis; d--) inner *= y.dimensions[d];
    for (int64_t i = 0; i < y.count(); i++)
      made[i] = static_cast<double>(i / inner % y.dimensions[axis]);
    return write(y, std::move(made));
  }
  const Descriptor *sources[3] = {op.other(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                                  op.other(CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                                  op.other(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)};
  std::vector<Tensor> tensors;
  Values values[3];
  for (int s = 0; s < 3; s++) {
    tensors.emplace_back(sources[s] ? sources[s] : sources[0]);
    if (sources[s]) values[s] = read(tensors[s]);
  }
  for (int64_t i = 0; i < y.count(); i++) {
    double at[3] = {0, 0, 0};
    for (int s = 0; s < 3; s++)
      if (sources[s]) at[s] = values[s][tensors[s].repeated(i, y)];
    made[i] = combine(mode, at[0], at[1], at[2]);
  }
  write(y, std::move(made));
}

void Run::reduce(const Descriptor &op) {
  const Descriptor *kind = op.other(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  bool adds =
      kind->one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
  Tensor x(op.other(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
  Tensor y(op.other(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  Values from = read(x), made(static_cast<size_t>(y.count()), adds ? 0 : -INFINITY);
  for (int64_t i = 0; i < x.count(); i++) {
    double &into = made[y.repeated(i, x)];
    into = adds ? into + from[i] : std::max(into, from[i]);
  }
  write(y, std::move(made));
}

// The same memory by other dimensions and strides.
void Run::reshape(const Descriptor &op) {
  Tensor x(op.other(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
  Tensor y(op.other(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
  Values from = read(x), memory_of_x(static_cast<size_t>(x.span()), NAN);
  Values made(static_cast<size_t>(y.count()));
  for (int64_t i = 0; i < x.count(); i++) memory_of_x[x.offset(i)] = from[i];
  for (int64_t i = 0; i < y.count(); i++) made[i] = memory_of_x.at(y.offset(i));
  write(y, std::move(made));
}

void run_graph(Run &run, const std::vector<const Descriptor *> &operations) {
  for (const Descriptor *op : operations) {
    switch (op->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      run.matmul(*op);
      break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      run.reduce(*op);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      run.reshape(*op);
      break;
    default:
      run.pointwise(*op);
    }
  }
}

Descriptor *of(cudnnBackendDescriptor_t descriptor) {
  return static_cast<Descriptor *>(descriptor);
}

// --- what is called ---

size_t get_version() {
  return CUDNN_VERSION;
}
const char *get_error_string(cudnnStatus_t) {
  return "a status of the emulated cuDNN";
}
void get_last_error(char *message, size_t size) {
  if (size > 0) *message = 0;
}
cudnnStatus_t create_handle(cudnnHandle_t *handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_handle(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle *>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle *>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
  Descriptor *descriptor = new Descriptor;
  descriptor->type = type;
  *made = descriptor;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy(cudnnBackendDescriptor_t descriptor) {
  delete of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  of(descriptor)->finished = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (of(descriptor)->finished) return CUDNN_STATUS_BAD_PARAM;
  const char *bytes = static_cast<const char *>(values);
  size_t size = static_cast<size_t>(count) * size_of(type);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (!static_cast<Descriptor *const *>(values)[i]->finished) return CUDNN_STATUS_BAD_PARAM;
  of(descriptor)->attributes[name].assign(bytes, bytes + size);
  return CUDNN_STATUS_SUCCESS;
}
// What is asked for: one configuration for a graph, and the size of a plan's workspace.
cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t, int64_t, int64_t *count, void *values) {
  *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t *>(values) = 256;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS) return CUDNN_STATUS_NOT_SUPPORTED;
  Descriptor *configuration = *static_cast<Descriptor **>(values);
  configuration->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
      of(descriptor)->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
  configuration->finished = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack) {
  const Descriptor *graph = of(plan)
                                ->other(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                                ->other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  auto numbers = of(pack)->list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  auto memory = of(pack)->list<char *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto operations = graph->list<const Descriptor *>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  auto run = std::make_shared<Run>();
  if (numbers.size() != memory.size()) return CUDNN_STATUS_BAD_PARAM;
  for (size_t i = 0; i < numbers.size(); i++) run->memory[numbers[i]] = memory[i];
  // Numbers lie in the host's memory and are read now.
  for (const Descriptor *op : operations)
    for (const auto &attribute : op->attributes) {
      if (attribute.first != CUDNN_ATTR_OPERATION_POINTWISE_BDESC) continue;
      Tensor tensor(op->other(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
      if (!tensor.by_value) continue;
      if (run->memory.count(tensor.id) == 0) return CUDNN_STATUS_BAD_PARAM;
      memcpy(&run->scalars[tensor.id], run->memory[tensor.id], sizeof(float));
    }
  emu::submit(reinterpret_cast<Handle *>(handle)->stream, "cudnn", [run, operations] {
    run->known.clear();
    run_graph(*run, operations);
  });
  return CUDNN_STATUS_SUCCESS;
}

} // namespace

void *emu::cudnn_symbol(const char *name) {
  static const struct {
    const char *name;
    void *address;
  } known[] = {
      {"cudnnGetVersion", reinterpret_cast<void *>(get_version)},
      {"cudnnGetErrorString", reinterpret_cast<void *>(get_error_string)},
      {"cudnnGetLastErrorString", reinterpret_cast<void *>(get_last_error)},
      {"cudnnCreate", reinterpret_cast<void *>(create_handle)},
      {"cudnnDestroy", reinterpret_cast<void *>(destroy_handle)},
      {"cudnnSetStream", reinterpret_cast<void *>(set_stream)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void *>(create)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void *>(destroy)},
      {"cudnnBackendFinalize", reinterpret_cast<void *>(finalize)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void *>(set_attribute)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void *>(get_attribute)},
      {"cudnnBackendExecute", reinterpret_cast<void *>(execute)},
  };
  const char *wanted = getenv("PACKLUA_EMU_CUDNN");
  if (!wanted || strcmp(wanted, "1") != 0) return nullptr;
  for (const auto &entry : known)
    if (strcmp(entry.name, name) == 0) return entry.address;
  return nullptr;
}

#else

void *emu::cudnn_symbol(const char *) {
  return nullptr;
}

#endif
