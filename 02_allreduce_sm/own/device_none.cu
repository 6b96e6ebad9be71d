/* SPDX-License-Identifier: Apache-2.0 */
/* With older versions of NCCL and CUDA: allreduce_device_why_not says so, and nobody calls the
 * rest.
 */
#include "device.h"

#if !ALLREDUCE_HAS_DEVICE_CODE

const char *allreduce_device_why_not(ncclComm_t, int, const char *, struct allreduce_limits *)
{
  return "built with NCCL older than 2.28 or CUDA older than 12.3";
}
ncclResult_t allreduce_device_create(ncclComm_t, int, int, const allreduce_config_t *,
                                     struct allreduce_limits *, struct allreduce_device **)
{
  return ncclInvalidUsage;
}
ncclResult_t allreduce_device_destroy(struct allreduce_device *)
{
  return ncclInvalidUsage;
}
ncclResult_t allreduce_device_connect(struct allreduce_device *)
{
  return ncclInvalidUsage;
}
ncclResult_t allreduce_device_peers(struct allreduce_device *, ncclWindow_t, char **)
{
  return ncclInvalidUsage;
}
ncclResult_t allreduce_device_launch(struct allreduce_device *, const struct allreduce_call *,
                                     cudaStream_t)
{
  return ncclInvalidUsage;
}
struct allreduce_error *allreduce_device_error(struct allreduce_device *)
{
  return NULL;
}

#endif
