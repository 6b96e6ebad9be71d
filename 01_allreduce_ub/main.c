/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce with user buffer registration.
 *
 * NCCL normally moves data through buffers of its own: it copies what a peer is to get into one of
 * them, and what arrives out of another. A program that calls a collective on the same buffers
 * again and again can register them with the communicator once; NCCL then lets peers, NVLink
 * multicast or the network card work on the user's memory directly, where the transport can.
 *
 * Build:  make              (one thread per GPU)      or   make MPI=1
 * Run:    ./allreduce_ub    ([NTHREADS=N])            or   mpirun -np N ./allreduce_ub
 *
 * The last line of a good run is: All resources cleaned up successfully
 */
#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "verify.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 0)
#error "ncclCommRegister needs NCCL 2.19 or newer"
#endif

static const size_t DEFAULT_COUNT = 1048576; /* elements, 4 MB of floats */

/* One AllReduce, finished when this returns. In place if sendbuff == recvbuff. */
static void all_reduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t stream)
{
  /* The call is the same as without registration: NCCL looks up the addresses itself. It only
   * enqueues; nothing is done before the stream has been waited for. */
  NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, type, ncclSum, comm, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}

/* Steps 5 to 7, which do not depend on how the buffers were made known to NCCL. */
static int reduce_and_verify(const struct rank *me, const struct options *opt, void *sendbuff,
                             void *recvbuff, size_t count, ncclComm_t comm, cudaStream_t stream)
{
  const ncclDataType_t type = opt->type->nccl;

  /* ======================= STEP 5: input ===================================================== */
  launcher_step("STEP 5: input");
  struct verifier verifier;
  verifier_init(&verifier, me, opt->type, stream);
  verifier_fill(&verifier, VERIFY_CONSTANT, sendbuff, recvbuff, count); /* recvbuff: all bits 1 */
  CUDACHECK(cudaStreamSynchronize(stream)); /* the next line reads it through another stream */
  launcher_print_all(me, "  Rank %d data initialized (value: %.0f)\n", me->rank,
                     verifier_element(&verifier, sendbuff, 0));

  /* ======================= STEP 6: AllReduce ================================================= */
  launcher_step("STEP 6: AllReduce");
  launcher_print(me, "Starting AllReduce with %zu elements (%.4g MB)\n", count,
                 (double)(count * opt->type->size) / (1 << 20));
  all_reduce(sendbuff, recvbuff, count, type, comm, stream);
  launcher_print(me, "AllReduce completed successfully\n");

  /* ======================= STEP 7: every element on every rank ============================== */
  /* First the constants that were announced; then data in which every element differs, so that a
   * misplaced one shows; then in place, where the result replaces the input.
   * all_reduce has waited for the stream. The verifier does not: it reads through a stream of its
   * own, at once, so that a missing wait shows as wrong data. */
  launcher_step("STEP 7: verification");
  verifier_check(&verifier, "constant data", recvbuff, count);
  launcher_print(me, "Verification - Expected: %.1f, Got: %.1f\n", verifier_expected(&verifier, 0),
                 verifier_element(&verifier, recvbuff, 0));

  verifier_fill(&verifier, VERIFY_INDEXED, sendbuff, recvbuff, count);
  all_reduce(sendbuff, recvbuff, count, type, comm, stream);
  verifier_check(&verifier, "indexed data", recvbuff, count);

  verifier_fill(&verifier, VERIFY_INDEXED, sendbuff, NULL, count);
  all_reduce(sendbuff, sendbuff, count, type, comm, stream);
  verifier_check(&verifier, "in place", sendbuff, count);

  int code = launcher_agree(me, verifier.code);
  launcher_print(me, code == EXIT_VERIFIED ? "Results verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  if (opt->digest) verifier_print_digest(&verifier);
  verifier_free(&verifier);
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  if (opt->bench) return bench_example(me, opt);

  const size_t count = opt->count ? opt->count : DEFAULT_COUNT;
  const size_t size_bytes = count * opt->type->size;

  launcher_print(me, "Starting AllReduce example with %d ranks\n", me->nranks);

  /* ======================= STEP 1: a device for this rank =================================== */
  launcher_step("STEP 1: device");
  CUDACHECK(cudaSetDevice(me->device));
  int code = launcher_require_memory(me, 2 * size_bytes);
  if (code != EXIT_VERIFIED) return code;

  /* ======================= STEP 2: the communicator ========================================== */
  /* Rank 0 makes an id (an address where the ranks meet) and gives it to the others by whatever
   * means they have: shared memory between threads, MPI_Bcast between processes. */
  launcher_step("STEP 2: communicator");
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&stream));
  launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                     me->device);

  /* ======================= STEP 3: buffers that can be registered =========================== */
  /* Registration needs memory whose physical pages can be shared with peers. ncclMemAlloc makes
   * such memory; cudaMalloc does not. It rounds the size up to the pages' granularity. */
  launcher_step("STEP 3: allocation");
  launcher_print(me, "User Buffer allocation:\n");
  launcher_print_all(me, "  Rank %d allocating %.2f MB per buffer\n", me->rank,
                     (double)size_bytes / (1 << 20));
  void *sendbuff, *recvbuff;
  NCCLCHECK(ncclMemAlloc(&sendbuff, size_bytes));
  NCCLCHECK(ncclMemAlloc(&recvbuff, size_bytes));

  /* ======================= STEP 4: register both buffers ==================================== */
  /* Not collective, but a promise: if one rank calls a collective on registered buffers, all have
   * to. A registration can succeed without being of any use to the transport; the handle may then
   * be NULL, and ncclCommDeregister takes that. */
  launcher_step("STEP 4: registration");
  void *send_handle = NULL, *recv_handle = NULL;
  NCCLCHECK(ncclCommRegister(comm, sendbuff, size_bytes, &send_handle));
  NCCLCHECK(ncclCommRegister(comm, recvbuff, size_bytes, &recv_handle));

  code = reduce_and_verify(me, opt, sendbuff, recvbuff, count, comm, stream);

  /* ======================= STEP 8: cleanup =================================================== */
  /* In this order: the stream is drained (done above); deregistration needs the communicator, so
   * it comes before its destruction, and the mapped memory, so it comes before ncclMemFree; and
   * no rank frees memory that a slower peer may still read. */
  launcher_step("STEP 8: cleanup");
  NCCLCHECK(ncclCommDeregister(comm, send_handle));
  NCCLCHECK(ncclCommDeregister(comm, recv_handle));
  launcher_print_all(me, "  Rank %d buffers deregistered\n", me->rank);
  launcher_barrier(me);
  NCCLCHECK(ncclMemFree(sendbuff));
  NCCLCHECK(ncclMemFree(recvbuff));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  launcher_barrier(me);
  launcher_print(me, "All resources cleaned up successfully\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_ub",
      .summary = "AllReduce with user buffer registration",
      .types = "float double half bfloat16 int32 int64",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
