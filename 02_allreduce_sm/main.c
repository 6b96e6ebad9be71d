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
 *
 * The last line of a good run is: All resources cleaned up successfully */
#include <cuda_runtime.h>
#include <nccl.h>

#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "allreduce_program.h"
#include "verify.h"

_Static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0), "windows need NCCL 2.27");

enum { DEFAULT_COUNT = 1048576 }; /* elements, 4 MB of floats */

/* One AllReduce, finished when this returns. In place if sendbuff == recvbuff. */
static void all_reduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t stream)
{
  /* NCCL from 2.28.3 until 2.30.7 (fixed) can start a symmetric kernel before the previous kernel
   * in the stream has finished: docs/symmetric_memory.md. */
  CUDACHECK(cudaStreamSynchronize(stream));
  /* The call is the same for any memory: NCCL looks up the addresses itself. It only enqueues the
   * work; the next line waits until it is done. */
  NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, type, ncclSum, comm, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}

static int run(const struct rank *me, const struct options *opt)
{
  if (opt->bench || program_method != METHOD_NCCL) return bench_example(me, opt);

  const ncclDataType_t type = opt->type->nccl;
  const size_t count = opt->count ? opt->count : DEFAULT_COUNT;
  const size_t bytes = count * opt->type->size;
  launcher_print(me, "Starting AllReduce example with %d rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s");

  launcher_step("STEP 1: a device for this rank");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, 2 * bytes)) return EXIT_USAGE;

  launcher_step("STEP 2: the communicator");
  /* Rank 0 makes an id (an address where the ranks meet). The other ranks get it from shared memory
   * (threads) or MPI_Bcast (processes). */
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&stream));
  launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                     me->device);

  launcher_step("STEP 3: device memory that peers can map");
  /* Other GPUs must reach these buffers, so their physical pages must be shareable. NCCL shares
   * memory from ncclMemAlloc, but by default not memory from cudaMalloc. The call is local. */
  launcher_print(me, "Symmetric Memory allocation\n");
  launcher_print_all(me, "  Rank %d allocating %.2f MB per buffer\n", me->rank, bytes / 1048576.0);
  void *sendbuff, *recvbuff;
  NCCLCHECK(ncclMemAlloc(&sendbuff, bytes));
  NCCLCHECK(ncclMemAlloc(&recvbuff, bytes));

  launcher_step("STEP 4: registration of both buffers");
  /* All ranks make these calls together, in the same order, with the same sizes, or the job hangs.
   * The variables start as NULL, because NCCL 2.28 may leave them unchanged. A window does not
   * guarantee a symmetric kernel; a note says whether NCCL has one. */
  ncclWindow_t send_window = NULL, recv_window = NULL;
  NCCLCHECK(ncclCommWindowRegister(comm, sendbuff, bytes, &send_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(ncclCommWindowRegister(comm, recvbuff, bytes, &recv_window, NCCL_WIN_COLL_SYMMETRIC));
  program_check_symmetric(me, comm, type, send_window);

  launcher_step("STEP 5: input");
  /* Rank r has r in every element. recvbuff gets bytes of 0xFF, which are NaN or -1, so an element
   * that is never written is found. */
  struct verifier verifier;
  verifier_init(&verifier, me, opt->type, stream);
  verifier_fill(&verifier, VERIFY_CONSTANT, sendbuff, recvbuff, count);
  CUDACHECK(cudaStreamSynchronize(stream)); /* the next line reads it through another stream */
  launcher_print_all(me, "  Rank %d data initialized (value: %.0f)\n", me->rank,
                     verifier_element(&verifier, sendbuff, 0));

  launcher_step("STEP 6: AllReduce");
  launcher_print(me, "Starting AllReduce with %zu elements (%.4g MB)\n", count, bytes / 1048576.0);
  all_reduce(sendbuff, recvbuff, count, type, comm, stream);

  launcher_step("STEP 7: every element on every rank");
  /* Now every element is 0 + 1 + .... A loop checks the first 100, and the verifier checks all. The
   * verifier does not wait for the stream, so a missing wait leads to wrong data. */
  verifier_check(&verifier, "constant data", recvbuff, count);
  const double expected = verifier_expected(&verifier, 0);
  for (size_t i = 0; i < count && i < 100; i++)
    if (verifier_element(&verifier, recvbuff, i) != expected) verifier.code = EXIT_WRONG_DATA;
  const double got = verifier_element(&verifier, recvbuff, 0);

  /* Data that differ in every element, so a misplaced one is found; then the same in place. */
  verifier_fill(&verifier, VERIFY_INDEXED, sendbuff, recvbuff, count);
  all_reduce(sendbuff, recvbuff, count, type, comm, stream);
  verifier_check(&verifier, "indexed data", recvbuff, count);
  verifier_fill(&verifier, VERIFY_INDEXED, sendbuff, NULL, count);
  all_reduce(sendbuff, sendbuff, count, type, comm, stream);
  verifier_check(&verifier, "in place", sendbuff, count);

  const int code = launcher_agree(me, verifier.code);
  if (code == EXIT_VERIFIED) launcher_print(me, "AllReduce completed successfully\n");
  launcher_print(me, "Verification - Expected: %.1f, Got: %.1f\n", expected, got);
  launcher_print(me, code == EXIT_VERIFIED ? "Results verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  if (opt->digest) verifier_print_digest(&verifier);
  verifier_free(&verifier);

  launcher_step("STEP 8: cleanup");
  /* all_reduce has waited for this rank's stream; the barrier waits for the other ranks. Until then
   * another rank may still read this rank's memory, and what is in use must not be deregistered.
   * Deregistration needs the communicator and the memory, so these are freed last. */
  launcher_barrier(me);
  NCCLCHECK(ncclCommWindowDeregister(comm, send_window));
  NCCLCHECK(ncclCommWindowDeregister(comm, recv_window));
  launcher_print_all(me, "  Rank %d symmetric memory windows deregistered\n", me->rank);
  NCCLCHECK(ncclMemFree(sendbuff));
  NCCLCHECK(ncclMemFree(recvbuff));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
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
      .options = program_options,
      .types = "float double half bfloat16 int32 int64",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
