/* Tensors as rows of workers, as launchers get them. */
#ifndef PK_ROWS_H
#define PK_ROWS_H

#include <stdint.h>

/* [N, ...]: the first element, and elements from one worker to the next. */
typedef struct pk_rows {
  void *at;
  int64_t stride;
} pk_rows;

#ifdef __cplusplus
template <class T>
static __device__ __forceinline__ T *pk_row(const pk_rows &rows, int64_t worker) {
  return static_cast<T *>(rows.at) + worker * rows.stride;
}

/* Whether every worker's elements can be taken `width` at a time, if its inner extents allow. */
static inline bool pk_rows_fit(const pk_rows &rows, int64_t size, int width) {
  return reinterpret_cast<uintptr_t>(rows.at) % (static_cast<uint64_t>(size) * width) == 0 &&
         rows.stride % width == 0;
}
#endif

#endif
