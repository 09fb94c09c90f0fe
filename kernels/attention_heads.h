// What the kernels of attention share: where a head lies, and its tiles.
#pragma once

#include "device.h"

#include "attention.h"

// Shapes and strides as kernels get them.
struct pk_attention_shape {
  int64_t length, heads, width, per_worker; // per_worker: heads of all sequences of a worker
  int64_t tiles;                            // of rows in a head
  float scale;
};

// The shape of a job whose blocks have `rows` rows of a head each.
static inline pk_attention_shape pk_attention_shape_of(const pk_attention_job *job, int64_t rows) {
  pk_attention_shape shape;
  shape.length = job->length;
  shape.heads = job->heads;
  shape.width = job->width;
  shape.per_worker = job->sequences * job->heads;
  shape.tiles = (job->length + rows - 1) / rows;
  shape.scale = static_cast<float>(job->scale);
  return shape;
}

// Where the rows of head number `head` (of all workers) start, for [N, B, T, H, K].
static __device__ __forceinline__ int64_t pk_head_start(const pk_attention_shape &shape,
                                                        int64_t head, int64_t stride) {
  int64_t worker = head / shape.per_worker, within = head % shape.per_worker;
  int64_t sequence = within / shape.heads;
  return worker * stride +
         (sequence * shape.length * shape.heads + within % shape.heads) * shape.width;
}

// The same for [N, B, H, T].
static __device__ __forceinline__ int64_t pk_lse_start(const pk_attention_shape &shape,
                                                       int64_t head, int64_t stride) {
  return head / shape.per_worker * stride + head % shape.per_worker * shape.length;
}
