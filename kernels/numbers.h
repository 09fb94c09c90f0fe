// Numbers in kernels: types of a pk_dtype, conversions rounded once, 16-byte packs, sums over warps
// and blocks in a fixed order.
#pragma once

typedef __nv_bfloat16 pk_bf16;

// A value in another type, rounded once to nearest even. To i32: NaN gives 0, values out of range
// the nearest that there is.
template <class To> static __device__ __forceinline__ To pk_to(float x) {
  return static_cast<To>(x);
}
template <class To> static __device__ __forceinline__ To pk_to(double x) {
  return static_cast<To>(x);
}
template <> __device__ __forceinline__ pk_bf16 pk_to<pk_bf16>(float x) {
  return __float2bfloat16_rn(x);
}
// By way of an f32 whose last bit is odd where bits are lost, so that the second rounding is as if
// it were the only one.
template <> __device__ __forceinline__ pk_bf16 pk_to<pk_bf16>(double x) {
  float cut = __double2float_rz(x);
  if (static_cast<double>(cut) != x && x == x) cut = __uint_as_float(__float_as_uint(cut) | 1u);
  return __float2bfloat16_rn(cut);
}
template <> __device__ __forceinline__ int32_t pk_to<int32_t>(double x) {
  double whole = rint(x);
  if (!(whole == whole)) return 0;
  if (whole <= -2147483648.0) return -2147483647 - 1;
  return whole >= 2147483647.0 ? 2147483647 : static_cast<int32_t>(whole);
}
template <> __device__ __forceinline__ int32_t pk_to<int32_t>(float x) {
  return pk_to<int32_t>(static_cast<double>(x));
}
template <class To> static __device__ __forceinline__ To pk_to(int32_t x) {
  return pk_to<To>(static_cast<double>(x));
}
template <class To> static __device__ __forceinline__ To pk_to(pk_bf16 x) {
  return pk_to<To>(__bfloat162float(x));
}

// As many elements as are read or written in one go; the address must be aligned to them all.
template <class T, int count> struct alignas(sizeof(T) * count) pk_pack { T at[count]; };

// The sum over the lanes of a warp, the same bits in every lane.
template <class T> static __device__ __forceinline__ T pk_warp_sum(T x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}
template <class T> static __device__ __forceinline__ T pk_warp_max(T x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    T other = __shfl_xor_sync(0xffffffffu, x, lane);
    x = other > x ? other : x;
  }
  return x;
}

// The sum over a block of `threads` threads (a multiple of 32, all of them calling), the same bits
// in every thread. parts is shared memory for threads / 32 values; a barrier comes first, so that
// it may be used again at once.
template <int threads, class T> static __device__ __forceinline__ T pk_block_sum(T x, T *parts) {
  x = pk_warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = parts[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; warp++) sum += parts[warp];
  return sum;
}

// How many blocks of `each` elements hold `count`, as far as a grid's first extent goes.
static inline unsigned pk_grid_for(int64_t count, int64_t each) {
  int64_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < 2147483647 ? blocks : 2147483647);
}
