// The one header that kernels include: the same source for nvcc and for the emulation on the CPU.
//
// Inline PTX and everything else that the emulation has to know about lives here and in emu/emu.h;
// docs/cuda.md says what kernels may use.
#pragma once

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "shared_memory.h"

// A variable of a block: PK_SHARED(float, tile, [32][33]); and the block's dynamic shared memory,
// whose bytes the launch states.
#define PK_SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define PK_DYNAMIC_SHARED(type, name)                                                              \
  extern __shared__ __align__(128) unsigned char pk_dynamic_shared[];                              \
  type *name = reinterpret_cast<type *>(pk_dynamic_shared)

// Launches a kernel. Much shared memory is asked for here.
template <class... Parameters, class... Arguments>
static inline cudaError_t pk_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                    size_t shared, cudaStream_t stream, Arguments... arguments) {
  if (shared > PK_SHARED_UNASKED) {
    cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  kernel<<<grid, block, shared, stream>>>(static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

// d += a * b of one warp: a 16 x 16 by rows, b 16 x 8 by columns, in the fragments of
// mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
static __device__ __forceinline__ void pk_mma_bf16(float (&d)[4], const unsigned (&a)[4],
                                                   const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},"
               "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of bf16 from shared memory: lane l names row l % 8 of matrix l / 8 (16 bytes,
// aligned), and gets elements 2 * (l % 4) and the next of row l / 4 of each; transposed, of column
// l / 4.
static __device__ __forceinline__ void pk_ldmatrix(unsigned (&r)[4], const void *row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
static __device__ __forceinline__ void pk_ldmatrix_transposed(unsigned (&r)[4], const void *row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 16 aligned bytes from global to shared memory while the thread goes on; zeros if there is nothing
// to copy. They are there after the wait that covers their group, for other threads after a barrier
// too.
static __device__ __forceinline__ void pk_copy_async(void *shared, const void *global,
                                                     bool there = true) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}
static __device__ __forceinline__ void pk_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `left` of this thread's newest groups are on their way.
template <int left> static __device__ __forceinline__ void pk_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#else
#include "emu/emu.h"
#endif

#include "numbers.h"
