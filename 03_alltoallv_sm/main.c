/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV over symmetric memory: every rank sends a different number of elements to every rank.
 *
 * NCCL has no such call. This program does it twice: with ncclSend and ncclRecv, which everybody
 * writes first, and with the library in lib/, in which a kernel writes into the memory of the other
 * ranks; --method takes one of the steps between the two. Both results are verified, every element
 * and the bytes around each segment.
 *
 * Build:  make              (one thread per GPU)      or   make MPI=1
 * Run:    ./alltoallv_sm    ([NTHREADS=N])            or   mpirun -np N ./alltoallv_sm
 *
 * The last line of a good run is: Results structure verified correctly
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "lib/alltoallv.h"
#include "patterns.h"
#include "program.h"

static const size_t DEFAULT_COUNT = 2048; /* elements that a rank sends, about */

/* What this rank sends to each: its row of the matrix of --pattern or --matrix. What the others
 * send it does not look at. Returns an exit code. */
static int choose_sendcounts(struct exchange *x, const struct options *opt)
{
  const int n = x->me->nranks;
  const char *pattern = program_options.pattern ? program_options.pattern : "halving";
  size_t *matrix = program_matrix(x->me, opt, pattern, opt->count ? opt->count : DEFAULT_COUNT);
  if (!matrix) return EXIT_USAGE;
  const struct matrix_most most = matrix_most(matrix, n);
  const size_t size = x->type->size,
               bytes = program_bytes(most.sends * size, most.receives * size, n);
  memcpy(x->sendcounts, matrix + x->me->rank * n, (size_t)n * sizeof *matrix);
  free(matrix);
  return launcher_has_memory(x->me, bytes) ? EXIT_VERIFIED : EXIT_USAGE;
}

/* Counts that only the device knows, as after a routing kernel: the exchange brings back what was
 * received. Here they come from the host; the results replace x->recvcounts and x->rdispls. */
static void device_counts(struct exchange *x, char *recv, alltoallv_t handle, cudaStream_t stream)
{
  const size_t n = (size_t)x->me->nranks, row = n * sizeof(size_t), size = x->type->size;
  size_t *sendcounts, *recvcounts, *rdispls;
  CUDACHECK(cudaMalloc((void **)&sendcounts, 3 * row));
  recvcounts = sendcounts + n, rdispls = recvcounts + n;
  CUDACHECK(cudaMemcpyAsync(sendcounts, x->sendcounts, row, cudaMemcpyHostToDevice, stream));
  ALLTOALLVCHECK(alltoallv_device_counts(x->send, sendcounts, NULL, recv, x->recv_bytes / size,
                                         ALLTOALLV_PACKED, recvcounts, rdispls, NULL, size, handle,
                                         stream));
  CUDACHECK(cudaMemcpyAsync(x->recvcounts, recvcounts, row, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaMemcpyAsync(x->rdispls, rdispls, row, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaFree(sendcounts));
}

/* --method sendrecv, barrier, lines or copy-engine. */
static void simple_method(struct exchange *x, ncclComm_t comm, alltoallv_t handle,
                          cudaStream_t stream)
{
  struct way way = {.method = &methods[program_options.method],
                    .x = x,
                    .comm = comm,
                    .handle = handle,
                    .window = x->window,
                    .bytes = x->recv_bytes + 2 * PROGRAM_GUARD};
  program_places(x, handle);
  const char *why = way_open(&way);
  if (why) program_cannot_run(x->me, why);
  launcher_note(x->me, "AlltoAllV: %s (simple)", way.method->name);
  way.method->call(&way, x->send, PROGRAM_GUARD, stream);
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_barrier(x->me); /* as in STEP 8 */
  way_close(&way);
}

static int run(const struct rank *me, const struct options *opt)
{
  const int n = me->nranks;
  if (opt->bench) return bench_example(me, opt);

  /* ======================= STEP 1: a device, and what this rank wants to send =============== */
  launcher_step("STEP 1: device");
  struct exchange x = program_exchange(me, opt->type);
  CUDACHECK(cudaSetDevice(me->device));
  int code = choose_sendcounts(&x, opt);
  if (code != EXIT_VERIFIED) {
    free(x.sendcounts);
    return code;
  }
  launcher_print(me, "Starting AlltoAllV example with %d ranks\n", n);

  /* ======================= STEP 2: the communicator ========================================== */
  launcher_step("STEP 2: communicator");
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, n, id, me->rank));
  CUDACHECK(cudaStreamCreate(&stream));
  launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                     me->device);

  /* ======================= STEP 3: counts and displacements ================================= */
  /* A rank knows what it sends. What it receives the others know: so all exchange their counts. */
  launcher_step("STEP 3: counts");
  launcher_print(me, "Setting up AlltoAllV with variable-sized transfers\n");
  alltoallv_t handle;
  program_init(me, comm, &handle); /* alltoallv_init */
  ALLTOALLVCHECK(alltoallv_counts(x.sendcounts, x.recvcounts, handle));
  /* Segments lie one after the other: the displacement of each is the sum of the counts before. */
  x.sends = program_prefix_sums(x.sendcounts, x.sdispls, n);
  x.receives = program_prefix_sums(x.recvcounts, x.rdispls, n);
  launcher_print(me, "  Send counts per rank:");
  for (int to = 0; to < n; to++) launcher_print(me, " %zu", x.sendcounts[to]);
  launcher_print(me, "\n  Total send elements: %zu, Total recv elements: %zu\n", x.sends,
                 x.receives);

  /* ======================= STEP 4: symmetric memory ========================================= */
  /* A window has the same size on all ranks (before NCCL 2.30.7), although the ranks receive
   * different amounts: all take the size of the one that needs most. Around the receive buffer
   * there is room for guard bytes. */
  launcher_step("STEP 4: symmetric memory");
  launcher_print(me, "Symmetric Memory allocation\n");
  program_allocate(&x); /* ncclMemAlloc */
  launcher_print_all(me, "  Rank %d allocating send: %.2f MB, recv: %.2f MB\n", me->rank,
                     (double)x.send_bytes / (1 << 20), (double)x.recv_bytes / (1 << 20));
  char *recv = x.window + PROGRAM_GUARD;
  ALLTOALLVCHECK(alltoallv_register(handle, x.window, x.recv_bytes + 2 * PROGRAM_GUARD));

  /* ======================= STEP 5: input ===================================================== */
  launcher_step("STEP 5: input");
  launcher_print(me, "Starting AlltoAllV with variable-sized transfers\n");
  struct segment expected[n];
  program_fill(&x, x.send, 1, stream);
  program_guard(&x, x.window, stream);

  /* ======================= STEP 6: grouped send/recv ========================================= */
  launcher_step("STEP 6: grouped send/recv");
  NCCLCHECK(sendrecv_alltoallv(x.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                               x.type->nccl, x.type->size, n, comm, stream));
  program_expect(&x, recv, 1, expected);
  if (program_verify("send/recv", expected, n, &x, x.window, stream)) code = EXIT_WRONG_DATA;

  /* ======================= STEP 7: the AlltoAllV over symmetric memory ======================= */
  launcher_step("STEP 7: AlltoAllV");
  const bool device = program_options.device_counts;
  const char *why;
  program_fill(&x, x.send, 2, stream);
  program_guard(&x, x.window, stream);
  program_expect(&x, recv, 2, expected);
  if (program_takes_library()) {
    ALLTOALLVCHECK(alltoallv_info(handle, NULL, &why));
    launcher_note(me, "AlltoAllV: %s%s", why, device ? " (device counts)" : "");
    if (device)
      device_counts(&x, recv, handle, stream);
    else
      ALLTOALLVCHECK(alltoallv(x.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                               x.type->size, handle, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
    program_check_async(handle); /* counts that do not match, a peer that has died */
  } else {
    simple_method(&x, comm, handle, stream);
  }
  for (int from = 0; from < n; from++) /* with device counts these have come back */
    if (x.recvcounts[from] != expected[from].count) code = EXIT_WRONG_DATA;
  if (program_verify(program_takes_library() ? "alltoallv" : "simple method", expected, n, &x,
                     x.window, stream))
    code = EXIT_WRONG_DATA;
  code = launcher_agree(me, code);
  if (code == EXIT_VERIFIED) launcher_print(me, "AlltoAllV completed successfully\n");
  launcher_print(me, "Verification:\n");
  for (int from = 0; from < n; from++)
    launcher_print(me, "  Received from rank %d: %zu elements at offset %zu\n", from,
                   x.recvcounts[from], x.rdispls[from]);
  if (opt->digest) program_print_digest(me, recv, x.receives, x.type, stream);

  /* ======================= STEP 8: cleanup =================================================== */
  /* Wait for the stream, meet the other ranks, deregister, free. Without the barrier a rank could
   * take away memory that a slower one has not finished with. */
  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_barrier(me);
  ALLTOALLVCHECK(alltoallv_unregister(handle, x.window));
  ALLTOALLVCHECK(alltoallv_destroy(handle));
  NCCLCHECK(ncclMemFree(x.window));
  NCCLCHECK(ncclMemFree(x.send));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  free(x.sendcounts);
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
