/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels run on the CPU stand-in: what cuda_kernels.h needs of common/cpu/fibers.c.
 *
 * The thread of a stream runs all threads of a kernel, in turns: each is a fiber, which is a stack
 * and a place to continue. A fiber runs until it waits: for other threads of its block or warp, or
 * in a loop that loads the same memory again. */
#ifndef COMMON_CPU_CPU_THREADS_H
#define COMMON_CPU_CPU_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CPU_LSA_STRIDE ((size_t)8 << 30)

#ifdef __cplusplus
extern "C" {
#endif

struct cpu_index {
  unsigned x, y, z;
};

struct cpu_grid {
  struct cpu_index blocks, threads; /* gridDim, blockDim */
  size_t shared;                    /* bytes of dynamic shared memory */
  void (*run)(const void *args);    /* what one thread does */
  const void *args;
};

/* Of the thread that runs: CUDA's names. */
#define CPU_OWN extern __thread __attribute__((tls_model("initial-exec")))
CPU_OWN struct cpu_index threadIdx, blockIdx, blockDim, gridDim;
CPU_OWN void *cpu_dynamic; /* dynamic shared memory of the block */

/* Runs a kernel, on the thread of a stream. */
void cpu_run_grid(const struct cpu_grid *grid);

/* Memory of the block for one declaration with __shared__, which `key` identifies. */
void *cpu_shared(const void *key, size_t bytes);

/* A barrier of the block: returns for how many threads `value` was true. */
unsigned cpu_barrier(bool value);

/* A barrier of some threads of the block, of which there is one more (bar.sync 1). */
void cpu_barrier_of(unsigned threads);

/* The threads of a warp in `mask` give a value each, and get those of all. Returns who took part. */
uint32_t cpu_exchange(uint32_t mask, uint64_t value, const uint64_t **values);

/* Lets the other threads run. `idle`: this thread waits for something. */
void cpu_yield(bool idle);

/* Called before a load that may be one of a loop that waits. */
void cpu_before_load(const void *at);

void cpu_fence(void);
void cpu_store_u64(void *at, uint64_t value, bool release);
uint64_t cpu_load_u64(const void *at);
void cpu_store_b128(void *at, uint64_t low, uint64_t high);
void cpu_load_b128(uint64_t *low, uint64_t *high, const void *at);
uint64_t cpu_nanoseconds(void);

cudaError_t cpu_launch(cudaStream_t stream, void (*fn)(const void *args), const void *args,
                       size_t bytes);
void *cpu_window_pointer(ncclWindow_t window, size_t offset, int peer);

#ifdef __cplusplus
}
#endif
#endif
