// Elementwise operations of one and two inputs, casts and copies: y = f(a) or f(a, b), element by
// element, with 16-byte accesses where rows are dense and aligned.
#include "device.h"
#include "elementwise.h"
#include "pack.h"

static constexpr int THREADS = 256, MOST_ROWS = 65535;

// --- the functions; Y, A and B are the types of result and inputs ---

template <class T> struct Pair {
  typedef T Y, A, B;
  static constexpr bool takes_two = true;
};
template <class T> struct Add : Pair<T> {
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T> struct Subtract : Pair<T> {
  __device__ T operator()(T a, T b) const { return a - b; }
};
template <class T> struct Multiply : Pair<T> {
  __device__ T operator()(T a, T b) const { return a * b; }
};
template <class T> struct Divide : Pair<T> {
  __device__ T operator()(T a, T b) const { return a / b; }
};

template <class T> struct Minimum : Pair<T> {
  __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};
template <class T> struct Maximum : Pair<T> {
  __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
template <class T> struct Less : Pair<T> {
  __device__ T operator()(T a, T b) const { return a < b ? T(1) : T(0); }
};

template <class To, class From = To> struct Map {
  typedef To Y;
  typedef From A, B;
  static constexpr bool takes_two = false;
};

static __device__ __forceinline__ float exponential(float x) {
  return expf(x);
}
static __device__ __forceinline__ double exponential(double x) {
  return exp(x);
}
static __device__ __forceinline__ float logarithm(float x) {
  return logf(x);
}
static __device__ __forceinline__ double logarithm(double x) {
  return log(x);
}
static __device__ __forceinline__ float root(float x) {
  return sqrtf(x);
}
static __device__ __forceinline__ double root(double x) {
  return sqrt(x);
}
static __device__ __forceinline__ float magnitude(float x) {
  return fabsf(x);
}
static __device__ __forceinline__ double magnitude(double x) {
  return fabs(x);
}

static __device__ __forceinline__ float nearest(float x) {
  return rintf(x);
}
static __device__ __forceinline__ double nearest(double x) {
  return rint(x);
}
static __device__ __forceinline__ float whole_below(float x) {
  return floorf(x);
}
static __device__ __forceinline__ double whole_below(double x) {
  return floor(x);
}

template <class T> static __device__ __forceinline__ T logistic(T x) {
  T e = exponential(-magnitude(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

template <class T> struct Affine : Map<T> {
  T scale, shift;
  __device__ T operator()(T x, T) const { return scale * x + shift; }
};
template <class T> struct Negate : Map<T> {
  __device__ T operator()(T x, T) const { return -x; }
};
template <class T> struct Abs : Map<T> {
  __device__ T operator()(T x, T) const { return magnitude(x); }
};
template <class T> struct Sign : Map<T> {
  __device__ T operator()(T x, T) const { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
};
template <class T> struct Round : Map<T> {
  __device__ T operator()(T x, T) const { return nearest(x); }
};
template <class T> struct Floor : Map<T> {
  __device__ T operator()(T x, T) const { return whole_below(x); }
};
template <class T> struct Exp : Map<T> {
  __device__ T operator()(T x, T) const { return exponential(x); }
};
template <class T> struct Log : Map<T> {
  __device__ T operator()(T x, T) const { return logarithm(x); }
};
template <class T> struct Sqrt : Map<T> {
  __device__ T operator()(T x, T) const { return root(x); }
};
template <class T> struct Rsqrt : Map<T> {
  __device__ T operator()(T x, T) const { return T(1) / root(x); }
};
template <class T> struct Sigmoid : Map<T> {
  __device__ T operator()(T x, T) const { return logistic(x); }
};
template <class T> struct Silu : Map<T> {
  __device__ T operator()(T x, T) const { return x * logistic(x); }
};
template <class To, class From> struct Cast : Map<To, From> {
  __device__ To operator()(From x, From) const { return pk_to<To>(x); }
};
template <class T> struct Copy : Map<T> {
  __device__ T operator()(T x, T) const { return x; }
};

// --- the kernels ---

// Elements of a row that a thread takes in one go: 16 bytes of the widest type.
template <class F> struct Width {
  static constexpr size_t widest = sizeof(typename F::Y) > sizeof(typename F::A)
                                       ? sizeof(typename F::Y)
                                       : sizeof(typename F::A);
  static constexpr int count = static_cast<int>(16 / widest);
};

// `width` elements from column on, or the one element of a row that repeats.
template <int width, class T>
static __device__ __forceinline__ pk_pack<T, width> load(const T *row, int64_t column,
                                                         bool repeats) {
  pk_pack<T, width> pack;
  if (!repeats) return *reinterpret_cast<const pk_pack<T, width> *>(row + column);
#pragma unroll
  for (int i = 0; i < width; i++) pack.at[i] = row[0];
  return pack;
}

// Rows of the walk's last dimension, whose stride is 1 or 0; what does not fill a pack is left to
// the thread after the last pack.
template <class F>
__global__ void __launch_bounds__(THREADS)
    dense_rows(F f, typename F::Y *y, const typename F::A *a, const typename F::B *b, int64_t rows,
               int64_t length, pk_strided walk) {
  constexpr int width = Width<F>::count;
  int last = walk.rank - 1;
  bool a_repeats = walk.strides[1][last] == 0, b_repeats = walk.strides[2][last] == 0;
  int64_t packs = length / width, step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    typename F::Y *y_row = y + (last ? row * walk.strides[0][0] : 0);
    const typename F::A *a_row = a + (last ? row * walk.strides[1][0] : 0);
    const typename F::B *b_row = b + (last ? row * walk.strides[2][0] : 0);
    for (int64_t p = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; p <= packs;
         p += step) {
      int64_t column = p * width;
      if (p == packs) {
        for (; column < length; column++)
          y_row[column] = f(a_row[a_repeats ? 0 : column], b_row[b_repeats ? 0 : column]);
        continue;
      }
      pk_pack<typename F::A, width> left = load<width>(a_row, column, a_repeats), right = left;
      if constexpr (F::takes_two) right = load<width>(b_row, column, b_repeats);
      pk_pack<typename F::Y, width> result;
#pragma unroll
      for (int i = 0; i < width; i++) result.at[i] = f(left.at[i], right.at[i]);
      *reinterpret_cast<pk_pack<typename F::Y, width> *>(y_row + column) = result;
    }
  }
}

template <class F>
__global__ void __launch_bounds__(THREADS) strided(F f, typename F::Y *y, const typename F::A *a,
                                                   const typename F::B *b, pk_strided walk) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < walk.count;
       i += step) {
    int64_t at[3];
    pk_strided_offsets(walk, i, at);
    y[at[0]] = f(a[at[1]], b[at[2]]);
  }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    where(T *y, const T *condition, const T *a, const T *b, pk_strided walk) {
  int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < walk.count;
       i += step) {
    int64_t at[4];
    pk_strided_offsets(walk, i, at);
    y[at[0]] = condition[at[1]] != T(0) ? a[at[2]] : b[at[3]];
  }
}

// --- choosing between them ---

static bool is_aligned(const void *data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether operand o's rows can be read in packs of `width` elements of `size` bytes.
static bool packs_fit(const pk_strided &walk, int o, const void *data, size_t size, int width) {
  int last = walk.rank - 1;
  int64_t stride = walk.strides[o][last];
  if (stride == 0 && o > 0) return true;
  return stride == 1 && is_aligned(data, size * width) &&
         (last == 0 || walk.strides[o][0] % width == 0);
}

template <class F>
static cudaError_t run(F f, void *y, const void *a, const void *b, const pk_strided *walk,
                       cudaStream_t stream) {
  typedef typename F::Y Y;
  typedef typename F::A A;
  typedef typename F::B B;
  constexpr int width = Width<F>::count;
  bool dense = walk->rank <= 2 && packs_fit(*walk, 0, y, sizeof(Y), width) &&
               packs_fit(*walk, 1, a, sizeof(A), width) &&
               (!F::takes_two || packs_fit(*walk, 2, b, sizeof(B), width));
  if (!dense)
    return pk_launch(strided<F>, dim3(pk_grid_for(walk->count, THREADS)), dim3(THREADS), 0, stream,
                     f, static_cast<Y *>(y), static_cast<const A *>(a), static_cast<const B *>(b),
                     *walk);
  int64_t length = walk->extents[walk->rank - 1], rows = walk->count / length;
  dim3 grid(pk_grid_for(length / width + 1, THREADS),
            static_cast<unsigned>(rows < MOST_ROWS ? rows : MOST_ROWS));
  return pk_launch(dense_rows<F>, grid, dim3(THREADS), 0, stream, f, static_cast<Y *>(y),
                   static_cast<const A *>(a), static_cast<const B *>(b), rows, length, *walk);
}

template <class T>
static cudaError_t pair_of(pk_pair pair, void *y, const void *a, const void *b,
                           const pk_strided *walk, cudaStream_t stream) {
  switch (pair) {
  case PK_PAIR_ADD:
    return run(Add<T>(), y, a, b, walk, stream);
  case PK_PAIR_SUBTRACT:
    return run(Subtract<T>(), y, a, b, walk, stream);
  case PK_PAIR_MULTIPLY:
    return run(Multiply<T>(), y, a, b, walk, stream);
  case PK_PAIR_MINIMUM:
    return run(Minimum<T>(), y, a, b, walk, stream);
  case PK_PAIR_MAXIMUM:
    return run(Maximum<T>(), y, a, b, walk, stream);
  case PK_PAIR_LESS:
    return run(Less<T>(), y, a, b, walk, stream);
  default:
    return run(Divide<T>(), y, a, b, walk, stream);
  }
}

template <class T>
static cudaError_t map_of(pk_map map, void *y, const void *x, T scale, T shift,
                          const pk_strided *walk, cudaStream_t stream) {
  Affine<T> affine;
  affine.scale = scale;
  affine.shift = shift;
  switch (map) {
  case PK_MAP_AFFINE:
    return run(affine, y, x, x, walk, stream);
  case PK_MAP_NEGATE:
    return run(Negate<T>(), y, x, x, walk, stream);
  case PK_MAP_ABS:
    return run(Abs<T>(), y, x, x, walk, stream);
  case PK_MAP_SIGN:
    return run(Sign<T>(), y, x, x, walk, stream);
  case PK_MAP_ROUND:
    return run(Round<T>(), y, x, x, walk, stream);
  case PK_MAP_FLOOR:
    return run(Floor<T>(), y, x, x, walk, stream);
  case PK_MAP_EXP:
    return run(Exp<T>(), y, x, x, walk, stream);
  case PK_MAP_LOG:
    return run(Log<T>(), y, x, x, walk, stream);
  case PK_MAP_SQRT:
    return run(Sqrt<T>(), y, x, x, walk, stream);
  case PK_MAP_RSQRT:
    return run(Rsqrt<T>(), y, x, x, walk, stream);
  case PK_MAP_SIGMOID:
    return run(Sigmoid<T>(), y, x, x, walk, stream);
  default:
    return run(Silu<T>(), y, x, x, walk, stream);
  }
}

template <class T>
static cudaError_t where_of(void *y, const void *condition, const void *a, const void *b,
                            const pk_strided *walk, cudaStream_t stream) {
  return pk_launch(where<T>, dim3(pk_grid_for(walk->count, THREADS)), dim3(THREADS), 0, stream,
                   static_cast<T *>(y), static_cast<const T *>(condition),
                   static_cast<const T *>(a), static_cast<const T *>(b), *walk);
}

template <class From>
static cudaError_t cast_from(int to, void *y, const void *x, const pk_strided *walk,
                             cudaStream_t stream) {
  switch (to) {
  case PK_F64:
    return run(Cast<double, From>(), y, x, x, walk, stream);
  case PK_F32:
    return run(Cast<float, From>(), y, x, x, walk, stream);
  case PK_BF16:
    return run(Cast<pk_bf16, From>(), y, x, x, walk, stream);
  default:
    return run(Cast<int32_t, From>(), y, x, x, walk, stream);
  }
}

// --- the launchers ---

extern "C" cudaError_t pk_launch_pair(pk_pair pair, int dtype, void *y, const void *a,
                                      const void *b, const pk_strided *walk, cudaStream_t stream) {
  if (dtype == PK_F64) return pair_of<double>(pair, y, a, b, walk, stream);
  return pair_of<float>(pair, y, a, b, walk, stream);
}

extern "C" cudaError_t pk_launch_map(pk_map map, int dtype, void *y, const void *x, double scale,
                                     double shift, const pk_strided *walk, cudaStream_t stream) {
  if (dtype == PK_F64) return map_of<double>(map, y, x, scale, shift, walk, stream);
  return map_of<float>(map, y, x, static_cast<float>(scale), static_cast<float>(shift), walk,
                       stream);
}

extern "C" cudaError_t pk_launch_where(int dtype, void *y, const void *condition, const void *a,
                                       const void *b, const pk_strided *walk, cudaStream_t stream) {
  if (dtype == PK_F64) return where_of<double>(y, condition, a, b, walk, stream);
  return where_of<float>(y, condition, a, b, walk, stream);
}

extern "C" cudaError_t pk_launch_cast(int to, int from, void *y, const void *x,
                                      const pk_strided *walk, cudaStream_t stream) {
  switch (from) {
  case PK_F64:
    return cast_from<double>(to, y, x, walk, stream);
  case PK_F32:
    return cast_from<float>(to, y, x, walk, stream);
  case PK_BF16:
    return cast_from<pk_bf16>(to, y, x, walk, stream);
  default:
    return cast_from<int32_t>(to, y, x, walk, stream);
  }
}

extern "C" cudaError_t pk_launch_copy(int64_t element_bytes, void *y, const void *x,
                                      const pk_strided *walk, cudaStream_t stream) {
  switch (element_bytes) {
  case 8:
    return run(Copy<uint64_t>(), y, x, x, walk, stream);
  case 4:
    return run(Copy<uint32_t>(), y, x, x, walk, stream);
  default:
    return run(Copy<uint16_t>(), y, x, x, walk, stream);
  }
}

extern "C" cudaError_t pk_launch_accumulate(int dtype, void *y, const void *x,
                                            const pk_strided *walk, cudaStream_t stream) {
  pk_strided sum = *walk;
  for (int d = 0; d < sum.rank; d++) {
    sum.strides[2][d] = sum.strides[1][d];
    sum.strides[1][d] = sum.strides[0][d];
  }
  return pk_launch_pair(PK_PAIR_ADD, dtype, y, y, x, &sum, stream);
}

extern "C" cudaError_t pk_launch_probe(void) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes,
                               reinterpret_cast<const void *>(&strided<Copy<uint32_t>>));
}
