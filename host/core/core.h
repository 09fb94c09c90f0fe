/* What the parts of the host share and users of pack.h do not see. */
#ifndef PK_CORE_H
#define PK_CORE_H

#include "base/base.h"

typedef enum pk_op {
#define PK_OP(name, inputs, outputs, attributes, flags, summary) PK_OP_##name,
#include "ops.def"
#undef PK_OP
  PK_OP_COUNT
} pk_op;

/* bytes rounded up to a multiple of 64: where parts of a slab or a workspace start. */
static inline int64_t pk_aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/* "[2, 3, 4]" of a shape, into text. Returns text. */
enum { PK_SHAPE_TEXT = 160 };
const char *pk_shape_text(char text[PK_SHAPE_TEXT], int rank, const int64_t *shape);

/* --- threads (core/threads.c) --- */

typedef struct pk_threads pk_threads;
typedef void (*pk_piece)(void *argument, int64_t piece, int thread);

pk_status pk_threads_create(pk_threads **threads, int count);
void pk_threads_free(pk_threads *threads);
int pk_threads_count(const pk_threads *threads);

/* Runs piece 0 .. pieces-1, each once, on the pool and the caller; returns when all are done. Which
 * thread runs a piece is not fixed, so a piece must write only what belongs to it. thread is
 * 0 .. count-1, for scratch memory. Pieces must not call pk_parallel_for. */
void pk_parallel_for(pk_threads *threads, int64_t pieces, pk_piece piece, void *argument);

/* What a thread did: from its first piece to its last, the time that it was at work, and the number
 * of pieces. Nanoseconds. */
typedef struct pk_busy {
  int64_t start, end, busy, pieces;
} pk_busy;

/* From now on the pool adds what its threads do to notes [count]; NULL: no longer. */
void pk_threads_watch(pk_threads *threads, pk_busy *notes);

/* The clock of pk_clock in nanoseconds (core/trace.c). */
int64_t pk_nanoseconds(void);

/* --- calls and devices --- */

/* One operation about to run: shapes are checked and outputs exist. */
typedef struct pk_call {
  pk_context *context;
  int op;
  int phase;  /* of the context when the call was made: for traces */
  bool again; /* a recorded program does what it did before, to save memory */
  int n_inputs;
  int n_outputs;
  const pk_tensor *inputs[PK_MAX_INPUTS];
  pk_tensor *outputs[PK_MAX_OUTPUTS];
  pk_attributes attributes;
  void *workspace; /* as many bytes as the device's workspace rule says, or NULL for 0 */
} pk_call;

typedef pk_status (*pk_kernel)(const pk_call *call);

/* Bytes of scratch memory that a kernel wants for a call, from shapes, dtypes and attributes alone,
 * so that memory can be planned without running. */
typedef int64_t (*pk_workspace_rule)(const pk_call *call);

/* Device memory that is to be copied to a place on the host. */
typedef struct pk_part {
  const void *memory;
  void *data;
  int64_t bytes;
} pk_part;

typedef struct pk_device pk_device;
typedef struct pk_graph pk_graph; /* calls that a device runs as one */

/* A device: everything core knows of it. Memory functions get the device, kernels the call (and
 * find the device by pk_context_get_device). */
struct pk_device {
  const char *name;        /* "cpu" */
  const char *description; /* "AMD EPYC, 2 threads, avx2" */
  const char *isa;         /* "avx2", "sm_90" */
  bool has_bf16;
  const char *attention; /* what computes it: "flash", the device's own kernels, or "cudnn" */
  int64_t threads;
  int64_t memory_available;            /* bytes it could give at creation */
  const pk_kernel *kernels;            /* [PK_OP_COUNT]; NULL where an operation is missing */
  const pk_workspace_rule *workspaces; /* [PK_OP_COUNT]; NULL where none is wanted */
  pk_status (*allocate)(pk_device *device, int64_t bytes, void **memory); /* 64-byte aligned */
  void (*release)(pk_device *device, void *memory, int64_t bytes);
  pk_status (*zero)(pk_device *device, void *memory, int64_t bytes);
  pk_status (*upload)(pk_device *device, void *memory, const void *data, int64_t bytes);
  pk_status (*download)(pk_device *device, const pk_part *parts, int64_t count); /* waits once */
  pk_status (*synchronize)(pk_device *device);
  void (*destroy)(pk_device *device);
  /* For traces, all NULL where the device has no lanes of its own (threads, streams). From begin
   * to end it notes what they do. What is launched between before and after is for the operation
   * of that number in the trace or, while a graph is captured, in the graph; of a graph's launch
   * it is the number of the graph's first operation in the trace. What the lanes did is added to
   * the trace (trace.h) after an operation or, by a device that learns of it later, at the end. */
  pk_status (*trace_begin)(pk_device *device, pk_trace *trace);
  void (*trace_before)(pk_device *device, int64_t operation); /* may be NULL */
  void (*trace_after)(pk_device *device, pk_trace *trace, int64_t operation);
  void (*trace_end)(pk_device *device, pk_trace *trace);
  bool traces_graphs; /* while it is traced: it tells apart what a graph's launch did */
  /* Ranges of the host's time for a tool that is attached to the process, such as Nsight Systems;
   * all NULL where none is. One of range_step lasts until the next. */
  void (*range_push)(pk_device *device, const char *name);
  void (*range_pop)(pk_device *device);
  void (*range_step)(pk_device *device, int64_t step);
  /* Graphs, all NULL where the device has none. After begin kernels are noted with their arguments,
   * not run; end makes a graph of them, or forgets them where graph is NULL, and launch runs them
   * all. What they read and write must be alive while the graph is. */
  pk_status (*graph_begin)(pk_device *device);
  pk_status (*graph_end)(pk_device *device, pk_graph **graph);
  pk_status (*graph_launch)(pk_device *device, pk_graph *graph);
  void (*graph_free)(pk_device *device, pk_graph *graph);
};

pk_device *pk_context_get_device(const pk_context *context);

/* The device that is part of the host, by its name; its own folder defines it. Others are in
 * libraries (device_library.h). threads 0: one per available core. */
typedef struct pk_builtin_device {
  const char *name;
  pk_status (*create)(pk_device **device, int64_t threads);
} pk_builtin_device;
extern const pk_builtin_device pk_builtin;

/* --- memory (core/memory.c): the device's memory under the context's limit and accounts --- */

/* bytes of device memory for category, not zeroed, 64-byte aligned; room is how large the block is,
 * for giving it back. On refusal names the request and what is in use by category. */
pk_status pk_memory_take(pk_context *context, int64_t bytes, int category, void **memory,
                         int64_t *room);
void pk_memory_give(pk_context *context, void *memory, int64_t bytes, int64_t room, int category);

/* --- tensors (core/tensor.c) --- */

/* The first element, in device memory. */
void *pk_tensor_data(const pk_tensor *tensor);
/* A new tensor whose content is undefined. */
pk_status pk_tensor_create_raw(pk_context *context, pk_tensor **tensor, int dtype, int rank,
                               const int64_t *shape, int category);
/* Why an operation cannot have the tensor now: it was freed, or belongs to a recorded program and
 * is no result of it, or one that was not computed yet. The end of a sentence; NULL if it can. */
const char *pk_tensor_trouble(const pk_tensor *tensor);
/* Refuses a tensor in trouble, or whose values cannot be read or written now. */
pk_status pk_tensor_check_values(const pk_tensor *tensor, bool writing);
/* Copies all elements of several tensors of one context, those of tensor t to data[t], dense, with
 * one wait for the device. */
pk_status pk_tensors_read(const pk_tensor *const *tensors, int64_t count, void *const *data);
/* Elements in one entry of dimension 0 (1 for rank 0). */
int64_t pk_tensor_inner(const pk_tensor *tensor);
bool pk_tensor_is_dense(const pk_tensor *tensor);

/* Whether a tensor can have the shape, without negative extents: at most 2^50 elements, and no more
 * if an extent of 0 is taken for 1, as strides are products of the others. */
bool pk_shape_fits(int rank, const int64_t *shape);

/* --- shape rules (core/shapes.c): outputs of a call from its inputs and attributes --- */

typedef struct pk_shape {
  int32_t dtype;
  int32_t rank;
  int64_t extents[PK_MAX_RANK];
} pk_shape;

typedef pk_status (*pk_shape_rule)(const pk_call *call, pk_shape *outputs);
extern const pk_shape_rule pk_shape_rules[PK_OP_COUNT];

#endif
