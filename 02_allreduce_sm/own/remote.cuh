/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores that another GPU takes part in. */
#ifndef ALLREDUCE_REMOTE_CUH
#define ALLREDUCE_REMOTE_CUH

#include <stdint.h>

#include "protocol.h"

static __device__ __forceinline__ void store_line(void *at, uint64_t data, uint64_t tag)
{
  asm volatile("{\n\t.reg .b128 line;\n\tmov.b128 line, {%1, %2};\n\t"
               "st.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(at),
               "l"(data), "l"(tag)
               : "memory");
}

static __device__ __forceinline__ struct allreduce_line load_line(const void *at)
{
  struct allreduce_line l;
  asm volatile("{\n\t.reg .b128 line;\n\tld.relaxed.sys.global.b128 line, [%2];\n\t"
               "mov.b128 {%0, %1}, line;\n\t}"
               : "=l"(l.data), "=l"(l.tag)
               : "l"(at)
               : "memory");
  return l;
}

static __device__ __forceinline__ void store_relaxed(void *at, uint64_t value)
{
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ __forceinline__ uint64_t load_relaxed(const void *at)
{
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

/* Everything that this thread has done, and what it has seen of others (its block, after a block
 * barrier), comes before the store. */
static __device__ __forceinline__ void store_release(void *at, uint64_t value)
{
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* What another GPU did before its store_release is visible after a load that sees the value. */
static __device__ __forceinline__ uint64_t load_acquire(const void *at)
{
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#endif
