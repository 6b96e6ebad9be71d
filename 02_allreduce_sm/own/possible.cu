/* SPDX-License-Identifier: Apache-2.0 */
/* Where the AllReduce is possible: the part of device.h that asks NCCL and the GPUs. */
#include <string.h>

#include "device.h"
#include "errors.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) /* else device_none.cu */
#include <nccl_device.h>

enum allreduce_link allreduce_device_link(int device, const char *id)
{
  int peer = 0, atomics = 0;
  enum allreduce_link link = ALLREDUCE_LINK_UNKNOWN;
  if (cudaDeviceGetByPCIBusId(&peer, id) == cudaSuccess &&
      (peer == device || cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                                   device, peer) == cudaSuccess))
    link = peer == device || atomics ? ALLREDUCE_LINK_NVLINK : ALLREDUCE_LINK_PCIE;
  cudaGetLastError(); /* not for others to find */
  return link;
}

/* V100, A100, H100 to H200, B200. (NCCL uses its own lines of 128 bytes from 7.0 on; this is
 * narrower. Only on H200 has it been tried.) */
static bool keeps_wide_stores(int major, int minor)
{
  return (minor == 0 && (major == 7 || major == 8 || major == 9 || major == 10));
}

const char *allreduce_device_why_not(ncclComm_t comm, int n, const char *ids,
                                     struct allreduce_limits *limits)
{
  int version = 0, device = 0, major = 0, minor = 0, multiprocessors = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (ncclTeamLsa(comm).nRanks != n) return "not all ranks share memory";
  if (ncclCommCuDevice(comm, &device) != ncclSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess)
    return "the GPU cannot be asked for its properties";
  if (major < 7) return "the GPU is older than compute capability 7.0";
  limits->blocks =
      2 * multiprocessors < ALLREDUCE_MAX_BLOCKS ? 2 * multiprocessors : ALLREDUCE_MAX_BLOCKS;
  if (!keeps_wide_stores(major, minor)) limits->wide = 0;
  for (int p = 0; p < n; p++) {
    const enum allreduce_link link = allreduce_device_link(device, ids + (size_t)p * ALLREDUCE_ID);
    if (link == ALLREDUCE_LINK_PCIE) return "a GPU is reached over PCIe";
    if (link == ALLREDUCE_LINK_UNKNOWN) limits->wide = 0;
  }
  return "";
}

#endif
