/* SPDX-License-Identifier: Apache-2.0 */
/* Replayed graphs of AllReduces on symmetric windows, whose input a kernel changes before each: the
 * launch hazard of docs/symmetric_memory.md. Types, counts and in place are tested by the programs
 * themselves (tests/cli/golden.bats).
 *
 * Prints one line `ok - ...` or `not ok - ...` per case. */
#include <stdbool.h>

#include "check.h"
#include "launcher.h"
#include "verify.h"

#ifdef CPU_STANDIN
static const int REPLAYS = 3; /* enough for the stand-in, which has no launch hazard */
#else
static const int REPLAYS = 250;
#endif
static const size_t COUNTS[] = {1, 256, 65536, 1048576}, MAX_BYTES = (1048576 + 1) * 4;

struct test {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  char *sendbuff, *recvbuff;
};

/* A graph in which a kernel changes the input before every AllReduce, replayed. Returns the wrong
 * elements over all replays on this rank. With `separated`, something that is no kernel stands
 * between the kernel and the AllReduce. */
static unsigned long long replay(struct test *t, size_t count, bool separated)
{
  enum { CALLS = 4 };
  struct verifier v;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  verifier_init(&v, t->me, datatype_find("float"), t->stream);
  CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < CALLS; i++) {
    verifier_next_round(&v);
    CUDACHECK(cudaMemsetAsync(t->recvbuff, 0xFF, count * 4, t->stream));
    verifier_fill(&v, t->sendbuff, NULL, count);
    if (separated) CUDACHECK(cudaMemsetAsync(t->sendbuff + count * 4, 0, 4, t->stream));
    NCCLCHECK(
        ncclAllReduce(t->sendbuff, t->recvbuff, count, ncclFloat, ncclSum, t->comm, t->stream));
    verifier_compare(&v, t->recvbuff, count);
  }
  CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  launcher_barrier(t->me);
  for (int i = 0; i < REPLAYS; i++) {
    if (i % 50 == 0) launcher_step("graph replay");
    CUDACHECK(cudaGraphLaunch(exec, t->stream));
  }
  unsigned long long wrong = verifier_report(&v, separated ? "replay" : "replay as is");
  CUDACHECK(cudaGraphExecDestroy(exec));
  CUDACHECK(cudaGraphDestroy(graph));
  verifier_free(&v);
  return wrong;
}

static int run(const struct rank *me, const struct options *opt)
{
  struct test t = {.me = me};
  int runtime = 0, as_is = EXIT_VERIFIED, separated = EXIT_VERIFIED;
  ncclUniqueId id;
  ncclWindow_t windows[2] = {NULL, NULL};
  (void)opt;
  CUDACHECK(cudaSetDevice(me->device));
  CUDACHECK(cudaStreamCreate(&t.stream));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&t.comm, me->nranks, id, me->rank));
  NCCLCHECK(ncclMemAlloc((void **)&t.sendbuff, MAX_BYTES));
  NCCLCHECK(ncclMemAlloc((void **)&t.recvbuff, MAX_BYTES));
  for (int i = 0; i < 2; i++)
    NCCLCHECK(ncclCommWindowRegister(t.comm, i == 0 ? t.sendbuff : t.recvbuff, MAX_BYTES,
                                     &windows[i], NCCL_WIN_COLL_SYMMETRIC));

  for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
    if (replay(&t, COUNTS[i], false)) as_is = EXIT_WRONG_DATA;
    if (replay(&t, COUNTS[i], true)) separated = EXIT_WRONG_DATA;
  }
  as_is = launcher_agree(me, as_is);
  separated = launcher_agree(me, separated);
  NCCLCHECK(ncclGetVersion(&runtime));
  const bool hazard = runtime >= NCCL_VERSION(2, 28, 3) && runtime < NCCL_VERSION(2, 30, 7);
  launcher_print(me, "%s - replayed graph, input changed by a kernel%s\n",
                 as_is == EXIT_VERIFIED ? "ok" : "not ok",
                 hazard ? " (this NCCL has the launch hazard)" : "");
  launcher_print(me, "%s - replayed graph, kernel and AllReduce separated\n",
                 separated == EXIT_VERIFIED ? "ok" : "not ok");

  launcher_barrier(me);
  for (int i = 0; i < 2; i++) NCCLCHECK(ncclCommWindowDeregister(t.comm, windows[i]));
  NCCLCHECK(ncclMemFree(t.sendbuff));
  NCCLCHECK(ncclMemFree(t.recvbuff));
  NCCLCHECK(ncclCommDestroy(t.comm));
  CUDACHECK(cudaStreamDestroy(t.stream));
  return separated != EXIT_VERIFIED || hazard ? separated : as_is;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_cases",
      .summary = "replayed graphs of AllReduce on symmetric windows",
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
