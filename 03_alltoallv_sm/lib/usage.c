/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv.h in your own program: a layer with a mixture of experts. A router sends each token to
 * the rank of its expert (dispatch), and the result comes back to where the token was (combine).
 * How many tokens go where only the device knows, so the host waits for nothing in between. A token
 * is 8-bit numbers; its scale and its expert travel in the same exchange. Put your program in the
 * place of this file; all of this folder makes it:
 *
 *   mpicc -I. -c *.c && nvcc -arch=native -I. -c *.cu
 *   mpicc *.o -lnccl -lcudart -lstdc++ -ldl && mpirun -np 4 ./a.out */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
typedef unsigned char token_t[HIDDEN]; /* fp8 */
typedef struct {
  float scale;
  int expert;
} label_t;
struct layer {
  token_t tokens[TOKENS];
  label_t labels[TOKENS];
};

/* The router, a kernel in real life: chooses a rank for each token, counts, and puts tokens for one
 * rank side by side. (So they are made in that order here.) */
static void route(int rank, int n, int step, struct layer *layer, size_t *counts)
{
  unsigned random = (unsigned)(1000 * step + rank);
  for (int p = 0; p < n; p++) counts[p] = 0;
  for (int t = 0; t < TOKENS; t++) {
    random = random * 1103515245 + 12345;
    counts[(int)(random >> 16) % n]++;
    layer->labels[t] = (label_t){(float)(1000 * rank + t), step};
    for (int i = 0; i < HIDDEN; i++) layer->tokens[t][i] = (unsigned char)(rank + t + step + i);
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

  /* one window holds all receive buffers: tokens and labels that come, and that come back */
  const size_t slots = (size_t)n * slot;
  const size_t bytes = sizeof(struct layer) + slots * (sizeof(token_t) + sizeof(label_t));
  struct layer *send, *back;
  size_t *counts; /* device */
  alltoallv_t handle;
  CUDA(cudaMalloc((void **)&send, sizeof *send));
  CUDA(cudaMalloc((void **)&counts, 4 * (size_t)n * sizeof *counts));
  NCCL(ncclMemAlloc((void **)&back, bytes));
  ALLTOALLV(alltoallv_create(comm, NULL, &handle));
  ALLTOALLV(alltoallv_register(handle, back, bytes));
  label_t *labels = (label_t *)(back + 1);
  token_t *tokens = (token_t *)(labels + slots);

  /* dispatch: what rank p sends arrives in slot p; recvcounts and rdispls say what lies where */
  const alltoallv_counts_t dispatch = {.sendcounts = counts,
                                       .recvcounts = counts + n,
                                       .rdispls = counts + 2 * n,
                                       .room = slot,
                                       .layout = ALLTOALLV_SLOTS};
  const alltoallv_buffers_t out[] = {{send->tokens, tokens, sizeof(token_t)},
                                     {send->labels, labels, sizeof(label_t)}};
  /* combine: the same the other way round, so that each token is back at its place */
  const alltoallv_counts_t combine = {.sendcounts = dispatch.recvcounts,
                                      .sdispls = dispatch.rdispls,
                                      .recvcounts = counts + 3 * n,
                                      .room = TOKENS};
  const alltoallv_buffers_t home[] = {{tokens, back->tokens, sizeof(token_t)},
                                      {labels, back->labels, sizeof(label_t)}};

  static struct layer sent, got;
  for (int step = 0; step < STEPS; step++) {
    size_t routed[n];
    route(rank, n, step, &sent, routed);
    CUDA(cudaMemcpyAsync(send, &sent, sizeof sent, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(counts, routed, sizeof routed, cudaMemcpyHostToDevice, stream));
    ALLTOALLV(alltoallv_device_counts(handle, &dispatch, out, 2, stream));
    /* here your experts' kernel works on tokens and labels */
    ALLTOALLV(alltoallv_device_counts(handle, &combine, home, 2, stream));
    CUDA(cudaMemcpyAsync(&got, back, sizeof got, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    ncclResult_t result; /* a slot that was too small, a rank that did not come */
    ALLTOALLV(alltoallv_get_async_error(handle, &result, NULL, NULL));
    ALLTOALLV(result);
    if (memcmp(&got, &sent, sizeof sent) != 0) wrong++;
  }
  printf("rank %d: %d tokens came back %d times, wrong %d times\n", rank, TOKENS, STEPS, wrong);

  ALLTOALLV(alltoallv_unregister(handle, back));
  ALLTOALLV(alltoallv_destroy(handle));
  NCCL(ncclMemFree(back));
  CUDA(cudaFree(send));
  CUDA(cudaFree(counts));
  CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
  MPI_Finalize();
  return wrong != 0;
}
