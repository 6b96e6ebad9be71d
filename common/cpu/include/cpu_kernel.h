/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel that is compiled by g++ calls: see common/cpu/kernel.c, which explains how that
 * works. C and C++. */
#ifndef COMMON_CPU_CPU_KERNEL_H
#define COMMON_CPU_CPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cpu_index {
  unsigned x, y, z;
};

/* What a kernel needs to know of an ncclWindow_t, which points to it: see common/cpu/window.c. */
#define CPU_LSA_STRIDE ((size_t)8 << 30)
struct cpu_window {
  char *base; /* where the memory of rank 0 is seen */
  size_t bytes;
  int nranks, rank;
};

/* A launch. */
struct cpu_grid {
  struct cpu_index blocks, threads; /* gridDim, blockDim */
  size_t shared;                    /* bytes of dynamic shared memory */
  void (*run)(const void *args);    /* what one thread does */
};

/* Where in the source a thread waits, for messages. */
struct cpu_place {
  const char *what, *file;
  int line;
};

/* Of the thread that runs: CUDA's names. */
#define CPU_OWN extern __thread __attribute__((tls_model("initial-exec")))
CPU_OWN struct cpu_index threadIdx, blockIdx, blockDim, gridDim;
CPU_OWN void *cpu_dynamic_shared; /* dynamic shared memory of the block */

/* Runs a kernel, on the thread of a stream. */
void cpu_run_grid(const struct cpu_grid *grid, const void *args);

/* Memory of the block for one declaration with __shared__, which `key` identifies. */
void *cpu_shared(const void *key, size_t bytes);

/* A barrier of all threads of the block (0), or another one of so many (bar.sync 1): returns for
 * how many of them `value` was true. */
unsigned cpu_barrier(bool value, unsigned threads, struct cpu_place place);

/* The threads of a warp in `mask` give a value each, and get those of all. Returns who took part.
 */
uint32_t cpu_exchange(uint32_t mask, uint64_t value, const uint64_t **values,
                      struct cpu_place place);

/* Lets the other threads run. `idle`: this thread waits for something. */
void cpu_yield(bool idle, struct cpu_place place);

/* Loads and stores that other ranks see, and their order. */
void cpu_fence(void);
void cpu_store_u64(void *at, uint64_t value, bool release);
uint64_t cpu_load_u64(const void *at, struct cpu_place place);
void cpu_store_b128(void *at, uint64_t low, uint64_t high);
void cpu_load_b128(uint64_t *low, uint64_t *high, const void *at, struct cpu_place place);
void cpu_before_atomic(const void *at);

/* Like kernel<<<..., stream>>>(args): queues fn with a copy of the `bytes` bytes at `args`. Under
 * stream capture it becomes a node of the graph instead, with that copy as its arguments at every
 * launch. fn runs on the thread of the stream and must not call CUDA or NCCL. */
cudaError_t cpu_launch(cudaStream_t stream, void (*fn)(const void *args), const void *args,
                       size_t bytes);

#ifdef __cplusplus
}
static inline unsigned cpu_thread_number() /* in its block */
{
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
/* The last parameters of what may wait: the place of the call. */
#define CPU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#endif
#endif
