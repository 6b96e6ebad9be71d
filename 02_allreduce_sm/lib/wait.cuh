/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores that another GPU takes part in; what a kernel is called with, how it begins and
 * ends, waiting with a timeout, and a barrier. */
#ifndef ALLREDUCE_WAIT_CUH
#define ALLREDUCE_WAIT_CUH

#include "internal.h"

/* ---- loads and stores ------------------------------------------------------------------------ */

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

/* ---- arguments ------------------------------------------------------------------------------- */

/* N is an upper bound for the number of ranks, so that the arguments of small jobs stay small and
 * loops over ranks can be unrolled. Addresses are as this rank sees them. */
template <int N>
struct kernel_args {
  const char *send[N]; /* the send buffer of each rank */
  char *recv[N];
  char *scratch[N];
  struct allreduce_state *state; /* of this rank, in device memory */
  struct allreduce_error *error; /* of this rank, in host memory */
  uint64_t limit;                /* nanoseconds to wait for another rank; 0: forever */
  size_t count;                  /* elements */
  struct allreduce_lines lines;  /* of the kind that this call uses; for two-shot nothing ... */
  struct allreduce_slice slice;  /* ... but this (the host divides better than the device) */
  uint32_t check;                /* allreduce_check */
  int rank, n;
};

/* How many ranks: known to the compiler where it matters most. */
template <int N>
static __device__ __forceinline__ int ranks(const kernel_args<N> &a)
{
  return N == 2 ? 2 : a.n;
}

/* The i-th rank from mine on: each begins with another one, or all would store to rank 0 first. */
template <int N>
static __device__ __forceinline__ int nth_peer(const kernel_args<N> &a, int i)
{
  if (N == 2) return a.rank ^ i;
  const int p = a.rank + i;
  return p < ranks(a) ? p : p - ranks(a); /* quicker than % */
}

/* ---- kernels in turn ------------------------------------------------------------------------- */

/* Usually a kernel is launched when all of the one before it in the stream has ended; at 1 KiB that
 * is a sixth of the time of an AllReduce. With programmatic dependent launch (from compute
 * capability 9.0 on; ALLREDUCE_OVERLAPS, for launches) its blocks are already there by then, and it
 * waits itself. Only arguments may be looked at before. All threads of every kernel launched so
 * wait: thus who has waited for it has waited for all before it. In other launches, which include
 * all on older GPUs, there is nothing to wait for. Graphs take such launches from drivers for CUDA
 * 12.3 on; with older ones there are none, as in NCCL. */
#define ALLREDUCE_OVERLAPS 90 /* cudaFuncAttributes.ptxVersion */

template <int N>
static __device__ __forceinline__ void wait_for_kernel_before(const kernel_args<N> &a)
{
#if __CUDA_ARCH__ >= 900
  /* Look at the arguments now, so that their loads overlap with the previous kernel. The branch,
   * which is never taken, keeps the compiler from doing it after the wait. */
  if (a.send[0] == NULL || a.scratch[0] == NULL || a.state == NULL || a.n == 0) __trap();
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Blocks of the next kernel may come when all of this one have got here. That is after the results
 * are stored, because NCCL 2.28.3 to 2.30.4 has kernels that do not wait: it makes it likely that
 * these find them. */
static __device__ __forceinline__ void launch_next_kernel(void)
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- the epoch of the call ------------------------------------------------------------------- */

/* It lives on the device, because a replayed graph has the arguments of its capture. Each block has
 * a copy of its own and counts it on when it ends, so nobody waits for another block to know it.
 * Block 0 counts for the blocks that this launch does not have, because the next one may.
 *
 * Returns the tag of this call, or 0 on a rank that has given up: then nothing may be sent. Its
 * queue runs on, and another rank that comes late would take what it sends for a sign that its
 * buffers are as that call wants them. */
template <int N>
static __device__ __forceinline__ uint64_t begin_call(const kernel_args<N> &a)
{
  uint64_t epoch, broken;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(epoch), "=l"(broken)
               : "l"(&a.state->block[blockIdx.x])
               : "memory");
  return broken ? 0 : allreduce_tag(epoch + 1, a.check);
}

template <int N>
static __device__ __forceinline__ void count_for_others(const kernel_args<N> &a, uint64_t tag)
{
  if (blockIdx.x == 0)
    for (int b = gridDim.x + threadIdx.x; b < ALLREDUCE_MAX_BLOCKS; b += blockDim.x)
      a.state->block[b].epoch = allreduce_epoch(tag);
}

template <int N>
static __device__ __forceinline__ void end_call(const kernel_args<N> &a, uint64_t tag)
{
  __syncthreads(); /* nobody needs the old epoch any more */
  if (threadIdx.x == 0) a.state->block[blockIdx.x].epoch = allreduce_epoch(tag);
}

/* ---- waiting --------------------------------------------------------------------------------- */

template <int N>
static __device__ void report(const kernel_args<N> &a, int kind, int peer)
{
#pragma unroll 1 /* or kernels that call this get fewer registers */
  for (int b = 0; b < ALLREDUCE_MAX_BLOCKS; b++)
    *(volatile uint64_t *)&a.state->block[b].broken = 1;
  if (atomicExch(&a.state->reported, 1) != 0) return; /* the first error stays */
  a.error->peer = peer;
  __threadfence_system();
  *(volatile int *)&a.error->kind = kind;
}

template <int N>
static __device__ __forceinline__ char *flag_of(const kernel_args<N> &a, int owner,
                                                enum allreduce_flag which, int source)
{
  return a.scratch[owner] + allreduce_flag_at(ranks(a), which, blockIdx.x, source);
}

/* A waiting loop: look, and if that was in vain for long, give_up(). */
struct poll_timer {
  uint32_t polls = 0;
  uint64_t since = 0;
  __device__ bool long_wait() /* the clock is slow to read */
  {
    if ((++polls & 255) != 0) return false;
    if (since == 0) since = nanoseconds();
    return true;
  }
};

/* Has another block given up, or is `peer` too late, or in a call with another count, type or place
 * (as its flag BEGUN shows)? Out of line, as all that is rare, and by value, so that nothing has to
 * be kept in local memory: the code of a call without trouble shall be short. */
template <int N>
static __device__ __noinline__ bool give_up(const kernel_args<N> &a, uint64_t tag, poll_timer timer,
                                            int peer)
{
  if (*(volatile uint64_t *)&a.state->block[blockIdx.x].broken) return true;
  const char *begun = a.scratch[a.rank] + allreduce_flag_at(ranks(a), ALLREDUCE_BEGUN, 0, peer);
  const uint64_t theirs = load_relaxed(begun);
  if (allreduce_epoch(theirs) == allreduce_epoch(tag) && theirs != tag)
    report(a, ALLREDUCE_ERROR_COUNT, peer);
  else if (a.limit != 0 && nanoseconds() - timer.since >= a.limit)
    report(a, ALLREDUCE_ERROR_TIMEOUT, peer);
  else
    return false;
  return true;
}

/* ---- a barrier ------------------------------------------------------------------------------- */

/* Waits for a flag of rank p. */
template <int N>
static __device__ __forceinline__ bool await_flag(const kernel_args<N> &a,
                                                  enum allreduce_flag which, uint64_t tag, int p)
{
  const char *theirs = flag_of(a, a.rank, which, p);
  poll_timer timer;
  while (load_relaxed(theirs) != tag)
    if (timer.long_wait() && give_up(a, tag, timer, p)) return false;
  return true;
}

/* Both halves of a barrier, between block b of this rank and blocks b of the others, as that of
 * NCCL's device interface; but they give up: then they return false, to all threads. */

/* Before the first access to a peer's buffers. The flag need not release anything: what this rank's
 * stream has done before the kernel is visible everywhere when the kernel runs. */
template <int N>
static __device__ __forceinline__ bool barrier_before(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  bool met = tag != 0;
  if (met && p < ranks(a) && p != a.rank) {
    store_relaxed(flag_of(a, p, ALLREDUCE_BEGUN, a.rank), tag);
    met = await_flag(a, ALLREDUCE_BEGUN, tag, p);
    load_acquire(flag_of(a, a.rank, ALLREDUCE_BEGUN, p)); /* loads of the peer's data come later */
  }
  return __syncthreads_and(met);
}

/* After the last one. The flag releases what the whole block has read and stored. This kernel does
 * not read what the others have stored, and the next one begins after it; so nothing is acquired.
 */
template <int N>
static __device__ __forceinline__ bool barrier_after(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  bool met = true;
  __syncthreads(); /* the threads below speak for all of the block */
  if (p < ranks(a) && p != a.rank) {
    store_release(flag_of(a, p, ALLREDUCE_ENDED, a.rank), tag);
    met = await_flag(a, ALLREDUCE_ENDED, tag, p);
  }
  return __syncthreads_and(met);
}

#endif
