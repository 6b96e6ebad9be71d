/* SPDX-License-Identifier: Apache-2.0 */
/* The stores of barrier.cu: this rank's parts go to where the other ranks want them. */
#ifndef STORES_CUH
#define STORES_CUH

#include <nccl_device.h>

#include "alltoallv_simple.h"

enum { THREADS = SIMPLE_THREADS };

struct push_args {
  ncclDevComm dev_comm;
  ncclWindow_t window;
  const char *sendbuff;
  struct {
    size_t from, to, bytes; /* all in bytes */
  } parts[SIMPLE_MAX_RANKS];
};

static inline push_args make_push_args(const exchange *x, const char *send, const char *recv)
{
  const size_t size = x->type->size, recv_at = recv - (char *)x->simple.scratch;
  push_args a = {*(ncclDevComm *)x->simple.dev_comm, x->simple.window, send, {}};
  for (int p = 0; p < x->me->nranks; p++)
    a.parts[p] = {x->sdispls[p] * size, recv_at + x->places[p] * size, x->sendcounts[p] * size};
  return a;
}

/* All threads of the grid, neighbors side by side. Four loads are on their way before the first
 * store waits for one of them. */
template <typename T>
static __device__ void copy_as(char *to, const char *from, size_t bytes)
{
  T *out = (T *)to;
  const T *in = (const T *)from;
  const size_t n = bytes / sizeof(T), step = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const T a = in[i], b = in[i + step], c = in[i + 2 * step], d = in[i + 3 * step];
    out[i] = a, out[i + step] = b, out[i + 2 * step] = c, out[i + 3 * step] = d;
  }
  for (; i < n; i += step) out[i] = in[i];
}

static __device__ void push(const push_args &a)
{
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
}
#endif
