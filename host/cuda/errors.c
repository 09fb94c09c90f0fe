/* What failures of the CUDA runtime mean for a user. */
#include "cuda/cuda.h"
#include "cuda/libraries.h"

/* After these the process has lost the device: every later call fails too. */
static bool loses_device(cudaError_t error) {
  switch (error) {
  case cudaErrorIllegalAddress:
  case cudaErrorMisalignedAddress:
  case cudaErrorInvalidAddressSpace:
  case cudaErrorInvalidPc:
  case cudaErrorIllegalInstruction:
  case cudaErrorHardwareStackError:
  case cudaErrorLaunchFailure:
  case cudaErrorLaunchTimeout:
  case cudaErrorAssert:
  case cudaErrorECCUncorrectable:
    return true;
  default:
    return false;
  }
}

pk_status pk_cuda_check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return PK_OK;
  cudaGetLastError(); /* forget it, if it can be forgotten */
  const char *name = cudaGetErrorName(error), *says = cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) {
    return pk_fail(PK_NO_MEMORY, "%s: the device has no memory left (%s)", what, name);
  }
  if (error == cudaErrorNoKernelImageForDevice) {
    return pk_fail(PK_UNSUPPORTED,
                   "%s: this build has no kernels for the device's architecture (%s)", what, name);
  }
  if (loses_device(error)) {
    return pk_fail(PK_DEVICE,
                   "%s: %s (%s). The device is lost to this process, and with it what was in its "
                   "memory: start again, from the last state saved. If it happens again, run under "
                   "compute-sanitizer, which names the place",
                   what, says, name);
  }
  return pk_fail(PK_DEVICE, "%s: %s (%s)", what, says, name);
}

pk_status pk_cuda_launched(const pk_call *call, cudaError_t error) {
  return error == cudaSuccess ? PK_OK : pk_cuda_check(error, pk_op_describe(call->op)->name);
}

void pk_cuda_no_library(const char *file, const char *why) {
  pk_fail(PK_UNSUPPORTED,
          "%s cannot be opened: %s. Install it, or name its folder in LD_LIBRARY_PATH", file, why);
}
