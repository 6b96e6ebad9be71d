/* SPDX-License-Identifier: Apache-2.0 */
/* A .cu file, because nccl_device.h is C++ for nvcc. */
#include "symmetric_support.h"

#include <string.h>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>

/* Creating a device communicator needs symmetric memory and says ncclInvalidUsage without it. The
 * structs of 2.28 changed between its patch releases, so the runtime has to be the headers' own. */
static enum symmetric_support probe_2_28(ncclComm_t comm, int runtime, const char **why)
{
  if (runtime != NCCL_VERSION_CODE) {
    *why = "the runtime is not the version of the headers, so the probe of 2.28 cannot be called";
    return SYMMETRIC_UNKNOWN;
  }
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
#endif

enum symmetric_support symmetric_support(ncclComm_t comm, ncclWindow_t window, const char **why)
{
  int runtime = 0;
  if (window == NULL) {
    *why = "the window is NULL";
    return SYMMETRIC_NO;
  }
  ncclGetVersion(&runtime);
  if (runtime >= NCCL_VERSION(2, 29, 2)) {
    *why = "the window is not NULL, which means support since NCCL 2.29.2";
    return SYMMETRIC_YES;
  }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (runtime >= NCCL_VERSION(2, 28, 0)) return probe_2_28(comm, runtime, why);
#endif
  (void)comm;
  *why = "built with the headers of NCCL 2.27, which have no call that tells";
  return SYMMETRIC_UNKNOWN;
}
