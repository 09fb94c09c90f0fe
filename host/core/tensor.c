/* Tensors and the storages they share. */
#include <stdlib.h>
#include <string.h>

#include "core/context.h"

static const int64_t dtype_sizes[] = {8, 4, 2, 4};
static const char *const dtype_names[] = {"f64", "f32", "bf16", "i32"};

static bool is_dtype(int dtype) {
  return dtype >= PK_F64 && dtype <= PK_I32;
}

int64_t pk_dtype_size(int dtype) {
  return is_dtype(dtype) ? dtype_sizes[dtype] : 0;
}

const char *pk_dtype_name(int dtype) {
  return is_dtype(dtype) ? dtype_names[dtype] : "unknown";
}

void *pk_tensor_data(const pk_tensor *tensor) {
  return (char *)tensor->storage->memory + tensor->offset * pk_dtype_size(tensor->dtype);
}

int64_t pk_tensor_inner(const pk_tensor *tensor) {
  int64_t inner = 1;
  for (int d = 1; d < tensor->rank; d++) inner *= tensor->shape[d];
  return inner;
}

bool pk_tensor_is_dense(const pk_tensor *tensor) {
  return tensor->rank == 0 || tensor->shape[0] <= 1 || tensor->stride == pk_tensor_inner(tensor);
}

bool pk_shape_fits(int rank, const int64_t *shape) {
  int64_t count = 1;
  for (int d = 0; d < rank; d++) {
    bool overflows = __builtin_mul_overflow(count, shape[d] ? shape[d] : 1, &count);
    if (overflows || count > (int64_t)1 << 50) return false;
  }
  return true;
}

/* Elements of a shape, refusing negative extents and what pk_shape_fits does. */
static pk_status count_elements(int rank, const int64_t *shape, int64_t *numel) {
  char text[PK_SHAPE_TEXT];
  if (rank < 0 || rank > PK_MAX_RANK) {
    return pk_fail(PK_INVALID, "a tensor of rank %d: the largest is %d", rank, PK_MAX_RANK);
  }
  for (int d = 0; d < rank; d++) {
    if (shape[d] < 0) {
      return pk_fail(PK_INVALID, "shape %s has a negative extent",
                     pk_shape_text(text, rank, shape));
    }
  }
  if (!pk_shape_fits(rank, shape))
    return pk_fail(PK_INVALID, "shape %s has too many elements", pk_shape_text(text, rank, shape));
  *numel = 1;
  for (int d = 0; d < rank; d++) *numel *= shape[d];
  return PK_OK;
}

void pk_storage_release(pk_storage *storage) {
  if (--storage->references > 0) return;
  pk_context *context = storage->context;
  if (storage->slab) pk_storage_release(storage->slab);
  if (!storage->recording)
    pk_memory_give(context, storage->memory, storage->bytes, storage->room, storage->category);
  free(storage);
  pk_context_release(context);
}

pk_status pk_storage_create(pk_context *context, int64_t bytes, int category,
                            pk_storage **storage) {
  pk_storage *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a tensor");
  created->recording = context->recording ? context->recordings : 0;
  created->span = -1;
  if (!created->recording) {
    pk_status status = pk_memory_take(context, bytes, category, &created->memory, &created->room);
    if (status != PK_OK) {
      free(created);
      return status;
    }
  }
  created->context = context;
  created->bytes = bytes;
  created->references = 1;
  created->category = category;
  pk_context_retain(context);
  *storage = created;
  return PK_OK;
}

void pk_storage_place(pk_storage *storage, pk_storage *slab) {
  if (storage->slab) return;
  storage->slab = slab;
  slab->references++;
  storage->memory = (char *)slab->memory + storage->slab_offset;
}

pk_status pk_tensor_create_raw(pk_context *context, pk_tensor **tensor, int dtype, int rank,
                               const int64_t *shape, int category) {
  if (!is_dtype(dtype))
    return pk_fail(PK_INVALID, "dtype %d is not one of f64, f32, bf16, i32", dtype);
  if (category < 0 || category >= PK_CATEGORIES) {
    return pk_fail(PK_INVALID, "memory category %d is not known", category);
  }
  int64_t numel = 0;
  pk_status status = count_elements(rank, shape, &numel);
  if (status != PK_OK) return status;
  pk_tensor *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a tensor");
  status = pk_storage_create(context, numel * dtype_sizes[dtype], category, &created->storage);
  if (status != PK_OK) {
    free(created);
    return status;
  }
  created->context = context;
  created->dtype = dtype;
  created->rank = rank;
  created->numel = numel;
  for (int d = 0; d < rank; d++) created->shape[d] = shape[d];
  created->stride = pk_tensor_inner(created);
  *tensor = created;
  return PK_OK;
}

/* Zeros: at once, or as an operation of the program that is being recorded. */
static pk_status make_zero(pk_context *context, pk_tensor *tensor) {
  if (context->forecast && !context->recording) return PK_OK;
  if (!context->recording) {
    pk_storage *storage = tensor->storage;
    return context->device->zero(context->device, storage->memory, storage->bytes);
  }
  pk_attributes attributes = {.integers = {tensor->dtype}, .list_count = tensor->rank};
  for (int d = 0; d < tensor->rank; d++) attributes.list[d] = tensor->shape[d];
  return pk_op_run(context, PK_OP_fill, NULL, 0, &tensor, 1, &attributes);
}

pk_status pk_tensor_create(pk_context *context, pk_tensor **tensor, int dtype, int rank,
                           const int64_t *shape, int category) {
  pk_tensor *created = NULL;
  pk_status status = pk_tensor_create_raw(context, &created, dtype, rank, shape, category);
  if (status != PK_OK) return status;
  status = make_zero(context, created);
  if (status != PK_OK) {
    pk_tensor_free(created);
    return status;
  }
  *tensor = created;
  return PK_OK;
}

void pk_tensor_release(pk_tensor *tensor) {
  if (!tensor) return;
  if (tensor->storage) pk_storage_release(tensor->storage);
  tensor->storage = NULL;
  tensor->context = NULL; /* which may be gone from now on */
}

void pk_tensor_move(pk_tensor *tensor, pk_tensor *into) {
  *into = *tensor;
  free(tensor);
}

void pk_tensor_free(pk_tensor *tensor) {
  pk_tensor_release(tensor);
  free(tensor);
}

const char *pk_tensor_trouble(const pk_tensor *tensor) {
  const pk_storage *storage = tensor->storage;
  if (!storage) return "was freed";
  bool noted = tensor->context->recording && pk_storage_is_planned(storage);
  if (!storage->recording || noted) return NULL;
  if (!storage->kept)
    return "was made while a program was recorded and is none of its results, so that it has no "
           "memory of its own: return it from the compiled function";
  int64_t holds = storage->slab ? storage->slab->holds : 0;
  if (holds == storage->recording) return NULL;
  return holds ? "is a result whose memory another program has used since"
               : "is a result of a program that has not run";
}

static pk_status check_usable(const pk_tensor *tensor) {
  const char *trouble = pk_tensor_trouble(tensor);
  if (!trouble) return PK_OK;
  char text[PK_SHAPE_TEXT];
  return pk_fail(PK_INVALID, "the tensor %s %s %s", pk_dtype_name(tensor->dtype),
                 pk_shape_text(text, tensor->rank, tensor->shape), trouble);
}

pk_status pk_tensor_view(const pk_tensor *base, pk_tensor **view, int rank, const int64_t *shape,
                         int64_t stride, int64_t offset) {
  int64_t numel = 0;
  pk_status status = base->storage ? PK_OK : check_usable(base);
  if (status == PK_OK) status = count_elements(rank, shape, &numel);
  if (status != PK_OK) return status;
  pk_tensor made = {.context = base->context,
                    .storage = base->storage,
                    .stride = stride,
                    .numel = numel,
                    .rank = rank,
                    .dtype = base->dtype};
  for (int d = 0; d < rank; d++) made.shape[d] = shape[d];
  int64_t inner = pk_tensor_inner(&made);
  int64_t held = base->storage->bytes / pk_dtype_size(base->dtype);
  int64_t rows = rank > 0 ? shape[0] : 1;
  char text[PK_SHAPE_TEXT];
  bool fits = !__builtin_add_overflow(base->offset, offset, &made.offset) && made.offset >= 0 &&
              made.offset <= held;
  if (fits && numel > 0) {
    int64_t last = 0;
    fits = (rows == 1 || stride >= inner) && !__builtin_mul_overflow(rows - 1, stride, &last) &&
           !__builtin_add_overflow(last, made.offset + inner, &last) && last <= held;
  }
  if (!fits) {
    return pk_fail(PK_INVALID,
                   "a view of shape %s, stride %lld, at element %lld does not fit in a storage of "
                   "%lld elements",
                   pk_shape_text(text, rank, shape), (long long)stride, (long long)made.offset,
                   (long long)held);
  }
  pk_tensor *created = malloc(sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no host memory for a view");
  *created = made;
  created->storage->references++;
  *view = created;
  return PK_OK;
}

pk_status pk_tensor_check_values(const pk_tensor *tensor, bool writing) {
  pk_status status = check_usable(tensor);
  if (status != PK_OK) return status;
  const pk_context *context = tensor->context;
  const char *what = writing ? "written" : "read";
  if (context->recording && (writing || pk_storage_is_planned(tensor->storage))) {
    return pk_fail(PK_INVALID,
                   "a tensor cannot be %s while a program is recorded: nothing runs yet. Use "
                   "operations, or move this out of the compiled function",
                   what);
  }
  if (context->forecast && !writing) return pk_fail(PK_INVALID, "a forecast has no values");
  return PK_OK;
}

int64_t pk_tensor_writes(const pk_tensor *tensor) {
  const pk_storage *storage = tensor->storage;
  if (!storage) return 0;
  return storage->writes + (storage->slab ? storage->slab->writes : 0);
}

int64_t pk_tensor_version(const pk_tensor *tensor) {
  return tensor->storage ? pk_tensor_writes(tensor) + tensor->storage->noted : 0;
}

static pk_status check_bytes(const pk_tensor *tensor, int64_t bytes, const char *what) {
  pk_status status = pk_tensor_check_values(tensor, what[0] == 'w');
  if (status != PK_OK) return status;
  int64_t expected = tensor->numel * pk_dtype_size(tensor->dtype);
  if (bytes == expected) return PK_OK;
  return pk_fail(PK_INVALID, "%s %lld bytes: the tensor of %lld %s elements has %lld", what,
                 (long long)bytes, (long long)tensor->numel, pk_dtype_name(tensor->dtype),
                 (long long)expected);
}

/* Contiguous runs of a tensor: one if it is dense, else one per entry of dimension 0. */
static int64_t runs_of(const pk_tensor *tensor, int64_t *run_bytes, int64_t *stride_bytes) {
  int64_t size = pk_dtype_size(tensor->dtype);
  bool dense = pk_tensor_is_dense(tensor);
  int64_t runs = dense ? 1 : tensor->shape[0];
  *run_bytes = dense ? tensor->numel * size : pk_tensor_inner(tensor) * size;
  *stride_bytes = tensor->stride * size;
  return runs;
}

pk_status pk_tensor_write(pk_tensor *tensor, const void *data, int64_t bytes) {
  pk_status status = check_bytes(tensor, bytes, "writing");
  if (status == PK_OK) tensor->storage->writes++;
  if (status != PK_OK || tensor->context->forecast) return status;
  pk_device *device = tensor->context->device;
  int64_t run_bytes, stride_bytes, runs = runs_of(tensor, &run_bytes, &stride_bytes);
  char *memory = pk_tensor_data(tensor);
  for (int64_t r = 0; r < runs && status == PK_OK; r++) {
    status = device->upload(device, memory + r * stride_bytes, (const char *)data + r * run_bytes,
                            run_bytes);
  }
  return status;
}

/* Appends what is to be copied of a tensor to dense data; returns the end of the parts. */
static pk_part *add_parts(pk_part *parts, const pk_tensor *tensor, void *data) {
  int64_t run_bytes, stride_bytes, runs = runs_of(tensor, &run_bytes, &stride_bytes);
  const char *memory = pk_tensor_data(tensor);
  for (int64_t r = 0; r < runs; r++)
    *parts++ = (pk_part){memory + r * stride_bytes, (char *)data + r * run_bytes, run_bytes};
  return parts;
}

pk_status pk_tensors_read(const pk_tensor *const *tensors, int64_t count, void *const *data) {
  int64_t room = 0, run_bytes, stride_bytes;
  for (int64_t t = 0; t < count; t++) {
    pk_status status = pk_tensor_check_values(tensors[t], false);
    if (status != PK_OK) return status;
    if (tensors[t]->context != tensors[0]->context)
      return pk_fail(PK_INVALID, "tensors of two device contexts cannot be read together");
    room += runs_of(tensors[t], &run_bytes, &stride_bytes);
  }
  if (room == 0) return PK_OK;
  pk_part *parts = malloc((size_t)room * sizeof *parts), *end = parts;
  if (!parts) return pk_fail(PK_NO_MEMORY, "no host memory to read tensors");
  for (int64_t t = 0; t < count; t++) end = add_parts(end, tensors[t], data[t]);
  pk_device *device = tensors[0]->context->device;
  pk_status status = device->download(device, parts, room);
  free(parts);
  return status;
}

pk_status pk_tensor_read(const pk_tensor *tensor, void *data, int64_t bytes) {
  pk_status status = check_bytes(tensor, bytes, "reading");
  return status == PK_OK ? pk_tensors_read(&tensor, 1, &data) : status;
}
