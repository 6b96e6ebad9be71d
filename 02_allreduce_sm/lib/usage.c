/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce.h in a program: the sum over all ranks of a million floats, of which rank
 * r contributes r + 1. Replace this file by your program, and compile the whole folder:
 *
 *   mpicc -c *.c && nvcc -arch=native -c *.cu
 *   mpicc *.o -lnccl -lcudart -lstdc++ -ldl && mpirun -np 4 ./a.out */
#include <mpi.h>
#include <stdio.h>

#include "allreduce.h"

/* A rank that fails prints the reason and ends all ranks, which would wait for it. (MPI's calls do
 * that themselves.) */
#define TRY(call, text, reason)                \
  do {                                         \
    const int code = (int)(call);              \
    if (code == 0) break;                      \
    fprintf(stderr, "%s: %s\n", text, reason); \
    MPI_Abort(MPI_COMM_WORLD, 1);              \
  } while (0)
#define CUDA(call) TRY(call, #call, cudaGetErrorString((cudaError_t)code))
#define NCCL(call) TRY(call, #call, ncclGetErrorString((ncclResult_t)code))
#define ALLREDUCE(call) TRY(call, #call, allreduce_last_error())

enum { COUNT = 1000000 };

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
  CUDA(cudaSetDevice(rank)); /* all ranks are on one host */
  NCCL(ncclCommInitRank(&comm, n, id, rank));
  CUDA(cudaStreamCreate(&stream));

  /* a window for the receive buffer; one for all memory of a program works as well */
  static float host[COUNT];
  float *send, *recv;
  ncclWindow_t window = NULL;
  CUDA(cudaMalloc((void **)&send, sizeof host));
  NCCL(ncclMemAlloc((void **)&recv, sizeof host));
  NCCL(ncclCommWindowRegister(comm, recv, sizeof host, &window, NCCL_WIN_COLL_SYMMETRIC));

  allreduce_t handle;
  const ncclResult_t created = allreduce_create(comm, NULL, &handle);
  if (created == ncclInvalidUsage) { /* on all ranks: the handle is NULL; NCCL is used */
    if (rank == 0) fprintf(stderr, "direct AllReduce: %s; using NCCL's\n", allreduce_last_error());
  } else {
    TRY(created, "allreduce_create", allreduce_last_error());
    ALLREDUCE(allreduce_add_window(handle, window, recv, sizeof host));
  }

  for (int i = 0; i < COUNT; i++) host[i] = (float)(rank + 1);
  CUDA(cudaMemcpyAsync(send, host, sizeof host, cudaMemcpyHostToDevice, stream));
  if (handle != NULL)
    ALLREDUCE(allreduce_run(handle, send, recv, COUNT, ncclFloat, stream));
  else
    NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaMemcpyAsync(host, recv, sizeof host, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (handle != NULL) {
    ncclResult_t result; /* counts that differ, a late rank */
    ALLREDUCE(allreduce_get_async_error(handle, &result));
    ALLREDUCE(result);
  }
  printf("rank %d has the sum %g\n", rank, host[COUNT - 1]);

  ALLREDUCE(allreduce_destroy(handle)); /* on all ranks */
  NCCL(ncclCommWindowDeregister(comm, window));
  NCCL(ncclMemFree(recv));
  CUDA(cudaFree(send));
  CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
  return MPI_Finalize();
}
