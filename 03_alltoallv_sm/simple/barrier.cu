/* SPDX-License-Identifier: Apache-2.0 */
/* The second AlltoAllV: a kernel that stores straight into the receive buffers of the other ranks,
 * between two barriers.
 *
 *   barrier          all ranks have reached the exchange, so their receive buffers may be written
 *   store            this rank's part for rank p to where rank p wants it
 *   barrier          all ranks have stored, so this rank's receive buffer is complete
 *
 * A rank has to know where each peer wants its part. Who calls has gathered that before, so this is
 * for counts that repeat. */
#include <stdlib.h>

#include <nccl_device.h>

#include "check.h"
#include "simple.h"

enum { BLOCKS = 64, THREADS = 512 };

struct barrier_push {
  ncclComm_t comm;
  ncclWindow_t window;
  ncclDevComm dev_comm; /* what a kernel knows of the communicator */
  int nranks;
};

struct push_args {
  bool barriers;
  ncclDevComm dev_comm;
  ncclWindow_t window;
  const char *sendbuff;
  struct {
    size_t from, to, bytes; /* all in bytes */
  } parts[SIMPLE_MAX_RANKS];
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* All threads of the grid copy together, neighbours side by side. Four loads are on their way
 * before the first store waits for one of them. */
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
  /* Block i meets the blocks i of the other ranks. When they are there, these ranks have reached
   * the exchange: what their streams did with the receive buffers before is done. */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), a.dev_comm, ncclTeamTagLsa(),
                                             blockIdx.x);
  if (a.barriers) barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);

  /* each rank begins with another peer, or all would store into rank 0 first */
  for (int i = 0; i < a.dev_comm.lsaSize; i++) {
    const int p = (a.dev_comm.lsaRank + i) % a.dev_comm.lsaSize;
    const size_t bytes = a.parts[p].bytes;
    const char *from = a.sendbuff + a.parts[p].from;
    char *to = (char *)ncclGetLsaPointer(a.window, a.parts[p].to, p);
    /* A multiple of 16 has zeros in its lowest 4 bits. The OR of the three has them if all have. */
    const size_t any_bits = (size_t)to | (size_t)from | bytes;
    if (any_bits % 16 == 0)
      copy_as<uint4>(to, from, bytes);
    else if (any_bits % 4 == 0)
      copy_as<uint32_t>(to, from, bytes);
    else
      copy_as<char>(to, from, bytes);
  }

  /* Release: what was stored before it has arrived when the peer comes out of this barrier. The
   * kernel ends when all its blocks have met theirs, so then everything from everybody is here, for
   * whatever comes next on the stream. To read it in this kernel would take acq_rel. */
  if (a.barriers) barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

static void launch(barrier_push *push, bool barriers, const void *sendbuff, size_t recv_at,
                   const parts *x, cudaStream_t stream)
{
  push_args a = {barriers, push->dev_comm, push->window, (const char *)sendbuff, {}};
  for (int p = 0; p < push->nranks; p++)
    a.parts[p] = {x->from[p] * x->size, recv_at + x->to[p] * x->size, x->counts[p] * x->size};
  push_between_barriers<<<BLOCKS, THREADS, 0, stream>>>(a);
  CUDACHECK(cudaGetLastError());
}

void barrier_alltoallv(barrier_push *push, const void *sendbuff, size_t recv_at, const parts *x,
                       cudaStream_t stream)
{
  launch(push, true, sendbuff, recv_at, x, stream);
}

void barrier_bare_push(barrier_push *push, const void *sendbuff, size_t recv_at, const parts *x,
                       cudaStream_t stream)
{
  launch(push, false, sendbuff, recv_at, x, stream);
}

/* ---- set up ---------------------------------------------------------------------------------- */

const char *simple_why_not(ncclComm_t comm, int nranks)
{
  int version = 0;
  NCCLCHECK(ncclGetVersion(&version));
  /* 2.28 makes no promise about its device structures, not even between patch releases */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) && version != NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (nranks > SIMPLE_MAX_RANKS || ncclTeamLsa(comm).nRanks != nranks)
    return "not all ranks share memory";
  return "";
}

barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why)
{
  barrier_push *push = (barrier_push *)calloc(1, sizeof *push);
  if (!push) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  push->comm = comm;
  NCCLCHECK(ncclCommCount(comm, &push->nranks));
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  requirements.lsaBarrierCount = BLOCKS;
  *why = simple_why_not(comm, push->nranks);
  if (!**why) {
    const ncclResult_t made = ncclDevCommCreate(comm, &requirements, &push->dev_comm);
    if (made == ncclInvalidUsage)
      *why = "the communicator has no symmetric memory";
    else
      CHECK_NCCL_RESULT(made, "ncclDevCommCreate", ncclGetLastError(NULL));
  }
  if (**why) {
    free(push);
    return NULL;
  }
  NCCLCHECK(ncclCommWindowRegister(comm, window, bytes, &push->window, NCCL_WIN_COLL_SYMMETRIC));
  /* with lazy loading a first launch may wait for a device that waits for us: so load it now */
  cudaFuncAttributes attributes;
  CUDACHECK(cudaFuncGetAttributes(&attributes, push_between_barriers));
  return push;
}

void barrier_destroy(barrier_push *push)
{
  NCCLCHECK(ncclCommWindowDeregister(push->comm, push->window));
  NCCLCHECK(ncclDevCommDestroy(push->comm, &push->dev_comm));
  free(push);
}
