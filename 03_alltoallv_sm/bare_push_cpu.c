/* SPDX-License-Identifier: Apache-2.0 */
#include "bare_push.h"

struct bare_push *bare_push_create(ncclComm_t comm, alltoallv_t handle, const void *window,
                                   const char **why)
{
  (void)comm, (void)handle, (void)window;
  *why = "the stand-in has no kernel";
  return NULL;
}
void bare_push_call(struct bare_push *push, const void *sendbuff, size_t recv_at,
                    const struct parts *x, cudaStream_t stream)
{
  (void)push, (void)sendbuff, (void)recv_at, (void)x, (void)stream;
}
void bare_push_destroy(struct bare_push *push)
{
  (void)push;
}
