/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator split in two: even and odd ranks. Each half has an AllReduce of its own, then all
 * ranks have one together.
 *
 * Two communicators share the GPUs, and NCCL does not know that they belong together. So all ranks
 * must issue the calls on both in one order. If rank 1 calls the one for all first, and rank 3 that
 * for the half, each waits in its stream for a call that the other has behind the first: for ever.
 * Two streams help only as long as the kernels of both fit on the GPU at the same time, which
 * nothing promises: so order them by events, or let the host wait between them.
 *
 * Build and run:  make, then ./allreduce_halves or mpirun -np N ./allreduce_halves
 * The last line of a good run is: Halves and whole verified correctly */
#include <cuda_runtime.h>
#include <nccl.h>
#include "check.h"
#include "launcher.h"

enum { COUNT = 1024 };

static int run(const struct rank *me, const struct options *opt)
{
  ncclUniqueId id;
  ncclComm_t all, half;
  cudaStream_t stream;
  float *send, *of_half, *of_all, host[2 * COUNT];
  int in_half, half_size;
  (void)opt;
  CUDACHECK(cudaSetDevice(me->device));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&all, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  /* Collective in `all`. Ranks with one color get a communicator, in the order of the keys. */
  launcher_step("split");
  const int color = me->rank % 2;
  NCCLCHECK(ncclCommSplit(all, color, me->rank, &half, NULL));
  NCCLCHECK(ncclCommUserRank(half, &in_half));
  NCCLCHECK(ncclCommCount(half, &half_size));
  launcher_print_ranks(me, "  Rank %d is rank %d of %d among the %s ranks\n", me->rank, in_half,
                       half_size, color ? "odd" : "even");

  launcher_step("sums");
  CUDACHECK(cudaMalloc((void **)&send, 3 * sizeof host / 2));
  of_half = send + COUNT;
  of_all = of_half + COUNT;
  for (int i = 0; i < COUNT; i++) host[i] = (float)(me->rank + i);
  CUDACHECK(cudaMemcpyAsync(send, host, sizeof host / 2, cudaMemcpyHostToDevice, stream));
  CUDACHECK(cudaMemsetAsync(of_half, 0xFF, sizeof host, stream)); /* NaN */
  NCCLCHECK(ncclAllReduce(send, of_half, COUNT, ncclFloat, ncclSum, half, stream));
  NCCLCHECK(ncclAllReduce(send, of_all, COUNT, ncclFloat, ncclSum, all, stream));
  CUDACHECK(cudaMemcpyAsync(host, of_half, sizeof host, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));

  int code = EXIT_VERIFIED;
  for (int i = 0; i < COUNT && code == EXIT_VERIFIED; i++) {
    float half_sum = 0, sum = 0;
    for (int rank = 0; rank < me->nranks; rank++) {
      sum += (float)(rank + i);
      if (rank % 2 == color) half_sum += (float)(rank + i);
    }
    if (host[i] == half_sum && host[COUNT + i] == sum) continue;
    launcher_error("element %d is %g and %g, expected %g and %g", i, host[i], host[COUNT + i],
                   half_sum, sum);
    code = EXIT_WRONG_DATA;
  }
  code = launcher_agree(me, code);
  launcher_print(me, code == EXIT_VERIFIED ? "Halves and whole verified correctly\n"
                                           : "Results are WRONG, see standard error\n");

  launcher_step("cleanup");
  CUDACHECK(cudaFree(send));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommDestroy(half)); /* each half alone; then all */
  NCCLCHECK(ncclCommDestroy(all));
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_halves",
      .summary = "AllReduce in two halves of a communicator, and in all of it",
      .run = run,
      .types = "float",
  };
  return launcher_main(argc, argv, &program);
}
