/* cuDNN's backend API, as much of it as attention needs: its functions, graphs of operations,
 * plans. Nothing here needs a device but running: graphs and plans can be checked anywhere. */
#ifndef PK_CUDNN_H
#define PK_CUDNN_H

#include "core/core.h"

#if defined(__has_include)
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#if CUDNN_VERSION >= 90800 /* device properties as JSON; before 9.6 callers cleared memory */
#define PK_HAVE_CUDNN 1
enum { PK_DNN_LEAST_VERSION = 90800 };
#endif
#endif
#endif

#ifdef PK_HAVE_CUDNN

/* The library, and what plans are for: a handle's device, or one described in properties. */
typedef struct pk_cudnn {
  __typeof__(cudnnGetVersion) *version;
  __typeof__(cudnnGetErrorString) *error_string;
  __typeof__(cudnnGetLastErrorString) *last_error;
  __typeof__(cudnnCreate) *create_handle;
  __typeof__(cudnnDestroy) *destroy_handle;
  __typeof__(cudnnSetStream) *set_stream;
  __typeof__(cudnnBackendCreateDescriptor) *create;
  __typeof__(cudnnBackendDestroyDescriptor) *destroy;
  __typeof__(cudnnBackendFinalize) *finalize;
  __typeof__(cudnnBackendSetAttribute) *set;
  __typeof__(cudnnBackendGetAttribute) *get;
  __typeof__(cudnnBackendExecute) *execute;
  cudnnHandle_t handle;                /* NULL: plans are only made */
  cudnnBackendDescriptor_t properties; /* where there is no handle */
} pk_cudnn;

/* Finds the functions; the rest is zeroed. */
pk_status pk_cudnn_find(pk_cudnn *dnn);
pk_status pk_cudnn_check(const pk_cudnn *dnn, cudnnStatus_t status, const char *what);

/* Descriptors of one graph. The first failure is kept in status, and nothing is done after it. */
enum { PK_DNN_DESCRIPTORS = 160, PK_DNN_OPERATIONS = 32 };
typedef struct pk_dnn_graph {
  const pk_cudnn *dnn;
  pk_status status;
  int count, operations;
  int64_t next; /* number of the next virtual tensor */
  cudnnBackendDescriptor_t all[PK_DNN_DESCRIPTORS];
  cudnnBackendDescriptor_t list[PK_DNN_OPERATIONS];
  cudnnBackendDescriptor_t graph, plan;
  int64_t workspace; /* bytes of the plan */
} pk_dnn_graph;

typedef cudnnBackendDescriptor_t pk_dnn;

/* Tensors of rank 4: in memory under a number of their own, number 0: a value inside of the graph;
 * and a number given when the graph is run. */
pk_dnn pk_dnn_tensor(pk_dnn_graph *graph, int64_t number, cudnnDataType_t type,
                     const int64_t dimensions[4], const int64_t strides[4]);
pk_dnn pk_dnn_scalar(pk_dnn_graph *graph, int64_t number);

/* Operations. b and t may be NULL; axis is that of GEN_INDEX, else -1. */
void pk_dnn_matmul(pk_dnn_graph *graph, pk_dnn a, pk_dnn b, pk_dnn c);
void pk_dnn_pointwise(pk_dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                      int64_t axis, pk_dnn x, pk_dnn b, pk_dnn t, pk_dnn y);
void pk_dnn_reduce(pk_dnn_graph *graph, cudnnReduceTensorOp_t operator, pk_dnn x, pk_dnn y);
void pk_dnn_reshape(pk_dnn_graph *graph, pk_dnn x, pk_dnn y);

/* Finishes the graph and chooses the first plan that cuDNN proposes with at most workspace bytes.
 * PK_UNSUPPORTED if there is none. */
pk_status pk_dnn_plan(pk_dnn_graph *graph, int64_t workspace);

/* Runs the plan on the handle's stream: the memory of tensors by number. */
pk_status pk_dnn_run(const pk_dnn_graph *graph, int count, const int64_t *numbers,
                     void *const *memory, void *workspace);

void pk_dnn_graph_free(pk_dnn_graph *graph);

/* --- the graphs of attention (cudnn_graphs.c) --- */

/* bf16 [batch, length, heads, width]. */
typedef struct pk_dnn_attention {
  int64_t batch, length, heads, width;
} pk_dnn_attention;

/* Tensors by number. lse, the sums and numbers are f32; all else is bf16 whatever a plan would
 * accept: cuDNN's engines take descriptors of f32 results, and then run the same code. */
enum {
  PK_DNN_Q = 1,
  PK_DNN_K,
  PK_DNN_V,
  PK_DNN_O,
  PK_DNN_LSE, /* [batch, heads, length] */
  PK_DNN_G,   /* of o */
  PK_DNN_Q_GRAD,
  PK_DNN_K_GRAD,
  PK_DNN_V_GRAD,
  PK_DNN_Q_SUMS,   /* [batch, heads, length, width]: room to sum the gradient of q */
  PK_DNN_ROW_SUMS, /* [batch, heads, length]: room */
  PK_DNN_SCALE,    /* numbers, in host memory */
  PK_DNN_MASKED,   /* minus infinity */
  PK_DNN_ONE,
  PK_DNN_NUMBERS
};

void pk_dnn_attention_forward(pk_dnn_graph *graph, const pk_dnn_attention *shape);

/* With room for sums the blocks of a row add to the gradient of q in the order in which they come;
 * without, deterministic, the plan keeps the scores' gradients in its workspace. */
void pk_dnn_attention_backward(pk_dnn_graph *graph, const pk_dnn_attention *shape,
                               bool deterministic);

/* Bytes that plans of these graphs want at most, on an architecture such as 90. */
int64_t pk_dnn_attention_workspace(const pk_dnn_attention *shape, bool backward, bool deterministic,
                                   int sm);

#endif
#endif
