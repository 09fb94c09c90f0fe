// The emulated CUPTI: what the emulated runtime tells it, and its functions. Nothing is noted
// before somebody asks for records.
#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

namespace emu {

enum class Deed { wait, kernel, copy, fill };

// What a piece of work on a stream is, apart from what it computes.
struct Activity {
  Deed deed = Deed::wait;
  std::string name;  // of a kernel
  int copy_kind = 0; // cudaMemcpyKind
  size_t bytes = 0;  // of a copy or a fill
  uint32_t call = 0; // what launched it
  uint64_t node = 0; // of the executable graph that it is of
};

// The host calls something that launches, of the runtime or (libraries do that) of the driver.
// Returns the call's number; 0 while calls are not asked for.
uint32_t cupti_call(bool of_runtime);

uint64_t cupti_clock();
void cupti_done(const Activity &activity, uint32_t stream, uint64_t start, uint64_t end);

// A graph got a node; an executable graph got a copy of one. Returns the id.
uint64_t cupti_node();
uint64_t cupti_copy_of_node(uint64_t original);

// The number of a stream (runtime.cpp).
uint32_t number_of(cudaStream_t stream);

// The address of a function of CUPTI; nullptr for what is not emulated.
void *cupti_symbol(const char *name);
void cupti_lose(int64_t records);

} // namespace emu
