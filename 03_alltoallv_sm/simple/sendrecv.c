/* SPDX-License-Identifier: Apache-2.0 */
#include "simple.h"

/* One send and one receive per peer, in a group so that they run at the same time. A pair without
 * elements is skipped, on both sides: a send without its receive would hang. */
ncclResult_t sendrecv_alltoallv(const void *sendbuff, const size_t sendcounts[],
                                const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                const size_t rdispls[], ncclDataType_t datatype, size_t size,
                                int nranks, ncclComm_t comm, cudaStream_t stream)
{
  ncclResult_t result = ncclGroupStart();
  for (int peer = 0; peer < nranks && result == ncclSuccess; peer++) {
    if (sendcounts[peer])
      result = ncclSend((const char *)sendbuff + sdispls[peer] * size, sendcounts[peer], datatype,
                        peer, comm, stream);
    if (recvcounts[peer] && result == ncclSuccess)
      result = ncclRecv((char *)recvbuff + rdispls[peer] * size, recvcounts[peer], datatype, peer,
                        comm, stream);
  }
  ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}
