/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ for kernels, as far as the examples use it, compiled by g++. It is included before each
 * .cu file, after which common/cpu/cuda.pl rewrites what is no C++:
 *
 *   kernel<<<blocks, threads, ...>>>(...)   cpu_kernel(...)(...)
 *   __shared__ T name[N];                   a reference to memory of the block
 *   asm volatile("st.relaxed...." ...);     ptx_st_relaxed_...(...) */
#ifndef COMMON_CPU_CUDA_KERNELS_H
#define COMMON_CPU_CUDA_KERNELS_H

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cpu_threads.h>
#include <cuda_runtime.h>

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

static const int warpSize = 32;

/* ---- vectors --------------------------------------------------------------------------------- */

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
static inline double2 make_double2(double x, double y) { return {x, y}; }
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
  return {x, y};
}

/* ---- launches -------------------------------------------------------------------------------- */

template <typename K, typename... A>
struct cpu_call {
  struct cpu_grid grid;
  K kernel;
  std::tuple<A...> arguments;
  static void thread(const void *args)
  {
    const cpu_call *c = (const cpu_call *)args;
    std::apply(c->kernel, c->arguments);
  }
  static void all(const void *args)
  {
    alignas(cpu_call) char copy[sizeof(cpu_call)];
    memcpy(copy, args, sizeof copy);
    struct cpu_grid grid = ((const cpu_call *)copy)->grid;
    grid.args = copy;
    cpu_run_grid(&grid);
  }
};

template <typename K>
struct cpu_kernel {
  K kernel;
  dim3 blocks, threads;
  size_t shared;
  cudaStream_t stream;
  cpu_kernel(K kernel, dim3 blocks, dim3 threads, size_t shared = 0, cudaStream_t stream = NULL)
      : kernel(kernel), blocks(blocks), threads(threads), shared(shared), stream(stream)
  {
  }
  template <typename... A>
  cudaError_t operator()(A... a)
  {
    typedef cpu_call<K, A...> call;
    const call c = {{{blocks.x, blocks.y, blocks.z},
                     {threads.x, threads.y, threads.z},
                     shared,
                     call::thread,
                     NULL},
                    kernel,
                    std::tuple<A...>(a...)};
    return cpu_launch(stream, call::all, &c, sizeof c);
  }
};

enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int cooperative, programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...a)
{
  return cpu_kernel<void (*)(P...)>(kernel, config->gridDim, config->blockDim,
                                    config->dynamicSmemBytes,
                                    config->stream)(P(std::forward<A>(a))...);
}

struct cudaFuncAttributes {
  int ptxVersion, maxThreadsPerBlock;
};
template <typename K>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, K)
{
  *attributes = {80, 1024};
  return cudaSuccess;
}
template <typename K>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, K, int, size_t)
{
  *blocks = 1;
  return cudaSuccess;
}

/* ---- barriers, warps, fences ----------------------------------------------------------------- */

static inline void __syncthreads() { cpu_barrier(false); }
static inline int __syncthreads_count(int p) { return (int)cpu_barrier(p != 0); }
static inline int __syncthreads_or(int p) { return cpu_barrier(p != 0) > 0; }
static inline int __syncthreads_and(int p) { return cpu_barrier(p == 0) == 0; }
static inline void __threadfence() { cpu_fence(); }
static inline void __threadfence_block() { cpu_fence(); }
static inline void __threadfence_system() { cpu_fence(); }
static inline void __nanosleep(unsigned) { cpu_yield(true); }
[[noreturn]] static inline void __trap() { abort(); }

static inline unsigned cpu_lane()
{
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
static inline void __syncwarp(unsigned mask = ~0u)
{
  const uint64_t *values;
  cpu_exchange(mask, 0, &values);
}
template <typename T>
static inline T cpu_from_lane(unsigned mask, T value, unsigned lane)
{
  const uint64_t *values;
  uint64_t bits = 0;
  static_assert(sizeof value <= sizeof bits, "what a shuffle moves");
  memcpy(&bits, &value, sizeof value);
  cpu_exchange(mask, bits, &values);
  memcpy(&value, &values[lane], sizeof value);
  return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
  return cpu_from_lane(mask, value, cpu_lane() / width * width + from % width);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32)
{
  const unsigned lane = cpu_lane(), other = lane ^ with;
  return cpu_from_lane(mask, value, other / width <= lane / width ? other : lane);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
  const unsigned lane = cpu_lane();
  return cpu_from_lane(mask, value, lane % width >= by ? lane - by : lane);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
  const unsigned lane = cpu_lane();
  return cpu_from_lane(mask, value, lane % width + by < (unsigned)width ? lane + by : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
  const uint64_t *values;
  const unsigned present = cpu_exchange(mask, p != 0, &values);
  unsigned all = 0;
  for (int i = 0; i < 32; i++)
    if (present >> i & 1 && values[i]) all |= 1u << i;
  return all;
}
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T value)
{
  const uint64_t *values;
  const unsigned present = cpu_exchange(mask, (uint64_t)value, &values);
  unsigned same = 0;
  for (int i = 0; i < 32; i++)
    if (present >> i & 1 && values[i] == (uint64_t)value) same |= 1u << i;
  return same;
}
template <typename T, typename F>
static inline T cpu_reduce(unsigned mask, T value, F f)
{
  const uint64_t *values;
  const unsigned present = cpu_exchange(mask, (uint64_t)value, &values);
  T all = value;
  bool first = true;
  for (int i = 0; i < 32; i++)
    if (present >> i & 1) all = first ? (T)values[i] : f(all, (T)values[i]), first = false;
  return all;
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v)
{
  return cpu_reduce(mask, v, [](unsigned a, unsigned b) { return a + b; });
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v)
{
  return cpu_reduce(mask, v, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
static inline unsigned __activemask() { return ~0u; }

/* ---- integers, floats, memory ---------------------------------------------------------------- */

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
static inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((uint64_t)v); }
template <typename To, typename From>
static inline To cpu_bits(From from)
{
  To to;
  static_assert(sizeof to == sizeof from, "the same bits");
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline unsigned __float_as_uint(float v) { return cpu_bits<unsigned>(v); }
static inline int __float_as_int(float v) { return cpu_bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return cpu_bits<float>(v); }
static inline float __int_as_float(int v) { return cpu_bits<float>(v); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by)
{
  return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
template <typename A, typename B>
static inline typename std::common_type<A, B>::type min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B>
static inline typename std::common_type<A, B>::type max(A a, B b) { return a < b ? b : a; }
template <typename T>
static inline T __ldg(const T *at) { return *at; }
template <typename T>
static inline T __ldcg(const T *at) { return *at; }
template <typename T>
static inline T __ldcs(const T *at) { return *at; }
template <typename T>
static inline void __stcg(T *at, T v) { *at = v; }
template <typename T>
static inline void __stcs(T *at, T v) { *at = v; }

#ifdef CPU_RACES
extern "C" void cpu_before_atomic(const void *at);
#define CPU_ATOMIC static __attribute__((noinline, no_sanitize("thread")))
#else
#define cpu_before_atomic(at) ((void)0)
#define CPU_ATOMIC static inline
#endif
#define CPU_SAME(T) typename std::common_type<T>::type /* the argument alone says what T is */
template <typename T>
CPU_ATOMIC T atomicAdd(T *at, CPU_SAME(T) v)
{
  if constexpr (std::is_integral<T>::value) {
    return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
  } else {
    T old = *at, sum;
    do sum = old + v;
    while (!__atomic_compare_exchange(at, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
  }
}
template <typename T>
CPU_ATOMIC T atomicOr(T *at, CPU_SAME(T) v) { return __atomic_fetch_or(at, v, __ATOMIC_RELAXED); }
template <typename T>
CPU_ATOMIC T atomicExch(T *at, CPU_SAME(T) v)
{
  T old;
  __atomic_exchange(at, &v, &old, __ATOMIC_RELAXED);
  return old;
}
template <typename T>
CPU_ATOMIC T atomicCAS(T *at, CPU_SAME(T) old, CPU_SAME(T) v)
{
  T found = old;
  if (!__atomic_compare_exchange(at, &found, &v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    cpu_yield(true); /* it may be a lock */
  return found;
}
template <typename T>
CPU_ATOMIC T atomicMin(T *at, CPU_SAME(T) v)
{
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (v < old && !__atomic_compare_exchange(at, &old, &v, false, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED)) continue;
  return old;
}
template <typename T>
CPU_ATOMIC T atomicMax(T *at, CPU_SAME(T) v) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange(at, &old, &v, false, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED)) continue;
  return old;
}

/* ---- PTX: operands in the order of the statement --------------------------------------------- */

static inline void ptx_st_relaxed_sys_global_u64(const void *at, uint64_t v)
{
  cpu_store_u64((void *)at, v, false);
}
static inline void ptx_st_release_sys_global_u64(const void *at, uint64_t v)
{
  cpu_store_u64((void *)at, v, true);
}
template <typename T>
static inline void ptx_ld_relaxed_sys_global_u64(T &v, const void *at) { v = cpu_load_u64(at); }
template <typename T>
static inline void ptx_ld_acquire_sys_global_u64(T &v, const void *at) { v = cpu_load_u64(at); }
static inline void ptx_st_relaxed_sys_global_b128(void *at, uint64_t low, uint64_t high)
{
  cpu_store_b128(at, low, high);
}
template <typename T>
static inline void ptx_ld_relaxed_sys_global_b128(T &low, T &high, const void *at)
{
  uint64_t l, h;
  cpu_load_b128(&l, &h, at);
  low = l, high = h;
}
template <typename T>
static inline void ptx_ld_volatile_global_v2_u64(T &low, T &high, const void *at)
{
  const volatile uint64_t *words = (const volatile uint64_t *)at;
  low = words[0], high = words[1];
}
static inline void ptx_fence_acq_rel_gpu() { cpu_fence(); }
static inline void ptx_fence_acq_rel_sys() { cpu_fence(); }
static inline void ptx_bar_sync(unsigned threads) { cpu_barrier_of(threads); }
static inline void ptx_prefetch_global_L2(const void *) {}
static inline void ptx_st_relaxed_gpu_global_u64(void *at, uint64_t v) { cpu_store_u64(at, v, false); }
template <typename T>
static inline void ptx_ld_relaxed_gpu_global_u64(T &v, const void *at) { v = cpu_load_u64(at); }
static inline void ptx_red_relaxed_sys_global_add_u64(void *at, uint64_t v)
{
  __atomic_fetch_add((uint64_t *)at, v, __ATOMIC_RELAXED);
}
static inline void ptx_atom_acquire_gpu_global_inc_u32(uint32_t &old, uint32_t *at, uint32_t most)
{
  old = *at; /* blocks of a kernel take turns */
  *at = old >= most ? 0 : old + 1;
}
template <typename T>
static inline void ptx_mov_u64__globaltimer(T &now) { now = cpu_nanoseconds(); }

#endif
