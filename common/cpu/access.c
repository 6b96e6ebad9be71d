/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of kernels that other ranks see, with the order that CUDA promises. With RACES=1
 * those of races.c take their place, which promise no more than that. */
#include "kernel.h"

#ifdef __SANITIZE_THREAD__ /* sees no order where CUDA's kernels end and begin, or relaxed stores \
                            */
enum { STORE = __ATOMIC_RELEASE };
#else
enum { STORE = __ATOMIC_RELAXED };
#endif

void cpu_fence(void)
{
  __sync_synchronize();
}

void cpu_store_u64(void *at, uint64_t value, bool release)
{
  __atomic_store_n((uint64_t *)at, value, release ? __ATOMIC_RELEASE : STORE);
}

uint64_t cpu_load_u64(const void *at, struct cpu_place place)
{
  kernel_before_load(at, place);
  return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

/* Whoever sees the second half sees the first: as much as a line needs. */
void cpu_store_b128(void *at, uint64_t low, uint64_t high)
{
  __atomic_store_n((uint64_t *)at, low, STORE);
  __atomic_store_n((uint64_t *)at + 1, high, __ATOMIC_RELEASE);
}

void cpu_load_b128(uint64_t *low, uint64_t *high, const void *at, struct cpu_place place)
{
  kernel_before_load(at, place);
  *high = __atomic_load_n((const uint64_t *)at + 1, __ATOMIC_ACQUIRE);
  *low = __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}
