/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of NCCL's device interface, and what the examples ask of NVML: which devices are
 * linked. The stand-in is also found as libnvidia-ml.so.1.
 *
 * CPU_STANDIN_LSA_RANKS sets how many ranks share memory (default: all), to simulate several hosts.
 * CPU_STANDIN_PCIE=N: device N is not on NVLink. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct team { /* as in nccl_device.h, which is C++ */
  int ranks, rank, stride;
};
struct device_comm {
  int rank, nranks, lsa_rank, lsa_size;
  int barriers;
  void *memory;
  ncclWindow_t window;
};

struct team ncclTeamLsa(ncclComm_t comm)
{
  const char *set = getenv("CPU_STANDIN_LSA_RANKS");
  const int most = set != NULL ? atoi(set) : comm->nranks;
  const int n = most < 1 ? 1 : most < comm->nranks ? most : comm->nranks;
  return (struct team){n, comm->rank % n, 1};
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const int *lsa_barrier_count,
                               struct device_comm *made)
{
  const struct team lsa = ncclTeamLsa(comm);
  *made = (struct device_comm){comm->rank, comm->nranks, lsa.rank, lsa.ranks,
                               *lsa_barrier_count, NULL, NULL};
  if (made->barriers == 0) return ncclSuccess;
  const size_t bytes = (size_t)made->barriers * (size_t)(lsa.ranks + 1) * sizeof(uint64_t);
  ncclResult_t result = ncclMemAlloc(&made->memory, bytes);
  if (result != ncclSuccess) return result;
  memset(made->memory, 0, bytes);
  return ncclCommWindowRegister(comm, made->memory, bytes, &made->window, NCCL_WIN_COLL_SYMMETRIC);
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const struct device_comm *made)
{
  if (made->memory == NULL) return ncclSuccess;
  const ncclResult_t result = ncclCommWindowDeregister(comm, made->window);
  return result != ncclSuccess ? result : ncclMemFree(made->memory);
}

int nvmlInit_v2(void)
{
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
  *device = (void *)(uintptr_t)strtoul(id + 5, NULL, 16);
  return 0;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int capability, int *status)
{
  const char *pcie = getenv("CPU_STANDIN_PCIE");
  const uintptr_t apart = (uintptr_t)(cpu_settings()->pci_bus + (pcie != NULL ? atoi(pcie) : 0));
  (void)capability;
  *status = pcie != NULL && ((uintptr_t)a == apart || (uintptr_t)b == apart) ? 2 : 0;
  return 0;
}
