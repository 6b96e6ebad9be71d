/* SPDX-License-Identifier: Apache-2.0 */
/* The third AlltoAllV: no barrier at all. Every 8 bytes of data travel together with the number of
 * the exchange, the epoch, as one store of 16 bytes, a line, into scratch memory of the receiver.
 * A receiver that sees the epoch sees the data.
 *
 *   send      lines to all peers: first how many bytes come, then the bytes
 *   receive   look at this rank's scratch memory until each line has this epoch, and copy it out
 *
 * What still lies there from an earlier epoch? Epochs alternate between two halves. In e I
 * overwrite what I sent you in e - 2. (1) I have finished e - 1, so your line of e - 1 has come:
 * all peers send at least one. (2) So you had begun e - 1. (3) So you had finished e - 2, and read
 * it.
 *
 * NCCL's kernels do the same below some sizes ("LL"); ncclLLA2ASession of nccl_device.h is this for
 * your own kernels. The library (lib/alltoallv_lines.cuh) has 16 bytes of data in 16, and
 * timeouts. */
#include <nccl_device.h>

#include "alltoallv_simple.h"

enum { THREADS = SIMPLE_THREADS };

struct line_args {
  ncclWindow_t window;
  scratch *own;
  int rank, n;
  struct {
    const char *from;
    char *into;
    size_t bytes; /* to rank p; those from it say how many they are */
  } parts[SIMPLE_MAX_RANKS];
};

/* On every GPU tried, 128 bits are stored and loaded as one: see lib/alltoallv_wait.cuh. */
static __device__ void store_line(line *at, uint64_t data, uint64_t epoch)
{
  asm volatile(
      "{ .reg .b128 l; mov.b128 l, {%1, %2}; st.relaxed.sys.global.b128 [%0], l; }" ::"l"(at),
      "l"(data), "l"(epoch)
      : "memory");
}

static __device__ uint64_t await_line(const line *at, uint64_t epoch)
{
  line l;
  do
    asm volatile("{ .reg .b128 l; ld.relaxed.sys.global.b128 l, [%2]; mov.b128 {%0, %1}, l; }"
                 : "=l"(l.data), "=l"(l.epoch)
                 : "l"(at)
                 : "memory");
  while (l.epoch != epoch);
  return l.data;
}

/* 8 bytes, or `left` if these are fewer, of any alignment. */
static __device__ void copy(void *to, const void *from, size_t left)
{
  if (left >= 8 && ((uintptr_t)to | (uintptr_t)from) % 8 == 0)
    *(uint64_t *)to = *(const uint64_t *)from;
  else
    for (int i = 0; i < 8; i++)
      if (i < left) ((char *)to)[i] = ((const char *)from)[i];
}

static __global__ void __launch_bounds__(THREADS)
    exchange_lines(const __grid_constant__ line_args a)
{
  const uint64_t epoch = a.own->epochs[blockIdx.x] + 1;
  const size_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (int i = 0; i < a.n; i++) { /* to myself, too: shorter */
    const int p = (a.rank + i) % a.n;
    line *lines = ((scratch *)ncclGetLsaPointer(a.window, 0, p))->lines;
    lines += ((epoch & 1) * a.n + a.rank) * SIMPLE_LINES;
    const size_t bytes = a.parts[p].bytes;
    if (first == 0) store_line(lines, bytes, epoch);
    for (size_t w = first; w * 8 < bytes; w += step) {
      uint64_t data = 0;
      copy(&data, a.parts[p].from + w * 8, bytes - w * 8);
      store_line(lines + 1 + w, data, epoch);
    }
  }
  for (int i = 0; i < a.n; i++) {
    const int p = (a.rank + a.n - i) % a.n;
    const line *lines = a.own->lines + ((epoch & 1) * a.n + p) * SIMPLE_LINES;
    /* by all threads: none leaves before p has begun */
    const size_t bytes = await_line(lines, epoch);
    for (size_t w = first; w * 8 < bytes; w += step) {
      const uint64_t data = await_line(lines + 1 + w, epoch);
      copy(a.parts[p].into + w * 8, &data, bytes - w * 8);
    }
  }
  __syncthreads(); /* all threads have the epoch */
  if (threadIdx.x == 0) a.own->epochs[blockIdx.x] = epoch;
}

extern "C" const void *const lines_kernel = (const void *)exchange_lines;

/* Parts that are larger than the scratch memory go in several exchanges, as many on all ranks. */
void lines_call(const exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  const size_t size = x->type->size, room = 8 * (SIMPLE_LINES - 1);
  const int blocks = (x->simple.blocks + 1) / 2; /* more would not be faster */
  for (size_t at = 0; at == 0 || at < x->largest * size; at += room) {
    line_args a = {x->simple.window, x->simple.scratch, x->me->rank, x->me->nranks, {}};
    for (int p = 0; p < a.n; p++) {
      const size_t bytes = x->sendcounts[p] * size, left = bytes > at ? bytes - at : 0;
      a.parts[p] = {send + x->sdispls[p] * size + at, recv + x->rdispls[p] * size + at,
                    left < room ? left : room};
    }
    exchange_lines<<<blocks, x->simple.threads, 0, stream>>>(a);
    CUDACHECK(cudaGetLastError());
  }
}
