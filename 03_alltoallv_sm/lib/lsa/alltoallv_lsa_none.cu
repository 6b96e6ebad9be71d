/* SPDX-License-Identifier: Apache-2.0 */
/* The back end with NCCL before 2.28, which has no device interface: alltoallv_lsa_ranks says 0, so
 * nobody calls the rest. */
#include "alltoallv_lsa.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)

int alltoallv_lsa_ranks(ncclComm_t, const char **why)
{
  *why = "built with NCCL headers older than 2.28";
  return 0;
}
ncclResult_t alltoallv_lsa_create(ncclComm_t, const struct alltoallv_lsa_config *,
                                  struct alltoallv_lsa **)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_connect(struct alltoallv_lsa *)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_destroy(struct alltoallv_lsa *)
{
  return ncclInvalidUsage;
}
struct alltoallv_errors *alltoallv_lsa_errors(struct alltoallv_lsa *)
{
  return NULL;
}
ncclResult_t alltoallv_lsa_register(struct alltoallv_lsa *, int, void *, size_t, void **)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_unregister(struct alltoallv_lsa *, int)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *, const struct alltoallv_request *,
                                  cudaStream_t)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_bare_push(struct alltoallv_lsa *, const struct alltoallv_request *,
                                     void *const *, cudaStream_t)
{
  return ncclInvalidUsage;
}
ncclResult_t alltoallv_lsa_flags(struct alltoallv_lsa *, enum alltoallv_flag, const bool *,
                                 const bool *, uint32_t, cudaStream_t)
{
  return ncclInvalidUsage;
}

#endif
