/* SPDX-License-Identifier: Apache-2.0 */
/* The second AlltoAllV: a kernel that stores straight into the receive buffers of the other ranks,
 * between two barriers.
 *
 *   barrier   all ranks have reached the exchange, so their receive buffers may be written
 *   store     this rank's part for rank p to where rank p wants it: the caller has asked before
 *   barrier   all ranks have stored, so this rank's receive buffer is complete */
#include <nccl_device.h>

#include "alltoallv_simple.h"

enum { THREADS = SIMPLE_THREADS };

struct push_args {
  bool barriers;
  ncclDevComm dev_comm;
  ncclWindow_t window;
  const char *sendbuff;
  struct {
    size_t from, to, bytes; /* all in bytes */
  } parts[SIMPLE_MAX_RANKS];
};

/* All threads of the grid, neighbors side by side. Four loads are on their way before the first
 * store waits for one of them. */
template <typename T>
static __device__ void copy_as(char *to, const char *from, size_t bytes)
{
  T *out = (T *)to;
  const T *in = (const T *)from;
  const size_t n = bytes / sizeof(T), step = (size_t)gridDim.x * THREADS;
  size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const T a = in[i], b = in[i + step], c = in[i + 2 * step], d = in[i + 3 * step];
    out[i] = a, out[i + step] = b, out[i + 2 * step] = c, out[i + 3 * step] = d;
  }
  for (; i < n; i += step) out[i] = in[i];
}

static __global__ void __launch_bounds__(THREADS)
    push_between_barriers(const __grid_constant__ push_args a)
{
  /* Block i meets the blocks i of the other ranks. When they are there, what their streams did with
   * the receive buffers before is done. */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), a.dev_comm, ncclTeamTagLsa(),
                                             blockIdx.x);
  if (a.barriers) barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);

  /* rank + 1 first, or all would store into rank 0; the own part, which needs no link, last */
  for (int i = 1; i <= a.dev_comm.lsaSize; i++) {
    const int p = (a.dev_comm.lsaRank + i) % a.dev_comm.lsaSize;
    const size_t bytes = a.parts[p].bytes;
    const char *from = a.sendbuff + a.parts[p].from;
    char *to = (char *)ncclGetLsaPointer(a.window, a.parts[p].to, p);
    /* If all three are multiples of 16, the OR ends in four zero bits. */
    const size_t any_bits = (size_t)to | (size_t)from | bytes;
    if (any_bits % 16 == 0)
      copy_as<uint4>(to, from, bytes);
    else if (any_bits % 4 == 0)
      copy_as<uint32_t>(to, from, bytes);
    else
      copy_as<char>(to, from, bytes);
  }

  /* Release: what was stored before it has arrived when the peer comes out of this barrier. So all
   * data have when the kernel ends. To read them in this kernel would take acq_rel. */
  if (a.barriers) barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

extern "C" const void *const barrier_kernel = (const void *)push_between_barriers;

static void push(const exchange *x, bool barriers, const char *send, char *recv,
                 cudaStream_t stream)
{
  const size_t size = x->type->size, recv_at = recv - (char *)x->simple.scratch;
  push_args a = {barriers, *(ncclDevComm *)x->simple.dev_comm, x->simple.registered, send, {}};
  for (int p = 0; p < x->me->nranks; p++)
    a.parts[p] = {x->sdispls[p] * size, recv_at + x->places[p] * size, x->sendcounts[p] * size};
  push_between_barriers<<<SIMPLE_BLOCKS, THREADS, 0, stream>>>(a);
  CUDACHECK(cudaGetLastError());
}

void barrier_call(const exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  push(x, true, send, recv, stream);
}

void bare_push_call(const exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  push(x, false, send, recv, stream);
}
