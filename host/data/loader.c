/* Training batches from a sequence of tokens: shuffled ranges, read ahead by a thread.
 *
 * The samples of a pass are cut into ranges of neighbouring samples that fit the buffer. A pass
 * takes the ranges in one order, and the samples inside a range in another, both permutations named
 * by the seed and the pass. The ranges of all passes, one after the other, are numbered: range
 * number q is the (q mod ranges)-th of pass q div ranges. Two buffers hold the current range and
 * the next. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokens.h"

enum { MESSAGE_BYTES = 1024, NAME_BYTES = 64 };

/* One range in memory. */
typedef struct buffer {
  int64_t number; /* of the range, -1 while there is none */
  int64_t rows;
  int64_t *order; /* [rows]: which of its samples comes first, second, ... */
  void *ids;      /* rows * T + 1 */
} buffer;

struct pk_loader {
  pk_loader_options options;
  const pk_tokens *tokens;
  int64_t samples, rows, ranges; /* of a pass; of a full range; of a pass */
  int64_t cursor;
  int64_t number, offset; /* the range that the next sample is from, and its place there */
  buffer *current;        /* holds range number, or NULL before it is known to be there */

  /* Of whoever reads, the thread or the caller: */
  pk_token_reader *reader;
  int64_t pass; /* the pass that order is of */
  int64_t *order;

  /* Shared with the thread: buffers change hands under the mutex. */
  buffer buffers[2];
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  bool started, stop;
  pk_status failure;
  char message[MESSAGE_BYTES];
};

pk_loader_options pk_loader_defaults(void) {
  return (pk_loader_options){.context_length = 1024,
                             .num_models = 1,
                             .micro_batch_size = 1,
                             .accumulation = 1,
                             .buffer_bytes = 64 << 20,
                             .prefetch = 1};
}

/* --- reading a range --- */

static int64_t rows_of(const pk_loader *loader, int64_t range) {
  int64_t left = loader->samples - range * loader->rows;
  return left < loader->rows ? left : loader->rows;
}

/* Makes loader->order the order of a pass's ranges. */
static void order_pass(pk_loader *loader, int64_t pass) {
  if (loader->pass == pass) return;
  char name[NAME_BYTES];
  snprintf(name, sizeof name, "loader/%lld", (long long)pass);
  pk_random_permutation(loader->options.seed, name, loader->ranges, loader->order);
  loader->pass = pass;
}

static pk_status read_range(pk_loader *loader, int64_t number, buffer *into) {
  int64_t pass = number / loader->ranges, length = loader->options.context_length;
  order_pass(loader, pass);
  int64_t range = loader->order[number % loader->ranges];
  char name[NAME_BYTES];
  snprintf(name, sizeof name, "loader/%lld/%lld", (long long)pass, (long long)range);
  into->rows = rows_of(loader, range);
  pk_random_permutation(loader->options.seed, name, into->rows, into->order);
  return pk_token_reader_read(loader->reader, range * loader->rows * length,
                              into->rows * length + 1, into->ids);
}

/* --- the thread --- */

static void keep_failure(pk_loader *loader, pk_status status) {
  loader->failure = status;
  snprintf(loader->message, sizeof loader->message, "%s", pk_error_message());
}

/* Reads ranges number, number + 1, ... until it is told to stop or one cannot be read. */
static void *read_ahead(void *argument) {
  pk_loader *loader = argument;
  pthread_mutex_lock(&loader->mutex);
  for (int64_t number = loader->number; !loader->stop && !loader->failure; number++) {
    buffer *into = &loader->buffers[number % 2];
    while (into->number >= 0 && !loader->stop) pthread_cond_wait(&loader->changed, &loader->mutex);
    if (loader->stop) break;
    pthread_mutex_unlock(&loader->mutex);
    pk_status status = read_range(loader, number, into);
    pthread_mutex_lock(&loader->mutex);
    if (status) {
      keep_failure(loader, status);
    } else {
      into->number = number;
    }
    pthread_cond_broadcast(&loader->changed);
  }
  pthread_mutex_unlock(&loader->mutex);
  return NULL;
}

static pk_status start_thread(pk_loader *loader) {
  int problem = pk_thread_start(&loader->thread, read_ahead, loader);
  if (problem) return pk_fail(PK_NO_MEMORY, "cannot start a thread: %s", strerror(problem));
  loader->started = true;
  return PK_OK;
}

/* --- taking samples --- */

/* Sets loader->current to the buffer that holds the range of the next sample. */
static pk_status acquire(pk_loader *loader) {
  buffer *wanted = &loader->buffers[loader->started ? loader->number % 2 : 0];
  if (loader->started) {
    pthread_mutex_lock(&loader->mutex);
    while (wanted->number != loader->number && !loader->failure)
      pthread_cond_wait(&loader->changed, &loader->mutex);
    pthread_mutex_unlock(&loader->mutex);
  } else if (!loader->failure) {
    pk_status status = read_range(loader, loader->number, wanted);
    if (status) keep_failure(loader, status);
    wanted->number = status ? -1 : loader->number;
  }
  /* After a failure, what had been read before it is still good. */
  if (wanted->number != loader->number) return pk_fail(loader->failure, "%s", loader->message);
  loader->current = wanted;
  return PK_OK;
}

/* Goes to the next range and gives the current one's buffer back. */
static void release(pk_loader *loader) {
  pthread_mutex_lock(&loader->mutex);
  loader->current->number = -1;
  pthread_cond_broadcast(&loader->changed);
  pthread_mutex_unlock(&loader->mutex);
  loader->current = NULL;
  loader->number++;
  loader->offset = 0;
}

static pk_status take_sample(pk_loader *loader, int32_t *tokens, int32_t *targets) {
  pk_status status = loader->current ? PK_OK : acquire(loader);
  if (status) return status;
  const buffer *from = loader->current;
  int64_t length = loader->options.context_length;
  int32_t width = loader->tokens->width;
  const char *ids = (const char *)from->ids + from->order[loader->offset] * length * width;
  pk_ids_widen(ids, width, length, tokens);
  pk_ids_widen(ids + width, width, length, targets);
  if (++loader->offset == from->rows) release(loader);
  return PK_OK;
}

pk_status pk_loader_next(pk_loader *loader, int32_t *tokens, int32_t *targets) {
  const pk_loader_options *o = &loader->options;
  int64_t n = o->num_models, b = o->micro_batch_size, count = n * b * o->accumulation;
  for (int64_t r = 0; r < count; r++) {
    int64_t worker = r % n, row = r / n;
    int64_t at = (((row / b) * n + worker) * b + row % b) * o->context_length;
    pk_status status = take_sample(loader, tokens + at, targets + at);
    if (status) return status;
  }
  loader->cursor += count;
  return PK_OK;
}

int64_t pk_loader_cursor(const pk_loader *loader) {
  return loader->cursor;
}

int64_t pk_loader_samples(const pk_loader *loader) {
  return loader->samples;
}

int64_t pk_loader_ranges(const pk_loader *loader) {
  return loader->ranges;
}

/* --- making one --- */

static pk_status check_options(const pk_loader_options *o) {
  const struct {
    const char *name;
    int64_t value, least;
  } rows[] = {{"context_length", o->context_length, 1},
              {"num_models", o->num_models, 1},
              {"micro_batch_size", o->micro_batch_size, 1},
              {"accumulation", o->accumulation, 1},
              {"limit_tokens", o->limit_tokens, 0},
              {"buffer_bytes", o->buffer_bytes, 1},
              {"cursor", o->cursor, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (rows[i].value < rows[i].least || rows[i].value > (INT64_C(1) << 53)) {
      return pk_fail(PK_INVALID, "loader: %s is %lld", rows[i].name, (long long)rows[i].value);
    }
  }
  int64_t elements;
  if (__builtin_mul_overflow(o->num_models, o->micro_batch_size, &elements) ||
      __builtin_mul_overflow(elements, o->accumulation, &elements) ||
      __builtin_mul_overflow(elements, o->context_length, &elements) ||
      elements > (INT64_C(1) << 53)) {
    return pk_fail(PK_INVALID,
                   "loader: a batch of %lld x %lld x %lld sequences of %lld is too large",
                   (long long)o->num_models, (long long)o->micro_batch_size,
                   (long long)o->accumulation, (long long)o->context_length);
  }
  return PK_OK;
}

/* Sets how the prefix is cut into samples and ranges. */
static pk_status cut(pk_loader *loader) {
  const pk_loader_options *o = &loader->options;
  int64_t count = loader->tokens->count, length = o->context_length;
  if (o->limit_tokens > 0 && o->limit_tokens < count) count = o->limit_tokens;
  loader->samples = count > 0 ? (count - 1) / length : 0;
  if (loader->samples < 1) {
    return pk_fail(PK_INVALID,
                   "%lld training tokens are less than one sample: context_length %lld + 1",
                   (long long)count, (long long)length);
  }
  int64_t rows = o->buffer_bytes / loader->tokens->width / length;
  if (rows < 1) rows = 1;
  loader->rows = rows < loader->samples ? rows : loader->samples;
  loader->ranges = (loader->samples - 1) / loader->rows + 1;
  return PK_OK;
}

/* Goes to the place of the cursor: which range, and where in it. Only the range with the last
 * samples may be shorter than the others, so its place in the pass is all that one must know. */
static void seek(pk_loader *loader) {
  int64_t pass = loader->options.cursor / loader->samples;
  int64_t place = loader->options.cursor % loader->samples, last = loader->ranges - 1, slot = 0;
  order_pass(loader, pass);
  while (loader->order[slot] != last) slot++;
  int64_t before = slot * loader->rows, short_rows = rows_of(loader, last), ahead = 0;
  if (place >= before + short_rows) {
    ahead = slot + 1; /* the first range after the short one */
    place -= before + short_rows;
  } else if (place >= before) {
    ahead = slot;
    place -= before;
  }
  loader->number = pass * loader->ranges + ahead + place / loader->rows;
  loader->offset = place % loader->rows;
  loader->cursor = loader->options.cursor;
}

static pk_status allocate(pk_loader *loader) {
  int64_t ids = loader->rows * loader->options.context_length + 1;
  loader->order = calloc((size_t)loader->ranges, sizeof *loader->order);
  bool good = loader->order != NULL;
  for (int b = 0; b < 1 + (loader->options.prefetch != 0); b++) {
    loader->buffers[b].order = calloc((size_t)loader->rows, sizeof(int64_t));
    loader->buffers[b].ids = malloc((size_t)(ids * loader->tokens->width));
    good = good && loader->buffers[b].order && loader->buffers[b].ids;
  }
  if (good) return PK_OK;
  return pk_fail(PK_NO_MEMORY, "no memory for the loader's buffers of %lld tokens", (long long)ids);
}

pk_status pk_loader_create(const pk_tokens *tokens, pk_loader **loader,
                           const pk_loader_options *options) {
  *loader = NULL;
  pk_status status = check_options(options);
  if (status) return status;
  pk_loader *made = calloc(1, sizeof *made);
  if (!made) return pk_fail(PK_NO_MEMORY, "no memory for a loader");
  made->options = *options;
  made->tokens = pk_tokens_hold(tokens);
  made->pass = -1;
  made->buffers[0].number = made->buffers[1].number = -1;
  pthread_mutex_init(&made->mutex, NULL);
  pthread_cond_init(&made->changed, NULL);
  status = cut(made);
  if (!status) status = allocate(made);
  if (!status) status = pk_token_reader_create(tokens, &made->reader);
  if (!status) seek(made);
  if (!status && options->prefetch) status = start_thread(made);
  if (status) {
    pk_loader_free(made);
    return status;
  }
  *loader = made;
  return PK_OK;
}

void pk_loader_free(pk_loader *loader) {
  if (!loader) return;
  if (loader->started) {
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
  }
  pk_token_reader_free(loader->reader);
  for (int b = 0; b < 2; b++) {
    free(loader->buffers[b].order);
    free(loader->buffers[b].ids);
  }
  free(loader->order);
  pk_tokens_free(loader->tokens);
  pthread_mutex_destroy(&loader->mutex);
  pthread_cond_destroy(&loader->changed);
  free(loader);
}
