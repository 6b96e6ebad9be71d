/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with nothing between them and the kernels that write their input and read their result:
 * small ones are launched while the kernel before them still runs. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "verify.h"

/* Elements, so that each of the three methods has its turn: see small_limits. */
static const size_t COUNTS[] = {100, 3, 700, 2000, 170, 1};
enum { NCOUNTS = sizeof COUNTS / sizeof *COUNTS };

/* A kernel that writes the input, the call, a kernel that compares; each time with other data. */
static void enqueue_neighbours(struct test *t, struct verifier *v, allreduce_t handle)
{
  for (int i = 0; i < NCOUNTS; i++) {
    verifier_next_round(v);
    verifier_fill(v, VERIFY_INDEXED, t->send, t->recv, COUNTS[i]);
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
  for (int i = 0; i < 20; i++) enqueue_neighbours(t, &v, handle);
  verifier_report(&v, "kernels around");
  if (!launcher_graphs_can_deadlock) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 10; i++) enqueue_neighbours(t, &v, handle);
    CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; i++) CUDACHECK(cudaGraphLaunch(exec, t->stream));
    verifier_report(&v, "kernels around, in a graph");
    CUDACHECK(cudaGraphExecDestroy(exec));
    CUDACHECK(cudaGraphDestroy(graph));
  }
  result(t, v.code, "kernels directly before and after");
  verifier_free(&v);
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_destroy(handle));
}

/* Calls in place, one directly after the other, each with what the one before has left: an element
 * is the sum over all ranks after the first call that it is in, and n times as much after each
 * further one. */
static void test_chain(struct test *t, const allreduce_config_t *config)
{
  enum { ELEMENTS = 1600, CALLS = 60 };
  uint64_t input[ELEMENTS], want[ELEMENTS] = {0}, got[ELEMENTS];
  allreduce_t handle = make_handle(t, config);
  ncclResult_t error = ncclSuccess;
  int code = EXIT_VERIFIED;
  launcher_step("chain");
  for (size_t i = 0; i < ELEMENTS; i++) {
    for (int p = 0; p < t->me->nranks; p++) want[i] += hash(i * 100 + (unsigned)p);
    input[i] = hash(i * 100 + (unsigned)t->me->rank);
  }
  CUDACHECK(cudaMemcpy(t->recv, input, sizeof input, cudaMemcpyHostToDevice));
  launcher_barrier(t->me);
  for (unsigned k = 0; k < CALLS; k++) {
    const size_t count = k == 0 ? ELEMENTS : COUNTS[hash(k) % NCOUNTS] * 3 / 4 + 1;
    const uint64_t random = hash(k * 64ull + (unsigned)t->me->rank);
    if (random % 8 == 0) usleep((unsigned)(random >> 8) % 1000);
    LIBRARYCHECK(allreduce_run(handle, t->recv, t->recv, count, ncclUint64, t->stream));
    for (size_t i = 0; k > 0 && i < count; i++) want[i] *= (unsigned)t->me->nranks;
  }
  CUDACHECK(cudaStreamSynchronize(t->stream));
  LIBRARYCHECK(allreduce_get_async_error(handle, &error));
  CUDACHECK(cudaMemcpy(got, t->recv, sizeof got, cudaMemcpyDeviceToHost));
  if (error != ncclSuccess || memcmp(got, want, sizeof got) != 0) code = EXIT_WRONG_DATA;
  result(t, code, "calls in place directly after each other");
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_destroy(handle));
}

void test_neighbours(struct test *t, const allreduce_config_t *config)
{
  test_kernels_around(t, config);
  test_chain(t, config);
}
