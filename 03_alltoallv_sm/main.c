/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV over symmetric memory: every rank sends a different number of elements to every rank.
 *
 * NCCL has no such call. This program does it twice: with ncclSend and ncclRecv, which everybody
 * writes first, and with alltoallv.h, in which a kernel writes into the memory of the other ranks;
 * --method barrier takes the step between the two. Both results are verified, every element and the
 * bytes around each segment.
 *
 * Build:  make              (one thread per GPU)      or   make MPI=1
 * Run:    ./alltoallv_sm    ([NTHREADS=N])            or   mpirun -np N ./alltoallv_sm
 *
 * The last line of a good run is: Results structure verified correctly
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alltoallv.h"
#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "patterns.h"
#include "program.h"
#include "simple/barrier.h"
#include "simple/sendrecv.h"

static const size_t DEFAULT_COUNT = 2048; /* elements that a rank sends, about */

/* One rank's side of the exchange. Counts and displacements are in elements. */
struct exchange {
  const struct datatype *type;
  int nranks;
  size_t *sendcounts, *sdispls, *recvcounts, *rdispls;
  char *sendbuff, *recvbuff;
  size_t capacity; /* elements that fit into recvbuff */
};

/* ---- STEP 3 ---------------------------------------------------------------------------------- */

/* Every rank knows what it sends; what it receives the others know. So the rows of the count matrix
 * go to everybody, and a rank reads its column. */
static void exchange_counts(const size_t *my_row, size_t *matrix, int nranks, ncclComm_t comm,
                            cudaStream_t stream)
{
  const size_t row = (size_t)nranks * sizeof(size_t);
  char *device;
  CUDACHECK(cudaMalloc((void **)&device, row * (size_t)(nranks + 1)));
  CUDACHECK(cudaMemcpyAsync(device, my_row, row, cudaMemcpyHostToDevice, stream));
  NCCLCHECK(ncclAllGather(device, device + row, (size_t)nranks, ncclUint64, comm, stream));
  CUDACHECK(
      cudaMemcpyAsync(matrix, device + row, row * (size_t)nranks, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaFree(device));
}

/* ---- STEP 6: send and receive ---------------------------------------------------------------- */

static void send_and_receive(const struct exchange *x, ncclComm_t comm, cudaStream_t stream)
{
  NCCLCHECK(sendrecv_alltoallv(x->sendbuff, x->sendcounts, x->sdispls, x->recvbuff, x->recvcounts,
                               x->rdispls, x->type->nccl, x->type->size, x->nranks, comm, stream));
}

/* ---- STEP 7: the same by --method ------------------------------------------------------------ */

/* A push between barriers. Where the parts of this rank go at the others follows from the matrix,
 * since all of them pack what they receive. */
static void push_between_barriers(const struct exchange *x, const struct rank *me,
                                  const struct program_buffers *buffers, const size_t *matrix,
                                  ncclComm_t comm, cudaStream_t stream)
{
  size_t places[x->nranks];
  const char *why;
  const struct barrier_parts parts = {x->sendcounts, x->sdispls, places, x->type->size};
  matrix_places(matrix, x->nranks, me->rank, places);
  struct barrier_push *push = barrier_create(comm, buffers->window, buffers->window_bytes, &why);
  if (!push) program_cannot_run(me, why);
  launcher_note(me, "AlltoAllV: push between two barriers (simple)");
  barrier_alltoallv(push, x->sendbuff, PROGRAM_GUARD, parts, stream);
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_barrier(me); /* as in STEP 8 */
  barrier_destroy(push);
}

/* Counts that only the device knows, as after a routing kernel: the exchange brings back what was
 * received. Here they come from the host; the results replace x->recvcounts and x->rdispls. */
static void device_counts(struct exchange *x, alltoallv_t handle, cudaStream_t stream)
{
  const size_t row = (size_t)x->nranks * sizeof(size_t);
  size_t *sendcounts, *recvcounts, *rdispls;
  CUDACHECK(cudaMalloc((void **)&sendcounts, 3 * row));
  recvcounts = sendcounts + x->nranks;
  rdispls = recvcounts + x->nranks;
  CUDACHECK(cudaMemcpyAsync(sendcounts, x->sendcounts, row, cudaMemcpyHostToDevice, stream));
  ALLTOALLVCHECK(alltoallv_device_counts(x->sendbuff, sendcounts, NULL, x->recvbuff, x->capacity,
                                         recvcounts, rdispls, NULL, ALLTOALLV_PACKED, x->type->nccl,
                                         handle, stream));
  CUDACHECK(cudaMemcpyAsync(x->recvcounts, recvcounts, row, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaMemcpyAsync(x->rdispls, rdispls, row, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaFree(sendcounts));
}

/* The library. */
static void library(struct exchange *x, const struct rank *me, alltoallv_t handle,
                    cudaStream_t stream)
{
  const bool device = program_options.device_counts;
  const bool repeated = !device && program_options.method == METHOD_COPY_ENGINE;
  const char *why;
  ALLTOALLVCHECK(alltoallv_method(handle, NULL, &why));
  launcher_note(me, "AlltoAllV: %s%s", why,
                device     ? " (device counts)"
                : repeated ? " (plan, copy engines)"
                           : "");
  if (device) {
    device_counts(x, handle, stream);
  } else if (repeated) {
    alltoallv_plan_t plan; /* worth its price when the same counts come again and again */
    ALLTOALLVCHECK(alltoallv_plan(x->sendbuff, x->sendcounts, x->sdispls, x->recvbuff,
                                  x->recvcounts, x->rdispls, x->type->nccl, handle, &plan));
    ALLTOALLVCHECK(alltoallv_start(plan, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
    ALLTOALLVCHECK(alltoallv_plan_destroy(plan));
  } else {
    ALLTOALLVCHECK(alltoallv(x->sendbuff, x->sendcounts, x->sdispls, x->recvbuff, x->recvcounts,
                             x->rdispls, x->type->nccl, handle, stream));
  }
  CUDACHECK(cudaStreamSynchronize(stream));
  program_check_async(handle); /* counts that do not match, a peer that has died */
}

/* ---- the story ------------------------------------------------------------------------------- */

static int run(const struct rank *me, const struct options *opt)
{
  const struct datatype *type = opt->type;
  const int n = me->nranks;
  if (opt->bench) return bench_example(me, opt);

  const char *pattern = program_options.pattern ? program_options.pattern : "halving";
  size_t *matrix = program_matrix(me, opt, pattern, opt->count ? opt->count : DEFAULT_COUNT);
  if (!matrix) return EXIT_USAGE;

  launcher_print(me, "Starting AlltoAllV example with %d ranks\n", n);

  /* ======================= STEP 1: a device, and what this rank wants to send =============== */
  launcher_step("STEP 1: device");
  struct exchange x = {type, n, .sendcounts = calloc(4 * (size_t)n, sizeof(size_t))};
  if (!x.sendcounts) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  x.sdispls = x.sendcounts + n, x.recvcounts = x.sdispls + n, x.rdispls = x.recvcounts + n;
  memcpy(x.sendcounts, matrix + me->rank * n, (size_t)n * sizeof(size_t));
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, program_bytes(program_sizes(matrix, n, type->size), n))) {
    free(x.sendcounts);
    free(matrix);
    return EXIT_USAGE;
  }
  int code = EXIT_VERIFIED;

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
  launcher_step("STEP 3: counts");
  launcher_print(me, "Setting up AlltoAllV with variable-sized transfers\n");
  exchange_counts(x.sendcounts, matrix, n, comm, stream);
  for (int from = 0; from < n; from++) x.recvcounts[from] = matrix[from * n + me->rank];
  /* Segments lie one after the other: the displacement of each is the sum of the counts before. */
  const size_t sends = program_prefix_sums(x.sendcounts, x.sdispls, n);
  const size_t receives = program_prefix_sums(x.recvcounts, x.rdispls, n);
  launcher_print(me, "  Send counts per rank:");
  for (int to = 0; to < n; to++) launcher_print(me, " %zu", x.sendcounts[to]);
  launcher_print(me, "\n  Total send elements: %zu, Total recv elements: %zu\n", sends, receives);

  /* ======================= STEP 4: symmetric memory ========================================= */
  /* A window has the same size on all ranks (before NCCL 2.30.7), although the ranks receive
   * different amounts: all take the size of the one that needs most, which they know from the
   * matrix. Around the receive buffer there is room for guard bytes. */
  launcher_step("STEP 4: symmetric memory");
  launcher_print(me, "Symmetric Memory allocation\n");
  struct program_buffers buffers = program_sizes(matrix, n, type->size);
  launcher_print_all(me, "  Rank %d allocating send: %.2f MB, recv: %.2f MB\n", me->rank,
                     (double)buffers.send_bytes / (1 << 20),
                     (double)buffers.recv_bytes / (1 << 20));
  NCCLCHECK(ncclMemAlloc((void **)&buffers.send, buffers.send_bytes + 1));
  NCCLCHECK(ncclMemAlloc((void **)&buffers.window, buffers.window_bytes));
  x.sendbuff = buffers.send;
  x.recvbuff = buffers.window + PROGRAM_GUARD;
  x.capacity = buffers.recv_bytes / type->size;

  alltoallv_t handle = NULL;
  if (program_takes_library()) {
    program_init(me, comm, &handle);
    ALLTOALLVCHECK(alltoallv_register(handle, buffers.window, buffers.window_bytes));
  }

  /* ======================= STEP 5 and 6: input, and send/recv first ================== */
  launcher_step("STEP 6: grouped send/recv");
  launcher_print(me, "Starting AlltoAllV with variable-sized transfers\n");
  struct segment expected[n];
  program_fill(me, x.sendbuff, x.sendcounts, x.sdispls, type->size, 1, stream);
  program_guard(&buffers, stream);
  send_and_receive(&x, comm, stream);
  program_expect(me, x.recvbuff, x.recvcounts, x.rdispls, type->size, 1, expected);
  if (program_verify("send/recv", expected, n, &buffers, stream)) code = EXIT_WRONG_DATA;

  /* ======================= STEP 7: the AlltoAllV over symmetric memory ======================= */
  launcher_step("STEP 7: AlltoAllV");
  const int method = program_options.method;
  program_fill(me, x.sendbuff, x.sendcounts, x.sdispls, type->size, 2, stream);
  program_guard(&buffers, stream);
  program_expect(me, x.recvbuff, x.recvcounts, x.rdispls, type->size, 2, expected);
  if (method == METHOD_SENDRECV) {
    launcher_note(me, "AlltoAllV: grouped send/recv (simple)");
    send_and_receive(&x, comm, stream); /* once more */
  } else if (method == METHOD_BARRIER) {
    push_between_barriers(&x, me, &buffers, matrix, comm, stream);
  } else {
    library(&x, me, handle, stream);
  }
  for (int from = 0; from < n; from++) /* with device counts these have come back */
    if (x.recvcounts[from] != matrix[from * n + me->rank]) code = EXIT_WRONG_DATA;
  if (program_verify(method == METHOD_SENDRECV  ? "send/recv"
                     : method == METHOD_BARRIER ? "barrier"
                                                : "alltoallv",
                     expected, n, &buffers, stream))
    code = EXIT_WRONG_DATA;
  code = launcher_agree(me, code);
  if (code == EXIT_VERIFIED) launcher_print(me, "AlltoAllV completed successfully\n");
  launcher_print(me, "Verification:\n");
  for (int from = 0; from < n; from++)
    launcher_print(me, "  Received from rank %d: %zu elements at offset %zu\n", from,
                   x.recvcounts[from], x.rdispls[from]);
  if (opt->digest) program_print_digest(me, x.recvbuff, receives, type, stream);

  /* ======================= STEP 8: cleanup =================================================== */
  /* Wait for the stream, meet the other ranks, deregister, free. Without the barrier a rank could
   * take away memory that a slower one has not finished with. */
  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaStreamSynchronize(stream));
  launcher_barrier(me);
  if (handle) {
    ALLTOALLVCHECK(alltoallv_unregister(handle, buffers.window));
    ALLTOALLVCHECK(alltoallv_destroy(handle));
  }
  NCCLCHECK(ncclMemFree(buffers.window));
  NCCLCHECK(ncclMemFree(buffers.send));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  free(x.sendcounts);
  free(matrix);
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
