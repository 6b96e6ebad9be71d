/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_allreduce.h in your own program: three steps of a training job without the training.
 * ../README.md says which files to compile with it. */
#include <mpi.h>
#include <stdio.h>

#include "sparse_allreduce.h"

/* A rank that fails says why and ends all ranks, which would wait for it. (MPI's own calls do the
 * same.) */
#define TRY(call, reason)                                     \
  do {                                                        \
    const int code = (int)(call);                             \
    if (code == 0) break;                                     \
    fprintf(stderr, "%s: %s: %s\n", __FILE__, #call, reason); \
    MPI_Abort(MPI_COMM_WORLD, 1);                             \
  } while (0)
#define CUDA(call) TRY(call, cudaGetErrorString((cudaError_t)code))
#define NCCL(call) TRY(call, ncclGetErrorString((ncclResult_t)code))
#define SPARSE(call) TRY(call, sparse_allreduce_last_error())

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

  enum { COUNT = 10000 }; /* one element in a hundred is large */
  static float host[COUNT];
  for (int i = 0; i < COUNT; i++) host[i] = i % 100 == 99 ? (float)((i + 1) * (rank + 1)) : 0.5f;
  float *gradient, last;
  const float *result;
  CUDA(cudaMalloc((void **)&gradient, sizeof host));

  ncclResult_t error;
  sparse_allreduce_t handle;
  sparse_allreduce_statistics_t s;
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  config.algorithm = SPARSE_OKTOPK;
  config.density = 0.01;
  SPARSE(sparse_allreduce_create(comm, COUNT, &config, &handle));
  for (int step = 0; step < 3; step++) {
    /* a schedule: from the second step on half of what config.density allows */
    if (step == 1) SPARSE(sparse_allreduce_set_density(handle, 0.005));
    /* here the backward pass would write the gradient, on the same stream */
    CUDA(cudaMemcpyAsync(gradient, host, sizeof host, cudaMemcpyHostToDevice, stream));
    SPARSE(sparse_allreduce_run(handle, gradient, &result, stream));
    /* and here the optimizer would read the result: COUNT averages, most of them 0 */
    SPARSE(sparse_allreduce_get_async_error(handle, &error)); /* waits for the step */
    SPARSE(error); /* a gradient of some rank was not finite, or a rank came too late */
  }
  CUDA(cudaMemcpyAsync(&last, result + COUNT - 1, sizeof last, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));

  SPARSE(sparse_allreduce_statistics(handle, &s));
  printf("rank %d offered %d of %d elements, the result has %d, the last is %g\n", rank,
         (int)s.local, COUNT, (int)s.global, last);

  SPARSE(sparse_allreduce_destroy(handle));
  CUDA(cudaFree(gradient));
  CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
  return MPI_Finalize();
}
