/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of the AlltoAllV that are worth a test, in one process per (launcher, number of ranks).
 * Prints one line `ok - ...` or `not ok - ...` per case. Data and comparison are those of the
 * example: an element says where it comes from, and everything outside the segments is guarded. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef LAUNCHER_MPI
#include <mpi.h>
#endif

#include "check.h"
#include "elements.h"
#include "patterns.h"
#include "program.h"
#include "simple/barrier.h"

#ifdef CPU_STANDIN /* the same cases, fewer and smaller */
enum { REPLAYS = 10, RANDOM_CASES = 40, OFFSET_STEP = 5 };
enum { LL_LIMIT = 8 << 10, BUFFER = 512 << 10 };
#else
enum { REPLAYS = 300, RANDOM_CASES = 400, OFFSET_STEP = 1 };
enum { LL_LIMIT = 128 << 10, BUFFER = 8 << 20 };
#endif
enum { MAX_RANKS = 64 };

static bool large;       /* --large: pairs beyond 4 GiB */
static long calls = 300; /* --calls: back-to-back calls */
static int method;       /* --method */
static bool mismatch;    /* --mismatch: only that, to its end as the example ends it */

struct test {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  alltoallv_t handle;
  struct program_buffers buffers;
  struct element_errors *errors; /* device */
  unsigned long long random;     /* the same on all ranks */
  bool one_sided;                /* the handle uses the kernel, */
  int near;                      /* and the last rank that it reaches from rank 0 */
  int code;
};

/* One rank's side of an exchange. */
struct exchange {
  size_t matrix[MAX_RANKS * MAX_RANKS];
  size_t sendcounts[MAX_RANKS], sdispls[MAX_RANKS], recvcounts[MAX_RANKS], rdispls[MAX_RANKS];
};

static void result(struct test *t, bool good, const char *what)
{
  int code = launcher_agree(t->me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  launcher_print(t->me, "%s - %s\n", code == EXIT_VERIFIED ? "ok" : "not ok", what);
  if (code != EXIT_VERIFIED) t->code = code;
}

/* Is the last error that sentence? */
static bool says(const char *format, ...)
{
  char sentence[256];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  if (strcmp(alltoallv_last_error(), sentence) == 0) return true;
  launcher_error("said '%s', not '%s'", alltoallv_last_error(), sentence);
  return false;
}

static unsigned next_random(struct test *t)
{
  t->random = t->random * 6364136223846793005ULL + 1442695040888963407ULL;
  return (unsigned)(t->random >> 33);
}

/* A type of that size; the bytes of an element mean nothing to an exchange. */
static const struct datatype *type_of(size_t size)
{
  return datatype_find(size == 1 ? "int8" : size == 2 ? "half" : size == 4 ? "float" : "double");
}

/* ---- one exchange ------------------------------------------------------------------------------
 */

/* Counts from the matrix; segments packed in the order of `order` (NULL: of ranks) with `gap`
 * elements before each. */
static void lay_out(const struct test *t, struct exchange *x, const int *order, size_t gap)
{
  const int n = t->me->nranks;
  size_t sends = 0, receives = 0;
  for (int i = 0; i < n; i++) {
    const int p = order ? order[i] : i;
    x->sendcounts[p] = x->matrix[t->me->rank * n + p];
    x->recvcounts[p] = x->matrix[p * n + t->me->rank];
    x->sdispls[p] = sends + gap;
    x->rdispls[p] = receives + gap;
    sends += gap + x->sendcounts[p];
    receives += gap + x->recvcounts[p];
  }
}

/* Fill, exchange and check with the buffers starting at the given bytes. */
static bool exchange(struct test *t, struct exchange *x, size_t size, size_t send_at,
                     size_t recv_at)
{
  struct segment expected[MAX_RANKS];
  char *send = t->buffers.send + send_at, *recv = t->buffers.window + PROGRAM_GUARD + recv_at;
  ncclResult_t async;
  int source, destination;
  const uint32_t round = next_random(t);
  program_fill(t->me, send, x->sendcounts, x->sdispls, size, round, t->stream);
  program_guard(&t->buffers, t->stream);
  ALLTOALLVCHECK(alltoallv(send, x->sendcounts, x->sdispls, recv, x->recvcounts, x->rdispls,
                           type_of(size)->nccl, t->handle, t->stream));
  program_expect(t->me, recv, x->recvcounts, x->rdispls, size, round, expected);
  bool good = program_verify("exchange", expected, t->me->nranks, &t->buffers, t->stream) == 0;
  ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
  return good && async == ncclSuccess;
}

/* Every pattern, element size and alignment of source and destination. */
static void test_patterns(struct test *t)
{
  static const char *const patterns[] = {"uniform",       "zipf:0.5",        "zipf:1",  "zipf:2",
                                         "zero",          "diagonal",        "one-hot", "random",
                                         "single-sender", "single-receiver", "moe",     "halving"};
  for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
    struct exchange x;
    bool good = true;
    char error[128];
    launcher_step(patterns[p]);
    for (size_t size = 1; size <= 8; size *= 2)
      for (size_t at = 0; at < 256; at += OFFSET_STEP) {
        const size_t send_at = at / 16, recv_at = at % 16;
        if (send_at % size || recv_at % size) continue;
        pattern_matrix(patterns[p], t->me->nranks, 4096 + next_random(t) % 3000, size, at, x.matrix,
                       error, sizeof error);
        lay_out(t, &x, NULL, 0);
        good &= exchange(t, &x, size, send_at, recv_at);
      }
    result(t, good, patterns[p]);
  }
}

/* The matrix and layout of a random exchange: sizes from nothing to beyond the low-latency limit,
 * gaps, permuted displacements. */
static void random_exchange(struct test *t, struct exchange *x, size_t most)
{
  const int n = t->me->nranks;
  int order[MAX_RANKS];
  if (most > BUFFER / 16 / (size_t)n) most = BUFFER / 16 / (size_t)n; /* of 8 bytes, with gaps */
  for (int i = 0; i < n * n; i++) {
    size_t scale = (size_t)1 << next_random(t) % 18;
    x->matrix[i] = next_random(t) % 4 == 0 ? 0 : next_random(t) % (scale < most ? scale : most);
  }
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)(next_random(t) % (unsigned)(i + 1)), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  lay_out(t, x, order, next_random(t) % 5);
}

#ifdef LAUNCHER_MPI
/* MPI's own AlltoAllV on the same bytes has to give the same buffer. */
static bool same_as_mpi(struct test *t, const struct exchange *x, size_t size)
{
  const int n = t->me->nranks;
  int counts[4][MAX_RANKS];
  const size_t bytes = t->buffers.recv_bytes;
  char *send = malloc(bytes), *recv = malloc(bytes), *want = malloc(bytes);
  for (int i = 0; i < n; i++) {
    counts[0][i] = (int)(x->sendcounts[i] * size);
    counts[1][i] = (int)(x->sdispls[i] * size);
    counts[2][i] = (int)(x->recvcounts[i] * size);
    counts[3][i] = (int)(x->rdispls[i] * size);
  }
  CUDACHECK(cudaMemcpy(send, t->buffers.send, bytes, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(recv, t->buffers.window + PROGRAM_GUARD, bytes, cudaMemcpyDeviceToHost));
  memset(want, ELEMENTS_GUARD_BYTE, bytes);
  MPICHECK(MPI_Alltoallv(send, counts[0], counts[1], MPI_BYTE, want, counts[2], counts[3], MPI_BYTE,
                         MPI_COMM_WORLD));
  bool same = memcmp(recv, want, bytes) == 0;
  free(send), free(recv), free(want);
  return same;
}
#endif

static void test_random(struct test *t)
{
  struct exchange x;
  bool good = true;
#ifdef LAUNCHER_MPI
  bool mpi = true;
#endif
  launcher_step("random matrices");
  for (int i = 0; i < RANDOM_CASES; i++) {
    const size_t size = (size_t)1 << next_random(t) % 4;
    random_exchange(t, &x, BUFFER);
    good &= exchange(t, &x, size, 0, 0);
#ifdef LAUNCHER_MPI
    if (i % 4 == 0) mpi &= same_as_mpi(t, &x, size);
#endif
  }
  result(t, good, "random matrices, gaps, permuted displacements");
#ifdef LAUNCHER_MPI
  result(t, mpi, "random matrices against MPI_Alltoallv");
#endif
}

/* Pairs around the limit of the low-latency protocol, in one exchange with small and large ones. */
static void test_threshold(struct test *t)
{
  struct exchange x;
  bool good = true;
  launcher_step("around the low-latency limit");
  for (size_t around = LL_LIMIT / 2; around <= LL_LIMIT; around *= 2)
    for (int delta = -17; delta <= 17; delta++) {
      if (delta % OFFSET_STEP) continue;
      for (int i = 0; i < t->me->nranks * t->me->nranks; i++)
        x.matrix[i] = i % 3 == 2 ? 5 : around + (size_t)delta;
      lay_out(t, &x, NULL, 1);
      good &= exchange(t, &x, 1, 0, 0);
    }
  result(t, good, "pairs around the low-latency limit");
}

/* Thousands of exchanges with changing counts behind each other, nothing waited for in between,
 * while one rank after the other is late. */
static void test_back_to_back(struct test *t)
{
  struct exchange x;
  struct element_errors errors;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  CUDACHECK(cudaMemsetAsync(t->errors, 0, sizeof *t->errors, t->stream));
  for (int call = 0; call < calls; call++) {
    struct segment expected[MAX_RANKS];
    if (call % 100 == 0) launcher_step("back to back");
    random_exchange(t, &x, 3000);
    program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, 4, (uint32_t)call, t->stream);
    ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                             x.rdispls, ncclFloat, t->handle, t->stream));
    program_expect(t->me, recv, x.recvcounts, x.rdispls, 4, (uint32_t)call, expected);
    for (int from = 0; from < t->me->nranks; from++)
      CUDACHECK(elements_compare(expected[from], t->errors, t->stream));
    if (call % 50 == 0 && call / 50 % t->me->nranks == t->me->rank) usleep(2000);
  }
  CUDACHECK(cudaMemcpyAsync(&errors, t->errors, sizeof errors, cudaMemcpyDeviceToHost, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  result(t, errors.wrong == 0, "back-to-back calls with changing counts and a late rank");
}

/* Pushes between two barriers with changing counts, nothing waited for in between. One rank after
 * the other is late: before its push, which the second barrier has to wait for, or after it, when
 * it has not looked at what it received: the first barrier of the next push has to wait for that.
 */
static void test_barrier(struct test *t)
{
  enum { CALLS = 40 };
  const int n = t->me->nranks;
  struct exchange x;
  struct element_errors errors;
  size_t places[MAX_RANKS];
  const char *why;
  char *window;
  launcher_step("push between barriers");
  NCCLCHECK(ncclMemAlloc((void **)&window, t->buffers.window_bytes));
  struct barrier_push *push = barrier_create(t->comm, window, t->buffers.window_bytes, &why);
  if (!push) launcher_print(t->me, "# no push between barriers: %s\n", why);
  CUDACHECK(cudaMemsetAsync(t->errors, 0, sizeof *t->errors, t->stream));
  for (int call = 0; push && call < CALLS; call++) {
    struct segment expected[MAX_RANKS];
    const bool late = call / 2 % n == t->me->rank;
    for (int i = 0; i < n * n; i++) x.matrix[i] = next_random(t) % 3000;
    lay_out(t, &x, NULL, 0);
    matrix_places(x.matrix, n, t->me->rank, places);
    program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, 4, (uint32_t)call, t->stream);
    if (late && call % 2 == 0) usleep(2000);
    barrier_alltoallv(push, t->buffers.send, PROGRAM_GUARD,
                      (struct barrier_parts){x.sendcounts, x.sdispls, places, 4}, t->stream);
    if (late && call % 2 == 1) usleep(2000);
    program_expect(t->me, window + PROGRAM_GUARD, x.recvcounts, x.rdispls, 4, (uint32_t)call,
                   expected);
    for (int from = 0; from < n; from++)
      CUDACHECK(elements_compare(expected[from], t->errors, t->stream));
  }
  CUDACHECK(cudaMemcpyAsync(&errors, t->errors, sizeof errors, cudaMemcpyDeviceToHost, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  if (push) barrier_destroy(push);
  launcher_barrier(t->me);
  NCCLCHECK(ncclMemFree(window));
  if (push) result(t, errors.wrong == 0, "back-to-back pushes between barriers and a late rank");
}

/* A graph of exchanges with different counts, replayed. */
static void test_graph(struct test *t)
{
  struct exchange x[4];
  struct element_errors errors;
  struct segment expected[MAX_RANKS];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  launcher_step("graph replay");
  CUDACHECK(cudaMemsetAsync(t->errors, 0, sizeof *t->errors, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 4; i++) {
    random_exchange(t, &x[i], 40000);
    program_fill(t->me, t->buffers.send, x[i].sendcounts, x[i].sdispls, 4, (uint32_t)i, t->stream);
    program_guard(&t->buffers, t->stream);
    ALLTOALLVCHECK(alltoallv(t->buffers.send, x[i].sendcounts, x[i].sdispls, recv, x[i].recvcounts,
                             x[i].rdispls, ncclFloat, t->handle, t->stream));
    program_expect(t->me, recv, x[i].recvcounts, x[i].rdispls, 4, (uint32_t)i, expected);
    for (int from = 0; from < t->me->nranks; from++)
      CUDACHECK(elements_compare(expected[from], t->errors, t->stream));
  }
  CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < REPLAYS; i++) {
    CUDACHECK(cudaGraphLaunch(exec, t->stream));
    if (i % 20 == t->me->rank) usleep(1000);
  }
  CUDACHECK(cudaMemcpyAsync(&errors, t->errors, sizeof errors, cudaMemcpyDeviceToHost, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaGraphExecDestroy(exec));
  CUDACHECK(cudaGraphDestroy(graph));
  result(t, errors.wrong == 0, "graph replay");
}

static void pause_stream(void *milliseconds)
{
  usleep(1000 * *(const unsigned *)milliseconds);
}

/* An exchange waits for the one before on another stream, also when one was captured in between. */
static void test_streams(struct test *t)
{
  static const unsigned milliseconds = 50;
  struct exchange x;
  cudaStream_t other;
  cudaEvent_t first; /* that exchange is over */
  cudaGraph_t graph;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  launcher_step("two streams");
  random_exchange(t, &x, 1000);
  CUDACHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDACHECK(cudaEventCreateWithFlags(&first, cudaEventDisableTiming));
  CUDACHECK(cudaLaunchHostFunc(t->stream, pause_stream, (void *)&milliseconds));
  for (int i = 0; i < 3; i++) {
    cudaStream_t stream = i == 0 ? t->stream : other;
    if (i == 1) CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                             x.rdispls, ncclFloat, t->handle, stream));
    if (i == 0) CUDACHECK(cudaEventRecord(first, stream));
    if (i == 1) CUDACHECK(cudaStreamEndCapture(stream, &graph));
  }
  CUDACHECK(cudaStreamSynchronize(other));
  const bool over = cudaEventQuery(first) == cudaSuccess;
  CUDACHECK(cudaStreamSynchronize(t->stream));
  const bool verified = exchange(t, &x, 4, 0, 0); /* the call numbers fit each other */
  CUDACHECK(cudaGraphDestroy(graph));
  CUDACHECK(cudaEventDestroy(first));
  CUDACHECK(cudaStreamDestroy(other));
  result(t, over && verified, "two streams, with a capture in between");
}

/* Of one capture, exchanges are on one stream. Which capture it was counts, not whether its stream
 * is still there. */
static void test_captures(struct test *t)
{
  struct exchange x;
  cudaStream_t a, b;
  cudaEvent_t fork;
  cudaGraph_t graph;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true;
  launcher_step("captures");
  random_exchange(t, &x, 1000);
  CUDACHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDACHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  for (int between = 0; between < 2; between++) { /* 1: one that is not captured, too */
    CUDACHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDACHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                             x.rdispls, ncclFloat, t->handle, a));
    if (between && t->near == t->me->nranks - 1)
      ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                               x.rdispls, ncclFloat, t->handle, t->stream));
    CUDACHECK(cudaEventRecord(fork, a));
    CUDACHECK(cudaStreamWaitEvent(b, fork, 0));
    good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                      ncclFloat, t->handle, b) == ncclInvalidUsage;
    good &= says("two streams of one capture have exchanges of one handle");
    CUDACHECK(cudaEventRecord(fork, b));
    CUDACHECK(cudaStreamWaitEvent(a, fork, 0));
    CUDACHECK(cudaStreamEndCapture(a, &graph));
    CUDACHECK(cudaGraphDestroy(graph));
    CUDACHECK(cudaStreamDestroy(a)); /* the next one may be given its address */
  }
  CUDACHECK(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed));
  ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                           ncclFloat, t->handle, b));
  CUDACHECK(cudaStreamEndCapture(b, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  /* the exchange before is on a stream that is being captured now */
  ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                           ncclFloat, t->handle, b));
  CUDACHECK(cudaStreamSynchronize(b));
  CUDACHECK(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed));
  good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                    ncclFloat, t->handle, t->stream) == ncclInvalidUsage;
  good &= says("the stream of the exchange before is being captured: this one cannot wait for it");
  CUDACHECK(cudaStreamEndCapture(b, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  good &= exchange(t, &x, 4, 0, 0);
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaStreamDestroy(b));
  CUDACHECK(cudaEventDestroy(fork));
  result(t, good, "exchanges of one capture are on one stream");
}

/* ---- rows, packed displacements, an exchange of counts -----------------------------------------
 */

/* The error that the device or the host has found, the sentence included. */
static ncclResult_t async_error(struct test *t)
{
  ncclResult_t async;
  CUDACHECK(cudaStreamSynchronize(t->stream));
  ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, NULL, NULL));
  return async;
}

static void test_counts(struct test *t)
{
  const int n = t->me->nranks;
  struct exchange x;
  size_t received[MAX_RANKS];
  bool good = true;
  launcher_step("counts");
  for (int i = 0; i < 3; i++) {
    random_exchange(t, &x, 3000);
    ALLTOALLVCHECK(alltoallv_counts(x.sendcounts, received, t->handle));
    good &= memcmp(received, x.recvcounts, (size_t)n * sizeof *received) == 0;
  }
  const bool wrong = t->me->rank == n - 1; /* the others hear of it */
  good &= alltoallv_counts(x.sendcounts, wrong ? NULL : received, t->handle) == ncclInvalidArgument;
  good &= says("rank %d passes NULL", n - 1);
  result(t, good, "an exchange of counts");
}

enum way { CALL, PLAN, DEVICE, WAYS };

/* One exchange of rows: x is in rows. NULL displacements where `packed`. */
static bool exchange_rows(struct test *t, const struct exchange *x, enum way way, bool packed,
                          size_t row, size_t size, uint32_t round)
{
  const int n = t->me->nranks;
  const size_t bytes = (size_t)n * sizeof(size_t), *sdispls = packed ? NULL : x->sdispls;
  const size_t *rdispls = packed ? NULL : x->rdispls;
  const ncclDataType_t type = type_of(size)->nccl;
  char *send = t->buffers.send, *recv = t->buffers.window + PROGRAM_GUARD;
  struct exchange elements = *x;
  struct segment expected[MAX_RANKS];
  size_t *device, back[2 * MAX_RANKS];
  alltoallv_plan_t plan;
  bool good = true;
  for (int p = 0; p < n; p++) {
    elements.sendcounts[p] *= row, elements.sdispls[p] *= row;
    elements.recvcounts[p] *= row, elements.rdispls[p] *= row;
  }
  program_fill(t->me, send, elements.sendcounts, elements.sdispls, size, round, t->stream);
  program_guard(&t->buffers, t->stream);
  switch (way) {
  case CALL:
    ALLTOALLVCHECK(alltoallv_rows(send, x->sendcounts, sdispls, recv, x->recvcounts, rdispls, row,
                                  type, t->handle, t->stream));
    break;
  case PLAN:
    ALLTOALLVCHECK(alltoallv_plan_rows(send, x->sendcounts, sdispls, recv, x->recvcounts, rdispls,
                                       row, type, t->handle, &plan));
    ALLTOALLVCHECK(alltoallv_start(plan, t->stream));
    ALLTOALLVCHECK(alltoallv_plan_destroy(plan));
    break;
  default: /* packed: rdispls are not wanted; else they are slots */
    CUDACHECK(cudaMalloc((void **)&device, 4 * bytes));
    CUDACHECK(cudaMemcpyAsync(device, x->sendcounts, bytes, cudaMemcpyHostToDevice, t->stream));
    CUDACHECK(cudaMemcpyAsync(device + n, x->sdispls, bytes, cudaMemcpyHostToDevice, t->stream));
    CUDACHECK(
        cudaMemcpyAsync(device + 3 * n, x->rdispls, bytes, cudaMemcpyHostToDevice, t->stream));
    ALLTOALLVCHECK(alltoallv_device_counts_rows(
        send, device, packed ? NULL : device + n, recv, t->buffers.recv_bytes / size / row,
        device + 2 * n, packed ? NULL : device + 3 * n, NULL,
        packed ? ALLTOALLV_PACKED : ALLTOALLV_SLOTS, row, type, t->handle, t->stream));
    CUDACHECK(cudaMemcpyAsync(back, device + 2 * n, bytes, cudaMemcpyDeviceToHost, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    CUDACHECK(cudaFree(device));
    good = memcmp(back, x->recvcounts, bytes) == 0;
  }
  program_expect(t->me, recv, elements.recvcounts, elements.rdispls, size, round, expected);
  good &= program_verify("rows", expected, n, &t->buffers, t->stream) == 0;
  return good && async_error(t) == ncclSuccess;
}

/* Rows of one element (that is a call without rows) to more than one tile; odd lengths, whose bytes
 * are no power of two. */
static void test_rows(struct test *t)
{
  static const size_t rows[] = {1, 2, 3, 7, 100, 1000};
  bool good[WAYS] = {true, true, true};
  launcher_step("rows");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (int packed = 0; packed < 2; packed++)
      for (enum way way = CALL; way < WAYS; way++) {
        const size_t row = rows[i], size = (size_t)1 << (i % 4);
        struct exchange x;
        random_exchange(t, &x, BUFFER / 16 / row / (size_t)t->me->nranks + 1);
        if (packed) lay_out(t, &x, NULL, 0);
        if (!packed && way == DEVICE) lay_out(t, &x, NULL, 2); /* no two slots at one place */
        good[way] &= exchange_rows(t, &x, way, packed, row, size, (uint32_t)i);
      }
  result(t, good[CALL], "rows, and displacements that are NULL");
  result(t, good[PLAN], "rows, and displacements that are NULL, with plans");
  result(t, good[DEVICE], "rows, and displacements that are NULL, with device counts");
}

/* Numbers that a row makes too large, on the host and on the device. */
static void test_large_rows(struct test *t)
{
  const int n = t->me->nranks;
  const size_t bytes = (size_t)n * sizeof(size_t), row = ((size_t)1 << 29) + 1;
  char *send = t->buffers.send, *recv = t->buffers.window + PROGRAM_GUARD;
  size_t *device, counts[MAX_RANKS] = {0}, zero[MAX_RANKS] = {0};
  bool good = true;
  launcher_step("rows that are too large");
  good &= alltoallv_rows(send, zero, NULL, recv, zero, NULL, 0, ncclFloat, t->handle, t->stream) ==
          ncclInvalidArgument;
  good &= says("row_elements is 0; allowed: at least 1");
  good &= alltoallv_rows(send, zero, NULL, recv, zero, NULL, (size_t)1 << 30, ncclFloat, t->handle,
                         t->stream) == ncclInvalidArgument;
  good &= says("a row of 1073741824 elements of 4 bytes; allowed: less than 4 GiB");
  counts[0] = (size_t)1 << 33; /* of 2^31 + 4 bytes each: beyond 2^64, and 2^35 modulo 2^64 */
  good &= alltoallv_rows(send, counts, NULL, recv, zero, NULL, row, ncclFloat, t->handle,
                         t->stream) == ncclInvalidArgument;
  good &= says("what goes to rank 0 overflows");
  good &= alltoallv_rows(send, zero, NULL, recv, counts, NULL, row, ncclFloat, t->handle,
                         t->stream) == ncclInvalidArgument;
  good &= says("what comes from rank 0 overflows");
  good &= alltoallv_rows(send, zero, counts, recv, zero, NULL, row, ncclFloat, t->handle,
                         t->stream) == ncclInvalidArgument;

  CUDACHECK(cudaMalloc((void **)&device, 3 * bytes));
  for (int shift = 33; shift < 64; shift += 15) { /* all ranks send that to rank 0, no room there */
    struct segment none[1];
    counts[0] = (size_t)1 << shift;
    program_guard(&t->buffers, t->stream);
    CUDACHECK(cudaMemcpyAsync(device, counts, bytes, cudaMemcpyHostToDevice, t->stream));
    ALLTOALLVCHECK(alltoallv_device_counts_rows(send, device, NULL, recv, 0, device + n,
                                                device + 2 * n, NULL, ALLTOALLV_PACKED, row,
                                                ncclFloat, t->handle, t->stream));
    good &= async_error(t) == ncclInvalidArgument;
    good &= strncmp(alltoallv_last_error(), "rank 0 would receive ", 21) == 0;
    good &= strstr(alltoallv_last_error(), " rows, 0 fit") != NULL;
    good &= program_verify("too large", none, 0, &t->buffers, t->stream) == 0;
  }
  CUDACHECK(cudaFree(device));
  result(t, good, "rows and counts that are too large are refused");
}

/* ---- device counts, plans ----------------------------------------------------------------------
 */

/* Random exchanges whose counts only the device knows; every other one does not fit somewhere. */
static void test_device_counts(struct test *t)
{
  const int n = t->me->nranks;
  const size_t row = (size_t)n * sizeof(size_t);
  size_t *device, back[3 * MAX_RANKS], nothing[MAX_RANKS] = {0};
  char *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true, refused = true;
  launcher_step("device counts");
  CUDACHECK(cudaMalloc((void **)&device, 4 * row));
  for (int i = 0; i < RANDOM_CASES / 4; i++) {
    struct exchange x;
    struct segment expected[MAX_RANKS];
    ncclResult_t async;
    int source, destination;
    size_t most = 0, capacity = t->buffers.recv_bytes / 4;
    random_exchange(t, &x, 20000);
    lay_out(t, &x, NULL, 0);
    for (int rank = 0; rank < n; rank++) {
      size_t receives = matrix_receives(x.matrix, n, rank);
      if (receives > most) most = receives;
    }
    const bool fits = i % 2 == 0 || most == 0;
    if (!fits) capacity = most - 1; /* too small on the rank that receives most, if nowhere else */
    program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, 4, (uint32_t)i, t->stream);
    program_guard(&t->buffers, t->stream);
    CUDACHECK(cudaMemcpyAsync(device, x.sendcounts, row, cudaMemcpyHostToDevice, t->stream));
    ALLTOALLVCHECK(alltoallv_device_counts(t->buffers.send, device, NULL, recv, capacity,
                                           device + n, device + 2 * n, device + 3 * n,
                                           ALLTOALLV_PACKED, ncclFloat, t->handle, t->stream));
    CUDACHECK(cudaMemcpyAsync(back, device + n, 3 * row, cudaMemcpyDeviceToHost, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
    program_expect(t->me, recv, x.recvcounts, x.rdispls, 4, (uint32_t)i, expected);
    if (fits) {
      good &= async == ncclSuccess && memcmp(back, x.recvcounts, row) == 0 &&
              memcmp(back + n, x.rdispls, row) == 0 &&
              memcmp(back + 2 * n, x.recvcounts, row) == 0 &&
              program_verify("device counts", expected, n, &t->buffers, t->stream) == 0;
    } else { /* all or nothing: the window is as it was, every rank knows */
      refused &= async == ncclInvalidArgument && memcmp(back, nothing, row) == 0 &&
                 memcmp(back + 2 * n, x.recvcounts, row) == 0 &&
                 program_verify("refused", expected, 0, &t->buffers, t->stream) == 0;
    }
  }
  CUDACHECK(cudaFree(device));
  result(t, good, "device counts");
  result(t, refused, "device counts beyond the capacity are refused on all ranks");
}

/* Slots: every source has a place of its own, wherever its data end. Also the gather that slots and
 * packed segments are used for: all send segments are the same one. */
static bool device_slots(struct test *t, bool packed)
{
  const int n = t->me->nranks;
  const size_t row = (size_t)n * sizeof(size_t), size = 8, room = BUFFER / size / (size_t)n / 64;
  size_t *device, back[2 * MAX_RANKS];
  char *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true;
  CUDACHECK(cudaMalloc((void **)&device, 4 * row));
  for (int i = 0; i < RANDOM_CASES / 4; i++) {
    struct exchange x;
    struct segment expected[MAX_RANKS];
    ncclResult_t async;
    int source, destination, tight = (int)(next_random(t) % (unsigned)(n * n));
    const bool gather = packed || i % 3 == 1, fits = packed || i % 3 != 2;
    const size_t slot = room * (i % 2 ? 1 : 64) / 2; /* small pairs only, or large ones too */
    for (int p = 0; p < n * n; p++) {
      const int first = p / n * n; /* of the row */
      x.matrix[p] = gather && p > first ? x.matrix[first] : next_random(t) % (slot + 1);
    }
    if (!fits) x.matrix[tight] = slot + 1;
    lay_out(t, &x, NULL, 0);
    for (int p = 0; p < n; p++) {
      if (gather) x.sdispls[p] = 3;
      if (!packed) x.rdispls[p] = slot * (size_t)(n - 1 - p);
    }
    program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, size, (uint32_t)i, t->stream);
    if (gather) /* the fills above overwrite each other: as for rank 0 */
      CUDACHECK(elements_fill((struct segment){t->buffers.send + 3 * size, x.sendcounts[0], size,
                                               t->me->rank, 0, (uint32_t)i},
                              t->stream));
    program_guard(&t->buffers, t->stream);
    CUDACHECK(cudaMemcpyAsync(device, x.sendcounts, row, cudaMemcpyHostToDevice, t->stream));
    CUDACHECK(cudaMemcpyAsync(device + n, x.sdispls, row, cudaMemcpyHostToDevice, t->stream));
    CUDACHECK(cudaMemcpyAsync(device + 3 * n, x.rdispls, row, cudaMemcpyHostToDevice, t->stream));
    ALLTOALLVCHECK(alltoallv_device_counts(
        t->buffers.send, device, device + n, recv, slot * (size_t)n, device + 2 * n, device + 3 * n,
        NULL, packed ? ALLTOALLV_PACKED : ALLTOALLV_SLOTS, ncclUint64, t->handle, t->stream));
    CUDACHECK(cudaMemcpyAsync(back, device + 2 * n, 2 * row, cudaMemcpyDeviceToHost, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
    for (int p = 0; p < n && !fits; p++) good &= back[p] == 0;
    good &= !fits || memcmp(back, x.recvcounts, row) == 0;
    good &= memcmp(back + n, x.rdispls, row) == 0;
    program_expect(t->me, recv, x.recvcounts, x.rdispls, size, (uint32_t)i, expected);
    for (int p = 0; p < n && gather; p++) expected[p].destination = 0;
    if (fits)
      good &= async == ncclSuccess;
    else
      good &= async == ncclInvalidArgument && source == tight / n && destination == tight % n;
    good &= program_verify("slots", expected, fits ? n : 0, &t->buffers, t->stream) == 0;
  }
  CUDACHECK(cudaFree(device));
  return good;
}

static void test_device_slots(struct test *t)
{
  launcher_step("device counts into slots");
  result(t, device_slots(t, false), "device counts into slots");
  result(t, device_slots(t, true), "device counts, the same segment for everybody");
}

static void test_plan(struct test *t)
{
  char *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true;
  struct exchange x;
  launcher_step("plans");
  for (int i = 0; i < 6; i++) {
    alltoallv_plan_t plan;
    random_exchange(t, &x, i < 3 ? 1000 : BUFFER);
    ALLTOALLVCHECK(alltoallv_plan(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                                  x.rdispls, ncclFloat, t->handle, &plan));
    for (uint32_t round = 1; round <= 5; round++) {
      struct segment expected[MAX_RANKS];
      program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, 4, round, t->stream);
      program_guard(&t->buffers, t->stream);
      ALLTOALLVCHECK(alltoallv_start(plan, t->stream));
      program_expect(t->me, recv, x.recvcounts, x.rdispls, 4, round, expected);
      good &= program_verify("plan", expected, t->me->nranks, &t->buffers, t->stream) == 0;
    }
    program_check_async(t->handle);
    ALLTOALLVCHECK(alltoallv_plan_destroy(plan));
  }
  result(t, good, "plans");

  random_exchange(t, &x, 100);
  const bool wrong = t->me->rank == t->me->nranks - 1;
  alltoallv_plan_t none;
  good = alltoallv_plan(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                        ncclFloat, t->handle, wrong ? NULL : &none) == ncclInvalidArgument;
  if (!wrong) good &= none == NULL;
  if (!wrong) good &= says("rank %d has wrong arguments or no memory", t->me->nranks - 1);
  result(t, good, "a plan with a wrong argument on one rank");
}

/* ---- what has to be refused ---------------------------------------------------------------------
 */

/* The first rank sends another number than the last one that the kernel reaches expects: both are
 * told, nobody else is hurt, and the handle goes on. */
static void test_mismatch(struct test *t)
{
  const int n = t->me->nranks, from = 0, to = t->near;
  bool good = true;
  launcher_step("mismatched counts");
  for (int i = 0; i < 4 && t->one_sided; i++) {
    struct exchange x;
    struct segment expected[MAX_RANKS];
    ncclResult_t async;
    int source, destination;
    char *recv = t->buffers.window + PROGRAM_GUARD;
    for (int p = 0; p < n * n; p++) x.matrix[p] = i % 2 ? BUFFER / 16 / (size_t)n : 700;
    lay_out(t, &x, NULL, 3);
    if (t->me->rank == from) x.sendcounts[to] += i < 2 ? 1 : (size_t)-1;
    program_fill(t->me, t->buffers.send, x.sendcounts, x.sdispls, 4, (uint32_t)i, t->stream);
    program_guard(&t->buffers, t->stream);
    ALLTOALLVCHECK(alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts,
                             x.rdispls, ncclFloat, t->handle, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
    const bool involved = t->me->rank == from || t->me->rank == to;
    program_expect(t->me, recv, x.recvcounts, x.rdispls, 4, (uint32_t)i, expected);
    if (t->me->rank == to) { /* a small pair leaves anything there, a large one nothing */
      if (i % 2 == 0)
        CUDACHECK(cudaMemsetAsync(expected[from].start, ELEMENTS_GUARD_BYTE,
                                  expected[from].count * expected[from].size, t->stream));
      expected[from].source = ELEMENTS_GUARD;
      expected[from].count *= expected[from].size;
      expected[from].size = 1;
    }
    good &= program_verify("mismatch", expected, n, &t->buffers, t->stream) == 0;
    if (involved)
      good &= says("rank %d sends %zu elements to rank %d, which expects %zu", from,
                   x.matrix[0] + (i < 2 ? 1 : (size_t)-1), to, x.matrix[0]);
    good &= involved ? async == ncclInvalidArgument && source == from && destination == to
                     : async == ncclSuccess;
    for (int p = 0; p < n * n; p++) x.matrix[p] = 999;
    lay_out(t, &x, NULL, 0);
    good &= exchange(t, &x, 4, 0, 0);
  }
  result(t, good, "mismatched counts name the pair, the handle stays usable");
}

/* The other places that find a mismatch, and what they call the numbers. */
static void test_mismatch_sentences(struct test *t)
{
  const int n = t->me->nranks, from = 0, to = t->near;
  char *send = t->buffers.send, *recv = t->buffers.window + PROGRAM_GUARD;
  size_t counts[MAX_RANKS], wrong[MAX_RANKS];
  alltoallv_plan_t plan;
  bool good = true;
  launcher_step("sentences of a mismatch");
  for (int p = 0; p < n; p++) counts[p] = wrong[p] = 10;
  if (t->me->rank == from) wrong[to] = 11;
  const bool involved = t->me->rank == from || t->me->rank == to;
  good &= alltoallv_plan(send, wrong, NULL, recv, counts, NULL, ncclFloat, t->handle, &plan) ==
          ncclInvalidArgument;
  good &= says("rank %d sends 11 elements to rank %d, which expects 10", from, to);
  if (t->one_sided) {
    ALLTOALLVCHECK(
        alltoallv_rows(send, wrong, NULL, recv, counts, NULL, 24, ncclFloat, t->handle, t->stream));
    good &= async_error(t) == (involved ? ncclInvalidArgument : ncclSuccess);
    if (involved) good &= says("rank %d sends 11 rows to rank %d, which expects 10", from, to);
    /* the last rank counts in another unit: 10 of 12 bytes are no number of 8; on several hosts
     * nobody would find that */
    if (n > 1 && to == n - 1) {
      const bool other = t->me->rank == to;
      ALLTOALLVCHECK(alltoallv_rows(send, counts, NULL, recv, counts, NULL, other ? 3 : 2,
                                    ncclFloat, t->handle, t->stream));
      good &= async_error(t) == ncclInvalidArgument;
      good &= strstr(alltoallv_last_error(), other ? " bytes to rank " : " rows to rank ") ||
              strstr(alltoallv_last_error(), " bytes to rank ");
    }
  }
  ncclResult_t async; /* asking without pointers clears it all the same */
  if (t->one_sided) {
    ALLTOALLVCHECK(
        alltoallv(send, wrong, NULL, recv, counts, NULL, ncclFloat, t->handle, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, NULL, NULL, NULL));
    if (involved) good &= says("rank %d sends 11 elements to rank %d, which expects 10", from, to);
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, NULL, NULL));
    good &= async == ncclSuccess;
  }
  if (!t->one_sided) { /* its own part a rank compares without being asked to */
    for (int p = 0; p < n; p++) wrong[p] = p == t->me->rank ? 11 : 10;
    ALLTOALLVCHECK(
        alltoallv(send, wrong, NULL, recv, counts, NULL, ncclFloat, t->handle, t->stream));
    good &= async_error(t) == ncclInvalidArgument;
    good &=
        says("rank %d sends 11 elements to rank %d, which expects 10", t->me->rank, t->me->rank);
  }
  result(t, good, "mismatches are named in elements or rows");
}

/* --mismatch: as the example, which ends the job when counts differ. */
static void end_with_mismatch(struct test *t)
{
  const int n = t->me->nranks;
  size_t counts[MAX_RANKS], wrong[MAX_RANKS];
  for (int p = 0; p < n; p++) counts[p] = wrong[p] = 10;
  if (t->me->rank == 0) wrong[n - 1] = 11;
  ALLTOALLVCHECK(alltoallv(t->buffers.send, wrong, NULL, t->buffers.window, counts, NULL, ncclFloat,
                           t->handle, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  program_check_async(t->handle);
}

/* Segments of the receive buffer that overlap, wherever they stand in the list. */
static void test_overlap(struct test *t)
{
  const int n = t->me->nranks;
  char *send = t->buffers.send, *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true;
  launcher_step("overlapping segments");
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++) {
      struct exchange x;
      alltoallv_plan_t plan;
      if (a == b) continue;
      for (int p = 0; p < n * n; p++) x.matrix[p] = 10;
      lay_out(t, &x, NULL, 0);
      x.rdispls[a] = x.rdispls[b] + 9; /* in the last element of b */
      if (b == n - 1) x.rdispls[a] = x.rdispls[b] - 9;
      good &= alltoallv(send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls, ncclFloat,
                        t->handle, t->stream) == ncclInvalidUsage;
      good &= strstr(alltoallv_last_error(), "overlaps in recvbuff") != NULL;
      good &= alltoallv_plan(send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                             ncclFloat, t->handle, &plan) == ncclInvalidUsage;
    }
  struct exchange x; /* what comes from rank 0 is empty, and lies in the middle of the rest */
  for (int p = 0; p < n * n; p++) x.matrix[p] = p < n ? 0 : 10;
  lay_out(t, &x, NULL, 0);
  x.rdispls[0] = 5;
  good &= exchange(t, &x, 4, 0, 0);
  result(t, good, "overlapping receive segments are refused");

  struct segment expected[MAX_RANKS];
  for (int p = 0; p < n * n; p++) x.matrix[p] = 10;
  lay_out(t, &x, NULL, 0);
  if (n > 1) x.rdispls[1] = 9; /* in the last element from rank 0 */
  if (n == 1) x.rdispls[0] = t->buffers.window_bytes / 4;
  program_expect(t->me, recv, x.recvcounts, x.rdispls, 4, 1, expected);
  launcher_note(t->me, "a line for each rank about wrong rdispls is wanted here");
  good = program_verify("rdispls", expected, n, &t->buffers, t->stream) > 0;
  result(t, good, "the checker of the example does not follow overlapping displacements");
}

/* Slots at the same place: what comes from both would overlap, so there is room for one only. */
static void test_equal_slots(struct test *t)
{
  const int n = t->me->nranks;
  const size_t bytes = (size_t)n * sizeof(size_t), row = 3;
  char *send = t->buffers.send, *recv = t->buffers.window + PROGRAM_GUARD;
  size_t *device;
  bool good = true;
  launcher_step("equal slots");
  CUDACHECK(cudaMalloc((void **)&device, 3 * bytes));
  for (int i = 0; i < 2 && n > 1; i++) {
    struct exchange x;
    struct segment expected[MAX_RANKS];
    ncclResult_t async;
    int source, destination;
    for (int p = 0; p < n * n; p++) x.matrix[p] = p < n && i == 0 ? 0 : 10; /* rank 0: nothing */
    lay_out(t, &x, NULL, 0);
    for (int p = 0; p < n; p++) x.rdispls[p] = p < 2 ? 0 : 10 * (size_t)p;
    size_t elements[2][MAX_RANKS], displs[2][MAX_RANKS];
    for (int p = 0; p < n; p++) {
      elements[0][p] = x.sendcounts[p] * row, displs[0][p] = x.sdispls[p] * row;
      elements[1][p] = x.recvcounts[p] * row, displs[1][p] = x.rdispls[p] * row;
    }
    program_fill(t->me, send, elements[0], displs[0], 4, (uint32_t)i, t->stream);
    program_guard(&t->buffers, t->stream);
    CUDACHECK(cudaMemcpyAsync(device, x.sendcounts, bytes, cudaMemcpyHostToDevice, t->stream));
    CUDACHECK(cudaMemcpyAsync(device + 2 * n, x.rdispls, bytes, cudaMemcpyHostToDevice, t->stream));
    ALLTOALLVCHECK(alltoallv_device_counts_rows(send, device, NULL, recv, 10 * (size_t)n,
                                                device + n, device + 2 * n, NULL, ALLTOALLV_SLOTS,
                                                row, ncclFloat, t->handle, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
    if (i == 0) {
      good &= async == ncclSuccess;
    } else {
      good &= async == ncclInvalidArgument && source == 0 && destination == 0;
      good &= says("rank 0 sends 10 rows to rank 0, where 0 fit");
    }
    program_expect(t->me, recv, elements[1], displs[1], 4, (uint32_t)i, expected);
    good &= program_verify("equal slots", expected, i == 0 ? n : 0, &t->buffers, t->stream) == 0;
  }
  CUDACHECK(cudaFree(device));
  result(t, good, "slots at the same place are refused unless all but the last are empty");
}

/* Device counts mean the same everywhere only in the same unit: other units are other calls. */
static void test_different_units(struct test *t)
{
  const int n = t->me->nranks;
  const size_t bytes = (size_t)n * sizeof(size_t), row = t->me->rank == n - 1 ? 3 : 2;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  size_t *device, counts[MAX_RANKS];
  struct segment none[1];
  bool good = true;
  launcher_step("different units");
  for (int p = 0; p < n; p++) counts[p] = 6; /* multiples of both */
  CUDACHECK(cudaMalloc((void **)&device, 3 * bytes));
  program_guard(&t->buffers, t->stream);
  CUDACHECK(cudaMemcpyAsync(device, counts, bytes, cudaMemcpyHostToDevice, t->stream));
  if (n > 1) {
    ALLTOALLVCHECK(alltoallv_device_counts_rows(t->buffers.send, device, NULL, recv, 1000,
                                                device + n, device + 2 * n, NULL, ALLTOALLV_PACKED,
                                                row, ncclFloat, t->handle, t->stream));
    good &= async_error(t) == ncclInvalidUsage;
    good &= strstr(alltoallv_last_error(), " made different calls") != NULL;
    good &= program_verify("different units", none, 0, &t->buffers, t->stream) == 0;
  }
  CUDACHECK(cudaFree(device));
  result(t, good, "device counts in different units are different calls");
}

/* A plan whose receive buffer has gone, also when another one has come to its place. */
static void test_plan_without_buffer(struct test *t)
{
  const size_t window = t->buffers.window_bytes;
  char *first;
  size_t counts[MAX_RANKS], zero[MAX_RANKS] = {0};
  alltoallv_plan_t plan;
  bool good = true;
  launcher_step("a plan without its buffer");
  for (int p = 0; p < t->me->nranks; p++) counts[p] = t->me->rank == 0 ? 10 : 0;
  NCCLCHECK(ncclMemAlloc((void **)&first, window));
  ALLTOALLVCHECK(alltoallv_register(t->handle, first, window));
  /* rank 0 sends to all, so all receive; and one plan in which only rank 0 receives */
  size_t from_0[MAX_RANKS] = {10};
  ALLTOALLVCHECK(alltoallv_plan(t->buffers.send, counts, NULL, first, from_0, NULL, ncclFloat,
                                t->handle, &plan));
  ALLTOALLVCHECK(alltoallv_start(plan, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  ALLTOALLVCHECK(alltoallv_unregister(t->handle, first));
  good &= alltoallv_start(plan, t->stream) == ncclInvalidUsage;
  good &= says("a receive buffer of the plan is not registered any more");
  ALLTOALLVCHECK(alltoallv_register(t->handle, first, window)); /* the same, but not the old one */
  good &= alltoallv_start(plan, t->stream) == ncclInvalidUsage;
  ALLTOALLVCHECK(alltoallv_plan_destroy(plan));

  const bool receives = t->me->rank == 0; /* nobody else */
  for (int p = 0; p < t->me->nranks; p++) counts[p] = p == 0 ? 10 : 0, from_0[p] = 10;
  ALLTOALLVCHECK(alltoallv_plan(t->buffers.send, counts, NULL, receives ? first : NULL,
                                receives ? from_0 : zero, NULL, ncclFloat, t->handle, &plan));
  ALLTOALLVCHECK(alltoallv_start(plan, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  ALLTOALLVCHECK(alltoallv_unregister(t->handle, first));
  good &= alltoallv_start(plan, t->stream) == ncclInvalidUsage; /* on all ranks */
  ALLTOALLVCHECK(alltoallv_plan_destroy(plan));
  launcher_barrier(t->me);
  NCCLCHECK(ncclMemFree(first));
  result(t, good, "a plan whose receive buffer was unregistered is refused");
}

/* A configuration that the initializer has not made. */
static void test_config(struct test *t)
{
  alltoallv_config_t config = {0}, other = ALLTOALLV_CONFIG_INITIALIZER;
  alltoallv_t none;
  launcher_step("configurations");
  bool good = alltoallv_init(t->comm, &config, &none) == ncclInvalidArgument && none == NULL;
  good &=
      says("config.size is 0; allowed: %zu, from ALLTOALLV_CONFIG_INITIALIZER of this version's "
           "alltoallv.h",
           sizeof config);
  other.size--; /* on one rank: the others hear of it */
  if (t->me->rank == t->me->nranks - 1)
    config = other;
  else
    config = (alltoallv_config_t)ALLTOALLV_CONFIG_INITIALIZER;
  good &= alltoallv_init(t->comm, &config, &none) == ncclInvalidArgument && none == NULL;
  if (t->me->rank < t->me->nranks - 1)
    good &= says("rank %d has a wrong configuration", t->me->nranks - 1);
  result(t, good, "a configuration that was not initialized is refused");

  /* what is wrong in itself, and on all ranks; what differs on the last one */
  good = true;
  for (int i = 0; i < 12; i++) {
    const bool differs = i >= 8;
    if (differs && t->me->nranks == 1) break;
    config = (alltoallv_config_t)ALLTOALLV_CONFIG_INITIALIZER;
    if (i == 0) config.method = (alltoallv_method_t)-1;
    if (i == 1) config.method = (alltoallv_method_t)(ALLTOALLV_COPY_ENGINE + 1);
    if (i == 2) config.timeout_seconds = -1;
    if (i == 3) config.timeout_seconds = 2e9;
    if (i == 4) config.timeout_seconds = (double)NAN;
    if (i == 5) config.max_blocks = 1;
    if (i == 6) config.max_blocks = -2;
    if (i == 7) config.ll_threshold = ((size_t)16 << 20) + 1;
    if (t->me->rank == t->me->nranks - 1) {
      if (i == 8) config.method = ALLTOALLV_SENDRECV;
      if (i == 9) config.check_counts = 1;
      if (i == 10) config.ll_threshold = 4096;
      if (i == 11) config.first_call = 2;
    }
    good &= alltoallv_init(t->comm, &config, &none) == ncclInvalidArgument && none == NULL;
    if (differs) good &= strstr(alltoallv_last_error(), " has another configuration") != NULL;
  }
  result(t, good, "configurations that are wrong, or differ between ranks, are refused");
}

/* Wrong arguments, which every rank passes. */
static void test_arguments(struct test *t)
{
  struct exchange x;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  bool good = true;
  launcher_step("arguments");
  for (int p = 0; p < t->me->nranks * t->me->nranks; p++) x.matrix[p] = 10;
  lay_out(t, &x, NULL, 0);
  good &= alltoallv(NULL, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls, ncclFloat,
                    t->handle, t->stream) == ncclInvalidArgument;
  good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                    (ncclDataType_t)99, t->handle, t->stream) == ncclInvalidArgument;
  good &= *alltoallv_last_error() != '\0';
  good &= alltoallv(recv, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls, ncclFloat,
                    t->handle, t->stream) == ncclInvalidUsage; /* in place */
  if (t->one_sided) {
    good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls, t->errors, x.recvcounts, x.rdispls,
                      ncclFloat, t->handle, t->stream) == ncclInvalidUsage; /* not registered */
    /* beyond the window, by little and by so much that the send buffer seems to lie in between */
    const size_t room = (t->buffers.recv_bytes + PROGRAM_GUARD) / 4;
    for (size_t at = room - 5; at < (size_t)1 << 60; at *= 1000) {
      x.rdispls[0] = at;
      good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls, recv, x.recvcounts, x.rdispls,
                        ncclFloat, t->handle, t->stream) == ncclInvalidArgument;
      good &= says("what comes from rank 0 ends after %zu elements of recvbuff, but the registered "
                   "buffer ends after %zu",
                   at + 10, room);
    }
    good &= alltoallv_device_counts(t->buffers.send, x.sendcounts, NULL, recv, room + 1,
                                    x.recvcounts, NULL, NULL, ALLTOALLV_PACKED, ncclFloat,
                                    t->handle, t->stream) == ncclInvalidArgument;
    good &= says("recvcapacity is %zu elements, but the registered buffer ends after %zu", room + 1,
                 room);
  }
  good &= alltoallv_device_counts(NULL, x.sendcounts, NULL, recv, 10, x.recvcounts, NULL, NULL,
                                  ALLTOALLV_PACKED, ncclFloat, t->handle,
                                  t->stream) == ncclInvalidArgument;
  good &= alltoallv_device_counts(t->buffers.send, x.sendcounts, NULL, recv, 10, x.recvcounts, NULL,
                                  NULL, ALLTOALLV_SLOTS, ncclFloat, t->handle,
                                  t->stream) == ncclInvalidArgument;
  lay_out(t, &x, NULL, 0);
  good &= exchange(t, &x, 4, 0, 0); /* the handle goes on */
  result(t, good, "wrong arguments are refused");
}

/* ---- handles of their own
 * ------------------------------------------------------------------------ */

static void open_handle(struct test *t, alltoallv_config_t config, size_t bytes)
{
  alltoallv_method_t chosen;
  config.method = (alltoallv_method_t)method;
  config.ll_threshold = LL_LIMIT;
  t->buffers = (struct program_buffers){bytes, bytes, bytes + 2 * PROGRAM_GUARD, NULL, NULL};
  NCCLCHECK(ncclMemAlloc((void **)&t->buffers.send, bytes + 64));
  NCCLCHECK(ncclMemAlloc((void **)&t->buffers.window, t->buffers.window_bytes));
  ALLTOALLVCHECK(alltoallv_init(t->comm, &config, &t->handle));
  ALLTOALLVCHECK(alltoallv_register(t->handle, t->buffers.window, t->buffers.window_bytes));
  ALLTOALLVCHECK(alltoallv_method(t->handle, &chosen, NULL));
  t->one_sided = chosen != ALLTOALLV_SENDRECV;
  ALLTOALLVCHECK(alltoallv_reach(t->handle, &t->near));
  t->near = t->one_sided ? t->near - 1 : t->me->nranks - 1;
}

static void close_handle(struct test *t)
{
  CUDACHECK(cudaStreamSynchronize(t->stream));
  ALLTOALLVCHECK(alltoallv_unregister(t->handle, t->buffers.window));
  ALLTOALLVCHECK(alltoallv_destroy(t->handle));
  launcher_barrier(t->me);
  NCCLCHECK(ncclMemFree(t->buffers.window));
  NCCLCHECK(ncclMemFree(t->buffers.send));
}

/* The number of the exchange goes through 2^32 - 1, 0, 1. */
static void test_wrap_around(struct test *t)
{
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  struct exchange x;
  bool good = true;
  launcher_step("wrap-around");
  config.first_call = 0xFFFFFFF8u;
  open_handle(t, config, BUFFER);
  for (int i = 0; i < 20; i++) {
    random_exchange(t, &x, 60000);
    good &= exchange(t, &x, 4, 0, 0);
  }
  close_handle(t);
  open_handle(t, config, BUFFER);
  good &= device_slots(t, false);
  result(t, good, "the number of the exchange wraps around");
  close_handle(t);
}

#ifdef CPU_STANDIN /* whose sentences are known, and which fails without harm */
/* A failure of NCCL comes with NCCL's own reason. */
static void test_reason(struct test *t)
{
  size_t one[MAX_RANKS], received[MAX_RANKS];
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  ncclComm_t comm, parent = t->comm;
  launcher_step("NCCL's reason");
  for (int p = 0; p < t->me->nranks; p++) one[p] = 1;
  NCCLCHECK(ncclCommSplit(parent, 0, t->me->rank, &comm, NULL));
  t->comm = comm;
  open_handle(t, config, BUFFER);
  NCCLCHECK(ncclCommFinalize(comm));
  bool good = alltoallv_counts(one, received, t->handle) != ncclSuccess;
  good &= says("ncclAllGather(mine, all, bytes, ncclUint8, h->comm, h->stage_stream): "
               "comm is finalized");
  if (!t->one_sided && t->me->nranks > 1) {
    good &= alltoallv(t->buffers.send, one, NULL, t->buffers.window, one, NULL, ncclFloat,
                      t->handle, t->stream) != ncclSuccess;
    good &= says("ncclSend(ex->send + pairs[p].send_offset, pairs[p].send_bytes, ncclUint8, p, "
                 "h->comm, stream): comm is finalized");
  }
  result(t, good, "a failure of NCCL comes with NCCL's reason");
  close_handle(t);
  NCCLCHECK(ncclCommDestroy(comm));
  t->comm = parent;
}

/* A receive buffer of the wrong memory, on one rank: all hear of it, and why. */
static void test_wrong_memory(struct test *t)
{
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  const bool wrong = t->me->rank == t->me->nranks - 1;
  void *buffer;
  launcher_step("the wrong memory");
  open_handle(t, config, BUFFER);
  if (wrong)
    CUDACHECK(cudaMalloc(&buffer, 8192));
  else
    NCCLCHECK(ncclMemAlloc(&buffer, 8192));
  bool good = true;
  if (t->one_sided) {
    good &= alltoallv_register(t->handle, buffer, 8192) != ncclSuccess;
    good &= strstr(alltoallv_last_error(), " cannot register the buffer: ") != NULL;
    const bool same_host = t->me->rank / (t->near + 1) == (t->me->nranks - 1) / (t->near + 1);
    if (same_host)
      good &= strstr(alltoallv_last_error(), " is not from ncclMemAlloc; allowed: ") != NULL;
  }
  result(t, good, "a receive buffer that is not from ncclMemAlloc is refused on all ranks");
  close_handle(t);
  if (wrong)
    CUDACHECK(cudaFree(buffer));
  else
    NCCLCHECK(ncclMemFree(buffer));
}
#endif

/* Pairs that 32 bits cannot count, in bytes and in elements. */
static void test_large(struct test *t)
{
  const size_t count = ((size_t)5 << 30) + 77;
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  struct exchange x;
  launcher_step("pairs beyond 4 GiB");
  open_handle(t, config, count + 4096);
  memset(x.matrix, 0, sizeof x.matrix);
  x.matrix[t->me->nranks - 1] = count; /* from rank 0 to the last */
  lay_out(t, &x, NULL, 0);
  result(t, exchange(t, &x, 1, 0, 3), "a pair of 5 GiB");
  close_handle(t);
}

/* One exchange of 100 elements per pair with host counts, and one with device counts behind it. */
static void enqueue_two(struct test *t, const struct exchange *x, size_t *device)
{
  const int n = t->me->nranks;
  char *recv = t->buffers.window + PROGRAM_GUARD;
  CUDACHECK(cudaMemcpyAsync(device, x->sendcounts, (size_t)n * sizeof(size_t),
                            cudaMemcpyHostToDevice, t->stream));
  ALLTOALLVCHECK(alltoallv(t->buffers.send, x->sendcounts, x->sdispls, recv, x->recvcounts,
                           x->rdispls, ncclFloat, t->handle, t->stream));
  ALLTOALLVCHECK(alltoallv_device_counts(t->buffers.send, device, NULL, recv,
                                         t->buffers.recv_bytes / 4, device + n, device + 2 * n,
                                         NULL, ALLTOALLV_PACKED, ncclFloat, t->handle, t->stream));
}

/* A rank that comes when the others have given up after the timeout. They say who it is. It has the
 * data of the first exchange, which were on their way, and must hear of the second one, in which
 * nobody sends any more. */
static void test_timeout(struct test *t)
{
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  const int n = t->me->nranks, late = n - 1;
  struct exchange x;
  size_t *device;
  ncclResult_t async = ncclSuccess;
  int source = -1, destination;
  bool good = true, keep = false;
  launcher_step("a late rank");
  config.timeout_seconds = 1;
  open_handle(t, config, BUFFER);
  CUDACHECK(cudaMalloc((void **)&device, 3 * (size_t)n * sizeof(size_t)));
  if (t->one_sided && n > 1 && t->near == n - 1) { /* other hosts would be waited for without end */
    for (int p = 0; p < n * n; p++) x.matrix[p] = 100;
    lay_out(t, &x, NULL, 0);
    for (int turn = 0; turn < 2; turn++) {
      if ((t->me->rank == late) == (turn == 1)) {
        enqueue_two(t, &x, device);
        CUDACHECK(cudaStreamSynchronize(t->stream));
        ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
        good = async == ncclRemoteError && (turn == 0 ? source == late : source != late);
        good &= alltoallv(t->buffers.send, x.sendcounts, x.sdispls,
                          t->buffers.window + PROGRAM_GUARD, x.recvcounts, x.rdispls, ncclFloat,
                          t->handle, t->stream) == ncclRemoteError; /* final */
        keep = alltoallv_unregister(t->handle, t->buffers.window) == ncclRemoteError;
        good &= keep;
        ALLTOALLVCHECK(alltoallv_destroy(t->handle)); /* before the late rank begins */
        t->handle = NULL;
      }
      launcher_barrier(t->me);
    }
  }
  result(t, good, "a late rank is named after the timeout, and hears of it");
  if (t->handle != NULL) ALLTOALLVCHECK(alltoallv_destroy(t->handle));
  launcher_barrier(t->me);
  CUDACHECK(cudaFree(device));
  if (!keep) NCCLCHECK(ncclMemFree(t->buffers.window));
  NCCLCHECK(ncclMemFree(t->buffers.send));
}

static int run(const struct rank *me, const struct options *opt)
{
  struct test t = {.me = me, .random = 1, .code = EXIT_VERIFIED};
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  ncclUniqueId id;
  (void)opt;
  launcher_step("communicator");
  CUDACHECK(cudaSetDevice(me->device));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&t.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&t.stream));
  CUDACHECK(cudaMalloc((void **)&t.errors, sizeof *t.errors));
  open_handle(&t, config, BUFFER);
  if (mismatch) end_with_mismatch(&t); /* does not return */

  test_patterns(&t);
  test_random(&t);
  test_threshold(&t);
  test_back_to_back(&t);
  test_barrier(&t);
  if (!launcher_graphs_can_deadlock) test_graph(&t);
  if (!launcher_graphs_can_deadlock) test_streams(&t);
  if (!launcher_graphs_can_deadlock) test_captures(&t);
  test_counts(&t);
  test_rows(&t);
  test_large_rows(&t);
  test_device_counts(&t);
  test_device_slots(&t);
  test_plan(&t);
  test_plan_without_buffer(&t);
  test_mismatch(&t);
  test_mismatch_sentences(&t);
  test_overlap(&t);
  test_equal_slots(&t);
  test_different_units(&t);
  test_arguments(&t);
  test_config(&t);
  close_handle(&t);
  test_wrap_around(&t);
#ifdef CPU_STANDIN
  test_reason(&t);
  test_wrong_memory(&t);
#endif
  if (large) test_large(&t);
  test_timeout(&t);

  CUDACHECK(cudaFree(t.errors));
  CUDACHECK(cudaStreamDestroy(t.stream));
  NCCLCHECK(ncclCommDestroy(t.comm));
  return t.code;
}

int main(int argc, char **argv)
{
  static const struct option_spec options[] = {
      {"method", 0, OPTION_CHOICE, &method, "auto|sendrecv|lsa|copy-engine", "as alltoallv_sm", 0,
       0},
      {"large", 0, OPTION_FLAG, &large, NULL, "also pairs beyond 4 GiB", 0, 0},
      {"mismatch", 0, OPTION_FLAG, &mismatch, NULL, "only a mismatch, which ends the job", 0, 0},
      {"calls", 0, OPTION_LONG, &calls, "N", "back-to-back calls (300)", 1, 1 << 20},
      {0},
  };
  static const struct program program = {
      .name = "alltoallv_cases",
      .summary = "test cases of the AlltoAllV",
      .options = options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
