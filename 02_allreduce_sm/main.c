/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce with symmetric memory windows.
 *
 * An AllReduce adds up the vectors of all ranks (GPUs), element by element, and gives the sum to
 * every rank. A window is memory that all ranks register together; "symmetric" means that they all
 * promise to pass the same offset in it to a collective. Then each GPU reads and writes the others'
 * windows, without buffers of NCCL. GPUs wait for each other less often, which helps small sizes.
 *
 * Build and run:  make run          one thread per GPU; NTHREADS=N takes N of them
 *                 make run MPI=1    one process per GPU; NP=N takes N of them
 * The last line of a good run is: All resources cleaned up successfully */
#include <stdlib.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include "check.h"
#include "launcher.h"
#include "symmetric_kernels.h"

_Static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0), "windows need NCCL 2.27");
enum { DEFAULT_COUNT = 1048576 }; /* elements, 4 MB of floats */

/* Element i of the vector of a rank: a whole number, so small that sums over thousands of ranks are
 * exact in a float. So NCCL may add in any order, and the comparison needs no tolerance. */
static float input(int rank, size_t i)
{
  return (float)((i + (size_t)rank) % 1009);
}

static float sum(int nranks, size_t i)
{
  float total = 0;
  for (int rank = 0; rank < nranks; rank++) total += input(rank, i);
  return total;
}

/* One AllReduce, finished when this returns. In place if sendbuff == recvbuff. */
static void all_reduce(const float *sendbuff, float *recvbuff, size_t count, ncclComm_t comm,
                       cudaStream_t stream)
{
  /* The same call for any memory: NCCL looks up the addresses itself. It only enqueues the work. */
  NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, ncclFloat, ncclSum, comm, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}

/* Compares every element. The copy to `host` does not wait for the stream, see STEP 2. */
static int check(const struct rank *me, const char *what, float *result, float *host, size_t count)
{
  size_t wrong = 0, first = 0;
  CUDACHECK(cudaMemcpy(host, result, count * sizeof *host, cudaMemcpyDeviceToHost));
  for (size_t i = count; i-- > 0;)
    if (!(host[i] == sum(me->nranks, i))) wrong++, first = i; /* NaN equals nothing */
  if (wrong == 0) return EXIT_VERIFIED;
  launcher_error("%s: element %zu is %g, expected %g (%zu elements wrong)%s", what, first,
                 host[first], sum(me->nranks, first), wrong,
                 host[first] != host[first] ? ": did you wait for the stream?" : "");
  return EXIT_WRONG_DATA;
}

static int run(const struct rank *me, const struct options *opt)
{
  const size_t count = opt->count ? opt->count : DEFAULT_COUNT, bytes = count * sizeof(float);
  launcher_print(me, "Starting AllReduce example with %d rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s");

  launcher_step("STEP 1: a device for this rank"); /* what a timeout prints */
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, 2 * bytes)) return EXIT_USAGE;

  launcher_step("STEP 2: the communicator");
  /* Rank 0 makes an id, an address where the ranks meet. The launcher takes it to the others. */
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  /* Non-blocking: no other stream waits for it, and no cudaMemcpy, unless we say so. */
  CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launcher_print_ranks(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                       me->device);

  launcher_step("STEP 3: device memory that peers can map");
  /* Other GPUs must reach these buffers, so their physical pages must be shareable. NCCL shares
   * memory from ncclMemAlloc, but by default not memory from cudaMalloc. The call is local. */
  launcher_print(me, "Symmetric Memory allocation\n");
  launcher_print_ranks(me, "  Rank %d allocating %.2f MB per buffer\n", me->rank,
                       bytes / 1048576.0);
  float *sendbuff, *recvbuff, *host = malloc(bytes);
  if (!host) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  NCCLCHECK(ncclMemAlloc((void **)&sendbuff, bytes));
  NCCLCHECK(ncclMemAlloc((void **)&recvbuff, bytes));

  launcher_step("STEP 4: registration of both buffers");
  /* All ranks make these calls together, in the same order, with the same sizes, or the job hangs.
   * The variables start as NULL, because NCCL 2.28 may leave them unchanged. */
  ncclWindow_t send_window = NULL, recv_window = NULL;
  NCCLCHECK(ncclCommWindowRegister(comm, sendbuff, bytes, &send_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(ncclCommWindowRegister(comm, recvbuff, bytes, &recv_window, NCCL_WIN_COLL_SYMMETRIC));
  /* a window does not prove that NCCL has a symmetric kernel; collective, in harness/ */
  note_symmetric_kernels(me, comm, ncclFloat, send_window);

  launcher_step("STEP 5: input");
  /* recvbuff gets bytes of 0xFF, which are NaN, so an element that is never written is found. */
  for (size_t i = 0; i < count; i++) host[i] = input(me->rank, i);
  CUDACHECK(cudaMemcpyAsync(sendbuff, host, bytes, cudaMemcpyHostToDevice, stream));
  CUDACHECK(cudaMemsetAsync(recvbuff, 0xFF, bytes, stream));
  /* The stream keeps the order. But NCCL 2.28.3 to 2.30.6 may start the AllReduce before the memset
   * has ended (docs/symmetric_memory.md, the launch hazard). */
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_print_ranks(me, "  Rank %d data initialized (value: %.0f)\n", me->rank, host[0]);

  launcher_step("STEP 6: AllReduce");
  launcher_print(me, "Starting AllReduce with %zu elements (%.4g MB)\n", count, bytes / 1048576.0);
  all_reduce(sendbuff, recvbuff, count, comm, stream);

  launcher_step("STEP 7: every element on every rank");
  int code = check(me, "out of place", recvbuff, host, count);
  all_reduce(sendbuff, sendbuff, count, comm, stream);
  if (check(me, "in place", sendbuff, host, count)) code = EXIT_WRONG_DATA;
  code = launcher_agree(me, code); /* wrong on one rank is wrong on all */
  if (code == EXIT_VERIFIED) launcher_print(me, "AllReduce completed successfully\n");
  launcher_print(me, "Verification - Expected: %.1f, Got: %.1f\n", sum(me->nranks, 0), host[0]);
  launcher_print(me, code == EXIT_VERIFIED ? "Results verified correctly\n"
                                           : "Results are WRONG, see standard error\n");

  launcher_step("STEP 8: cleanup");
  /* No call may use this memory any more. Our own stream: hence the wait. Another rank may read our
   * memory until it reaches the barrier. Deregister first: that needs communicator and memory. */
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_barrier(me);
  NCCLCHECK(ncclCommWindowDeregister(comm, send_window));
  NCCLCHECK(ncclCommWindowDeregister(comm, recv_window));
  launcher_print_ranks(me, "  Rank %d symmetric memory windows deregistered\n", me->rank);
  NCCLCHECK(ncclMemFree(sendbuff));
  NCCLCHECK(ncclMemFree(recvbuff));
  free(host);
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm)); /* NCCL ends what it still has to do, together */
  NCCLCHECK(ncclCommDestroy(comm));
  launcher_barrier(me);
  if (code == EXIT_VERIFIED) launcher_print(me, "All resources cleaned up successfully\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_sm",
      .summary = "AllReduce with symmetric memory windows",
      .run = run,
      .harness = harness, /* --bench, other types, --method */
      .options = harness_options,
      .types = "float double half bfloat16 int32 int64",
  };
  return launcher_main(argc, argv, &program);
}
