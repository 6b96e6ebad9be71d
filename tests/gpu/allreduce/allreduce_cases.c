/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of AllReduce on plain, registered and symmetric buffers that are worth a test, in one
 * process per (launcher, number of ranks): every type, edge counts, unaligned starts, in place,
 * and graphs whose input a kernel changes before every AllReduce.
 *
 * Prints one line `ok - ...` or `not ok - ...` per case. */
#include <stdbool.h>

#include "check.h"
#include "launcher.h"
#include "verify.h"

static const char *const TYPES[] = {"float", "double", "half", "bfloat16", "int32", "int64"};
static const size_t COUNTS[] = {1, 3, 1048576, 1048577};
#ifdef CPU_STANDIN
static const int REPLAYS = 3; /* enough for the stand-in, which has no launch hazard */
#else
static const int REPLAYS = 250;
#endif
static const size_t MAX_BYTES = (1048577 + 1) * 8;

enum path { PLAIN, REGISTERED, SYMMETRIC };
static const char *const PATHS[] = {"plain", "registered", "symmetric"};

struct test {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  char *sendbuff, *recvbuff;
  void *handles[2];
  int code;
};

static void result(struct test *t, int code, const char *path, const char *what)
{
  code = launcher_agree(t->me, code);
  launcher_print(t->me, "%s - %s, %s\n", code == EXIT_VERIFIED ? "ok" : "not ok", path, what);
  if (code != EXIT_VERIFIED) t->code = code;
}

static void setup(struct test *t, enum path path)
{
  ncclWindow_t windows[2] = {NULL, NULL};
  if (path == PLAIN) {
    CUDACHECK(cudaMalloc((void **)&t->sendbuff, MAX_BYTES));
    CUDACHECK(cudaMalloc((void **)&t->recvbuff, MAX_BYTES));
    return;
  }
  NCCLCHECK(ncclMemAlloc((void **)&t->sendbuff, MAX_BYTES));
  NCCLCHECK(ncclMemAlloc((void **)&t->recvbuff, MAX_BYTES));
  if (path == REGISTERED) {
    NCCLCHECK(ncclCommRegister(t->comm, t->sendbuff, MAX_BYTES, &t->handles[0]));
    NCCLCHECK(ncclCommRegister(t->comm, t->recvbuff, MAX_BYTES, &t->handles[1]));
    return;
  }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  NCCLCHECK(ncclCommWindowRegister(t->comm, t->sendbuff, MAX_BYTES, &windows[0],
                                   NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(ncclCommWindowRegister(t->comm, t->recvbuff, MAX_BYTES, &windows[1],
                                   NCCL_WIN_COLL_SYMMETRIC));
#endif
  t->handles[0] = windows[0];
  t->handles[1] = windows[1];
}

static void teardown(struct test *t, enum path path)
{
  CUDACHECK(cudaStreamSynchronize(t->stream));
  if (path == PLAIN) {
    CUDACHECK(cudaFree(t->sendbuff));
    CUDACHECK(cudaFree(t->recvbuff));
    return;
  }
  launcher_barrier(t->me);
  for (int i = 0; i < 2; i++)
    if (path == REGISTERED)
      NCCLCHECK(ncclCommDeregister(t->comm, t->handles[i]));
    else
      NCCLCHECK(ncclCommWindowDeregister(t->comm, t->handles[i]));
  NCCLCHECK(ncclMemFree(t->sendbuff));
  NCCLCHECK(ncclMemFree(t->recvbuff));
}

static void all_reduce(struct test *t, void *from, void *to, size_t count, ncclDataType_t type)
{
  NCCLCHECK(ncclAllReduce(from, to, count, type, ncclSum, t->comm, t->stream));
}

/* Every count, out of place and in place, starting at element 0 and at element 1. */
static void test_counts(struct test *t, enum path path, const struct datatype *type)
{
  struct verifier v;
  verifier_init(&v, t->me, type, t->stream);
  for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++)
    for (size_t first = 0; first < 2; first++) {
      char *from = t->sendbuff + first * type->size, *to = t->recvbuff + first * type->size;
      verifier_next_round(&v);
      verifier_fill(&v, VERIFY_INDEXED, from, to, COUNTS[i]);
      CUDACHECK(cudaStreamSynchronize(t->stream)); /* the launch hazard has a test of its own */
      all_reduce(t, from, to, COUNTS[i], type->nccl);
      CUDACHECK(cudaStreamSynchronize(t->stream)); /* the verifier does not */
      verifier_check(&v, "out of place", to, COUNTS[i]);
      verifier_fill(&v, VERIFY_INDEXED, from, NULL, COUNTS[i]);
      CUDACHECK(cudaStreamSynchronize(t->stream));
      all_reduce(t, from, from, COUNTS[i], type->nccl);
      CUDACHECK(cudaStreamSynchronize(t->stream));
      verifier_check(&v, "in place", from, COUNTS[i]);
    }
  result(t, v.code, PATHS[path], type->name);
  verifier_free(&v);
}

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
    verifier_fill(&v, VERIFY_INDEXED, t->sendbuff, NULL, count);
    if (separated) CUDACHECK(cudaMemsetAsync(t->sendbuff + count * 4, 0, 4, t->stream));
    all_reduce(t, t->sendbuff, t->recvbuff, count, ncclFloat);
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

static void test_replay(struct test *t, enum path path)
{
  static const size_t counts[] = {1, 256, 65536, 1048576};
  int runtime = 0, as_is = EXIT_VERIFIED, separated = EXIT_VERIFIED;
  NCCLCHECK(ncclGetVersion(&runtime));
  /* the versions whose symmetric kernels miss a grid-dependency wait (docs/symmetric_memory.md) */
  bool hazard =
      path == SYMMETRIC && runtime >= NCCL_VERSION(2, 28, 3) && runtime < NCCL_VERSION(2, 30, 7);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    if (replay(t, counts[i], false)) as_is = EXIT_WRONG_DATA;
    if (replay(t, counts[i], true)) separated = EXIT_WRONG_DATA;
  }
  as_is = launcher_agree(t->me, as_is);
  if (hazard)
    launcher_print(t->me, "# %s, replayed graph as is: %s (NCCL %d has the launch hazard)\n",
                   PATHS[path], as_is == EXIT_VERIFIED ? "right" : "WRONG", runtime);
  else
    result(t, as_is, PATHS[path], "replayed graph, input changed by a kernel");
  result(t, separated, PATHS[path], "replayed graph, kernel and AllReduce separated");
}

/* A communicator for each path. On one communicator, windows at addresses that had been registered
 * by ncclCommRegister before gave wrong sums of double and int32 on 2 and 3 ranks (NCCL 2.28.3 and
 * 2.28.9, see docs/symmetric_memory.md). */
static void make_communicator(struct test *t)
{
  ncclUniqueId id;
  if (t->me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(t->me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&t->comm, t->me->nranks, id, t->me->rank));
}

static int run(const struct rank *me, const struct options *opt)
{
  struct test t = {.me = me, .code = EXIT_VERIFIED};
  (void)opt;
  CUDACHECK(cudaSetDevice(me->device));
  CUDACHECK(cudaStreamCreate(&t.stream));
  enum path last = NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0) ? SYMMETRIC : REGISTERED;
  for (enum path path = PLAIN; path <= last; path++) {
    launcher_step(PATHS[path]);
    make_communicator(&t);
    setup(&t, path);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
      test_counts(&t, path, datatype_find(TYPES[i]));
    test_replay(&t, path);
    teardown(&t, path);
    NCCLCHECK(ncclCommFinalize(t.comm));
    NCCLCHECK(ncclCommDestroy(t.comm));
  }
  CUDACHECK(cudaStreamDestroy(t.stream));
  return t.code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_cases",
      .summary = "test cases of AllReduce",
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
