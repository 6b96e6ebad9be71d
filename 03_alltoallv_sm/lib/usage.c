/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv.h in your own program: a layer with a mixture of experts. A router sends each token to
 * the rank of its expert (dispatch), and the result comes back to where the token was (combine).
 * How many tokens go where only the device knows, so the host waits for nothing in between. Put
 * your program in the place of this file; all of this folder makes it:
 *
 *   mpicc -I. -c *.c && nvcc -arch=native -I. -c *.cu
 *   mpicc *.o -lnccl -lcudart -lstdc++ -ldl && mpirun -np 4 ./a.out */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "alltoallv.h"

/* A rank that fails says why and ends all of them: the others would wait for it. */
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

enum { TOKENS = 100, HIDDEN = 512, STEPS = 3 };
typedef float token_t[HIDDEN];

/* The router, a kernel in real life: chooses a rank for each token, counts, and puts tokens for one
 * rank side by side. (So they are made in that order here.) */
static void route(int rank, int n, int step, token_t *tokens, size_t *counts)
{
  unsigned random = (unsigned)(1000 * step + rank);
  for (int p = 0; p < n; p++) counts[p] = 0;
  for (int t = 0; t < TOKENS; t++) {
    random = random * 1103515245 + 12345;
    counts[(int)(random >> 16) % n]++;
    for (int i = 0; i < HIDDEN; i++) tokens[t][i] = (float)(1000 * rank + t + step);
  }
}

int main(int argc, char **argv)
{
  /* how many tokens a rank takes from each other one; all of them could want the same expert */
  const size_t slot = argc > 1 ? strtoul(argv[1], NULL, 10) : TOKENS;
  int rank, n, wrong = 0;
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

  const size_t recv_bytes = (size_t)n * slot * sizeof(token_t), bytes = TOKENS * sizeof(token_t);
  token_t *send, *recv, *back;
  size_t *counts, *recvcounts, *rdispls, *backcounts; /* device */
  alltoallv_t handle;
  CUDA(cudaMalloc((void **)&send, bytes));
  NCCL(ncclMemAlloc((void **)&recv, recv_bytes));
  NCCL(ncclMemAlloc((void **)&back, bytes));
  CUDA(cudaMalloc((void **)&counts, 4 * (size_t)n * sizeof *counts));
  recvcounts = counts + n, rdispls = counts + 2 * n, backcounts = counts + 3 * n;
  ALLTOALLV(alltoallv_create(comm, NULL, &handle));
  ALLTOALLV(alltoallv_register(handle, recv, recv_bytes));
  ALLTOALLV(alltoallv_register(handle, back, bytes));

  static token_t sent[TOKENS], got[TOKENS];
  for (int step = 0; step < STEPS; step++) {
    size_t routed[n];
    route(rank, n, step, sent, routed);
    CUDA(cudaMemcpyAsync(send, sent, bytes, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(counts, routed, sizeof routed, cudaMemcpyHostToDevice, stream));

    /* dispatch: what rank p sends arrives in slot p; recvcounts and rdispls say what lies where */
    ALLTOALLV(alltoallv_device_counts(send, counts, NULL, recv, slot, ALLTOALLV_SLOTS, recvcounts,
                                      rdispls, NULL, sizeof(token_t), handle, stream));
    /* here your experts' kernel works on recv */
    /* combine: the same the other way round, so that each token is back at its place */
    ALLTOALLV(alltoallv_device_counts(recv, recvcounts, rdispls, back, TOKENS, ALLTOALLV_PACKED,
                                      backcounts, NULL, NULL, sizeof(token_t), handle, stream));

    CUDA(cudaMemcpyAsync(got, back, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    ncclResult_t result; /* a slot that was too small, a rank that did not come */
    ALLTOALLV(alltoallv_get_async_error(handle, &result, NULL, NULL));
    ALLTOALLV(result);
    for (int t = 0; t < TOKENS; t++)
      for (int i = 0; i < HIDDEN; i++) wrong += got[t][i] != sent[t][i];
  }
  printf("rank %d: %d tokens came back %d times, %d numbers wrong\n", rank, TOKENS, STEPS, wrong);

  /* wait (done above), meet the others, deregister, free */
  MPI_Barrier(MPI_COMM_WORLD);
  ALLTOALLV(alltoallv_unregister(handle, back));
  ALLTOALLV(alltoallv_unregister(handle, recv));
  ALLTOALLV(alltoallv_destroy(handle));
  NCCL(ncclMemFree(back));
  NCCL(ncclMemFree(recv));
  CUDA(cudaFree(send));
  CUDA(cudaFree(counts));
  CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
  MPI_Finalize();
  return wrong != 0;
}
