/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv.h in a program of one's own: rank r sends r + 1 floats to every rank.
 * mpicc -c usage.c alltoallv.c alltoallv_plan.c alltoallv_sendrecv.c && nvcc -c alltoallv_lsa.cu
 * mpicc *.o -lnccl -lcudart -lstdc++ && mpirun -np 4 ./a.out */
#include <mpi.h>
#include <stdio.h>

#include "alltoallv.h"

#define TRY(call) \
  if ((call) != 0) return fprintf(stderr, "%s: %s\n", #call, alltoallv_last_error()), 1

int main(int argc, char **argv)
{
  int rank, n;
  TRY(MPI_Init(&argc, &argv));
  TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  TRY(MPI_Comm_size(MPI_COMM_WORLD, &n));

  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (rank == 0) TRY(ncclGetUniqueId(&id));
  TRY(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
  TRY(cudaSetDevice(rank)); /* all ranks on one host here */
  TRY(ncclCommInitRank(&comm, n, id, rank));
  TRY(cudaStreamCreate(&stream));

  size_t sendcounts[n], sdispls[n], recvcounts[n], rdispls[n], total = 0;
  for (int peer = 0; peer < n; peer++) {
    sendcounts[peer] = (size_t)rank + 1, sdispls[peer] = (size_t)(peer * (rank + 1));
    recvcounts[peer] = (size_t)peer + 1, rdispls[peer] = total;
    total += recvcounts[peer];
  }
  const size_t bytes = (size_t)(n * n) * sizeof(float); /* of the largest rank: equal on all */
  float *send, *recv, last;
  alltoallv_t handle;
  TRY(ncclMemAlloc((void **)&send, bytes));
  TRY(ncclMemAlloc((void **)&recv, bytes));
  for (int i = 0; i < n * (rank + 1); i++)
    TRY(cudaMemcpy(send + i, &(float){(float)rank}, sizeof(float), cudaMemcpyHostToDevice));

  TRY(alltoallv_init(comm, NULL, &handle));
  TRY(alltoallv_register(handle, recv, bytes));
  TRY(alltoallv(send, sendcounts, sdispls, recv, recvcounts, rdispls, ncclFloat, handle, stream));
  TRY(cudaStreamSynchronize(stream));

  ncclResult_t result;
  int source, destination;
  TRY(alltoallv_get_async_error(handle, &result, &source, &destination));
  TRY(result);
  TRY(cudaMemcpy(&last, recv + total - 1, sizeof last, cudaMemcpyDeviceToHost));
  printf("rank %d received %zu floats, the last is %g\n", rank, total, last);

  TRY(alltoallv_unregister(handle, recv));
  TRY(alltoallv_destroy(handle));
  TRY(ncclMemFree(send));
  TRY(ncclMemFree(recv));
  TRY(ncclCommDestroy(comm));
  return MPI_Finalize();
}
