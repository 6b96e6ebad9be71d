/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV over symmetric memory: every rank sends a different number of elements to every rank.
 *
 * NCCL has no such call. This program does it twice: with ncclSend and ncclRecv, and with the
 * library in lib/, in which a kernel writes into the memory of the other ranks.
 *
 * Build and run:  make run          one thread per GPU; NTHREADS=N takes N of them
 *                 make run MPI=1    one process per GPU; NP=N takes N of them
 * The last line of a good run is: Results structure verified correctly */
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include "check.h"
#include "launcher.h"
#include "lib/alltoallv.h"

/* As NCCLCHECK, with the library's sentence about its last error. */
#define ALLTOALLVCHECK(call) CHECK_NCCL_RESULT(call, #call, alltoallv_last_error())
enum { DEFAULT_COUNT = 2048, GUARD = 64 }; /* elements; GUARD: around the receive buffer */

/* Element i of what rank `from` sends to rank `to`: a whole number, made of all three, so a
 * misplaced one is found. Up to 128 ranks a float holds all exactly. */
static float element(const struct rank *me, int from, int to, size_t i)
{
  return (float)((size_t)(from * me->nranks + to) * 1009 + i % 1009);
}

/* Compares every element of the parts, and then the rest with the NaN that were there before. */
static int check(const struct rank *me, const char *what, const float *window, float *host,
                 size_t elements, const size_t *recvcounts, const size_t *rdispls)
{
  size_t wrong = 0;
  CUDACHECK(cudaMemcpy(host, window, elements * sizeof *host, cudaMemcpyDeviceToHost));
  for (int from = 0; from < me->nranks; from++)
    for (size_t i = 0; i < recvcounts[from]; i++) {
      float *got = &host[GUARD + rdispls[from] + i], want = element(me, from, me->rank, i);
      if (!(*got == want) && wrong++ == 0) /* NaN equals nothing */
        launcher_error("%s: element %zu from rank %d is %g, not %g", what, i, from, *got, want);
      memset(got, 0xFF, sizeof *got); /* compared: now it is as the rest */
    }
  for (size_t i = 0; i < elements; i++)
    if (memcmp(&host[i], "\xff\xff\xff\xff", sizeof *host) != 0 && wrong++ == 0)
      launcher_error("%s: bytes outside the parts were written", what);
  return wrong > 0 ? EXIT_WRONG_DATA : EXIT_VERIFIED;
}

static int run(const struct rank *me, const struct options *opt)
{
  const int n = me->nranks;
  size_t sendcounts[n], sdispls[n], recvcounts[n], rdispls[n], sends = 0, receives = 0;

  launcher_step("STEP 1: a device, and what this rank wants to send");
  /* half of the elements to rank 0, half of the rest to rank 1, and so on, but at least one */
  size_t count = opt->count ? opt->count : DEFAULT_COUNT;
  for (int to = 0; to < n; to++) sendcounts[to] = count = count > 1 ? count / 2 : 1;
  CUDACHECK(cudaSetDevice(me->device));
  /* two buffers of at most n times the largest part, and what the library takes */
  if (!launcher_has_memory(me, 8 * (size_t)n * sendcounts[0] + (32 << 20))) return EXIT_USAGE;
  launcher_print(me, "Starting AlltoAllV example with %d ranks\n", n);

  launcher_step("STEP 2: the communicator");
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, n, id, me->rank));
  /* Non-blocking: no other stream waits for it, and no cudaMemcpy, unless we synchronize. */
  CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launcher_print_ranks(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                       me->device);

  launcher_step("STEP 3: counts and displacements");
  /* Only a sender knows its counts, so all ranks exchange theirs. Parts lie one after the other. */
  launcher_print(me, "Setting up AlltoAllV with variable-sized transfers\n");
  alltoallv_t handle;
  ALLTOALLVCHECK(alltoallv_create(comm, NULL, &handle));
  ALLTOALLVCHECK(alltoallv_counts(handle, sendcounts, recvcounts));
  launcher_print(me, "  Send counts per rank:");
  for (int p = 0; p < n; p++) {
    launcher_print(me, " %zu", sendcounts[p]);
    sdispls[p] = sends, sends += sendcounts[p];
    rdispls[p] = receives, receives += recvcounts[p];
  }
  launcher_print(me, "\n  Total send elements: %zu, Total recv elements: %zu\n", sends, receives);

  launcher_step("STEP 4: symmetric memory");
  /* Peers write into a window: memory from ncclMemAlloc that all ranks register together, of one
   * size: what the rank needs that receives most. Data may be sent from any device memory. */
  const size_t most = (size_t)launcher_max(me, (double)receives), elements = most + 2 * GUARD;
  launcher_print(me, "Symmetric Memory allocation\n");
  launcher_print_ranks(me, "  Rank %d allocating send: %.2f MB, recv: %.2f MB\n", me->rank,
                       sends * sizeof(float) / 1048576.0, most * sizeof(float) / 1048576.0);
  float *sendbuff, *window, *recvbuff;
  float *host = malloc((sends > elements ? sends : elements) * sizeof(float));
  if (!host) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  CUDACHECK(cudaMalloc((void **)&sendbuff, sends * sizeof(float)));
  NCCLCHECK(ncclMemAlloc((void **)&window, elements * sizeof(float)));
  recvbuff = window + GUARD;
  ALLTOALLVCHECK(alltoallv_register(handle, window, elements * sizeof(float)));

  launcher_step("STEP 5: input");
  launcher_print(me, "Starting AlltoAllV with variable-sized transfers\n");
  for (int to = 0; to < n; to++)
    for (size_t i = 0; i < sendcounts[to]; i++)
      host[sdispls[to] + i] = element(me, me->rank, to, i);
  CUDACHECK(cudaMemcpyAsync(sendbuff, host, sends * sizeof(float), cudaMemcpyHostToDevice, stream));

  launcher_step("STEP 6: with ncclSend and ncclRecv");
  /* In a group all of them run at the same time. One after the other would deadlock. */
  CUDACHECK(cudaMemsetAsync(window, 0xFF, elements * sizeof(float), stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  NCCLCHECK(ncclGroupStart());
  for (int p = 0; p < n; p++) {
    NCCLCHECK(ncclSend(sendbuff + sdispls[p], sendcounts[p], ncclFloat, p, comm, stream));
    NCCLCHECK(ncclRecv(recvbuff + rdispls[p], recvcounts[p], ncclFloat, p, comm, stream));
  }
  NCCLCHECK(ncclGroupEnd());
  CUDACHECK(cudaStreamSynchronize(stream));
  int code = check(me, "send/recv", window, host, elements, recvcounts, rdispls);

  launcher_step("STEP 7: with the library");
  /* One call. It enqueues a kernel or, where the ranks do not share memory, sends and receives.
   * First the output is poisoned again, so that a result of STEP 6 cannot pass. */
  const char *how;
  ncclResult_t async_error;
  ALLTOALLVCHECK(alltoallv_info(handle, NULL, &how));
  launcher_note(me, "AlltoAllV: %s", how);
  CUDACHECK(cudaMemsetAsync(window, 0xFF, elements * sizeof(float), stream));
  ALLTOALLVCHECK(alltoallv(handle, sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls,
                           sizeof(float), stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  ALLTOALLVCHECK(alltoallv_get_async_error(handle, &async_error, NULL, NULL));
  ALLTOALLVCHECK(async_error); /* counts of two ranks that differ, or a peer that did not come */
  if (check(me, "alltoallv", window, host, elements, recvcounts, rdispls)) code = EXIT_WRONG_DATA;
  code = launcher_agree(me, code); /* wrong on one rank is wrong on all */
  if (code == EXIT_VERIFIED) launcher_print(me, "AlltoAllV completed successfully\n");
  launcher_print(me, "Verification:\n");
  for (int from = 0; from < n; from++)
    launcher_print(me, "  Received from rank %d: %zu elements at offset %zu\n", from,
                   recvcounts[from], rdispls[from]);

  launcher_step("STEP 8: cleanup");
  /* This rank's exchanges are over, so the others have stored all that they store here. */
  ALLTOALLVCHECK(alltoallv_unregister(handle, window));
  ALLTOALLVCHECK(alltoallv_destroy(handle));
  NCCLCHECK(ncclMemFree(window));
  CUDACHECK(cudaFree(sendbuff));
  free(host);
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  launcher_print(me, code == EXIT_VERIFIED ? "Results structure verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "alltoallv_sm",
      .summary = "AlltoAllV over symmetric memory",
      .run = run,
      .harness = harness, /* --bench, --pattern, --method, other types, ... */
      .options = harness_options,
      .types = "float double half bfloat16 int8 uint8 int32 uint32 int64 uint64",
  };
  return launcher_main(argc, argv, &program);
}
