/* The one place that starts threads for arithmetic: a pool that runs numbered pieces. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

/* Added to the number of workers inside a job while others may still join it. */
enum { OPEN = 1 << 30 };

/* How often a waiting thread looks before it sleeps: about 20 microseconds, so that the short gaps
 * between the operations of one step cost no wake-up. */
enum { SPINS = 4000 };

typedef struct pk_worker {
  pk_threads *pool;
  pthread_t thread;
  int number;
} pk_worker;

struct pk_threads {
  int count; /* the caller included */
  int started;
  pk_worker *workers; /* [count - 1] */
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pthread_cond_t done;
  atomic_uint_fast64_t generation; /* counts jobs; a change announces one */
  atomic_bool stop;
  atomic_int_fast64_t next; /* the next piece nobody has taken */
  atomic_int inside;        /* workers that joined the job and have not left it, plus OPEN */
  int64_t pieces;
  pk_piece piece;
  void *argument;
  pk_busy *notes; /* [count] what each thread did, or NULL */
};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

/* Adds pieces that a thread did from start until now. */
static void note_pieces(pk_busy *note, int64_t start, int64_t pieces) {
  note->end = pk_nanoseconds();
  if (note->pieces == 0) note->start = start;
  note->busy += note->end - start;
  note->pieces += pieces;
}

static void run_pieces(pk_threads *pool, int thread) {
  pk_busy *note = pool->notes ? &pool->notes[thread] : NULL;
  int64_t start = note ? pk_nanoseconds() : 0, done = 0;
  for (;; done++) {
    int64_t piece = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (piece >= pool->pieces) break;
    pool->piece(pool->argument, piece, thread);
  }
  if (note && done > 0) note_pieces(note, start, done);
}

/* Returns when the generation differs from seen. */
static uint_fast64_t wait_for_job(pk_threads *pool, uint_fast64_t seen) {
  uint_fast64_t now = seen;
  for (int spin = 0; spin < SPINS; spin++) {
    now = atomic_load_explicit(&pool->generation, memory_order_acquire);
    if (now != seen) return now;
    pause_briefly();
  }
  pthread_mutex_lock(&pool->mutex);
  while ((now = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen) {
    pthread_cond_wait(&pool->wake, &pool->mutex);
  }
  pthread_mutex_unlock(&pool->mutex);
  return now;
}

/* A worker joins the job that is open, if one is. One that wakes up too late, because the processor
 * was busy with something else, must not be waited for: it finds the job closed. */
static bool join_job(pk_threads *pool) {
  int inside = atomic_load_explicit(&pool->inside, memory_order_relaxed);
  while (inside & OPEN) {
    if (atomic_compare_exchange_weak_explicit(&pool->inside, &inside, inside + 1,
                                              memory_order_acquire, memory_order_relaxed))
      return true;
  }
  return false;
}

static void leave_job(pk_threads *pool) {
  if (atomic_fetch_sub_explicit(&pool->inside, 1, memory_order_acq_rel) != 1) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_signal(&pool->done);
  pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument) {
  pk_worker *worker = argument;
  pk_threads *pool = worker->pool;
  uint_fast64_t seen = 0;
  for (;;) {
    seen = wait_for_job(pool, seen);
    if (atomic_load(&pool->stop)) return NULL;
    if (!join_job(pool)) continue;
    run_pieces(pool, worker->number);
    leave_job(pool);
  }
}

static void announce(pk_threads *pool) {
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
}

/* All pieces are taken: lets no more workers in and waits for those inside. */
static void close_job(pk_threads *pool) {
  atomic_fetch_and_explicit(&pool->inside, ~OPEN, memory_order_acq_rel);
  for (int spin = 0; spin < SPINS; spin++) {
    if (atomic_load_explicit(&pool->inside, memory_order_acquire) == 0) return;
    pause_briefly();
  }
  pthread_mutex_lock(&pool->mutex);
  while (atomic_load_explicit(&pool->inside, memory_order_acquire) != 0) {
    pthread_cond_wait(&pool->done, &pool->mutex);
  }
  pthread_mutex_unlock(&pool->mutex);
}

void pk_parallel_for(pk_threads *pool, int64_t pieces, pk_piece piece, void *argument) {
  if (pool->count == 1 || pieces <= 1) {
    int64_t start = pool->notes ? pk_nanoseconds() : 0;
    for (int64_t p = 0; p < pieces; p++) piece(argument, p, 0);
    if (pool->notes && pieces > 0) note_pieces(&pool->notes[0], start, pieces);
    return;
  }
  pool->pieces = pieces;
  pool->piece = piece;
  pool->argument = argument;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->inside, OPEN, memory_order_release);
  announce(pool);
  run_pieces(pool, 0);
  close_job(pool);
}

void pk_threads_watch(pk_threads *pool, pk_busy *notes) {
  pool->notes = notes;
}

int pk_threads_count(const pk_threads *pool) {
  return pool->count;
}

void pk_threads_free(pk_threads *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, true);
  announce(pool);
  for (int w = 0; w < pool->started; w++) pthread_join(pool->workers[w].thread, NULL);
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->wake);
  pthread_cond_destroy(&pool->done);
  free(pool->workers);
  free(pool);
}

pk_status pk_threads_create(pk_threads **threads, int count) {
  pk_threads *pool = calloc(1, sizeof *pool);
  pk_worker *workers = calloc((size_t)count, sizeof *workers);
  if (!pool || !workers) {
    free(pool);
    free(workers);
    return pk_fail(PK_NO_MEMORY, "no memory for a pool of %d threads", count);
  }
  pool->count = count;
  pool->workers = workers;
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->done, NULL);

  int failure = 0;
  for (int w = 0; w < count - 1 && !failure; w++) {
    workers[w] = (pk_worker){.pool = pool, .number = w + 1};
    failure = pk_thread_start(&workers[w].thread, worker_main, &workers[w]);
    if (!failure) pool->started++;
  }
  if (failure) {
    int started = pool->started;
    pk_threads_free(pool);
    return pk_fail(PK_NO_MEMORY, "cannot start thread %d of %d: %s", started + 2, count,
                   strerror(failure));
  }
  *threads = pool;
  return PK_OK;
}
