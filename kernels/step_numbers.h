// Places in the guard and the scalars (host/core/core.h has the same), and the factor of a
// gradient.
#pragma once

#include "device.h"
#include "train.h"

enum {
  GUARD_STOPPED,
  GUARD_WORKER,
  GUARD_STEP,
  GUARD_REASON,
  GUARD_UPDATES,
  GUARD_MIXINGS,
  GUARD_FOUND
};
enum { REASON_LOSS = 1, REASON_NORM, REASON_LARGE_NORM, REASON_UPDATE };
enum {
  SCALAR_LR,
  SCALAR_BETA1,
  SCALAR_BETA2,
  SCALAR_EPS,
  SCALAR_DECAY,
  SCALAR_CORRECTION1,
  SCALAR_CORRECTION2,
  SCALAR_CLIP,
  SCALAR_STEP,
  SCALAR_MIXES
};

// Worker i's learning rate.
static __device__ __forceinline__ double rate_of(const pk_vector &scalars, const pk_rates &rates,
                                                 int64_t i) {
  return scalars.at[(rates.first + i * rates.step) * scalars.stride];
}

static __device__ __forceinline__ int32_t step_of(const pk_vector &scalars) {
  return static_cast<int32_t>(scalars.at[SCALAR_STEP * scalars.stride]);
}

// Notes in the guard that worker found - 1 has a value that is not finite, if no one before it has.
// The thread that finds something first notes the step.
static __device__ __forceinline__ void note_found_of(const pk_guard &guard, int32_t found,
                                                     int32_t step) {
  int32_t *at = guard.at + GUARD_FOUND * guard.stride;
  int32_t before = atomicCAS(at, 0, found);
  if (before == 0) guard.at[GUARD_STEP * guard.stride] = step;
  while (before != 0 && found < before) {
    int32_t seen = atomicCAS(at, before, found);
    if (seen == before) return;
    before = seen;
  }
}

// Stops the run. By one thread.
static __device__ __forceinline__ void stop(const pk_guard &guard, int64_t worker, int32_t step,
                                            int reason) {
  guard.at[GUARD_STOPPED * guard.stride] = 1;
  guard.at[GUARD_WORKER * guard.stride] = static_cast<int32_t>(worker);
  guard.at[GUARD_STEP * guard.stride] = step;
  guard.at[GUARD_REASON * guard.stride] = reason;
}

// What worker i's gradient is multiplied by: its scale, and the clip where it is on.
static __device__ __forceinline__ double gradient_factor(const pk_vector &scale,
                                                         const pk_vector &norm,
                                                         const pk_vector &scalars, int64_t i) {
  double own = scale.at[i * scale.stride], clip = scalars.at[SCALAR_CLIP * scalars.stride];
  double ratio = clip / (norm.at[i * norm.stride] + 1e-6);
  return clip > 0 && ratio < 1 ? own * ratio : own;
}
