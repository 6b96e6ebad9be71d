/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of the direct AllReduce (02_allreduce_sm/lib), in one process per (launcher, number of
 * ranks), on GPUs and on the stand-in. Prints one line `ok - ...` or `not ok - ...` per case. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "verify.h"

#define TYPE(type, sum, element) type,
static const ncclDataType_t TYPES[] = {ALLREDUCE_TYPES(TYPE)};
enum { NTYPES = sizeof TYPES / sizeof *TYPES };

static struct calls *no_calls(void)
{
  return launcher_allocate(sizeof(struct calls));
}

/* n calls of all types and methods; some without elements. */
static struct calls *random_calls(struct test *t, int n, unsigned seed)
{
  struct calls *c = no_calls();
  for (int i = 0; i < n; i++) {
    const unsigned long long random = hash(seed * 1000ull + (unsigned)i);
    const ncclDataType_t type = TYPES[random % NTYPES];
    size_t count = (size_t)(random >> 8) % ((size_t)16 << (random >> 32) % 8);
    if ((random >> 40) % 8 == 0) count = 0;
    calls_add(t->bytes, c, type, count, seed * 1000 + (unsigned)i);
  }
  return c;
}

static void run_calls(struct test *t, struct calls *c, const allreduce_config_t *config,
                      unsigned late, const char *what)
{
  allreduce_t handle = make_handle(t, config);
  calls_prepare(t, c);
  launcher_step(what);
  launcher_barrier(t->me);
  calls_enqueue(t, c, handle, late);
  result(t, calls_check(t, c, handle), what);
  destroy_handle(t, handle);
  free(c);
}

/* Every type with counts around the borders of words, lines and methods. */
static void test_types(struct test *t)
{
  static const size_t bytes[] = {8, 16, 24, 120, 128, 296, 304, 1500, 1504, 8000, 8008, 40000};
  const allreduce_config_t config = small_limits(t);
  struct calls *c = no_calls();
  for (int i = 0; i < NTYPES; i++)
    for (int b = 0; b < 12; b++)
      for (unsigned more = 0; more < 2; more++) {
        const size_t count = bytes[b] / allreduce_size_of(TYPES[i]) + more;
        calls_add(t->bytes, c, TYPES[i], count, (unsigned)(i * 100 + b * 2) + more);
      }
  run_calls(t, c, &config, 0, "types, counts and places");
}

/* No bare line can be sent as it is: in one hop, in two, and in turns. */
static void test_escapes(struct test *t)
{
  static const size_t bytes[] = {320, 1500, 2000, 8000};
  const allreduce_config_t config = small_limits(t);
  struct calls *c = no_calls();
  for (unsigned i = 0; i < 40; i++) {
    const ncclDataType_t type = i % 3 ? ncclUint64 : ncclInt32;
    calls_add(t->bytes, c, type, bytes[i / 2 % 4] / allreduce_size_of(type), ESCAPES + i);
  }
  run_calls(t, c, &config, 1000, "lines with escapes");
}

/* With the limits as they are. */
static void test_large(struct test *t)
{
  static const size_t counts[] = {2047, 2049, 40000, 300001, 1300001};
  struct calls *c = no_calls();
  for (unsigned i = 0; i < 5; i++) calls_add(t->bytes, c, ncclFloat, counts[i], i);
  run_calls(t, c, NULL, 0, "large vectors");
}

static cudaGraphExec_t end_capture(struct test *t)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

/* Eager calls and a graph in turns, while the number passes 2^32. */
static void test_graph(struct test *t)
{
  allreduce_config_t config = small_limits(t);
  config.calls_before = ((unsigned long long)1 << 32) - 20;
  allreduce_t handle = make_handle(t, &config);
  struct calls *c = random_calls(t, 25, 5);
  int code = EXIT_VERIFIED;
  launcher_step("graph");
  calls_prepare(t, c);
  CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
  calls_enqueue(t, c, handle, 0);
  cudaGraphExec_t exec = end_capture(t);
  for (int turn = 0; turn < 6; turn++) {
    launcher_barrier(t->me);
    CUDACHECK(cudaMemsetAsync(t->results, 0, c->bytes, t->stream));
    if (turn % 3 == 1) /* replaced by what comes after it */
      calls_enqueue(t, c, handle, 500);
    CUDACHECK(cudaGraphLaunch(exec, t->stream));
    if (turn % 3 == 2) calls_enqueue(t, c, handle, 500);
    const int found = calls_check(t, c, handle);
    if (found != EXIT_VERIFIED) code = found;
  }
  result(t, code, "a graph, its replays and other calls");
  CUDACHECK(cudaGraphExecDestroy(exec));
  destroy_handle(t, handle);
  free(c);
}

/* Ranks that ask for different things agree on the least. */
static void test_limits(struct test *t)
{
  allreduce_config_t config = small_limits(t);
  if (t->me->rank == t->me->nranks - 1) config.max_blocks = 1;
  run_calls(t, random_calls(t, 40, 6), &config, 0, "fewer blocks than wanted on one rank");
  config = small_limits(t);
  if (t->me->rank == 0) config.onehop_bytes = config.twohop_bytes = -1;
  run_calls(t, random_calls(t, 40, 7), &config, 0, "no bare lines on one rank");
  config = small_limits(t);
  config.no_early_launch = 1;
  allreduce_t handle = make_handle(t, &config);
  result(t, handle->overlaps ? EXIT_WRONG_DATA : EXIT_VERIFIED, "early launch is off");
  destroy_handle(t, handle);
}

/* Elements, so that each of the methods has its turn: see small_limits. */
static const size_t COUNTS[] = {50, 3, 110, 700, 9000, 1};
enum { NCOUNTS = sizeof COUNTS / sizeof *COUNTS };

/* Nothing stands between a call and the kernels that write its input and read its result: small
 * ones are launched while the kernel before them still runs. A kernel that writes the input, the
 * call, a kernel that compares; each time with other data. */
static void enqueue_neighbors(struct test *t, struct verifier *v, allreduce_t handle)
{
  for (int i = 0; i < NCOUNTS; i++) {
    verifier_next_round(v);
    verifier_fill(v, t->send, t->recv, COUNTS[i]);
    LIBRARYCHECK(allreduce_run(handle, t->send, t->recv, COUNTS[i], v->type->nccl, t->stream));
    verifier_compare(v, t->recv, COUNTS[i]);
  }
}

static void test_kernels_around(struct test *t, const allreduce_config_t *config)
{
  struct verifier v;
  allreduce_t handle = make_handle(t, config);
  launcher_step("kernels around");
  verifier_init(&v, t->me, datatype_find("float"), t->stream);
  for (int i = 0; i < 20; i++) enqueue_neighbors(t, &v, handle);
  verifier_report(&v, "kernels around");
  if (!launcher_graphs_can_deadlock) {
    CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 10; i++) enqueue_neighbors(t, &v, handle);
    cudaGraphExec_t exec = end_capture(t);
    for (int i = 0; i < 10; i++) CUDACHECK(cudaGraphLaunch(exec, t->stream));
    verifier_report(&v, "kernels around, in a graph");
    CUDACHECK(cudaGraphExecDestroy(exec));
  }
  result(t, v.code, "kernels directly before and after");
  verifier_free(&v);
  destroy_handle(t, handle);
}

/* Calls in place, one directly after the other, each with what the one before has left: an element
 * is the sum over all ranks after the first call that it is in, and n times as much after each
 * further one. The vectors end where their memory does. */
static void test_chain(struct test *t, const allreduce_config_t *config)
{
  enum { ELEMENTS = 7000, CALLS = 60 };
  uint64_t input[ELEMENTS], want[ELEMENTS] = {0}, got[ELEMENTS];
  uint64_t *const end = (uint64_t *)(void *)(t->recv + t->bytes);
  allreduce_t handle = make_handle(t, config);
  launcher_step("chain");
  for (size_t i = 0; i < ELEMENTS; i++) {
    for (int p = 0; p < t->me->nranks; p++) want[i] += hash(i * 100 + (unsigned)p);
    input[i] = hash(i * 100 + (unsigned)t->me->rank);
  }
  CUDACHECK(cudaMemcpy(end - ELEMENTS, input, sizeof input, cudaMemcpyHostToDevice));
  launcher_barrier(t->me);
  for (unsigned k = 0; k < CALLS; k++) {
    const size_t count = k == 0 ? ELEMENTS : COUNTS[hash(k) % NCOUNTS] * 3 / 4 + 1;
    const uint64_t random = hash(k * 64ull + (unsigned)t->me->rank);
    if (random % 8 == 0) usleep((unsigned)(random >> 8) % 1000);
    LIBRARYCHECK(allreduce_run(handle, end - count, end - count, count, ncclUint64, t->stream));
    for (size_t i = 1; k > 0 && i <= count; i++) want[ELEMENTS - i] *= (unsigned)t->me->nranks;
  }
  const bool failed = found_error(t, handle) != ncclSuccess;
  CUDACHECK(cudaMemcpy(got, end - ELEMENTS, sizeof got, cudaMemcpyDeviceToHost));
  result(t, failed || memcmp(got, want, sizeof got) != 0 ? EXIT_WRONG_DATA : EXIT_VERIFIED,
         "calls in place directly after each other");
  destroy_handle(t, handle);
}

/* With a call that fails on one rank: all of them end, with an error each. */
static bool only_create;

static void say_what_came_of_it(struct test *t)
{
  allreduce_t handle;
  launcher_step("create");
  const ncclResult_t found = allreduce_create(t->comm, NULL, &handle);
  if (found != ncclSuccess)
    launcher_print_ranks(t->me, "rank %d: %s: %s\n", t->me->rank, ncclGetErrorString(found),
                         allreduce_last_error());
  else
    launcher_print_ranks(t->me, "rank %d: two hops up to %zu bytes\n", t->me->rank,
                         handle->limits.twohop);
  LIBRARYCHECK(allreduce_destroy(handle));
}

static void setup(struct test *t)
{
  ncclUniqueId id;
  CUDACHECK(cudaSetDevice(t->me->device));
  CUDACHECK(cudaStreamCreate(&t->stream));
  if (t->me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(t->me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&t->comm, t->me->nranks, id, t->me->rank));
  NCCLCHECK(ncclMemAlloc((void **)&t->recv, t->bytes));
  NCCLCHECK(
      ncclCommWindowRegister(t->comm, t->recv, t->bytes, &t->window, NCCL_WIN_COLL_SYMMETRIC));
  CUDACHECK(cudaMalloc((void **)&t->send, t->bytes));
  CUDACHECK(cudaMalloc((void **)&t->inputs, t->bytes));
  CUDACHECK(cudaMalloc((void **)&t->results, t->bytes));
  t->host = launcher_allocate(t->bytes);
}

static void teardown(struct test *t)
{
  NCCLCHECK(ncclCommWindowDeregister(t->comm, t->window));
  NCCLCHECK(ncclMemFree(t->recv));
  CUDACHECK(cudaFree(t->send));
  CUDACHECK(cudaFree(t->inputs));
  CUDACHECK(cudaFree(t->results));
  CUDACHECK(cudaStreamDestroy(t->stream));
  NCCLCHECK(ncclCommFinalize(t->comm));
  NCCLCHECK(ncclCommDestroy(t->comm));
  free(t->host);
}

static int run(const struct rank *me, const struct options *opt)
{
  struct test t = {.me = me, .code = EXIT_VERIFIED, .bytes = (size_t)16 << 20};
  (void)opt;
  setup(&t);
  if (only_create) {
    say_what_came_of_it(&t);
    teardown(&t);
    return t.code;
  }
  const allreduce_config_t config = small_limits(&t);
  test_types(&t);
  test_escapes(&t);
  run_calls(&t, random_calls(&t, MAX_CALLS, 3), &config, 0, "calls one after the other");
  run_calls(&t, random_calls(&t, MAX_CALLS, 4), &config, 3000, "late ranks");
  test_large(&t);
  test_limits(&t);
  if (launcher_graphs_can_deadlock)
    launcher_print(t.me, "ok - no graphs where ranks are threads\n");
  else
    test_graph(&t);
  test_kernels_around(&t, &config);
  test_chain(&t, &config);
  test_errors(&t);
  teardown(&t);
  return t.code;
}

static const struct option_spec options[] = {
    {"create", 0, OPTION_FLAG, &only_create, NULL, "make a handle, and no more", 0, 0},
    {0},
};

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "allreduce_direct",
      .summary = "test cases of the direct AllReduce (02_allreduce_sm/lib)",
      .options = options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
