/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that CUDA has in kernels: see cuda_kernels.h. What waits for other threads takes
 * the place of its call as well, for messages. */
#ifndef COMMON_CPU_CUDA_FUNCTIONS_H
#define COMMON_CPU_CUDA_FUNCTIONS_H

#define CPU_PLACE (cpu_place{__func__, file, line})

/* ---- barriers, warps, fences ----------------------------------------------------------------- */

static inline void __syncthreads(CPU_HERE)
{
  cpu_barrier(false, 0, CPU_PLACE);
}
static inline int __syncthreads_count(int p, CPU_HERE)
{
  return (int)cpu_barrier(p != 0, 0, CPU_PLACE);
}
static inline int __syncthreads_or(int p, CPU_HERE)
{
  return cpu_barrier(p != 0, 0, CPU_PLACE) > 0;
}
static inline int __syncthreads_and(int p, CPU_HERE)
{
  return cpu_barrier(p == 0, 0, CPU_PLACE) == 0;
}
static inline void __threadfence()
{
  cpu_fence();
}
#define __threadfence_block __threadfence
#define __threadfence_system __threadfence
static inline void __nanosleep(unsigned, CPU_HERE)
{
  cpu_yield(true, CPU_PLACE);
}
/* cuda.pl: while (...) continue; */
static inline void cpu_loop(CPU_HERE)
{
  cpu_yield(true, {"a loop", file, line});
}
[[noreturn]] static inline void __trap()
{
  abort();
}

static inline unsigned cpu_lane()
{
  return cpu_thread_number() % 32;
}
static inline void __syncwarp(unsigned mask = ~0u, CPU_HERE)
{
  const uint64_t *values;
  cpu_exchange(mask, 0, &values, CPU_PLACE);
}
template <typename T>
static inline T cpu_from_lane(unsigned mask, T value, unsigned lane, cpu_place place)
{
  const uint64_t *values;
  uint64_t bits = 0;
  static_assert(sizeof value <= sizeof bits, "what a shuffle moves");
  memcpy(&bits, &value, sizeof value);
  cpu_exchange(mask, bits, &values, place);
  memcpy(&value, &values[lane], sizeof value);
  return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, CPU_HERE)
{
  return cpu_from_lane(mask, value, cpu_lane() / width * width + from % width, CPU_PLACE);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, CPU_HERE)
{
  const unsigned lane = cpu_lane(), other = lane ^ with;
  return cpu_from_lane(mask, value, other / width <= lane / width ? other : lane, CPU_PLACE);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CPU_HERE)
{
  const unsigned lane = cpu_lane();
  return cpu_from_lane(mask, value, lane % width >= by ? lane - by : lane, CPU_PLACE);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CPU_HERE)
{
  const unsigned lane = cpu_lane();
  return cpu_from_lane(mask, value, lane % width + by < (unsigned)width ? lane + by : lane,
                       CPU_PLACE);
}
static inline unsigned __ballot_sync(unsigned mask, int p, CPU_HERE)
{
  const uint64_t *values;
  const unsigned present = cpu_exchange(mask, p != 0, &values, CPU_PLACE);
  unsigned all = 0;
  for (int i = 0; i < 32; i++)
    if (present >> i & 1 && values[i]) all |= 1u << i;
  return all;
}
static inline int __any_sync(unsigned mask, int p, CPU_HERE)
{
  return __ballot_sync(mask, p, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int p, CPU_HERE)
{
  return __ballot_sync(mask, !p, file, line) == 0;
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v, CPU_HERE)
{
  const uint64_t *values;
  const unsigned present = cpu_exchange(mask, v, &values, CPU_PLACE);
  unsigned sum = 0;
  for (int i = 0; i < 32; i++)
    if (present >> i & 1) sum += (unsigned)values[i];
  return sum;
}

/* ---- integers, floats, memory ---------------------------------------------------------------- */

static inline int __popc(unsigned v)
{
  return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
  return __builtin_ffs(v);
}
template <typename To, typename From>
static inline To cpu_bits(From from)
{
  To to;
  static_assert(sizeof to == sizeof from, "the same bits");
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline unsigned __float_as_uint(float v)
{
  return cpu_bits<unsigned>(v);
}
static inline float __uint_as_float(unsigned v)
{
  return cpu_bits<float>(v);
}
static inline float __fadd_rn(float a, float b)
{
  return a + b;
}
static inline float __fsub_rn(float a, float b)
{
  return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
  return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
  return fmaf(a, b, c);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by)
{
  return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
template <typename A, typename B>
static inline typename std::common_type<A, B>::type min(A a, B b)
{
  return b < a ? b : a;
}
template <typename A, typename B>
static inline typename std::common_type<A, B>::type max(A a, B b)
{
  return a < b ? b : a;
}
template <typename T>
static inline T __ldcg(const T *at)
{
  return *at;
}
#define __ldcs __ldcg
template <typename T>
static inline void __stcs(T *at, T v)
{
  *at = v;
}

/* Atomic among all ranks; they order nothing, as in CUDA. */
#ifdef CPU_RACES
#define CPU_ATOMIC static __attribute__((noinline, no_sanitize("thread")))
#else
#define CPU_ATOMIC static inline
#endif
#define CPU_SAME(T) typename std::common_type<T>::type /* the argument alone says what T is */
template <typename T, typename F>
CPU_ATOMIC T cpu_atomic(T *at, F change)
{
  cpu_before_atomic(at);
  T old = *(volatile T *)at, changed;
  do changed = change(old);
  while (!__atomic_compare_exchange(at, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
template <typename T>
static inline T atomicAdd(T *at, CPU_SAME(T) v)
{
  return cpu_atomic(at, [=](T old) -> T { return old + v; });
}
template <typename T>
static inline T atomicOr(T *at, CPU_SAME(T) v)
{
  return cpu_atomic(at, [=](T old) { return old | v; });
}
template <typename T>
static inline T atomicExch(T *at, CPU_SAME(T) v)
{
  return cpu_atomic(at, [=](T) { return v; });
}
template <typename T>
static inline T atomicMin(T *at, CPU_SAME(T) v)
{
  return cpu_atomic(at, [=](T old) { return v < old ? v : old; });
}
template <typename T>
static inline T atomicMax(T *at, CPU_SAME(T) v)
{
  return cpu_atomic(at, [=](T old) { return old < v ? v : old; });
}
template <typename T>
CPU_ATOMIC T atomicCAS(T *at, CPU_SAME(T) old, CPU_SAME(T) v, CPU_HERE)
{
  T found = old;
  cpu_before_atomic(at);
  if (!__atomic_compare_exchange(at, &found, &v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    cpu_yield(true, CPU_PLACE); /* it may be a lock */
  return found;
}

#endif
