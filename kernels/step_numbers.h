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

static __device__ __forceinline__ int32_t step_of(const pk_vector &scalars) {
  return static_cast<int32_t>(scalars.at[SCALAR_STEP * scalars.stride]);
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
