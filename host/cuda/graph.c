/* Graphs: what was launched on the device's stream between begin and end, launched again as one. */
#include <stdlib.h>

#include "cuda/cuda.h"

struct pk_graph {
  cudaGraphExec_t launched;
};

/* Other threads, such as one that saves, may go on using the runtime meanwhile. */
pk_status pk_cuda_graph_begin(pk_device *device) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  if (error == cudaSuccess)
    error = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
  return pk_cuda_check(error, "capturing a graph");
}

pk_status pk_cuda_graph_end(pk_device *device, pk_graph **graph) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  cudaGraph_t captured = NULL;
  pk_graph *made = NULL;
  pk_status status =
      pk_cuda_check(cudaStreamEndCapture(cuda->stream, &captured), "capturing a graph");
  if (status == PK_OK && graph) {
    made = calloc(1, sizeof *made);
    if (!made) status = pk_fail(PK_NO_MEMORY, "no host memory for a graph");
  }
  if (made) {
    status =
        pk_cuda_check(cudaGraphInstantiate(&made->launched, captured, 0), "instantiating a graph");
  }
  if (captured) cudaGraphDestroy(captured);
  if (status != PK_OK) {
    free(made);
    return status;
  }
  if (graph) *graph = made;
  return PK_OK;
}

pk_status pk_cuda_graph_launch(pk_device *device, pk_graph *graph) {
  pk_cuda_device *cuda = (pk_cuda_device *)device;
  cudaError_t error = cudaSetDevice(cuda->ordinal);
  if (error == cudaSuccess) error = cudaGraphLaunch(graph->launched, cuda->stream);
  return pk_cuda_check(error, "launching a graph");
}

/* CUDA keeps what a launch that is on its way needs until that is over. */
void pk_cuda_graph_free(pk_device *device, pk_graph *graph) {
  cudaSetDevice(((pk_cuda_device *)device)->ordinal);
  cudaGraphExecDestroy(graph->launched);
  free(graph);
}
