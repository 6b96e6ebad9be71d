/* SPDX-License-Identifier: Apache-2.0 */
#include "barrier.h"

#include <stdlib.h>

#include "check.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

enum { MAX_RANKS = 72, BLOCKS = 64, THREADS = 512 };

struct barrier_push {
  ncclComm_t comm;
  ncclWindow_t window;
  ncclDevComm dev_comm; /* what a kernel knows of the communicator */
  int nranks;
};

/* Of one part, in bytes. */
struct part {
  size_t from, to, bytes;
};

struct push_args {
  ncclDevComm dev_comm;
  ncclWindow_t window;
  const char *sendbuff;
  part parts[MAX_RANKS];
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* All threads of the grid together. 16 bytes at a time where both addresses allow it; four loads
 * on their way before the first store waits for one. */
static __device__ void copy(char *to, const char *from, size_t bytes)
{
  const size_t step = (size_t)gridDim.x * THREADS;
  const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
  size_t done = 0;
  if (((size_t)to | (size_t)from) % 16 == 0) {
    const size_t n = bytes / 16;
    uint4 *wide_to = (uint4 *)to;
    const uint4 *wide_from = (const uint4 *)from;
    size_t i = me;
    for (; i + 3 * step < n; i += 4 * step) {
      const uint4 a = wide_from[i], b = wide_from[i + step];
      const uint4 c = wide_from[i + 2 * step], d = wide_from[i + 3 * step];
      wide_to[i] = a, wide_to[i + step] = b;
      wide_to[i + 2 * step] = c, wide_to[i + 3 * step] = d;
    }
    for (; i < n; i += step) wide_to[i] = wide_from[i];
    done = n * 16;
  }
  for (size_t i = done + me; i < bytes; i += step) to[i] = from[i];
}

static __global__ void __launch_bounds__(THREADS) push_between_barriers(push_args a)
{
  /* block i meets the blocks i of the other ranks; together these are a barrier of all */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), a.dev_comm, ncclTeamTagLsa(),
                                             blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);

  /* each rank begins with another peer, or all would store into rank 0 first */
  for (int i = 0; i < a.dev_comm.lsaSize; i++) {
    const int p = (a.dev_comm.lsaRank + i) % a.dev_comm.lsaSize;
    char *to = (char *)ncclGetLsaPointer(a.window, a.parts[p].to, p);
    copy(to, a.sendbuff + a.parts[p].from, a.parts[p].bytes);
  }

  /* release: what was stored before is visible to whoever comes out of the barrier */
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

void barrier_alltoallv(barrier_push *push, const void *sendbuff, size_t recv_at,
                       barrier_parts parts, cudaStream_t stream)
{
  push_args a = {push->dev_comm, push->window, (const char *)sendbuff, {}};
  for (int p = 0; p < push->nranks; p++)
    a.parts[p] = part{parts.from[p] * parts.size, recv_at + parts.to[p] * parts.size,
                      parts.counts[p] * parts.size};
  push_between_barriers<<<BLOCKS, THREADS, 0, stream>>>(a);
  CUDACHECK(cudaGetLastError());
}

/* ---- set up ---------------------------------------------------------------------------------- */

barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why)
{
  int version = 0, nranks = 0;
  NCCLCHECK(ncclGetVersion(&version));
  NCCLCHECK(ncclCommCount(comm, &nranks));
  *why = "";
  /* 2.28 makes no promise about its device structures, not even between patch releases */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) && version != NCCL_VERSION_CODE)
    *why = "NCCL at run time is not the version of the headers";
  else if (ncclTeamLsa(comm).nRanks != nranks || nranks > MAX_RANKS)
    *why = "not all ranks share memory";
  if (**why) return NULL;

  barrier_push *push = (barrier_push *)calloc(1, sizeof *push);
  if (!push) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  push->comm = comm;
  push->nranks = nranks;
  NCCLCHECK(ncclCommWindowRegister(comm, window, bytes, &push->window, NCCL_WIN_COLL_SYMMETRIC));
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  requirements.lsaBarrierCount = BLOCKS;
  NCCLCHECK(ncclDevCommCreate(comm, &requirements, &push->dev_comm));
  /* with lazy loading a first launch may wait for a device that waits for us: so load it now */
  cudaFuncAttributes attributes;
  CUDACHECK(cudaFuncGetAttributes(&attributes, push_between_barriers));
  return push;
}

void barrier_destroy(barrier_push *push)
{
  NCCLCHECK(ncclDevCommDestroy(push->comm, &push->dev_comm));
  NCCLCHECK(ncclCommWindowDeregister(push->comm, push->window));
  free(push);
}

#else /* no device interface */
barrier_push *barrier_create(ncclComm_t, void *, size_t, const char **why)
{
  *why = "NCCL 2.28 or newer is needed";
  return NULL;
}
void barrier_destroy(barrier_push *) {}
void barrier_alltoallv(barrier_push *, const void *, size_t, barrier_parts, cudaStream_t) {}
#endif
