/* What the host side of the CUDA device shares: the device, errors, the table of kernels. */
#ifndef PK_CUDA_H
#define PK_CUDA_H

#include <cuda_runtime_api.h>

#include "core/block.h"
#include "core/core.h"

/* What the device can do, as far as anybody here asks. */
typedef struct pk_cuda_properties {
  char name[256];
  char uuid[48];
  int64_t memory; /* bytes */
  int64_t l2_bytes;
  int64_t shared_bytes; /* of one block, at most */
  int sm;               /* 90 for sm_90 */
  int multiprocessors;
} pk_cuda_properties;

typedef struct pk_cuda_staging pk_cuda_staging;
typedef struct pk_cuda_products pk_cuda_products;
typedef struct pk_cuda_cudnn pk_cuda_cudnn;
typedef struct pk_cuda_trace pk_cuda_trace;

typedef struct pk_cuda_device {
  pk_device base; /* first, so that a pk_device of CUDA is a pk_cuda_device */
  int ordinal;
  bool forecast;       /* no driver was asked: only shapes are looked at */
  cudaStream_t stream; /* everything is computed here, in order */
  pk_cuda_staging *staging;
  pk_cuda_products *products; /* NULL until the first is run (products.h) */
  bool deterministic;         /* choose nothing by time */
  pk_cuda_cudnn *cudnn;       /* NULL: attention is by the own kernels (cudnn_attention.h) */
  bool must_use_cudnn;
  pk_cuda_trace *trace; /* NULL until the first one (trace.c) */
  void *ranges;         /* the domain of NVTX, NULL where no tool is attached (ranges.c) */
  uint64_t step_range;
  bool in_step;
  pk_cuda_properties properties;
  char name[16];
  char isa[16];
  char description[384];
} pk_cuda_device;

/* The device that runs a call, made the calling thread's current one. */
pk_cuda_device *pk_cuda_of(const pk_call *call);

/* PK_OK, or the failure of a call of the CUDA runtime: what was tried, and what it said. Failures
 * after which the process cannot use the device any more say so. */
pk_status pk_cuda_check(cudaError_t error, const char *what);

/* The same for a kernel's launch. */
pk_status pk_cuda_launched(const pk_call *call, cudaError_t error);

/* --- copies between host and device (copy.c) --- */

pk_status pk_cuda_staging_create(pk_cuda_staging **staging, cudaStream_t stream);
void pk_cuda_staging_free(pk_cuda_staging *staging);
/* The stream that brings data to the device. */
cudaStream_t pk_cuda_staging_stream(const pk_cuda_staging *staging);
pk_status pk_cuda_upload(pk_device *device, void *memory, const void *data, int64_t bytes);
pk_status pk_cuda_download(pk_device *device, const pk_part *parts, int64_t count);

/* --- graphs (graph.c): see struct pk_device --- */

pk_status pk_cuda_graph_begin(pk_device *device);
pk_status pk_cuda_graph_end(pk_device *device, pk_graph **graph);
pk_status pk_cuda_graph_launch(pk_device *device, pk_graph *graph);
void pk_cuda_graph_free(pk_device *device, pk_graph *graph);

/* --- traces (trace.c): see struct pk_device --- */

pk_status pk_cuda_trace_begin(pk_device *device, pk_trace *trace);
void pk_cuda_trace_before(pk_device *device, int64_t operation);
void pk_cuda_trace_after(pk_device *device, pk_trace *trace, int64_t operation);
void pk_cuda_trace_end(pk_device *device, pk_trace *trace);
void pk_cuda_trace_free(pk_cuda_trace *trace);

/* Gives the device its functions for ranges, if a tool is attached to the process (ranges.c). */
void pk_cuda_ranges_begin(pk_cuda_device *cuda);
void pk_cuda_ranges_end(pk_cuda_device *cuda);

/* y <- x, of the same extents and element size (elementwise.c). */
pk_status pk_cuda_copy_block(const pk_call *call, const pk_block *y, const pk_block *x);
/* The element whose bits are given everywhere in y (fill.c). */
pk_status pk_cuda_fill_block(const pk_call *call, const pk_block *y, uint64_t bits);

/* --- kernels (kernels.c): one checked entry per operation, pk_cuda_NAME, in a file per family ---
 */

extern const pk_kernel pk_cuda_kernels[PK_OP_COUNT];
extern const pk_workspace_rule pk_cuda_workspaces[PK_OP_COUNT];

#define PK_OP(name, inputs, outputs, attributes, flags, summary)                                   \
  pk_status pk_cuda_##name(const pk_call *call);
#include "ops.def"
#undef PK_OP

#endif
