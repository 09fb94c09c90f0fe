/* Tensors as numbers on the host: reading, writing and seeding them whatever their dtype. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/context.h"

/* Elements of a seeded tensor that are made at once. */
enum { SEED_PIECE = 65536 };

/* Every NaN becomes the plain one: an interpreter that keeps its types in the bits of NaNs must
 * not meet others. */
static double plain(double value) {
  return value == value ? value : (double)NAN;
}

static double element(int dtype, const void *data, int64_t index) {
  switch (dtype) {
  case PK_F64:
    return plain(((const double *)data)[index]);
  case PK_F32:
    return plain(((const float *)data)[index]);
  case PK_I32:
    return ((const int32_t *)data)[index];
  default:
    return plain(pk_bf16_to_f32(((const uint16_t *)data)[index]));
  }
}

/* Rounded once to the dtype, to nearest even; for i32 the value must be one. */
static bool put_element(int dtype, void *data, int64_t index, double value) {
  switch (dtype) {
  case PK_F64:
    ((double *)data)[index] = value;
    return true;
  case PK_F32:
    ((float *)data)[index] = (float)value;
    return true;
  case PK_I32:
    if (!(value >= INT32_MIN && value <= INT32_MAX) || value != rint(value)) return false;
    ((int32_t *)data)[index] = (int32_t)value;
    return true;
  default:
    ((uint16_t *)data)[index] = pk_bf16_from_f32(pk_f32_to_odd(value));
    return true;
  }
}

void pk_numbers_plain(double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) values[i] = plain(values[i]);
}

static pk_status no_room(int64_t numel) {
  return pk_fail(PK_NO_MEMORY, "no host memory for %lld elements", (long long)numel);
}

pk_status pk_tensor_get(const pk_tensor *tensor, int64_t index, double *value) {
  if (index < 0 || index >= tensor->numel) {
    return pk_fail(PK_INVALID, "element %lld of a tensor of %lld", (long long)index,
                   (long long)tensor->numel);
  }
  pk_status status = pk_tensor_check_values(tensor, false);
  if (status != PK_OK) return status;
  int64_t inner = pk_tensor_inner(tensor);
  int64_t place = index / inner * tensor->stride + index % inner;
  int64_t size = pk_dtype_size(tensor->dtype);
  const char *memory = (const char *)pk_tensor_data(tensor) + place * size;
  double bytes = 0; /* room for any dtype, aligned */
  pk_device *device = tensor->context->device;
  status = device->download(device, &(pk_part){memory, &bytes, size}, 1);
  if (status == PK_OK) *value = element(tensor->dtype, &bytes, 0);
  return status;
}

pk_status pk_tensors_read_numbers(const pk_tensor *const *tensors, int64_t count,
                                  double *const *values) {
  int64_t bytes = 0, numel = 0;
  for (int64_t t = 0; t < count; t++) {
    bytes += pk_aligned(tensors[t]->numel * pk_dtype_size(tensors[t]->dtype));
    numel += tensors[t]->numel;
  }
  char *data = malloc((size_t)bytes + 1), *end = data;
  void **places = calloc((size_t)count + 1, sizeof *places);
  pk_status status = data && places ? PK_OK : no_room(numel);
  for (int64_t t = 0; t < count && status == PK_OK; t++) {
    places[t] = end;
    end += pk_aligned(tensors[t]->numel * pk_dtype_size(tensors[t]->dtype));
  }
  if (status == PK_OK) status = pk_tensors_read(tensors, count, places);
  for (int64_t t = 0; t < count && status == PK_OK; t++)
    for (int64_t i = 0; i < tensors[t]->numel; i++)
      values[t][i] = element(tensors[t]->dtype, places[t], i);
  free(places);
  free(data);
  return status;
}

pk_status pk_tensor_read_numbers(const pk_tensor *tensor, double *values) {
  return pk_tensors_read_numbers(&tensor, 1, &values);
}

pk_status pk_tensor_write_numbers(pk_tensor *tensor, const double *values) {
  int64_t size = pk_dtype_size(tensor->dtype);
  void *data = malloc((size_t)(tensor->numel * size + 1));
  if (!data) return no_room(tensor->numel);
  pk_status status = PK_OK;
  for (int64_t i = 0; status == PK_OK && i < tensor->numel; i++) {
    if (!put_element(tensor->dtype, data, i, values[i]))
      status =
          pk_fail(PK_INVALID, "element %lld, %.17g, is not an i32", (long long)i + 1, values[i]);
  }
  if (status == PK_OK) status = pk_tensor_write(tensor, data, tensor->numel * size);
  free(data);
  return status;
}

typedef struct seed_job {
  uint64_t seed;
  const char *name;
  double mean, deviation;
  int dtype;
  int64_t count;
  char *data;
  double *scratch; /* [threads, SEED_PIECE] */
} seed_job;

static void seed_piece(void *argument, int64_t piece, int thread) {
  const seed_job *job = argument;
  int64_t first = piece * SEED_PIECE, count = job->count - first;
  if (count > SEED_PIECE) count = SEED_PIECE;
  double *values = job->scratch + (int64_t)thread * SEED_PIECE;
  pk_random_normal(job->seed, job->name, first, count, job->mean, job->deviation, values);
  for (int64_t i = 0; i < count; i++) put_element(job->dtype, job->data, first + i, values[i]);
}

pk_status pk_tensor_seed_normal(pk_tensor *tensor, uint64_t seed, const char *name, double mean,
                                double deviation) {
  pk_status status = pk_tensor_check_values(tensor, true);
  if (status != PK_OK) return status;
  if (tensor->dtype == PK_I32) return pk_fail(PK_INVALID, "an i32 tensor holds no normal values");
  if (tensor->context->forecast) return PK_OK;
  pk_device *device = tensor->context->device;
  int64_t size = pk_dtype_size(tensor->dtype), rows = tensor->rank > 0 ? tensor->shape[0] : 1;
  int threads = (int)device->threads;
  seed_job job = {.seed = seed,
                  .name = name,
                  .mean = mean,
                  .deviation = deviation,
                  .dtype = tensor->dtype,
                  .count = pk_tensor_inner(tensor)};
  job.data = malloc((size_t)(job.count * size + 1));
  job.scratch = malloc((size_t)threads * SEED_PIECE * sizeof(double));
  status = job.data && job.scratch ? PK_OK : no_room(job.count);
  pk_threads *pool = NULL;
  if (status == PK_OK) status = pk_threads_create(&pool, threads);
  if (status == PK_OK)
    pk_parallel_for(pool, (job.count + SEED_PIECE - 1) / SEED_PIECE, seed_piece, &job);
  pk_threads_free(pool);
  tensor->storage->writes++;
  for (int64_t row = 0; row < rows && status == PK_OK; row++) {
    char *memory = (char *)pk_tensor_data(tensor) + row * tensor->stride * size;
    status = device->upload(device, memory, job.data, job.count * size);
  }
  free(job.data);
  free(job.scratch);
  return status;
}
