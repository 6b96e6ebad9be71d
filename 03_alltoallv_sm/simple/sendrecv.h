/* SPDX-License-Identifier: Apache-2.0 */
/* The AlltoAllV that everybody writes first: grouped ncclSend and ncclRecv. */
#ifndef SENDRECV_H
#define SENDRECV_H

#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

/* Arguments as MPI_Alltoallv; counts and displacements in elements, host arrays with an entry per
 * rank of comm; `size` is the bytes of an element. Collective; enqueues on the stream. Returns
 * NCCL's errors. */
ncclResult_t sendrecv_alltoallv(const void *sendbuff, const size_t sendcounts[],
                                const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                const size_t rdispls[], ncclDataType_t datatype, size_t size,
                                int nranks, ncclComm_t comm, cudaStream_t stream);

#endif
