/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of NCCL's device interface: a communicator for kernels. */
#include <nccl_device.h>
#include <string.h>

#include "internal.h"

ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
  const int most = cpu_settings()->lsa_ranks, n = comm->nranks < most ? comm->nranks : most;
  return (ncclTeam_t){n, comm->rank % n, 1};
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties)
{
  const int n = ncclTeamLsa(comm).nRanks;
  properties->rank = comm->rank;
  properties->nRanks = comm->nranks;
  properties->cudaDev = properties->nvmlDev = comm->device;
  properties->deviceApiSupport = true;
  properties->multimemSupport = false;
  properties->nLsaTeams = (comm->nranks + n - 1) / n;
  return ncclSuccess;
}

/* Barriers use flags in a window: for each barrier one from every rank. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *requirements,
                               ncclDevComm_t *made)
{
  const ncclTeam_t lsa = ncclTeamLsa(comm);
  *made = (ncclDevComm_t){.rank = comm->rank,
                          .nRanks = comm->nranks,
                          .lsaRank = lsa.rank,
                          .lsaSize = lsa.nRanks,
                          .lsaBarrier = {NULL, NULL}};
  if (requirements->lsaBarrierCount == 0) return ncclSuccess;
  const size_t bytes =
      (size_t)requirements->lsaBarrierCount * (size_t)lsa.nRanks * sizeof(uint64_t);
  void *flags = NULL;
  if (cpu_memory_allocate(REGION_DEVICE, true, &flags, bytes) != cudaSuccess)
    return cpu_nccl_error(ncclUnhandledCudaError, "ncclDevCommCreate: no memory for barriers");
  memset(flags, 0, bytes);
  made->lsaBarrier.flags = flags;
  return cpu_window_register(comm, flags, bytes, &made->lsaBarrier.window, NCCL_WIN_COLL_SYMMETRIC);
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *made)
{
  if (made->lsaBarrier.flags == NULL) return ncclSuccess;
  const ncclResult_t result = cpu_window_deregister(comm, made->lsaBarrier.window);
  if (result == ncclSuccess) cpu_memory_free(REGION_DEVICE, made->lsaBarrier.flags);
  return result;
}
