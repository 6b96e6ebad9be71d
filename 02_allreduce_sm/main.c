/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce with symmetric memory windows.
 *
 * A window is memory that every rank of a communicator has registered together. If all ranks pass
 * the same offset into the same window (that is what "symmetric" promises), NCCL can run kernels in
 * which each rank reads and writes the others' memory directly: no copies through buffers of its
 * own and fewer synchronisations, which about halves the time of small collectives.
 *
 * Build:  make              (one thread per GPU)      or   make MPI=1
 * Run:    ./allreduce_sm    ([NTHREADS=N])            or   mpirun -np N ./allreduce_sm
 *
 * The last line of a good run is: All resources cleaned up successfully
 */
#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "symmetric_support.h"
#include "verify.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#error "ncclCommWindowRegister needs NCCL 2.27 or newer"
#endif

static bool require_symmetric; /* --require-symmetric */

static const size_t DEFAULT_COUNT = 1048576; /* elements, 4 MB of floats */

/* One AllReduce, finished when this returns. In place if sendbuff == recvbuff. The input has to be
 * complete: NCCL 2.28.3 to 2.30.4 may start a symmetric kernel before the kernel in front of it has
 * finished ('The launch hazard' in README.md), and waiting for the stream is the plainest way out.
 */
static void all_reduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  /* The call is the same as without windows: NCCL looks up the addresses itself. It only
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

/* Says on stderr whether the windows are used by symmetric kernels. Without them the AllReduce
 * still runs, as on plain buffers. Returns EXIT_CANNOT_RUN if they are required and not certain. */
static int check_support(const struct rank *me, ncclComm_t comm, ncclWindow_t window)
{
  /* named for the watchdog: a rank that forgot to register waits here, the others still there */
  launcher_step("STEP 4: are the windows symmetric?");
  static const char *const answers[] = {"no", "yes", "unknown"};
  const char *why = "";
  int runtime = 0;
  enum symmetric_support support = symmetric_support(comm, window, &why);
  launcher_note(me, "symmetric kernels: %s (%s)", answers[support], why);
  if (require_symmetric && support != SYMMETRIC_YES)
    launcher_note(me, "--require-symmetric: leaving with exit code %d", EXIT_CANNOT_RUN);
  NCCLCHECK(ncclGetVersion(&runtime));
  if (support != SYMMETRIC_NO && runtime >= NCCL_VERSION(2, 28, 3) &&
      runtime < NCCL_VERSION(2, 30, 7))
    launcher_note(me,
                  "NCCL %d.%d.%d may start a symmetric kernel before the kernel in front of it "
                  "has finished; see 'The launch hazard' in README.md",
                  runtime / 10000, runtime / 100 % 100, runtime % 100);
  return launcher_agree(me, require_symmetric && support != SYMMETRIC_YES ? EXIT_CANNOT_RUN
                                                                          : EXIT_VERIFIED);
}

static int run(const struct rank *me, const struct options *opt)
{
  if (opt->bench && require_symmetric)
    return launcher_refuse(me, "--require-symmetric is not for --bench; allowed: one of them");
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

  /* ======================= STEP 3: memory that can be a window ============================== */
  /* A window needs memory whose physical pages can be mapped by peers. ncclMemAlloc makes such
   * memory; cudaMalloc does not. It is a local call; the sizes have to be the same on all ranks
   * (before NCCL 2.30.7), which they are here, since count is. */
  launcher_step("STEP 3: allocation");
  launcher_print(me, "Symmetric Memory allocation\n");
  launcher_print_all(me, "  Rank %d allocating %.2f MB per buffer\n", me->rank,
                     (double)size_bytes / (1 << 20));
  void *sendbuff, *recvbuff;
  NCCLCHECK(ncclMemAlloc(&sendbuff, size_bytes));
  NCCLCHECK(ncclMemAlloc(&recvbuff, size_bytes));

  /* ======================= STEP 4: register both as windows ================================= */
  /* Collective, unlike ncclCommRegister: all ranks, same order, same number of calls, or the job
   * hangs. NULL first, because NCCL 2.28 may leave the variable alone where windows are not
   * supported; and a window is no proof that they are, so that is asked separately. */
  launcher_step("STEP 4: registration");
  ncclWindow_t send_window = NULL, recv_window = NULL;
  NCCLCHECK(
      ncclCommWindowRegister(comm, sendbuff, size_bytes, &send_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(
      ncclCommWindowRegister(comm, recvbuff, size_bytes, &recv_window, NCCL_WIN_COLL_SYMMETRIC));
  code = check_support(me, comm, send_window);
  if (code == EXIT_VERIFIED)
    code = reduce_and_verify(me, opt, sendbuff, recvbuff, count, comm, stream);

  /* ======================= STEP 8: cleanup =================================================== */
  /* In this order: the stream is drained (done above); deregistration needs the communicator, so
   * it comes before its destruction, and the mapped memory, so it comes before ncclMemFree; and
   * no rank frees memory that a slower peer may still read. */
  launcher_step("STEP 8: cleanup");
  NCCLCHECK(ncclCommWindowDeregister(comm, send_window));
  NCCLCHECK(ncclCommWindowDeregister(comm, recv_window));
  launcher_print_all(me, "  Rank %d symmetric memory windows deregistered\n", me->rank);
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
  static const struct option_spec options[] = {
      {"require-symmetric", 0, OPTION_FLAG, &require_symmetric, NULL,
       "exit with 77 unless symmetric kernels are certain to be used", 0, 0},
      {0},
  };
  static const struct program program = {
      .name = "allreduce_sm",
      .summary = "AllReduce with symmetric memory windows",
      .options = options,
      .types = "float double half bfloat16 int32 int64",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
