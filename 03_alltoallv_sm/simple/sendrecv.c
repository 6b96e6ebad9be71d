/* SPDX-License-Identifier: Apache-2.0 */
/* The first AlltoAllV, as it is usually written: one send and one receive per peer, in a group so
 * that they run at the same time. A pair without elements is skipped, on both sides: a send without
 * its receive would hang. */
#include "alltoallv_simple.h"

void sendrecv_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  const ncclDataType_t type = x->type->nccl;
  const size_t size = x->type->size;
  NCCLCHECK(ncclGroupStart());
  for (int peer = 0; peer < x->me->nranks; peer++) {
    if (x->sendcounts[peer] > 0)
      NCCLCHECK(ncclSend(send + x->sdispls[peer] * size, x->sendcounts[peer], type, peer, x->comm,
                         stream));
    if (x->recvcounts[peer] > 0)
      NCCLCHECK(ncclRecv(recv + x->rdispls[peer] * size, x->recvcounts[peer], type, peer, x->comm,
                         stream));
  }
  NCCLCHECK(ncclGroupEnd());
}
