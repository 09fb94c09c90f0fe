/* The arithmetic of the training step, shared by the separate operations (train.c) and the fused
 * update (update.c), so that both give the same bits.
 *
 * AdamW (Loshchilov and Hutter 2019) in the arena's dtype T. Hyperparameters come in f64, are
 * combined in f64 and rounded to T once; then, each operation rounded to T: m <- beta1 m + (1 -
 * beta1) g v <- beta2 v + ((1 - beta2) g) g x <- (1 - lr wd) x - lr ((m / correction1) / (sqrt(v /
 * correction2) + eps)) with products by the rounded reciprocals of the corrections. Where weight
 * decay does not apply, 1 - lr wd is 1. */
#ifndef PK_ADAMW_H
#define PK_ADAMW_H

#include <stdatomic.h>

#include "cpu/cpu.h"

#define PK_INLINE static inline __attribute__((always_inline))

/* Element i of a vector of numbers that may have a stride. */
static inline double pk_number_at(const pk_tensor *vector, int64_t i) {
  return ((const double *)pk_tensor_data(vector))[i * vector->stride];
}

static inline int32_t *pk_guard_at(const pk_tensor *guard, int place) {
  return (int32_t *)pk_tensor_data(guard) + place * guard->stride;
}

static inline bool pk_is_stopped(const pk_tensor *guard) {
  return *pk_guard_at(guard, PK_GUARD_STOPPED) != 0;
}

/* Stops the run. */
static inline void pk_stop(const pk_tensor *guard, int64_t worker, int64_t step, int32_t reason) {
  *pk_guard_at(guard, PK_GUARD_STOPPED) = 1;
  *pk_guard_at(guard, PK_GUARD_WORKER) = (int32_t)worker;
  *pk_guard_at(guard, PK_GUARD_STEP) = (int32_t)step;
  *pk_guard_at(guard, PK_GUARD_REASON) = reason;
}

/* The first worker of whom a piece found something that is not finite; none is INT64_MAX. */
typedef _Atomic int64_t pk_found;

static inline void pk_find(pk_found *found, int64_t worker) {
  int64_t first = atomic_load(found);
  while (worker < first && !atomic_compare_exchange_weak(found, &first, worker)) continue;
}

/* Notes in the guard what an update found. */
static inline void pk_note_found(const pk_tensor *guard, const pk_tensor *scalars, int64_t worker) {
  int32_t *found = pk_guard_at(guard, PK_GUARD_FOUND);
  if (worker == INT64_MAX) return;
  if (*found == 0)
    *pk_guard_at(guard, PK_GUARD_STEP) = (int32_t)pk_number_at(scalars, PK_SCALAR_STEP);
  if (*found == 0 || worker + 1 < *found) *found = (int32_t)(worker + 1);
}

/* Counts an update, and a mixing if the scalars say that this step is one. */
static inline void pk_count_step(const pk_tensor *guard, const pk_tensor *scalars) {
  ++*pk_guard_at(guard, PK_GUARD_UPDATES);
  if (pk_number_at(scalars, PK_SCALAR_MIXES) != 0) ++*pk_guard_at(guard, PK_GUARD_MIXINGS);
}

/* Columns that a piece of mixing works on, so that all workers' stay in the cache; the result does
 * not depend on it. */
static inline int64_t pk_update_columns(const pk_tensor *x) {
  int64_t columns = 65536 / ((x->shape[0] + 1) * pk_dtype_size(x->dtype)) / 64 * 64;
  return columns < 64 ? 64 : columns > 4096 ? 4096 : columns;
}

typedef struct pk_adamw {
  double lr, eps, decay; /* decay is 1 - lr wd */
  double beta1, rest1, beta2, rest2;
  double inverse1, inverse2; /* of the corrections */
} pk_adamw;

/* The learning rate of a worker: its own where the scalars have one for each. */
static inline double pk_rate_of(const pk_tensor *scalars, int64_t worker) {
  bool own = scalars->shape[0] > PK_SCALARS_SIZE;
  return pk_number_at(scalars, own ? PK_SCALARS_SIZE + worker : PK_SCALAR_LR);
}

/* What all workers have in common; pk_adamw_with adds a worker's rate. */
static inline pk_adamw pk_adamw_of(const pk_tensor *scalars) {
  double beta1 = pk_number_at(scalars, PK_SCALAR_BETA1);
  double beta2 = pk_number_at(scalars, PK_SCALAR_BETA2);
  return (pk_adamw){.eps = pk_number_at(scalars, PK_SCALAR_EPS),
                    .beta1 = beta1,
                    .rest1 = 1 - beta1,
                    .beta2 = beta2,
                    .rest2 = 1 - beta2,
                    .inverse1 = 1 / pk_number_at(scalars, PK_SCALAR_CORRECTION1),
                    .inverse2 = 1 / pk_number_at(scalars, PK_SCALAR_CORRECTION2)};
}

static inline pk_adamw pk_adamw_with(pk_adamw common, const pk_tensor *scalars, int64_t worker) {
  common.lr = pk_rate_of(scalars, worker);
  common.decay = 1 - common.lr * pk_number_at(scalars, PK_SCALAR_DECAY);
  return common;
}

/* What a worker's gradient is multiplied by: scale, and the clip if it is on. */
static inline double pk_gradient_factor(double scale, double norm, double clip) {
  double ratio = clip / (norm + 1e-6);
  return clip > 0 && ratio < 1 ? scale * ratio : scale;
}

/* AdamW on PK_ARENA_ALIGNMENT columns of one worker; new_x may be x. factor multiplies g first (1
 * changes nothing). Returns whether all results are finite: y - y is 0 of a finite number alone,
 * and x is not finite where m is not. */
PK_INLINE bool pk_adamw_block_f32(const pk_adamw *adamw, bool decays, float factor, const float *x,
                                  const float *restrict g, float *restrict m, float *restrict v,
                                  float *new_x) {
  const float lr = (float)adamw->lr, eps = (float)adamw->eps;
  const float decay = decays ? (float)adamw->decay : 1.0f;
  const float beta1 = (float)adamw->beta1, rest1 = (float)adamw->rest1;
  const float beta2 = (float)adamw->beta2, rest2 = (float)adamw->rest2;
  const float inverse1 = (float)adamw->inverse1, inverse2 = (float)adamw->inverse2;
  float result[PK_ARENA_ALIGNMENT];
  int spoiled = 0;
  for (int c = 0; c < PK_ARENA_ALIGNMENT; c++) {
    float gradient = factor * g[c];
    m[c] = beta1 * m[c] + rest1 * gradient;
    v[c] = beta2 * v[c] + rest2 * gradient * gradient;
    result[c] = decay * x[c] - lr * (m[c] * inverse1 / (sqrtf(v[c] * inverse2) + eps));
    spoiled |= (v[c] - v[c]) + (result[c] - result[c]) != 0;
  }
  memcpy(new_x, result, sizeof result);
  return !spoiled;
}

PK_INLINE bool pk_adamw_block_f64(const pk_adamw *adamw, bool decays, double factor,
                                  const double *x, const double *restrict g, double *restrict m,
                                  double *restrict v, double *new_x) {
  const double decay = decays ? adamw->decay : 1.0;
  double result[PK_ARENA_ALIGNMENT];
  int64_t spoiled = 0;
  for (int c = 0; c < PK_ARENA_ALIGNMENT; c++) {
    double gradient = factor * g[c];
    m[c] = adamw->beta1 * m[c] + adamw->rest1 * gradient;
    v[c] = adamw->beta2 * v[c] + adamw->rest2 * gradient * gradient;
    result[c] = decay * x[c] -
                adamw->lr * (m[c] * adamw->inverse1 / (sqrt(v[c] * adamw->inverse2) + adamw->eps));
    spoiled |= (v[c] - v[c]) + (result[c] - result[c]) != 0;
  }
  memcpy(new_x, result, sizeof result);
  return !spoiled;
}

/* AdamW on count columns of one worker from column first, both multiples of PK_ARENA_ALIGNMENT.
 * Returns whether all results are finite. */
static inline bool pk_adamw_columns(int dtype, const pk_adamw *adamw, const pk_tensor *blocks,
                                    int64_t first, double factor, int64_t count, const void *x,
                                    const void *g, void *m, void *v, void *new_x) {
  const int32_t *numbers = pk_tensor_data(blocks);
  bool finite = true;
  for (int64_t c = 0; c < count; c += PK_ARENA_ALIGNMENT) {
    bool decays = numbers[(first + c) / PK_ARENA_ALIGNMENT * blocks->stride] != 0;
    if (dtype == PK_F32)
      finite &= pk_adamw_block_f32(adamw, decays, (float)factor, (const float *)x + c,
                                   (const float *)g + c, (float *)m + c, (float *)v + c,
                                   (float *)new_x + c);
    else
      finite &=
          pk_adamw_block_f64(adamw, decays, factor, (const double *)x + c, (const double *)g + c,
                             (double *)m + c, (double *)v + c, (double *)new_x + c);
  }
  return finite;
}

/* The mixing matrix without its zeros: row i has the terms starts[i] .. starts[i + 1] - 1. */
typedef struct pk_mixing {
  int64_t *starts, *peers;
  double *weights;
  bool identity;
} pk_mixing;

static inline int64_t pk_mixing_bytes(int64_t workers) {
  return (workers + 1 + 2 * workers * workers) * (int64_t)sizeof(double);
}

/* Reads a matrix [N, N] into memory of pk_mixing_bytes. */
static inline pk_mixing pk_mixing_read(const pk_tensor *matrix, void *memory) {
  int64_t workers = matrix->shape[0];
  pk_mixing mixing = {.starts = memory, .identity = true};
  mixing.peers = mixing.starts + workers + 1;
  mixing.weights = (double *)(mixing.peers + workers * workers);
  mixing.starts[0] = 0;
  for (int64_t i = 0, k = 0; i < workers; i++) {
    const double *row = (const double *)pk_tensor_data(matrix) + i * matrix->stride;
    for (int64_t j = 0; j < workers; j++) {
      mixing.identity = mixing.identity && row[j] == (i == j);
      if (row[j] == 0) continue;
      mixing.peers[k] = j;
      mixing.weights[k++] = row[j];
    }
    mixing.starts[i + 1] = k;
  }
  return mixing;
}

/* Workspace that mixing works in: the matrix without zeros, and the mixed columns of each thread.
 */
typedef struct pk_update_scratch {
  void *mixing;
  char *columns; /* [threads, N, pk_update_columns] */
} pk_update_scratch;

static inline int64_t pk_update_workspace(const pk_call *call, const pk_tensor *x) {
  int64_t columns = x->shape[0] * pk_update_columns(x) * pk_dtype_size(x->dtype);
  return pk_aligned(pk_mixing_bytes(x->shape[0])) +
         pk_threads_count(pk_cpu_threads(call)) * columns;
}

static inline pk_update_scratch pk_update_scratch_of(const pk_call *call, const pk_tensor *x) {
  char *columns = (char *)call->workspace + pk_aligned(pk_mixing_bytes(x->shape[0]));
  return (pk_update_scratch){.mixing = call->workspace, .columns = columns};
}

enum { PK_MIX_TILE = 16 }; /* columns whose sums stay in registers */

PK_INLINE void pk_mix_tile_f32(int64_t terms, const double *weights, const int64_t *peers,
                               const float *x, int64_t stride, int64_t count, float *y) {
  double sums[PK_MIX_TILE] = {0};
  for (int64_t k = 0; k < terms; k++) {
    const float *row = x + peers[k] * stride;
    for (int64_t c = 0; c < count; c++)
      sums[c] = k == 0 ? weights[k] * row[c] : sums[c] + weights[k] * row[c];
  }
  for (int64_t c = 0; c < count; c++) y[c] = (float)sums[c];
}

PK_INLINE void pk_mix_tile_f64(int64_t terms, const double *weights, const int64_t *peers,
                               const double *x, int64_t stride, int64_t count, double *y) {
  double sums[PK_MIX_TILE] = {0};
  for (int64_t k = 0; k < terms; k++) {
    const double *row = x + peers[k] * stride;
    for (int64_t c = 0; c < count; c++)
      sums[c] = k == 0 ? weights[k] * row[c] : sums[c] + weights[k] * row[c];
  }
  for (int64_t c = 0; c < count; c++) y[c] = sums[c];
}

PK_INLINE void pk_mix_tile(int dtype, int64_t terms, const double *weights, const int64_t *peers,
                           const void *x, int64_t stride, int64_t first, int64_t count, void *y) {
  if (dtype == PK_F32)
    pk_mix_tile_f32(terms, weights, peers, (const float *)x + first, stride, count,
                    (float *)y + first);
  else
    pk_mix_tile_f64(terms, weights, peers, (const double *)x + first, stride, count,
                    (double *)y + first);
}

/* y <- sum over j of W_ij x_j on count columns, in f64 in order of j, rounded once. Workers of
 * weight 0 are not read, so that a NaN stays with the workers connected to it; the sum starts from
 * its first term, so that weight 1 alone changes no bit. */
static inline void pk_mix_columns(int dtype, const pk_mixing *mixing, int64_t i, const void *x,
                                  int64_t stride, int64_t count, void *y) {
  const double *weights = mixing->weights + mixing->starts[i];
  const int64_t *peers = mixing->peers + mixing->starts[i];
  int64_t terms = mixing->starts[i + 1] - mixing->starts[i], c = 0;
  for (; c + PK_MIX_TILE <= count; c += PK_MIX_TILE)
    pk_mix_tile(dtype, terms, weights, peers, x, stride, c, PK_MIX_TILE, y);
  if (c < count) pk_mix_tile(dtype, terms, weights, peers, x, stride, c, count - c, y);
}

#endif
