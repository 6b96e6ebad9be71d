/* SPDX-License-Identifier: Apache-2.0 */
/* Where the AllReduce is possible: the part of device.h that asks NCCL and the GPUs. */
#include <dlfcn.h>
#include <string.h>

#include "device.h"
#include "errors.h"

#if ALLREDUCE_HAS_DEVICE_CODE /* else device_none.cu */
#include <nccl_device.h>

/* A process may see its own GPU only (CUDA_VISIBLE_DEVICES), as Slurm's tasks do. NVML, which NCCL
 * needs as well, sees all of the host, whatever CUDA does. */
static enum allreduce_link link_by_nvml(const char *mine, const char *theirs)
{
  enum { NVLINK = 2, OK = 0 }; /* NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK */
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  void *a = NULL, *b = NULL;
  int status = -1;
  if (nvml == NULL) return ALLREDUCE_LINK_UNKNOWN;
  int (*const init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  int (*const handle)(const char *, void **) =
      (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  int (*const p2p)(void *, void *, int, int *) =
      (int (*)(void *, void *, int, int *))dlsym(nvml, "nvmlDeviceGetP2PStatus");
  const bool known = init != NULL && handle != NULL && p2p != NULL && init() == 0 &&
                     handle(mine, &a) == 0 && handle(theirs, &b) == 0 &&
                     p2p(a, b, NVLINK, &status) == 0;
  if (!known) return ALLREDUCE_LINK_UNKNOWN;
  return status == OK ? ALLREDUCE_LINK_NVLINK : ALLREDUCE_LINK_PCIE;
}

enum allreduce_link allreduce_device_link(int device, const char *id)
{
  int peer = 0, atomics = 0;
  char mine[ALLREDUCE_ID] = "";
  enum allreduce_link link = ALLREDUCE_LINK_UNKNOWN;
  if (cudaDeviceGetByPCIBusId(&peer, id) == cudaSuccess &&
      (peer == device || cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                                   device, peer) == cudaSuccess))
    link = peer == device || atomics ? ALLREDUCE_LINK_NVLINK : ALLREDUCE_LINK_PCIE;
  else if (cudaDeviceGetPCIBusId(mine, sizeof mine, device) == cudaSuccess)
    link = link_by_nvml(mine, id);
  cudaGetLastError(); /* not for others to find */
  return link;
}

/* V100, A100, and all from H100 on. (NCCL uses its own lines of 128 bytes from 7.0 on; this is
 * narrower. Only on H200 has it been tried.) */
static bool keeps_wide_stores(int major, int minor)
{
  return major >= 9 || (major >= 7 && minor == 0);
}

const char *allreduce_device_why_not(ncclComm_t comm, int n, const char *ids,
                                     struct allreduce_limits *limits)
{
  int version = 0, device = 0, major = 0, minor = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (ncclTeamLsa(comm).nRanks != n) return "not all ranks share memory";
  if (ncclCommCuDevice(comm, &device) != ncclSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return "the GPU cannot be asked for its properties";
  if (major < 7) return "the GPU is older than compute capability 7.0";
  if (!keeps_wide_stores(major, minor)) limits->wide = 0;
  for (int p = 0; p < n; p++) {
    const enum allreduce_link link = allreduce_device_link(device, ids + (size_t)p * ALLREDUCE_ID);
    if (link == ALLREDUCE_LINK_PCIE) return "a GPU is reached over PCIe";
    if (link == ALLREDUCE_LINK_UNKNOWN) limits->wide = 0;
  }
  return "";
}

#endif
