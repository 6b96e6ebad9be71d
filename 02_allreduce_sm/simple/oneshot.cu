/* SPDX-License-Identifier: Apache-2.0 */
/* The idea stands in oneshot.h, in three lines. Read the kernel first: add_between_barriers. What
 * it uses of NCCL's device interface (nccl_device.h):
 *
 *   Lsa                     load/store accessible: in memory that a kernel can load and store
 *   ncclGetLsaPointer       where this rank sees a place in the window of rank p
 *   ncclLsaBarrierSession   a barrier between blocks of different ranks
 *   ncclCoopCta             all threads of this block (CTA) take part in it */
#include "oneshot.h"

#include <stdlib.h>

#include "check.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

enum { BLOCKS = 32, THREADS = 512 };

struct oneshot {
  ncclComm_t comm;
  ncclWindow_t window;
  const float *base;    /* where the window begins in this rank's memory */
  ncclDevComm dev_comm; /* what a kernel knows of the communicator */
};

/* ---- the kernel ------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS)
    add_between_barriers(const __grid_constant__ ncclDevComm dev_comm, ncclWindow_t window,
                         size_t offset, float *recvbuff, size_t count)
{
  /* Block i meets the blocks i of the other ranks. When they are there, these ranks have reached
   * the call: what their streams did before, such as filling the send buffer, is done. */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), dev_comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);

  /* The ranks' memory is mapped here, so an element of another GPU is read as one of our own. All
   * ranks add in the same order, so they get the same bits. */
  for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
    float sum = 0;
    for (int p = 0; p < dev_comm.lsaSize; p++)
      sum += ((const float *)ncclGetLsaPointer(window, offset, p))[i];
    recvbuff[i] = sum;
  }

  /* Nobody leaves before all have read: what comes next on a stream may change the send buffer. */
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

void oneshot_allreduce(oneshot *o, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  const size_t offset = (size_t)(sendbuff - o->base) * sizeof(float);
  add_between_barriers<<<BLOCKS, THREADS, 0, stream>>>(o->dev_comm, o->window, offset, recvbuff,
                                                       count);
  CUDACHECK(cudaGetLastError());
}

/* ---- set up ---------------------------------------------------------------------------------- */

static const char *why_not(ncclComm_t comm)
{
  int version = 0, nranks = 0;
  NCCLCHECK(ncclGetVersion(&version));
  NCCLCHECK(ncclCommCount(comm, &nranks));
  /* 2.28 makes no promise about its device structures, not even between patch releases */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) && version != NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  return ncclTeamLsa(comm).nRanks == nranks ? "" : "not all ranks share memory";
}

oneshot *oneshot_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                        const char **why)
{
  oneshot *o = (oneshot *)calloc(1, sizeof *o);
  if (!o) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  o->comm = comm;
  o->window = window;
  o->base = sendbuffs;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  requirements.lsaBarrierCount = BLOCKS; /* one for each block of the kernel */
  *why = why_not(comm);
  if (!**why) {
    const ncclResult_t made = ncclDevCommCreate(comm, &requirements, &o->dev_comm);
    if (made == ncclInvalidUsage)
      *why = "the communicator has no symmetric memory";
    else
      CHECK_NCCL_RESULT(made, "ncclDevCommCreate", ncclGetLastError(NULL));
  }
  if (**why) {
    free(o);
    return NULL;
  }
  /* with lazy loading a first launch may wait for a device that waits for us: so load it now */
  cudaFuncAttributes attributes;
  CUDACHECK(cudaFuncGetAttributes(&attributes, add_between_barriers));
  return o;
}

void oneshot_destroy(oneshot *o)
{
  NCCLCHECK(ncclDevCommDestroy(o->comm, &o->dev_comm));
  free(o);
}

#else /* no device interface */
oneshot *oneshot_create(ncclComm_t, ncclWindow_t, const float *, const char **why)
{
  *why = "NCCL 2.28 or newer is needed";
  return NULL;
}
void oneshot_destroy(oneshot *) {}
void oneshot_allreduce(oneshot *, const float *, float *, size_t, cudaStream_t) {}
#endif
