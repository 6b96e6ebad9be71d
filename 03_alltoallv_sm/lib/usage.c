/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv.h in a program of one's own: rank r sends r + 1 floats to every rank. Put your program
 * in the place of this file; all of this folder makes it:
 *
 *   mpicc -I. -c *.c && nvcc -arch=native -I. -c lsa/alltoallv*.cu
 *   mpicc *.o -lnccl -lcudart -lstdc++ -ldl && mpirun -np 4 ./a.out */
#include <mpi.h>
#include <stdio.h>

#include "alltoallv.h"

/* A rank that fails says why and ends all of them: the others would wait for it. (MPI's own calls
 * do that by themselves.) What fails on one rank in alltoallv_init fails on all, and each of them
 * names that rank; the job may end before all have spoken. */
#define TRY(call, text, reason)                \
  do {                                         \
    const int code = (int)(call);              \
    if (code == 0) break;                      \
    fprintf(stderr, "%s: %s\n", text, reason); \
    MPI_Abort(MPI_COMM_WORLD, 1);              \
  } while (0)
#define CUDA(call) TRY(call, #call, cudaGetErrorString((cudaError_t)code))
#define NCCL(call) TRY(call, #call, ncclGetErrorString((ncclResult_t)code))
#define ALLTOALLV(call) TRY(call, #call, alltoallv_last_error())

int main(int argc, char **argv)
{
  int rank, n;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);

  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (rank == 0) NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA(cudaSetDevice(rank)); /* all ranks on one host here */
  NCCL(ncclCommInitRank(&comm, n, id, rank));
  CUDA(cudaStreamCreate(&stream));

  const size_t bytes = (size_t)(n * n) * sizeof(float); /* of the largest rank: equal on all */
  float *send, *recv, last;
  alltoallv_t handle;
  NCCL(ncclMemAlloc((void **)&send, bytes));
  NCCL(ncclMemAlloc((void **)&recv, bytes));
  for (int i = 0; i < n * (rank + 1); i++)
    CUDA(cudaMemcpy(send + i, &(float){(float)rank}, sizeof(float), cudaMemcpyHostToDevice));
  ALLTOALLV(alltoallv_init(comm, NULL, &handle));
  ALLTOALLV(alltoallv_register(handle, recv, bytes));

  size_t sendcounts[n], recvcounts[n], total = 0;
  for (int peer = 0; peer < n; peer++) sendcounts[peer] = (size_t)rank + 1;
  ALLTOALLV(alltoallv_counts(sendcounts, recvcounts, handle));
  for (int peer = 0; peer < n; peer++) total += recvcounts[peer];
  /* no displacements: the segments lie one after the other */
  ALLTOALLV(alltoallv(send, sendcounts, NULL, recv, recvcounts, NULL, ncclFloat, handle, stream));
  CUDA(cudaStreamSynchronize(stream));

  ncclResult_t result; /* counts that disagree, a rank that did not come */
  ALLTOALLV(alltoallv_get_async_error(handle, &result, NULL, NULL));
  ALLTOALLV(result);
  CUDA(cudaMemcpy(&last, recv + total - 1, sizeof last, cudaMemcpyDeviceToHost));
  printf("rank %d received %zu floats, the last is %g\n", rank, total, last);

  ALLTOALLV(alltoallv_unregister(handle, recv));
  ALLTOALLV(alltoallv_destroy(handle));
  NCCL(ncclMemFree(send));
  NCCL(ncclMemFree(recv));
  NCCL(ncclCommDestroy(comm));
  return MPI_Finalize();
}
