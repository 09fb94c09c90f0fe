/* Writes copies of tensors to files in the background: snapshots, and the thread that saves them.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "base/output.h"
#include "io/safetensors.h"

enum {
  NICENESS = 10,         /* of the thread */
  PIECE_BYTES = 1 << 24, /* read back at once */
  SPARE_BYTES = 1 << 20, /* that the disk must have besides the data */
  HUGE_BYTES = 1 << 21,
  MESSAGE_BYTES = 2048
};

static const double MIB = 1048576;

/* --- snapshots --- */

typedef struct item {
  char *name;
  const char *dtype;
  int rank;
  int64_t shape[PK_SAFETENSORS_RANK];
  char *data;
  int64_t bytes;
} item;

typedef struct pair {
  char *key;
  char *value;
} pair;

struct pk_snapshot {
  char *path;
  int level;
  int threads;
  item *items;
  int64_t item_count;
  pair *pairs;
  int64_t pair_count;
  int64_t bytes;
  pk_snapshot *next; /* in a saver's queue */
};

pk_status pk_snapshot_create(const char *path, int level, int threads, pk_snapshot **snapshot) {
  *snapshot = calloc(1, sizeof **snapshot);
  if (*snapshot) (*snapshot)->path = strdup(path);
  if (!*snapshot || !(*snapshot)->path) {
    pk_snapshot_free(*snapshot);
    *snapshot = NULL;
    return pk_fail(PK_NO_MEMORY, "%s: no memory for a snapshot", path);
  }
  (*snapshot)->level = level;
  (*snapshot)->threads = threads;
  return PK_OK;
}

void pk_snapshot_free(pk_snapshot *snapshot) {
  if (!snapshot) return;
  for (int64_t i = 0; i < snapshot->item_count; i++) {
    free(snapshot->items[i].name);
    free(snapshot->items[i].data);
  }
  for (int64_t i = 0; i < snapshot->pair_count; i++) {
    free(snapshot->pairs[i].key);
    free(snapshot->pairs[i].value);
  }
  free(snapshot->items);
  free(snapshot->pairs);
  free(snapshot->path);
  free(snapshot);
}

/* Makes room for one more of count entries, zeroed. */
static void *grow(void *list, int64_t count, size_t size) {
  char *larger = realloc(list, (size_t)(count + 1) * size);
  if (larger) memset(larger + (size_t)count * size, 0, size);
  return larger;
}

static pk_status fail_memory(const pk_snapshot *snapshot, const char *name) {
  return pk_fail(PK_NO_MEMORY, "%s: no memory for a copy of '%.200s'", snapshot->path, name);
}

pk_status pk_snapshot_metadata(pk_snapshot *snapshot, const char *key, const char *value) {
  pair *larger = grow(snapshot->pairs, snapshot->pair_count, sizeof *larger);
  if (!larger) return fail_memory(snapshot, key);
  snapshot->pairs = larger;
  pair *added = &larger[snapshot->pair_count++];
  added->key = strdup(key);
  added->value = strdup(value);
  return added->key && added->value ? PK_OK : fail_memory(snapshot, key);
}

/* Memory for a copy; in huge pages if the system has them, as faulting in 4 KiB at a time takes
 * longer than copying. */
static char *allocate_copy(int64_t bytes) {
  void *memory = NULL;
  if (bytes < HUGE_BYTES) return malloc((size_t)bytes + 1);
  if (posix_memalign(&memory, HUGE_BYTES, (size_t)bytes) != 0) return NULL;
  madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
  return memory;
}

static const char *file_dtype(int dtype) {
  switch (dtype) {
  case PK_F64:
    return "F64";
  case PK_F32:
    return "F32";
  case PK_BF16:
    return "BF16";
  default:
    return "I32";
  }
}

pk_status pk_snapshot_tensor(pk_snapshot *snapshot, const char *name, const pk_tensor *tensor,
                             int rank, const int64_t *shape) {
  if (rank < 0 || rank > PK_SAFETENSORS_RANK) {
    return pk_fail(PK_INVALID, "%s: tensor '%.200s': %d dimensions", snapshot->path, name, rank);
  }
  int64_t numel = 1;
  for (int d = 0; d < rank; d++) numel *= shape[d];
  if (numel != tensor->numel) {
    return pk_fail(PK_INVALID, "%s: tensor '%.200s' of %" PRId64 " elements in a shape of %" PRId64,
                   snapshot->path, name, tensor->numel, numel);
  }
  item *larger = grow(snapshot->items, snapshot->item_count, sizeof *larger);
  if (!larger) return fail_memory(snapshot, name);
  snapshot->items = larger;
  item *added = &larger[snapshot->item_count++];
  added->dtype = file_dtype(tensor->dtype);
  added->rank = rank;
  if (rank > 0) memcpy(added->shape, shape, (size_t)rank * sizeof *shape);
  added->bytes = tensor->numel * pk_dtype_size(tensor->dtype);
  added->name = strdup(name);
  added->data = allocate_copy(added->bytes);
  if (!added->name || !added->data) return fail_memory(snapshot, name);
  snapshot->bytes += added->bytes;
  return pk_tensor_read(tensor, added->data, added->bytes);
}

/* --- the saver --- */

struct pk_saver {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t work; /* there is a snapshot, or stop */
  pthread_cond_t done; /* one is finished, or failed */
  bool stop;
  pk_snapshot *first, *last; /* the queue */
  int64_t unfinished_bytes;
  pk_saver_progress progress;
  pk_status failure;
  char message[MESSAGE_BYTES];
};

static pk_status declare(const pk_snapshot *snapshot, pk_safetensors_writer *writer) {
  pk_status status = PK_OK;
  for (int64_t i = 0; i < snapshot->pair_count && !status; i++) {
    status =
        pk_safetensors_writer_metadata(writer, snapshot->pairs[i].key, snapshot->pairs[i].value);
  }
  for (int64_t i = 0; i < snapshot->item_count && !status; i++) {
    const item *tensor = &snapshot->items[i];
    status = pk_safetensors_writer_declare(writer, tensor->name, tensor->dtype, tensor->rank,
                                           tensor->shape);
  }
  return status;
}

/* Refuses NaN and infinities, whose exponent bits are all set: a state with them would take the
 * place of a good one. */
static pk_status check_finite(const item *tensor) {
  bool finite = true;
  if (strcmp(tensor->dtype, "F32") == 0) {
    const uint32_t *bits = (const void *)tensor->data;
    for (int64_t i = 0; i < tensor->bytes / 4; i++) finite &= (~bits[i] & 0x7f800000u) != 0;
  } else if (strcmp(tensor->dtype, "F64") == 0) {
    const uint64_t *bits = (const void *)tensor->data;
    for (int64_t i = 0; i < tensor->bytes / 8; i++) finite &= (~bits[i] & 0x7ff0000000000000u) != 0;
  }
  return finite ? PK_OK
                : pk_fail(PK_INVALID, "tensor '%.200s' holds values that are not finite",
                          tensor->name);
}

static pk_status compare_item(const item *tensor, pk_safetensors *file, int64_t index,
                              char *piece) {
  for (int64_t at = 0; at < tensor->bytes; at += PIECE_BYTES) {
    int64_t left = tensor->bytes - at, count = left < PIECE_BYTES ? left : PIECE_BYTES;
    pk_status status = pk_safetensors_read_part(file, index, at, piece, count);
    if (status) return status;
    if (memcmp(piece, tensor->data + at, (size_t)count) != 0) {
      return pk_fail(PK_FORMAT, "tensor '%.200s' is not what was written", tensor->name);
    }
  }
  return PK_OK;
}

/* Opens a file as any reader would, and compares its tensors with the snapshot. */
static pk_status read_back(const pk_snapshot *snapshot, const char *path) {
  pk_safetensors *file = NULL;
  char *piece = malloc(PIECE_BYTES);
  pk_status status = piece ? pk_safetensors_open(path, &file)
                           : pk_fail(PK_NO_MEMORY, "%s: no memory to read it back", path);
  if (!status && pk_safetensors_count(file) != snapshot->item_count) {
    status = pk_fail(PK_FORMAT, "not as many tensors as were written");
  }
  /* Without empty tensors the order of the data is that in which they were declared. */
  for (int64_t i = 0; i < snapshot->item_count && !status; i++) {
    status = compare_item(&snapshot->items[i], file, i, piece);
  }
  pk_safetensors_close(file);
  free(piece);
  return status ? pk_fail_within(status, "%s: reading it back", snapshot->path) : PK_OK;
}

static pk_status save(const pk_snapshot *snapshot) {
  pk_safetensors_writer *writer = NULL;
  const char *temporary = NULL;
  pk_status status = PK_OK;
  for (int64_t i = 0; i < snapshot->item_count && !status; i++) {
    status = check_finite(&snapshot->items[i]);
  }
  if (status) return pk_fail_within(status, "%s", snapshot->path);
  status = pk_safetensors_writer_create(snapshot->path, &writer);
  if (!status && snapshot->level != 0) {
    status = pk_safetensors_writer_compress(writer, snapshot->level, snapshot->threads);
  }
  if (!status) status = declare(snapshot, writer);
  for (int64_t i = 0; i < snapshot->item_count && !status; i++) {
    status = pk_safetensors_writer_data(writer, snapshot->items[i].data, snapshot->items[i].bytes);
  }
  if (!status) status = pk_safetensors_writer_complete(writer, &temporary);
  if (!status) status = read_back(snapshot, temporary);
  if (!status) status = pk_safetensors_writer_finish(writer);
  pk_safetensors_writer_free(writer);
  return status;
}

/* Waits for a snapshot, which is taken from the queue; NULL: stop, and none is left. */
static pk_snapshot *take(pk_saver *saver) {
  pthread_mutex_lock(&saver->mutex);
  while (!saver->stop && !saver->first) pthread_cond_wait(&saver->work, &saver->mutex);
  pk_snapshot *snapshot = saver->first;
  if (snapshot) saver->first = snapshot->next;
  if (!saver->first) saver->last = NULL;
  pthread_mutex_unlock(&saver->mutex);
  return snapshot;
}

static void *saver_main(void *argument) {
  pk_saver *saver = argument;
  /* On Linux a priority belongs to a thread; a refusal only costs training some time. */
  setpriority(PRIO_PROCESS, 0, NICENESS);
  pk_snapshot *snapshot;
  while ((snapshot = take(saver))) {
    double began = pk_clock();
    pk_status status = saver->failure ? saver->failure : save(snapshot);
    pthread_mutex_lock(&saver->mutex);
    saver->unfinished_bytes -= snapshot->bytes;
    if (status && !saver->failure) {
      saver->failure = status;
      snprintf(saver->message, sizeof saver->message, "%s", pk_error_message());
    }
    if (!status) {
      saver->progress.finished++;
      saver->progress.seconds = pk_clock() - began;
      saver->progress.bytes = pk_file_size(snapshot->path);
    }
    pthread_cond_signal(&saver->done);
    pthread_mutex_unlock(&saver->mutex);
    pk_snapshot_free(snapshot);
  }
  return NULL;
}

pk_status pk_saver_create(pk_saver **saver) {
  *saver = NULL;
  pk_saver *created = calloc(1, sizeof *created);
  if (!created) return pk_fail(PK_NO_MEMORY, "no memory for a saver");
  pthread_mutex_init(&created->mutex, NULL);
  pthread_cond_init(&created->work, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&created->done, &attributes);
  pthread_condattr_destroy(&attributes);
  int failure = pk_thread_start(&created->thread, saver_main, created);
  if (failure) {
    free(created);
    return pk_fail(PK_NO_MEMORY, "cannot start the thread that saves: %s", strerror(failure));
  }
  *saver = created;
  return PK_OK;
}

void pk_saver_free(pk_saver *saver) {
  if (!saver) return;
  pthread_mutex_lock(&saver->mutex);
  saver->stop = true;
  pthread_cond_signal(&saver->work);
  pthread_mutex_unlock(&saver->mutex);
  pthread_join(saver->thread, NULL);
  pthread_mutex_destroy(&saver->mutex);
  pthread_cond_destroy(&saver->work);
  pthread_cond_destroy(&saver->done);
  free(saver);
}

/* Whether the disk has room for bytes besides what is still to be written. */
static pk_status check_space(const pk_saver *saver, const pk_snapshot *snapshot) {
  char *folder = pk_folder_of(snapshot->path);
  if (!folder) return pk_fail(PK_NO_MEMORY, "no memory for the path of %s", snapshot->path);
  double room, wanted = (double)(saver->unfinished_bytes + snapshot->bytes + SPARE_BYTES);
  pk_status status = pk_disk_room(folder, &room);
  if (!status && room < wanted) { /* rounded away from each other, to tell them apart */
    status = pk_fail(PK_IO,
                     "%s: cannot be written: it may need %.1f MiB, and the disk has %.1f MiB left",
                     snapshot->path, ceil(wanted / MIB * 10) / 10, floor(room / MIB * 10) / 10);
  }
  free(folder);
  return status;
}

pk_status pk_saver_submit(pk_saver *saver, pk_snapshot *snapshot) {
  pthread_mutex_lock(&saver->mutex);
  pk_status status =
      saver->failure ? pk_fail(saver->failure, "%s", saver->message) : check_space(saver, snapshot);
  if (!status) {
    if (saver->last) {
      saver->last->next = snapshot;
    } else {
      saver->first = snapshot;
    }
    saver->last = snapshot;
    saver->unfinished_bytes += snapshot->bytes;
    saver->progress.submitted++;
    pthread_cond_signal(&saver->work);
  }
  pthread_mutex_unlock(&saver->mutex);
  if (status) pk_snapshot_free(snapshot);
  return status;
}

pk_status pk_saver_poll(pk_saver *saver, double seconds, pk_saver_progress *progress) {
  double end = pk_clock() + (seconds > 0 ? seconds < 1e9 ? seconds : 1e9 : 0);
  struct timespec until = {.tv_sec = (time_t)end};
  until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
  pthread_mutex_lock(&saver->mutex);
  int timeout = seconds > 0 ? 0 : 1;
  while (!timeout && !saver->failure && saver->progress.finished < saver->progress.submitted) {
    timeout = pthread_cond_timedwait(&saver->done, &saver->mutex, &until);
  }
  *progress = saver->progress;
  pk_status status = saver->failure ? pk_fail(saver->failure, "%s", saver->message) : PK_OK;
  pthread_mutex_unlock(&saver->mutex);
  return status;
}
