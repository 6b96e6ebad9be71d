/* SPDX-License-Identifier: Apache-2.0 */
/* Lines, and loads and stores that another GPU takes part in.
 *
 * A line is 16 bytes: three words of data and the number of the call. It is written by one 128-bit
 * store and read by one 128-bit load, which PTX makes single accesses for the scalar type b128. So
 * a reader that finds the number of its call has the data too, after one trip over the link; data
 * and flag in two stores would need a fence between them, which costs a round trip. */
#ifndef ALLTOALLV_LINE_CUH
#define ALLTOALLV_LINE_CUH

#include <stdint.h>

/* 128-bit scalar accesses came with PTX 8.3. A vector store is not promised to stay whole. */
#if __CUDACC_VER_MAJOR__ < 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 3)
#error "the AlltoAllV needs nvcc of CUDA 12.3 or newer, for stores of 128 bits"
#endif

struct line {
  uint32_t word[3];
  uint32_t call;
};

static __device__ __forceinline__ uint64_t pack(uint32_t low, uint32_t high)
{
  return (uint64_t)high << 32 | low;
}

static __device__ __forceinline__ void store_line(void *at, uint32_t a, uint32_t b, uint32_t c,
                                                  uint32_t call)
{
  uint64_t low = pack(a, b), high = pack(c, call);
  asm volatile("{\n\t.reg .b128 line;\n\tmov.b128 line, {%1, %2};\n\t"
               "st.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(at),
               "l"(low), "l"(high)
               : "memory");
}

static __device__ __forceinline__ line load_line(const void *at)
{
  uint64_t low, high;
  asm volatile("{\n\t.reg .b128 line;\n\tld.relaxed.sys.global.b128 line, [%2];\n\t"
               "mov.b128 {%0, %1}, line;\n\t}"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
  line l;
  l.word[0] = (uint32_t)low;
  l.word[1] = (uint32_t)(low >> 32);
  l.word[2] = (uint32_t)high;
  l.call = (uint32_t)(high >> 32);
  return l;
}

/* Adds to a counter on another GPU, after all that this thread, and through the block barrier
 * before it the whole block, has written there. */
static __device__ __forceinline__ void add_release(uint64_t *counter, uint64_t value)
{
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

/* What another GPU wrote before its add_release is visible after a load that sees the sum. */
static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *counter)
{
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#endif
