/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, and the others end with a sentence.
 *
 * NCCL waits forever for a rank that does not come. If that rank has died on another host, the
 * broken connection becomes an asynchronous error; on the same host nobody notices. So wait for a
 * stream in small steps, ask for errors meanwhile, and give up after some time. ncclCommAbort then
 * ends what the communicator runs on this GPU, and frees it; ncclCommDestroy would wait as well.
 *
 * Build and run:  make, then ./allreduce_timeout or mpirun -np N ./allreduce_timeout
 * The last line of a good run is: Both AllReduces came
 * With --dead-rank 1 that rank leaves out the second one, and each of the others ends with the
 * line: [rank 0] AllReduce 2: nothing has come for some time; has a rank died? */
#include <time.h>
#include <unistd.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include "check.h"
#include "launcher.h"

enum { COUNT = 1024, PATIENCE = 3 /* seconds */ };

static long dead_rank = -1;
static const struct option_spec own_options[] = {
    {"dead-rank", 0, OPTION_LONG, &dead_rank, "RANK", "leaves out its second AllReduce (none)", 0,
     1023},
    {0},
};

/* Waits for the stream. False, after a line on stderr, if that is in vain. */
static bool wait_with_patience(int number, ncclComm_t comm, cudaStream_t stream)
{
  const time_t begin = time(NULL);
  for (;; usleep(1000)) { /* leaves the core to NCCL's threads */
    ncclResult_t error;
    const char *why;
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return true;
    NCCLCHECK(ncclCommGetAsyncError(comm, &error));
    if (state != cudaErrorNotReady)
      why = cudaGetErrorString(state);
    else if (error != ncclSuccess)
      why = ncclGetErrorString(error);
    else if (time(NULL) - begin > PATIENCE)
      why = "nothing has come for some time; has a rank died?";
    else
      continue;
    launcher_error("AllReduce %d: %s", number, why);
    return false;
  }
}

static int run(const struct rank *me, const struct options *opt)
{
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  float *buffer;
  bool all_came = true;
  (void)opt;
  CUDACHECK(cudaSetDevice(me->device));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDACHECK(cudaMalloc((void **)&buffer, COUNT * sizeof *buffer));
  CUDACHECK(cudaMemsetAsync(buffer, 0, COUNT * sizeof *buffer, stream));

  for (int number = 1; number <= 2 && all_came; number++) {
    if (number == 2 && me->rank == dead_rank) break;
    NCCLCHECK(ncclAllReduce(buffer, buffer, COUNT, ncclFloat, ncclSum, comm, stream));
    all_came = wait_with_patience(number, comm, stream);
  }

  /* All ranks that live abort. Then the stream is free again, and they could make a communicator
   * without the dead rank (NCCL 2.27 has ncclCommShrink for that). */
  NCCLCHECK(all_came && dead_rank < 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm));
  CUDACHECK(cudaFree(buffer));
  CUDACHECK(cudaStreamDestroy(stream));
  const int code = launcher_agree(me, all_came ? EXIT_VERIFIED : EXIT_TIMEOUT);
  if (code == EXIT_VERIFIED) launcher_print(me, "Both AllReduces came\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_timeout",
      .summary = "a rank dies, and the others end with a sentence",
      .options = own_options,
      .run = run,
      .types = "float",
  };
  return launcher_main(argc, argv, &program);
}
