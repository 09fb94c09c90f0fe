/* Preparing a token cache: one thread reads and shuffles, several tokenize, one writes in order.
 *
 * Batches of documents go round in a ring. The reader fills them in the order of the shuffle, the
 * tokenizers take the next one that is filled, and the writer waits for each in turn, so the tokens
 * do not depend on the number of threads or their timing. The counts of the reader travel with each
 * batch, so neither do those of a split that a limit cuts off. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/prepare_batch.h"

enum { MAX_WORKERS = 1024, MAX_NOTES = 20 };

static const int64_t BYTES_UNDERWAY = 1
                                      << 28; /* of text in the ring; a longer document goes alone */
static const char *const split_names[2] = {"train", "validation"};

struct pk_prepare {
  pk_prepare_options options; /* with strings of its own */
  pk_tokenizer *tokenizer;
  int width; /* bytes of a token */
  pk_cache_folder folder;
  pk_shards shards[2];

  pthread_mutex_t mutex; /* everything below */
  pthread_cond_t change; /* of a batch's state, or of stop */
  pthread_cond_t end;    /* the writer is done; timed by the monotonic clock */
  pthread_t *threads;
  int started; /* threads to join */
  bool joined;
  pk_batch *ring;
  int64_t ring_size;
  int64_t filled, taken, written; /* batches so far */
  int64_t bytes_underway;
  bool read_all;  /* no batch will be filled any more */
  bool enough[2]; /* the split has its tokens: the reader need not go on with it */
  bool stop;
  bool finished;
  pk_status status;
  char *message;
  char *notes[MAX_NOTES];
  int notes_count, notes_taken;
  pk_prepare_progress progress;
};

/* --- what all threads use; names ending in _locked expect the mutex held --- */

static void stop_locked(pk_prepare *p) {
  p->stop = true;
  pthread_cond_broadcast(&p->change);
}

/* Keeps the first failure, with this thread's message, and stops everything. */
static void fail(pk_prepare *p, pk_status status) {
  pthread_mutex_lock(&p->mutex);
  if (!p->status) {
    p->status = status;
    p->message = strdup(pk_error_message());
  }
  stop_locked(p);
  pthread_mutex_unlock(&p->mutex);
}

/* --- the reader --- */

typedef struct source {
  pk_prepare *prepare;
  int split;
  pk_reader *reader;
  pk_shuffle shuffle;
  pk_batch *batch; /* being filled, or NULL */
  pk_buffer text;
  int64_t bytes_before; /* stored bytes of the splits before this one */
} source;

/* The next batch of the ring once it is free; NULL when all is to stop. */
static pk_batch *free_batch(pk_prepare *p) {
  pthread_mutex_lock(&p->mutex);
  pk_batch *batch = &p->ring[p->filled % p->ring_size];
  while (!p->stop && (batch->state != PK_BATCH_FREE ||
                      (p->bytes_underway > BYTES_UNDERWAY && p->filled > p->written))) {
    pthread_cond_wait(&p->change, &p->mutex);
  }
  bool stop = p->stop;
  pthread_mutex_unlock(&p->mutex);
  return stop ? NULL : batch;
}

/* Hands the batch to the tokenizers. Returns whether the reader is to go on with this split. */
static bool send(source *s, bool last) {
  pk_prepare *p = s->prepare;
  pk_batch *batch = s->batch;
  batch->split = s->split;
  batch->last = last;
  batch->counts = pk_reader_get_counts(s->reader);
  pthread_mutex_lock(&p->mutex);
  batch->state = PK_BATCH_FILLED;
  p->filled++;
  p->bytes_underway += batch->bytes;
  p->progress.done_bytes = s->bytes_before + pk_reader_done_bytes(s->reader);
  p->progress.validation = s->split;
  bool more = !p->stop && !p->enough[s->split];
  pthread_cond_broadcast(&p->change);
  pthread_mutex_unlock(&p->mutex);
  s->batch = NULL;
  return more;
}

/* A document leaves the shuffle. *more is false when the split has enough, or all is to stop. */
static bool emit(source *s) {
  if (!s->batch) s->batch = free_batch(s->prepare);
  if (!s->batch) return false;
  pk_document document = pk_shuffle_draw(&s->shuffle);
  s->batch->documents[s->batch->count++] = document;
  s->batch->bytes += document.bytes;
  bool full = s->batch->count == PK_BATCH_DOCUMENTS || s->batch->bytes >= PK_BATCH_BYTES;
  return !full || send(s, false);
}

/* The names of skipped documents go with the batch that is being filled. *more as in emit. */
static pk_status note_skipped(source *s, bool *more) {
  if (!s->batch) s->batch = free_batch(s->prepare);
  *more = s->batch != NULL;
  if (!s->batch) return PK_OK;
  pk_status status = pk_batch_note(s->batch, pk_reader_note(s->reader));
  if (!status && s->batch->notes.bytes >= PK_BATCH_BYTES) *more = send(s, false);
  return status;
}

static pk_status add_document(source *s) {
  pk_document document = {malloc((size_t)s->text.bytes), s->text.bytes, pk_reader_path(s->reader),
                          pk_reader_line(s->reader)};
  if (!document.text) {
    return pk_fail(PK_NO_MEMORY, "%s:%lld: no memory for a document of %lld bytes", document.path,
                   (long long)document.line, (long long)document.bytes);
  }
  memcpy(document.text, s->text.data, (size_t)document.bytes);
  return pk_shuffle_add(&s->shuffle, document);
}

static pk_status read_split(source *s) {
  bool more = true;
  while (more) {
    pk_read what;
    pk_status status = pk_reader_next(s->reader, &s->text, &what);
    if (status) return status;
    if (what == PK_READ_END) break;
    status = what == PK_READ_SKIPPED ? note_skipped(s, &more) : add_document(s);
    if (status) return status;
    while (more && pk_shuffle_is_full(&s->shuffle)) more = emit(s);
  }
  while (more && s->shuffle.count > 0) more = emit(s);
  /* The last batch may be empty: it says that the split has ended, and with which counts. */
  if (!s->batch) s->batch = free_batch(s->prepare);
  if (s->batch) send(s, true);
  return PK_OK;
}

static pk_status run_reader(pk_prepare *p, int split, int64_t bytes_before) {
  const pk_prepare_options *options = &p->options;
  pk_reader_options reading = {.paths = split ? options->validation : options->train,
                               .count = split ? options->validation_count : options->train_count,
                               .field = options->field,
                               .format = options->format,
                               .text_unit = options->text_unit,
                               .skip_bad = options->skip_bad != 0,
                               .document_limit = PK_DOCUMENT_LIMIT};
  source s = {.prepare = p, .split = split, .bytes_before = bytes_before};
  pk_status status = pk_reader_create(&reading, &s.reader);
  pk_shuffle_begin(&s.shuffle, options, split_names[split]);
  if (!status) status = read_split(&s);
  pk_shuffle_end(&s.shuffle);
  pk_buffer_free(&s.text);
  pk_reader_free(s.reader);
  return status;
}

static void *reader_main(void *argument) {
  pk_prepare *p = argument;
  int64_t train_bytes = 0;
  for (int64_t i = 0; i < p->options.train_count; i++) {
    train_bytes += pk_file_size(p->options.train[i]);
  }
  pk_status status = run_reader(p, 0, 0);
  if (!status && p->options.validation_count > 0) status = run_reader(p, 1, train_bytes);
  if (status) fail(p, status);
  pthread_mutex_lock(&p->mutex);
  p->read_all = true;
  pthread_cond_broadcast(&p->change);
  pthread_mutex_unlock(&p->mutex);
  return NULL;
}

/* --- the tokenizers --- */

/* The next batch that nobody has taken; NULL at the end. */
static pk_batch *take_batch(pk_prepare *p) {
  pthread_mutex_lock(&p->mutex);
  while (!p->stop && p->taken == p->filled && !p->read_all) {
    pthread_cond_wait(&p->change, &p->mutex);
  }
  bool none = p->stop || p->taken == p->filled;
  pk_batch *batch = none ? NULL : &p->ring[p->taken++ % p->ring_size];
  pthread_mutex_unlock(&p->mutex);
  return batch;
}

static void *tokenizer_main(void *argument) {
  pk_prepare *p = argument;
  pk_batch *batch;
  while ((batch = take_batch(p))) {
    pk_status status = pk_batch_encode(batch, p->tokenizer, p->width, p->options.skip_bad != 0);
    if (status) fail(p, status);
    pthread_mutex_lock(&p->mutex);
    batch->state = PK_BATCH_ENCODED;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mutex);
  }
  return NULL;
}

/* --- the writer --- */

/* The next batch in order once it is encoded; NULL at the end. */
static pk_batch *wait_for_batch(pk_prepare *p) {
  pthread_mutex_lock(&p->mutex);
  pk_batch *batch = &p->ring[p->written % p->ring_size];
  while (!p->stop && batch->state != PK_BATCH_ENCODED &&
         !(p->read_all && p->written == p->filled)) {
    pthread_cond_wait(&p->change, &p->mutex);
  }
  bool none = p->stop || batch->state != PK_BATCH_ENCODED;
  pthread_mutex_unlock(&p->mutex);
  return none ? NULL : batch;
}

/* The unknown tokens among the first count of a batch. */
static int64_t count_unknown(const pk_prepare *p, const pk_batch *batch, int64_t count) {
  if (count == batch->ids.count) return batch->unknown;
  int64_t unknown = pk_tokenizer_unknown(p->tokenizer), found = 0;
  const uint16_t *narrow = (const uint16_t *)batch->ids.data;
  for (int64_t i = 0; i < count; i++) {
    found += (p->width == 2 ? narrow[i] : batch->ids.data[i]) == unknown;
  }
  return found;
}

/* Puts what batch brings, of which the first count tokens were written, into the progress. */
static void account_locked(pk_prepare *p, const pk_batch *batch, int64_t count,
                           int64_t refused_before) {
  pk_prepare_progress *progress = &p->progress;
  int split = batch->split;
  for (int64_t i = 0; i < batch->count; i++) {
    int64_t start = i ? batch->ends[i - 1] : 0;
    if (batch->ends[i] == start || start >= count) continue;
    progress->documents[split]++;
    progress->text_bytes[split] += batch->documents[i].bytes;
  }
  progress->tokens[split] += count;
  progress->unknown[split] += count_unknown(p, batch, count);
  progress->skipped[split] = batch->counts.skipped + refused_before + batch->refused;
  progress->empty[split] = batch->counts.empty;
  progress->replaced[split] = batch->counts.replaced;
}

/* Writes the names of skipped documents into the cache, and keeps the first for pk_prepare_note. */
static pk_status write_notes(pk_prepare *p, pk_batch *batch) {
  if (batch->notes.bytes == 0) return PK_OK;
  pk_buffer path = {0};
  pk_status status = pk_buffer_format(&path, "%s/%s", p->folder.partial, PK_SKIPPED_NAME);
  if (!status) {
    status = pk_file_append(pk_buffer_text(&path), batch->notes.data, batch->notes.bytes);
  }
  pk_buffer_free(&path);
  if (status) return status;
  const char *rest = pk_buffer_text(&batch->notes);
  pthread_mutex_lock(&p->mutex);
  while (*rest && p->notes_count < MAX_NOTES) {
    size_t length = strcspn(rest, "\n");
    char *note = strndup(rest, length);
    if (note) p->notes[p->notes_count++] = note;
    rest += length + (rest[length] == '\n');
  }
  pthread_mutex_unlock(&p->mutex);
  return PK_OK;
}

/* Writes as much of a batch as the split's limit allows. */
static pk_status write_batch(pk_prepare *p, pk_batch *batch, int64_t *refused) {
  int split = batch->split;
  pk_shards *shards = &p->shards[split];
  int64_t limit = split ? p->options.max_validation_tokens : p->options.max_train_tokens;
  int64_t count = batch->ids.count, room = limit > 0 ? limit - shards->tokens : count;
  bool cut = !p->enough[split] && count > room; /* only this thread writes enough */
  if (count > room) count = room;
  pk_status status = pk_shards_add(shards, batch->ids.data, count);
  if (!status && !p->enough[split]) status = write_notes(p, batch);
  if (status) return status;
  pthread_mutex_lock(&p->mutex);
  if (!p->enough[split]) {
    account_locked(p, batch, count, *refused);
    *refused = batch->last ? 0 : *refused + batch->refused;
  }
  if (cut) {
    p->enough[split] = true;
    p->progress.complete[split] = 0;
  }
  pthread_mutex_unlock(&p->mutex);
  if (!batch->last) return PK_OK;
  if (shards->tokens == 0) {
    return pk_fail(PK_INVALID, "the %s files hold no documents", split_names[split]);
  }
  return pk_shards_close(shards);
}

static void *writer_main(void *argument) {
  pk_prepare *p = argument;
  int64_t refused = 0;
  pk_batch *batch;
  while ((batch = wait_for_batch(p))) {
    pk_status status = write_batch(p, batch, &refused);
    if (status) {
      fail(p, status);
      break;
    }
    int64_t bytes = batch->bytes;
    pk_batch_clear(batch);
    pthread_mutex_lock(&p->mutex);
    batch->state = PK_BATCH_FREE;
    p->written++;
    p->bytes_underway -= bytes;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mutex);
  }
  pthread_mutex_lock(&p->mutex);
  p->finished = true;
  pthread_cond_broadcast(&p->end);
  pthread_mutex_unlock(&p->mutex);
  return NULL;
}

/* --- starting --- */

pk_prepare_options pk_prepare_defaults(void) {
  return (pk_prepare_options){.tokenizer = "bytes",
                              .field = "text",
                              .shuffle_seed = 42,
                              .shuffle_buffer = 10000,
                              .shuffle_bytes = (int64_t)1 << 28,
                              .shard_tokens = 1 << 24};
}

static pk_status check_options(const pk_prepare_options *options) {
  const struct {
    const char *name;
    int64_t value, minimum, maximum;
  } ranges[] = {{"workers", options->workers, 0, MAX_WORKERS},
                {"shuffle_buffer", options->shuffle_buffer, 1, (int64_t)1 << 31},
                {"shuffle_bytes", options->shuffle_bytes, 1, (int64_t)1 << 50},
                {"shuffle_seed", options->shuffle_seed, 0, ((int64_t)1 << 53) - 1},
                {"shard_tokens", options->shard_tokens, 1, (int64_t)1 << 40},
                {"max_train_tokens", options->max_train_tokens, 0, (int64_t)1 << 50},
                {"max_validation_tokens", options->max_validation_tokens, 0, (int64_t)1 << 50},
                {"zstd level", options->zstd_level, 0, ZSTD_maxCLevel()},
                {"format", options->format, PK_FORMAT_BY_NAME, PK_FORMAT_JSON},
                {"text_unit", options->text_unit, PK_TEXT_FILE, PK_TEXT_PARAGRAPH}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    if (ranges[i].value < ranges[i].minimum || ranges[i].value > ranges[i].maximum) {
      return pk_fail(PK_INVALID, "%s is %lld: it must be %lld .. %lld", ranges[i].name,
                     (long long)ranges[i].value, (long long)ranges[i].minimum,
                     (long long)ranges[i].maximum);
    }
  }
  if (!options->output || !*options->output)
    return pk_fail(PK_INVALID, "no output folder is given");
  if (options->train_count < 1) return pk_fail(PK_INVALID, "no training files are given");
  return PK_OK;
}

static pk_status copy_list(const char *const *list, int64_t count, const char *const **copy) {
  char **strings = calloc((size_t)count + 1, sizeof *strings);
  if (!strings) return pk_fail(PK_NO_MEMORY, "no memory for %lld paths", (long long)count);
  *copy = (const char *const *)strings;
  for (int64_t i = 0; i < count; i++) {
    strings[i] = strdup(list[i]);
    if (!strings[i]) return pk_fail(PK_NO_MEMORY, "no memory for %lld paths", (long long)count);
  }
  return PK_OK;
}

static void free_list(const char *const *list, int64_t count) {
  for (int64_t i = 0; list && i < count; i++) free((char *)list[i]);
  free((void *)list);
}

/* Makes the options the preparation's own. */
static pk_status copy_options(pk_prepare *p, const pk_prepare_options *options) {
  p->options = *options;
  p->options.train = p->options.validation = NULL;
  p->options.output = NULL; /* the folder has its name */
  p->options.tokenizer = strdup(options->tokenizer);
  p->options.field = strdup(options->field);
  if (!p->options.tokenizer || !p->options.field)
    return pk_fail(PK_NO_MEMORY, "no memory for a path");
  pk_status status = copy_list(options->train, options->train_count, &p->options.train);
  if (status) return status;
  return copy_list(options->validation, options->validation_count, &p->options.validation);
}

/* Opening a reader checks the names and that the files are there. */
static pk_status check_files(pk_prepare *p) {
  const pk_prepare_options *options = &p->options;
  for (int split = 0; split < 2; split++) {
    pk_reader_options reading = {.paths = split ? options->validation : options->train,
                                 .format = options->format,
                                 .count = split ? options->validation_count : options->train_count};
    pk_reader *reader;
    pk_status status = pk_reader_create(&reading, &reader);
    if (status) return status;
    p->progress.total_bytes += pk_reader_total_bytes(reader);
    pk_reader_free(reader);
  }
  return PK_OK;
}

static void create_conditions(pk_prepare *p) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->change, NULL);
  pthread_cond_init(&p->end, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static pk_status start_threads(pk_prepare *p) {
  int64_t workers = p->options.workers;
  if (workers == 0) workers = pk_cores();
  p->ring_size = 2 * workers + 2;
  p->ring = calloc((size_t)p->ring_size, sizeof *p->ring);
  p->threads = calloc((size_t)workers + 2, sizeof *p->threads);
  if (!p->ring || !p->threads) {
    return pk_fail(PK_NO_MEMORY, "no memory for %lld threads", (long long)workers);
  }
  int reason = 0;
  for (int64_t i = 0; i < workers + 2 && !reason; i++) {
    void *(*start)(void *) = i == 0 ? writer_main : i == 1 ? reader_main : tokenizer_main;
    reason = pk_thread_start(&p->threads[i], start, p);
    if (!reason) p->started++;
  }
  if (!reason) return PK_OK;
  return pk_fail(PK_IO, "cannot start %lld threads: %s", (long long)workers + 2, strerror(reason));
}

pk_status pk_prepare_start(const pk_prepare_options *options, pk_prepare **result) {
  *result = NULL;
  pk_status status = check_options(options);
  if (status) return status;
  pk_prepare *p = calloc(1, sizeof *p);
  if (!p) return pk_fail(PK_NO_MEMORY, "no memory for a preparation");
  create_conditions(p);
  p->folder.lock = -1;
  p->progress.complete[0] = p->progress.complete[1] = 1;
  status = copy_options(p, options);
  if (!status) status = check_files(p);
  if (!status) status = pk_tokenizer_open(options->tokenizer, &p->tokenizer);
  if (!status) status = pk_cache_folder_begin(&p->folder, options->output);
  if (status) goto failed;
  p->width = pk_tokenizer_vocab_size(p->tokenizer) > 65536 ? 4 : 2;
  for (int split = 0; split < 2; split++) {
    pk_shards_begin(&p->shards[split], p->folder.partial, split_names[split], p->width,
                    options->shard_tokens, options->zstd_level);
  }
  status = start_threads(p);
  if (status) goto failed;
  *result = p;
  return PK_OK;
failed:;
  char *message = strdup(pk_error_message()); /* cleaning up may leave another */
  pk_prepare_free(p);
  status = pk_fail(status, "%s", message ? message : "no memory for a message");
  free(message);
  return status;
}

/* --- watching and ending --- */

void pk_prepare_poll(pk_prepare *p, double seconds, pk_prepare_progress *progress) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (!(seconds > 0)) seconds = 0;
  if (seconds > 1e6) seconds = 1e6;
  int64_t nanoseconds = until.tv_nsec + (int64_t)((seconds - (double)(int64_t)seconds) * 1e9);
  until.tv_sec += (time_t)seconds + (time_t)(nanoseconds / 1000000000);
  until.tv_nsec = (long)(nanoseconds % 1000000000);
  pthread_mutex_lock(&p->mutex);
  while (!p->finished && pthread_cond_timedwait(&p->end, &p->mutex, &until) != ETIMEDOUT) {
  }
  p->progress.finished = p->finished;
  *progress = p->progress;
  pthread_mutex_unlock(&p->mutex);
}

char *pk_prepare_note(pk_prepare *p) {
  pthread_mutex_lock(&p->mutex);
  char *note = NULL;
  if (p->notes_taken < p->notes_count) {
    note = p->notes[p->notes_taken];
    p->notes[p->notes_taken++] = NULL;
  }
  pthread_mutex_unlock(&p->mutex);
  return note;
}

static void join(pk_prepare *p) {
  for (int i = 0; i < p->started && !p->joined; i++) pthread_join(p->threads[i], NULL);
  p->joined = true;
}

pk_status pk_prepare_finish(pk_prepare *p) {
  join(p);
  if (p->status)
    return pk_fail(p->status, "%s", p->message ? p->message : "no memory for a message");
  if (!p->folder.made) return pk_fail(PK_INVALID, "the preparation has been finished before");
  if (p->stop) return pk_fail(PK_INVALID, "the preparation was stopped");
  pk_status status =
      pk_manifest_write(p->folder.partial, &p->options, p->tokenizer, &p->progress, p->shards);
  return status ? status : pk_cache_folder_publish(&p->folder);
}

void pk_prepare_free(pk_prepare *p) {
  if (!p) return;
  pthread_mutex_lock(&p->mutex);
  stop_locked(p);
  pthread_mutex_unlock(&p->mutex);
  join(p);
  for (int split = 0; split < 2; split++) pk_shards_free(&p->shards[split]);
  pk_cache_folder_end(&p->folder);
  for (int64_t i = 0; p->ring && i < p->ring_size; i++) pk_batch_free(&p->ring[i]);
  for (int i = 0; i < p->notes_count; i++) free(p->notes[i]);
  pk_tokenizer_free(p->tokenizer);
  free_list(p->options.train, p->options.train_count);
  free_list(p->options.validation, p->options.validation_count);
  free((char *)p->options.tokenizer);
  free((char *)p->options.field);
  free(p->message);
  free(p->ring);
  free(p->threads);
  pthread_cond_destroy(&p->change);
  pthread_cond_destroy(&p->end);
  pthread_mutex_destroy(&p->mutex);
  free(p);
}
