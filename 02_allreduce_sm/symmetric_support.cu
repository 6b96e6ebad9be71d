/* SPDX-License-Identifier: Apache-2.0 */
/* A .cu file, because nccl_device.h is C++ for nvcc. */
#include "symmetric_support.h"

#include <string.h>
#include <vector>

#include "check.h"
#include "own/device.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

/* Up to 2.29.1: creating a device communicator needs symmetric memory and says ncclInvalidUsage
 * without it. */
static enum symmetric_support probe(ncclComm_t comm, const char **why)
{
  ncclDevCommRequirements requirements;
  ncclDevComm device_comm;
  memset(&requirements, 0, sizeof requirements);
  memset(&device_comm, 0, sizeof device_comm);
  switch (ncclDevCommCreate(comm, &requirements, &device_comm)) {
  case ncclSuccess:
    ncclDevCommDestroy(comm, &device_comm);
    *why = "a device communicator could be created";
    return SYMMETRIC_YES;
  case ncclInvalidUsage:
    *why = "no device communicator can be created: the GPUs do not reach each other's memory";
    return SYMMETRIC_NO;
  default:
    *why = "the probe failed";
    return SYMMETRIC_UNKNOWN;
  }
}

/* From 2.29.2 on: the kernels need NVLink between all GPUs. */
static enum symmetric_support over_nvlink(const struct rank *me, const char *ids, const char **why)
{
  enum symmetric_support answer = SYMMETRIC_YES;
  *why = "all GPUs are joined by NVLink";
  for (int p = 0; p < me->nranks && answer != SYMMETRIC_NO; p++)
    switch (allreduce_device_link(me->device, ids + (size_t)p * ALLREDUCE_ID)) {
    case ALLREDUCE_LINK_PCIE:
      *why = "a GPU is reached over PCIe, where NCCL has had no symmetric kernels since 2.29.2";
      answer = SYMMETRIC_NO;
      break;
    case ALLREDUCE_LINK_UNKNOWN:
      *why = "this process does not see all GPUs, so it cannot tell NVLink from PCIe";
      answer = SYMMETRIC_UNKNOWN;
      break;
    case ALLREDUCE_LINK_NVLINK:
      break;
    }
  return answer;
}

/* With a window that is not NULL. */
static enum symmetric_support ask(const struct rank *me, ncclComm_t comm, int runtime,
                                  const char *ids, const char **why)
{
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) && runtime != NCCL_VERSION_CODE) {
    *why = "the runtime is not the version of the headers, and the calls that tell want that";
    return SYMMETRIC_UNKNOWN;
  }
  if (ncclTeamLsa(comm).nRanks != me->nranks) {
    *why = "not all ranks share memory; between hosts an AllReduce has no symmetric kernel";
    return SYMMETRIC_NO;
  }
  if (runtime < NCCL_VERSION(2, 29, 2)) return probe(comm, why);
  if (runtime < NCCL_VERSION(2, 29, 7)) {
    *why = "NCCL 2.29.2 and 2.29.3 leave some sizes out";
    return SYMMETRIC_UNKNOWN;
  }
  return over_nvlink(me, ids, why);
}
#endif

enum symmetric_support symmetric_support(const struct rank *me, ncclComm_t comm,
                                         ncclDataType_t type, ncclWindow_t window, const char **why)
{
  int runtime = 0;
  char mine[ALLREDUCE_ID] = "";
  std::vector<char> ids(me->nranks * sizeof mine);
  NCCLCHECK(ncclGetVersion(&runtime));
  CUDACHECK(cudaDeviceGetPCIBusId(mine, sizeof mine, me->device));
  launcher_allgather(me, mine, ids.data(), sizeof mine);
  if (window == NULL) {
    *why = "the window is NULL";
    return SYMMETRIC_NO;
  }
  if (!symmetric_kernel_for(type)) {
    *why = "NCCL has none for sums of this type";
    return SYMMETRIC_NO;
  }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  return ask(me, comm, runtime, ids.data(), why);
#else
  (void)comm;
  *why = "built with the headers of NCCL 2.27, which have no call that tells";
  return SYMMETRIC_UNKNOWN;
#endif
}
