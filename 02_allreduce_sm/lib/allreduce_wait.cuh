/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of memory that GPUs share; kernel arguments; how a kernel begins and ends;
 * waiting with a timeout; flags that count. */
#ifndef ALLREDUCE_WAIT_CUH
#define ALLREDUCE_WAIT_CUH

#include "allreduce_internal.h"

/* ---- loads and stores ------------------------------------------------------------------------ */

/* One store and one load of 16 bytes. The memory model of PTX promises that 64 bits are stored at
 * once, not 128. We rely on more: a torn line was never seen on H100 and H200 over NVLink, in all
 * tests and measurements of this suite, which saw no other GPUs. NCCL's LL128 relies on 128 bytes
 * there. */
static __device__ __forceinline__ void store_line(void *at, uint64_t x, uint64_t y)
{
  asm volatile("{\n\t.reg .b128 line;\n\tmov.b128 line, {%1, %2};\n\t"
               "st.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(at),
               "l"(x), "l"(y)
               : "memory");
}

static __device__ __forceinline__ ulonglong2 load_line(const void *at)
{
  ulonglong2 l;
  asm volatile("{\n\t.reg .b128 line;\n\tld.relaxed.sys.global.b128 line, [%2];\n\t"
               "mov.b128 {%0, %1}, line;\n\t}"
               : "=l"(l.x), "=l"(l.y)
               : "l"(at)
               : "memory");
  return l;
}

static __device__ __forceinline__ void store_relaxed(void *at, uint64_t value)
{
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* Everything that this thread has done, or has seen of other threads (of its block after a block
 * barrier), comes before the store. */
static __device__ __forceinline__ void store_release(void *at, uint64_t value)
{
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* After a load that sees the value, everything before that store_release is visible. */
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

/* N is the number of ranks, which the compiler then knows, or ALLREDUCE_MAX_RANKS. Addresses are
 * valid on this rank. What lines need comes first: each 64 bytes of arguments cost a cache miss. */
template <int N>
struct kernel_args {
  const char *send; /* buffers of this rank ... */
  char *recv_here;
  struct allreduce_state *state; /* ... and its state, in device memory */
  size_t count;                  /* elements */
  struct allreduce_lines lines;  /* of this call's method; unused by pushes */
  int rank, n;
  uint32_t check;                /* allreduce_check */
  bool next_waits;               /* the next kernel, if it is launched before this one has ended */
  char *parts_here;              /* where lines of all ranks arrive, in even epochs ... */
  char *part_there[N];           /* ... and those of this rank, at the ranks after it; last, here */
  char *scratch[N];              /* of all ranks */
  char *recv[N];                 /* of all ranks; used by pushes, as is ... */
  struct allreduce_chunks push;  /* ... this (the host divides faster) */
  struct allreduce_error *error; /* of this rank, in host memory */
  uint64_t limit;                /* nanoseconds to wait for another rank; 0: forever */
};

template <int N>
static __device__ __forceinline__ int ranks(const kernel_args<N> &a)
{
  return N < ALLREDUCE_MAX_RANKS ? N : a.n;
}

/* The i-th rank from this one on. So each rank begins with another one, and not all with rank 0. */
template <int N>
static __device__ __forceinline__ int nth_peer(const kernel_args<N> &a, int i)
{
  const int p = a.rank + i;
  return p < ranks(a) ? p : p - ranks(a); /* faster than % */
}

/* ---- kernels in turn ------------------------------------------------------------------------- */

/* Normally a kernel is launched after the previous one in the stream has ended. At 1 KiB this gap
 * costs a sixth of an AllReduce. With programmatic dependent launch (from compute capability 9.0
 * on) the blocks are already there, and the kernel itself waits for the previous one. Before that
 * wait it may read only its arguments. All threads of all such kernels wait, so waiting for the
 * previous kernel means waiting for all earlier ones. Other launches have nothing to wait for. With
 * drivers older than CUDA 12.3, which do not allow this in graphs, all are of that kind. */
#define ALLREDUCE_OVERLAPS 90 /* cudaFuncAttributes.ptxVersion */

template <int N>
static __device__ __forceinline__ void wait_for_kernel_before(const kernel_args<N> &a,
                                                              bool ready = true)
{
#if __CUDA_ARCH__ >= 900
  /* Read the arguments now, so that their loads overlap with the previous kernel. The branch, which
   * is never taken, keeps the compiler from loading them after the wait, and from working out then
   * what `ready` depends on: after the wait each instruction up to the first store counts. */
  if (a.send == NULL || a.part_there[0] == NULL || a.part_there[ranks(a) - 1] == NULL || !ready)
    __trap();
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may be launched when all blocks have reached this call; it then waits for the end
 * of this one, so the sooner the better. But some symmetric kernels of NCCL (see allreduce.h) do
 * not wait. If this NCCL has such kernels, what comes next is launched when this one has ended. */
template <int N>
static __device__ __forceinline__ void launch_next_kernel(const kernel_args<N> &a)
{
#if __CUDA_ARCH__ >= 900
  if (a.next_waits) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- the epoch of the call ------------------------------------------------------------------- */

/* The epoch is in device memory, because a replayed graph has the arguments of its capture. Each
 * block has its own copy, so no block waits for another one to know it. It counts the call while it
 * would wait for other ranks (announce). */
typedef allreduce_state::allreduce_memory memory;

template <int N>
static __device__ __forceinline__ memory load_memory(const kernel_args<N> &a)
{
  const ulonglong2 m = load_line(&a.state->block[blockIdx.x]);
  return {m.x, m.y};
}

/* Returns the tag of this call, or 0 on a rank that has given up: then it must send nothing. Its
 * stream goes on. If it still sent flags, a late rank would believe that this rank's buffers were
 * ready for that call. */
template <int N>
static __device__ __forceinline__ uint64_t begin_call(const kernel_args<N> &a, memory before)
{
  return before.broken ? 0 : allreduce_tag(before.epoch + 1, a.check);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* At a timeout. The first thread that has waited too long marks all blocks as broken (report), and
 * so ends all waits of this rank. Its later calls have tag 0: they send no line, no flag and no
 * sum. The other ranks then miss something, in this call or in the next one, and report a
 * timeout, too. What they have stored for this call may still arrive in scratch memory and, with
 * pushes, in the receive buffer. The handle is never used again, so nobody takes it for later data.
 */

template <int N>
static __device__ void report(const kernel_args<N> &a, int kind, int peer)
{
#pragma unroll 1 /* unrolled, it takes registers from the kernels that call it */
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

/* Counts this call; block 0 does it for the blocks that this launch does not have, too. And block 0
 * tells the other ranks this call, so that a rank that waits sees whether counts differ (give_up).
 * All threads of the block call this. */
template <int N>
static __device__ __forceinline__ void announce(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  __syncthreads(); /* all threads have read the old epoch */
  if (p == 0) a.state->block[blockIdx.x].epoch = allreduce_epoch(tag);
  if (blockIdx.x != 0) return;
  if (tag != 0 && p < ranks(a) && p != a.rank)
    store_relaxed(flag_of(a, p, ALLREDUCE_BEGUN, a.rank), tag);
  for (int b = gridDim.x + threadIdx.x; b < ALLREDUCE_MAX_BLOCKS; b += blockDim.x)
    a.state->block[b].epoch = allreduce_epoch(tag);
}

/* The last call that rank p has announced. */
template <int N>
static __device__ __forceinline__ uint64_t begun(const kernel_args<N> &a, int p)
{
  return load_acquire(a.scratch[a.rank] + allreduce_flag_at(ranks(a), ALLREDUCE_BEGUN, 0, p));
}

/* For a waiting loop: poll, and after a long wait call give_up(). */
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

/* Has another block given up, or is `peer` too late, or in a call with another count, type or
 * place (as its flag BEGUN shows)? To keep the common path short, this function is not inlined,
 * and takes its arguments by value, so that the caller keeps nothing in local memory. */
template <int N>
static __device__ __noinline__ bool give_up(const kernel_args<N> &a, uint64_t tag, poll_timer timer,
                                            int peer)
{
  if (*(volatile uint64_t *)&a.state->block[blockIdx.x].broken) return true;
  const uint64_t theirs = begun(a, peer);
  if (allreduce_epoch(theirs) == allreduce_epoch(tag) && theirs != tag)
    report(a, ALLREDUCE_ERROR_COUNT, peer);
  else if (a.limit != 0 && nanoseconds() - timer.since >= a.limit) {
    for (int p = 0; p < ranks(a); p++) /* the peer may wait for a later one, too */
      if (p != a.rank && allreduce_epoch(begun(a, p)) < allreduce_epoch(tag)) peer = p;
    report(a, ALLREDUCE_ERROR_TIMEOUT, peer);
  } else
    return false;
  return true;
}

/* ---- flags that count chunks ----------------------------------------------------------------- */

/* Tells block b of every other rank. The flag releases all loads and stores of the block. */
template <int N>
static __device__ __forceinline__ void tell_all(const kernel_args<N> &a, enum allreduce_flag which,
                                                uint64_t tag, uint32_t chunks)
{
  const int p = threadIdx.x;
  __syncthreads(); /* the flags are for all threads of the block */
  if (p < ranks(a) && p != a.rank)
    store_release(flag_of(a, p, which, a.rank), allreduce_counted(tag, chunks));
}

/* Waits until block b of every other rank has told so many chunks. What its flag releases is
 * visible afterwards. Returns false, to all threads, if a wait was given up. One thread polls for
 * each rank: if whole blocks did, they would keep others from their work. */
template <int N>
static __device__ __forceinline__ bool await_all(const kernel_args<N> &a, enum allreduce_flag which,
                                                 uint64_t tag, uint32_t chunks)
{
  const int p = threadIdx.x;
  bool come = true;
  if (p < ranks(a) && p != a.rank) {
    const char *theirs = flag_of(a, a.rank, which, p);
    poll_timer timer;
    while (!allreduce_counts(load_acquire(theirs), tag, chunks))
      if (timer.long_wait() && give_up(a, tag, timer, p)) {
        come = false;
        break;
      }
  }
  return __syncthreads_and(come);
}

#endif
