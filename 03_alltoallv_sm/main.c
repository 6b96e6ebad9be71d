/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV over symmetric memory: every rank sends a different number of elements to every rank.
 *
 * NCCL has no such call. This program does it twice: with ncclSend and ncclRecv, and with the
 * library in lib/, in which a kernel writes into the memory of the other ranks. (--method chooses
 * another way instead, such as one of simple/.) Both results are verified, every element and the
 * bytes around each part.
 *
 * Build:  make              (one thread per GPU)      or   make MPI=1
 * Run:    ./alltoallv_sm    ([NTHREADS=N])            or   mpirun -np N ./alltoallv_sm
 *
 * The last line of a good run is: Results structure verified correctly
 */
#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "lib/alltoallv.h"
#include "patterns.h"
#include "alltoallv_program.h"
#include "verify.h"

static int run(const struct rank *me, const struct options *opt)
{
  const int n = me->nranks;
  if (opt->bench) return bench_example(me, opt);

  launcher_step("STEP 1: a device, and what this rank wants to send");
  struct exchange x = {.me = me, .type = opt->type};
  CUDACHECK(cudaSetDevice(me->device));
  /* That is its row of the matrix, in x.sendcounts. It does not know the rows of the others. */
  const char *pattern = program_options.pattern ? program_options.pattern : "halving";
  int code = program_matrix(&x, opt, pattern, opt->count ? opt->count : 2048, NULL);
  if (code != EXIT_VERIFIED) return code;
  launcher_print(me, "Starting AlltoAllV example with %d ranks\n", n);

  launcher_step("STEP 2: the communicator");
  ncclUniqueId id;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&x.comm, n, id, me->rank));
  CUDACHECK(cudaStreamCreate(&stream));
  launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                     me->device);

  /* Only the others know what it will receive, so all ranks exchange their counts. */
  launcher_step("STEP 3: counts and displacements");
  launcher_print(me, "Setting up AlltoAllV with variable-sized transfers\n");
  program_init(&x); /* alltoallv_create */
  ALLTOALLVCHECK(alltoallv_counts(x.handle, x.sendcounts, x.recvcounts));
  /* Parts lie one after the other: the displacement of each is the sum of the counts before. */
  program_layout(&x);
  launcher_print(me, "  Send counts per rank:");
  for (int to = 0; to < n; to++) launcher_print(me, " %zu", x.sendcounts[to]);
  launcher_print(me, "\n  Total send elements: %zu, Total recv elements: %zu\n", x.sends,
                 x.receives);

  /* A window has the same size on all ranks (before NCCL 2.30.7), so all take the size of the one
   * that receives most. Around the receive buffer there is room for guard bytes. */
  launcher_step("STEP 4: symmetric memory");
  launcher_print(me, "Symmetric Memory allocation\n");
  program_allocate(&x); /* ncclMemAlloc */
  launcher_print_all(me, "  Rank %d allocating send: %.2f MB, recv: %.2f MB\n", me->rank,
                     (double)x.send_bytes / (1 << 20), (double)x.recv_bytes / (1 << 20));
  char *recv = x.window + PROGRAM_GUARD;
  ALLTOALLVCHECK(alltoallv_register(x.handle, x.window, x.window_bytes));

  launcher_step("STEP 5: input");
  launcher_print(me, "Starting AlltoAllV with variable-sized transfers\n");
  struct segment expected[n];
  program_guard(&x, x.window, stream);
  program_prepare(&x, x.send, recv, 1, expected, stream);

  launcher_step("STEP 6: grouped send/recv");
  sendrecv_call(&x, x.send, recv, stream); /* simple/sendrecv.c: ncclSend, ncclRecv */
  if (program_verify("send/recv", expected, n, &x, x.window, stream)) code = EXIT_WRONG_DATA;

  launcher_step("STEP 7: AlltoAllV");
  const struct method *method = &methods[program_options.method];
  const bool device = program_options.device_counts;
  const char *what, *why_not = method->simple ? simple_open(&x) : NULL;
  if (why_not) program_cannot_run(me, why_not);
  ALLTOALLVCHECK(alltoallv_info(x.handle, NULL, &what));
  if (method->library)
    launcher_note(me, "AlltoAllV: %s%s", what, device ? " (device counts)" : "");
  else
    launcher_note(me, "AlltoAllV: %s (simple)", method->name);
  char *window = method->simple ? x.simple.window : x.window; /* which those have for themselves */
  recv = window + PROGRAM_GUARD;
  program_guard(&x, window, stream);
  program_prepare(&x, x.send, recv, 2, expected, stream);
  if (device) {
    /* Counts that only the device knows, as after a routing kernel; here they are copied there. */
    size_t *counts = x.device_counts, row = (size_t)n * sizeof *counts;
    CUDACHECK(cudaMemcpyAsync(counts, x.sendcounts, row, cudaMemcpyHostToDevice, stream));
    methods[METHOD_DEVICE_COUNTS].call(&x, x.send, recv, stream); /* alltoallv_device_counts */
    CUDACHECK(cudaMemcpyAsync(x.recvcounts, counts + n, row, cudaMemcpyDeviceToHost, stream));
    CUDACHECK(cudaMemcpyAsync(x.rdispls, counts + 2 * n, row, cudaMemcpyDeviceToHost, stream));
  } else {
    method->call(&x, x.send, recv, stream); /* alltoallv, or one of simple/ */
  }
  CUDACHECK(cudaStreamSynchronize(stream));
  program_check_async(x.handle); /* counts that do not match, a peer that has died */
  struct verifier verifier;      /* for --digest */
  verifier_init(&verifier, me, x.type, stream);
  verifier_digest(&verifier, recv, x.receives);
  for (int from = 0; from < n; from++) /* with device counts these have come back */
    if (x.recvcounts[from] != expected[from].count) code = EXIT_WRONG_DATA;
  if (program_verify(method->name, expected, n, &x, window, stream)) code = EXIT_WRONG_DATA;
  code = launcher_agree(me, code);
  if (code == EXIT_VERIFIED) launcher_print(me, "AlltoAllV completed successfully\n");
  launcher_print(me, "Verification:\n");
  for (int from = 0; from < n; from++)
    launcher_print(me, "  Received from rank %d: %zu elements at offset %zu\n", from,
                   x.recvcounts[from], x.rdispls[from]);
  if (opt->digest) verifier_print_digest(&verifier);
  verifier_free(&verifier);

  /* When this rank's exchanges are over, the others have stored all that they store here. */
  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaStreamSynchronize(stream));
  if (method->simple) simple_close(&x);
  ALLTOALLVCHECK(alltoallv_unregister(x.handle, x.window));
  ALLTOALLVCHECK(alltoallv_destroy(x.handle));
  program_free(&x); /* ncclMemFree */
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(x.comm));
  NCCLCHECK(ncclCommDestroy(x.comm));
  launcher_print(me, code == EXIT_VERIFIED ? "Results structure verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "alltoallv_sm",
      .summary = "AlltoAllV over symmetric memory",
      .options = program_option_table,
      /* all of common/datatype.c, since elements are only moved */
      .types = "float double half bfloat16 int8 uint8 int32 uint32 int64 uint64",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
