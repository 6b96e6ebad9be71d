/* SPDX-License-Identifier: Apache-2.0 */
#include "bare_push.h"

#include <stdlib.h>

#include "check.h"
#include "lib/push.cuh"

struct bare_push {
  int rank, n, blocks;
  struct device_state *state;
  char *peers[ALLTOALLV_MAX_LSA_RANKS]; /* the windows */
};

template <int N>
struct bare_args {
  char *to[N];
};

template <int N>
static __global__ void __launch_bounds__(512, 1)
    push_bare(const __grid_constant__ kernel_args<N> a, const __grid_constant__ bare_args<N> to)
{
  __shared__ block_state<N> b;
  uint32_t blocks = gridDim.x, warp = threadIdx.x / 32 * blocks + blockIdx.x;
  uint32_t warps = blocks * (blockDim.x / 32);
  if (threadIdx.x < a.n) {
    b.pairs[threadIdx.x] = a.pairs[threadIdx.x];
    b.to[threadIdx.x] = to.to[threadIdx.x];
    b.chunks[threadIdx.x] = chunks_of(a.pairs[threadIdx.x].send_bytes);
    b.pushed[threadIdx.x] = 0;
  }
  __syncthreads();
  struct schedule d = make_schedule(a, b, warps);
  push_tiles(a, b, d, find_tile(a, b, d, warp), warp, warps, threadIdx.x % 32);
}

template <int N>
static void launch(bare_push *push, const void *sendbuff, size_t recv_at, const parts *x,
                   cudaStream_t stream)
{
  kernel_args<N> a = {};
  bare_args<N> to = {};
  a.state = push->state;
  a.rank = push->rank, a.n = push->n;
  a.send = (const char *)sendbuff;
  for (int p = 0; p < push->n; p++) {
    a.pairs[p].send_bytes = x->counts[p] * x->size;
    a.pairs[p].send_offset = x->from[p] * x->size;
    to.to[p] = push->peers[p] + recv_at + x->to[p] * x->size;
  }
  push_bare<N><<<push->blocks, 512, 0, stream>>>(a, to);
  CUDACHECK(cudaGetLastError());
}

void bare_push_call(bare_push *push, const void *sendbuff, size_t recv_at, const parts *x,
                    cudaStream_t stream)
{
  if (push->n <= 8)
    launch<8>(push, sendbuff, recv_at, x, stream);
  else
    launch<ALLTOALLV_MAX_LSA_RANKS>(push, sendbuff, recv_at, x, stream);
}

bare_push *bare_push_create(ncclComm_t comm, alltoallv_t handle, const void *window,
                            const char **why)
{
  bare_push *push = (bare_push *)calloc(1, sizeof *push);
  int reach, device;
  if (!push) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  NCCLCHECK(ncclCommCount(comm, &push->n));
  NCCLCHECK(ncclCommUserRank(comm, &push->rank));
  NCCLCHECK(alltoallv_info(handle, &reach, why));
  if (reach < push->n) {
    free(push);
    return NULL;
  }
  CUDACHECK(cudaGetDevice(&device));
  CUDACHECK(cudaDeviceGetAttribute(&push->blocks, cudaDevAttrMultiProcessorCount, device));
  CUDACHECK(cudaMalloc((void **)&push->state, sizeof *push->state));
  CUDACHECK(cudaMemset(push->state, 0, sizeof *push->state));
  for (int p = 0; p < push->n; p++)
    NCCLCHECK(alltoallv_peer(handle, window, p, (void **)&push->peers[p]));
  cudaFuncAttributes attributes; /* a first launch may wait for a device that waits for us */
  CUDACHECK(cudaFuncGetAttributes(&attributes, push_bare<8>));
  CUDACHECK(cudaFuncGetAttributes(&attributes, push_bare<ALLTOALLV_MAX_LSA_RANKS>));
  return push;
}

void bare_push_destroy(bare_push *push)
{
  CUDACHECK(cudaFree(push->state));
  free(push);
}
