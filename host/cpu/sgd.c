/* SGD with momentum and decoupled weight decay on arenas. Hyperparameters are combined in f64 and
 * rounded to the arena's dtype once, as AdamW's are (adamw.h). */
#include "cpu/adamw.h"
#include "cpu/arena.h"

typedef struct sgd_numbers {
  double rate, decay, momentum; /* decay is 1 - rate * weight decay */
  bool nesterov;
} sgd_numbers;

/* PK_ARENA_ALIGNMENT columns; m may be NULL. Returns whether all results are finite. */
PK_INLINE bool block_f32(const sgd_numbers *s, bool decays, float *restrict x,
                         const float *restrict g, float *restrict m) {
  const float rate = (float)s->rate, decay = decays ? (float)s->decay : 1.0f;
  const float momentum = (float)s->momentum;
  int spoiled = 0;
  for (int c = 0; c < PK_ARENA_ALIGNMENT; c++) {
    float d = g[c];
    if (m) {
      m[c] = momentum * m[c] + g[c];
      d = s->nesterov ? g[c] + momentum * m[c] : m[c];
    }
    x[c] = decay * x[c] - rate * d;
    spoiled |= x[c] - x[c] != 0;
  }
  return !spoiled;
}

PK_INLINE bool block_f64(const sgd_numbers *s, bool decays, double *restrict x,
                         const double *restrict g, double *restrict m) {
  const double decay = decays ? s->decay : 1.0;
  int64_t spoiled = 0;
  for (int c = 0; c < PK_ARENA_ALIGNMENT; c++) {
    double d = g[c];
    if (m) {
      m[c] = s->momentum * m[c] + g[c];
      d = s->nesterov ? g[c] + s->momentum * m[c] : m[c];
    }
    x[c] = decay * x[c] - s->rate * d;
    spoiled |= x[c] - x[c] != 0;
  }
  return !spoiled;
}

typedef struct sgd_job {
  const pk_call *call;
  pk_found found;
} sgd_job;

static sgd_numbers numbers_of(const pk_call *call, int64_t worker) {
  const pk_tensor *scalars = call->inputs[4];
  double rate = pk_rate_of(scalars, worker);
  return (sgd_numbers){.rate = rate,
                       .decay = 1 - rate * pk_number_at(scalars, PK_SCALAR_DECAY),
                       .momentum = pk_number_at(scalars, PK_SCALAR_BETA1),
                       .nesterov = call->attributes.integers[0] != 0};
}

static void sgd_piece(void *argument, int64_t piece, int thread) {
  (void)thread;
  sgd_job *job = argument;
  const pk_call *call = job->call;
  const pk_tensor *x = call->inputs[0], *m = call->inputs[2], *blocks = call->inputs[3];
  const int32_t *decays = pk_tensor_data(blocks);
  pk_arena_part part = pk_arena_part_of(piece, x->shape[1]);
  sgd_numbers numbers = numbers_of(call, part.worker);
  bool finite = true;
  for (int64_t c = part.first; c < part.first + part.count; c += PK_ARENA_ALIGNMENT) {
    bool decay = decays[c / PK_ARENA_ALIGNMENT * blocks->stride] != 0;
    char *at = pk_arena_columns(x, part.worker, c);
    const char *g = pk_arena_columns(call->inputs[1], part.worker, c);
    char *momentum = m ? pk_arena_columns(m, part.worker, c) : NULL;
    finite &= x->dtype == PK_F32
                  ? block_f32(&numbers, decay, (float *)at, (const float *)g, (float *)momentum)
                  : block_f64(&numbers, decay, (double *)at, (const double *)g, (double *)momentum);
  }
  if (!finite) pk_find(&job->found, part.worker);
}

pk_status PK_KERNEL(sgd)(const pk_call *call) {
  const pk_tensor *guard = call->inputs[5];
  if (pk_is_stopped(guard)) return PK_OK;
  sgd_job job = {.call = call, .found = INT64_MAX};
  pk_parallel_for(pk_cpu_threads(call), pk_arena_pieces(call->inputs[0]), sgd_piece, &job);
  pk_note_found(guard, call->inputs[4], job.found);
  return PK_OK;
}
