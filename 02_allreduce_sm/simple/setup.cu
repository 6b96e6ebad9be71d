/* SPDX-License-Identifier: Apache-2.0 */
/* Sets up what barrier.cu and lines.cu need. */
#include "allreduce_simple.h"

#include <stdlib.h>

#include "check.h"

/* Returns "", or the reason why kernels cannot reach the memory of the other ranks. */
static const char *make_dev_comm(struct simple *s)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  int version = 0;
  NCCLCHECK(ncclGetVersion(&version));
  /* 2.28 makes no promise about its device structures, not even between patch releases */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) && version != NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (ncclTeamLsa(s->comm).nRanks != s->n) return "not all ranks share memory";
  requirements.lsaBarrierCount = s->blocks; /* one for each block of the kernel */
  const ncclResult_t made = ncclDevCommCreate(s->comm, &requirements, &s->dev_comm);
  if (made == ncclInvalidUsage) return "the communicator has no symmetric memory";
  CHECK_NCCL_RESULT(made, "ncclDevCommCreate", ncclGetLastError(NULL));
  return "";
}

simple *simple_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                      const char **why)
{
  simple *s = (simple *)calloc(1, sizeof *s);
  if (!s) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  s->comm = comm;
  s->window = window;
  s->base = sendbuffs;
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  NCCLCHECK(ncclCommCount(comm, &s->n));
  int device;
  CUDACHECK(cudaGetDevice(&device));
  CUDACHECK(cudaDeviceGetAttribute(&s->blocks, cudaDevAttrMultiProcessorCount, device));
  if (s->blocks > MAX_BLOCKS) s->blocks = MAX_BLOCKS;
  *why = make_dev_comm(s);
  if (**why) {
    free(s);
    return NULL;
  }
  const size_t bytes = 2 * s->n * ROOM * sizeof(line); /* two halves */
  NCCLCHECK(ncclMemAlloc((void **)&s->scratch, bytes));
  CUDACHECK(cudaMalloc((void **)&s->epochs, s->blocks * sizeof *s->epochs));
  CUDACHECK(cudaMemset(s->scratch, 0, bytes));
  CUDACHECK(cudaMemset(s->epochs, 0, s->blocks * sizeof *s->epochs));
  CUDACHECK(cudaDeviceSynchronize()); /* before a peer can reach it */
  NCCLCHECK(
      ncclCommWindowRegister(comm, s->scratch, bytes, &s->scratch_window, NCCL_WIN_COLL_SYMMETRIC));
  /* load them now: see barrier.cu */
  cudaFuncAttributes attributes;
  CUDACHECK(cudaFuncGetAttributes(&attributes, add_between_barriers));
  CUDACHECK(cudaFuncGetAttributes(&attributes, add_lines));
  s->threads = attributes.maxThreadsPerBlock; /* of both, which have the same bounds */
  return s;
}

void simple_destroy(simple *s)
{
  NCCLCHECK(ncclCommWindowDeregister(s->comm, s->scratch_window));
  NCCLCHECK(ncclMemFree(s->scratch));
  CUDACHECK(cudaFree(s->epochs));
  NCCLCHECK(ncclDevCommDestroy(s->comm, &s->dev_comm));
  free(s);
}
