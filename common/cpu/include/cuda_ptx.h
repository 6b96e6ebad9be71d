/* SPDX-License-Identifier: Apache-2.0 */
/* Inline PTX: cuda.pl makes of `asm volatile("instruction" ...)` a call of ptx_instruction, with
 * the operands in the order of the statement, and without the scope (.gpu, .sys). See
 * cuda_kernels.h. */
#ifndef COMMON_CPU_CUDA_PTX_H
#define COMMON_CPU_CUDA_PTX_H

#include <time.h>

#define CPU_LOAD (cpu_place{"a load that it repeats", file, line})

static inline void ptx_st_relaxed_global_u64(const void *at, uint64_t v)
{
  cpu_store_u64((void *)at, v, false);
}
static inline void ptx_st_release_global_u64(const void *at, uint64_t v)
{
  cpu_store_u64((void *)at, v, true);
}
template <typename T>
static inline void ptx_ld_relaxed_global_u64(T &v, const void *at, CPU_HERE)
{
  v = cpu_load_u64(at, CPU_LOAD);
}
static inline void ptx_st_relaxed_global_b128(void *at, uint64_t low, uint64_t high)
{
  cpu_store_b128(at, low, high);
}
template <typename T>
static inline void ptx_ld_relaxed_global_b128(T &low, T &high, const void *at, CPU_HERE)
{
  uint64_t l, h;
  cpu_load_b128(&l, &h, at, CPU_LOAD);
  low = l, high = h;
}
template <typename T>
static inline void ptx_ld_volatile_global_v2_u64(T &low, T &high, const void *at)
{
  const volatile uint64_t *words = (const volatile uint64_t *)at;
  low = words[0], high = words[1];
}
static inline void ptx_fence_acq_rel()
{
  cpu_fence();
}
static inline void ptx_bar_sync(unsigned threads, CPU_HERE)
{
  cpu_barrier(false, threads, {"bar.sync", file, line});
}
static inline void ptx_prefetch_global_L2(const void *) {}
static inline void ptx_red_relaxed_global_add_u64(void *at, uint64_t v)
{
  __atomic_fetch_add((uint64_t *)at, v, __ATOMIC_RELAXED);
}
static inline void ptx_atom_acquire_global_inc_u32(uint32_t &old, uint32_t *at, uint32_t most)
{
  old = *at; /* blocks of a kernel take turns */
  *at = old >= most ? 0 : old + 1;
}
template <typename T>
static inline void ptx_mov_u64__globaltimer(T &now)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  now = (T)t.tv_sec * 1000000000 + (T)t.tv_nsec;
}

#endif
