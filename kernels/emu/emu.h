// CUDA C++ on the CPU, for tests: what device.h offers, when the compiler is not nvcc.
//
// Every thread of a block is a fiber (scheduler.cpp); blocks are spread over a few threads of the
// system. Kernel bugs that the emulation sees (barriers that some threads never reach, masks that
// name lanes that ended, misaligned copies) end the process with kernel file and line.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cuda_bf16.h>

// The headers' host versions of the keywords give way to what means something here.
#undef __launch_bounds__
#undef __align__
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))

namespace emu {

struct Thread {
  uint3 index;
  unsigned linear, lane, warp;
};
struct Block {
  uint3 index;
  dim3 size, grid;
  void *dynamic; // its dynamic shared memory
};
// __thread: an extern thread_local goes through a wrapper, which UBSan's null check does not like.
extern __thread Thread *thread;
extern __thread Block *block;

// Where a kernel calls something that waits for other threads.
struct Place {
  const char *file;
  int line;
};

enum class Vote { any, all, count };
void barrier(Place place);
int barrier_vote(Vote vote, bool value, Place place);

// What the lanes of a warp do together: each brings its words, the last to come runs `finish` once
// over all of them (kind tells apart what must not meet), then each takes words away.
enum { WORDS = 6 };
struct Exchange {
  uint64_t words[32][WORDS];
  unsigned lanes; // that came
};
typedef void (*Finish)(Exchange &);
const Exchange &exchange(unsigned mask, int kind, const uint64_t *words, int count, Finish finish,
                         bool orders_memory, Place place);
// The caller's look at the exchange ends here.
void exchange_done();

void *shared_variable(const void *key, size_t bytes);
void copy_async(void *shared, const void *global, bool there);
void copy_commit();
void copy_wait(int left);

typedef void (*Body)(const void *arguments);
cudaError_t check_launch(const void *kernel, dim3 grid, dim3 block, size_t shared);
void run_grid(dim3 grid, dim3 block, size_t shared, Body body, const void *arguments);

// Appends a kernel to a stream, or to the graph that it is capturing (runtime.cpp). The kernel's
// name is what `text` begins with.
cudaError_t launched(cudaStream_t stream, const char *text, std::function<void()> work);

enum { SHUFFLE = 1, SYNC = 10, BALLOT = 11, MMA = 12, MATRIX = 13 };

template <class T>
inline T shuffle(int how, unsigned mask, T value, int by, int width, Place place) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  int lane = static_cast<int>(thread->lane), first = lane & ~(width - 1), last = first + width - 1;
  int from = how == 0   ? first | (by & (width - 1))
             : how == 1 ? lane ^ by
             : how == 2 ? lane + by
                        : lane - by;
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  const Exchange &all = exchange(mask, SHUFFLE + how, &word, 1, nullptr, false, place);
  bool inside = how == 3 ? from >= first : from <= last;
  // What another lane did not bring is undefined on a GPU, and all ones here.
  uint64_t got = !inside ? word : all.lanes >> (from & 31) & 1 ? all.words[from & 31][0] : ~0ull;
  exchange_done();
  memcpy(&value, &got, sizeof value);
  return value;
}

inline unsigned ballot(unsigned mask, bool value, Place place) {
  uint64_t word = value;
  const Exchange &all = exchange(mask, BALLOT, &word, 1, nullptr, false, place);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; lane++)
    if (all.lanes >> lane & 1 && all.words[lane][0]) bits |= 1u << lane;
  exchange_done();
  return bits;
}

struct SyncWarp {
  Place place;
  void operator()(unsigned mask = 0xffffffffu) {
    exchange(mask, SYNC, nullptr, 0, nullptr, true, place);
    exchange_done();
  }
};

// The shuffles with their optional width.
struct Shuffle {
  Place place;
  template <class T> T index(unsigned mask, T value, int by, int width = 32) {
    return shuffle(0, mask, value, by, width, place);
  }
  template <class T> T exclusive(unsigned mask, T value, int by, int width = 32) {
    return shuffle(1, mask, value, by, width, place);
  }
  template <class T> T down(unsigned mask, T value, int by, int width = 32) {
    return shuffle(2, mask, value, by, width, place);
  }
  template <class T> T up(unsigned mask, T value, int by, int width = 32) {
    return shuffle(3, mask, value, by, width, place);
  }
};

void finish_mma(Exchange &all);

} // namespace emu

#define EMU_PLACE (::emu::Place{__FILE__, __LINE__})
#define threadIdx (::emu::thread->index)
#define blockIdx (::emu::block->index)
#define blockDim (::emu::block->size)
#define gridDim (::emu::block->grid)
#define __syncthreads() ::emu::barrier(EMU_PLACE)
#define __syncthreads_or(p) ::emu::barrier_vote(::emu::Vote::any, (p), EMU_PLACE)
#define __syncthreads_and(p) ::emu::barrier_vote(::emu::Vote::all, (p), EMU_PLACE)
#define __syncthreads_count(p) ::emu::barrier_vote(::emu::Vote::count, (p), EMU_PLACE)
#define __syncwarp(...) (::emu::SyncWarp{EMU_PLACE}(__VA_ARGS__))
#define __shfl_sync(...) (::emu::Shuffle{EMU_PLACE}.index(__VA_ARGS__))
#define __shfl_xor_sync(...) (::emu::Shuffle{EMU_PLACE}.exclusive(__VA_ARGS__))
#define __shfl_down_sync(...) (::emu::Shuffle{EMU_PLACE}.down(__VA_ARGS__))
#define __shfl_up_sync(...) (::emu::Shuffle{EMU_PLACE}.up(__VA_ARGS__))
#define __ballot_sync(mask, p) ::emu::ballot((mask), (p), EMU_PLACE)
#define __any_sync(mask, p) (::emu::ballot((mask), (p), EMU_PLACE) != 0)
#define __all_sync(mask, p) (::emu::ballot((mask), !(p), EMU_PLACE) == 0)

#define PK_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(::emu::block->dynamic)
#define PK_SHARED(type, name, ...)                                                                 \
  using name##_type = type __VA_ARGS__;                                                            \
  static const char name##_key = 0;                                                                \
  name##_type &name =                                                                              \
      *static_cast<name##_type *>(::emu::shared_variable(&name##_key, sizeof(name##_type)))

namespace emu {
template <class... Parameters, class... Arguments>
static inline cudaError_t launch(const char *text, void (*kernel)(Parameters...), dim3 grid,
                                 dim3 threads, size_t shared, cudaStream_t stream,
                                 Arguments... arguments) {
  cudaError_t error = check_launch(reinterpret_cast<const void *>(kernel), grid, threads, shared);
  if (error != cudaSuccess) return error;
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  };
  Call call = {kernel, std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)};
  return launched(stream, text, [=] {
    run_grid(
        grid, threads, shared,
        [](const void *data) {
          const Call *made = static_cast<const Call *>(data);
          std::apply(made->kernel, made->arguments);
        },
        &call);
  });
}
} // namespace emu

// Traces name a kernel as the launch does.
#define pk_launch(...) ::emu::launch(#__VA_ARGS__, __VA_ARGS__)

// --- arithmetic that only the device has ---

// glibc declares functions of these names, so they are macros.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
static const int warpSize = 32;
template <class T> inline T __ldg(const T *p) {
  return *p;
}
template <class T> inline T __ldcs(const T *p) {
  return *p;
}
template <class T> inline void __stcs(T *p, T value) {
  *p = value;
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __double2float_rz(double x) {
  float near = static_cast<float>(x);
  return std::fabs(static_cast<double>(near)) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __clz(int x) {
  return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
template <class T> inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T> inline T max(T a, T b) {
  return a < b ? b : a;
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Of integers: sums of floats by atomics would not be reproducible, so there are none.
template <class T> inline T atomicAdd(T *p, T value) {
  static_assert(std::is_integral<T>::value, "atomics are for integers");
  return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T> inline T atomicCAS(T *p, T expected, T value) {
  __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// --- the twins of device.h's inline PTX ---

static inline void pk_mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  uint64_t words[::emu::WORDS] = {a[0] | static_cast<uint64_t>(a[1]) << 32,
                                  a[2] | static_cast<uint64_t>(a[3]) << 32,
                                  b[0] | static_cast<uint64_t>(b[1]) << 32, 0, 0};
  memcpy(&words[3], d, sizeof d);
  const ::emu::Exchange &all =
      ::emu::exchange(0xffffffffu, ::emu::MMA, words, 5, ::emu::finish_mma, false, EMU_PLACE);
  memcpy(d, &all.words[::emu::thread->lane][3], sizeof d);
  ::emu::exchange_done();
}

namespace emu {
// Shared memory is read before the warp meets, as a barrier must have come before anyway.
inline void load_matrix(unsigned (&r)[4], const void *row, bool transposed, Place place) {
  uint64_t words[WORDS] = {0};
  if (reinterpret_cast<uintptr_t>(row) & 15) {
    fprintf(stderr, "emulation: %s:%d: pk_ldmatrix of a row that is not aligned to 16 bytes\n",
            place.file, place.line);
    abort();
  }
  memcpy(words, row, 16);
  const Exchange &all = exchange(0xffffffffu, MATRIX, words, 2, nullptr, false, place);
  unsigned lane = thread->lane;
  for (unsigned matrix = 0; matrix < 4; matrix++) {
    uint16_t pair[2];
    for (unsigned i = 0; i < 2; i++) {
      unsigned at_row = transposed ? lane % 4 * 2 + i : lane / 4;
      unsigned at_column = transposed ? lane / 4 : lane % 4 * 2 + i;
      const char *bytes = reinterpret_cast<const char *>(all.words[matrix * 8 + at_row]);
      memcpy(&pair[i], bytes + 2 * at_column, 2);
    }
    memcpy(&r[matrix], pair, 4);
  }
  exchange_done();
}
} // namespace emu

#define pk_ldmatrix(r, row) ::emu::load_matrix((r), (row), false, EMU_PLACE)
#define pk_ldmatrix_transposed(r, row) ::emu::load_matrix((r), (row), true, EMU_PLACE)
static inline void pk_copy_async(void *shared, const void *global, bool there = true) {
  ::emu::copy_async(shared, global, there);
}
static inline void pk_copy_commit() {
  ::emu::copy_commit();
}
template <int left> static inline void pk_copy_wait() {
  ::emu::copy_wait(left);
}
