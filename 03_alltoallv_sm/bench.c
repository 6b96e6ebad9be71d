/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the ways to do an AlltoAllV side by side, and two limits measured in the same run: what
 * copy engines move between all pairs, and what the kernel's stores move without any protocol. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alltoallv_internal.h" /* for the two limits */
#include "check.h"
#include "patterns.h"
#include "program.h"
#include "simple/barrier.h"
#include "simple/sendrecv.h"

/* What all variants use in turn. */
struct shared {
  const struct rank *me;
  const struct options *opt;
  const char *const *patterns;
  ncclComm_t comm;
  cudaStream_t stream;
  alltoallv_t handle;
  struct program_buffers buffers;         /* of the largest size of all patterns */
  struct program_buffers barrier_buffers; /* its window is in another communicator's hands */
  struct barrier_push *push;
  size_t *file_matrix; /* of --matrix, read once; NULL without it */
  /* the exchange of the size that is being measured */
  size_t *matrix, *sendcounts, *sdispls, *recvcounts, *rdispls;
  size_t *places;                  /* where the peers want what this rank sends */
  size_t send_stride, recv_stride; /* bytes from slot to slot */
  long slots;                      /* that fit */
  size_t *device_counts;           /* sendcounts; recvcounts; rdispls */
};

enum way { SENDRECV, BARRIER, KERNEL, DEVICE_COUNTS, PLAN, BARE_PUSH };

struct variant {
  struct shared *shared;
  enum way way;
  alltoallv_plan_t plan;     /* of slot 0 */
  struct bench_size planned; /* its size */
};

static char *send_slot(const struct shared *s, long slot)
{
  return s->buffers.send + (size_t)(slot % s->slots) * s->send_stride;
}

/* Where a slot begins in a window. */
static size_t recv_at(const struct shared *s, long slot)
{
  return PROGRAM_GUARD + (size_t)(slot % s->slots) * s->recv_stride;
}

static const struct program_buffers *buffers_of(const struct variant *v)
{
  return v->way == BARRIER ? &v->shared->barrier_buffers : &v->shared->buffers;
}

static char *recv_slot(const struct variant *v, long slot)
{
  return buffers_of(v)->window + recv_at(v->shared, slot);
}

/* The matrix of a pattern with `bytes` per sender; patterns were checked before. */
static void make_matrix(const struct shared *s, int series, size_t bytes, size_t *matrix)
{
  const size_t n = (size_t)s->me->nranks;
  char error[256];
  if (s->file_matrix)
    memcpy(matrix, s->file_matrix, n * n * sizeof *matrix);
  else
    pattern_matrix(s->patterns[series], s->me->nranks, bytes / s->opt->type->size,
                   s->opt->type->size, (unsigned long long)program_options.seed, matrix, error,
                   sizeof error);
}

static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  const struct shared *s = bench->context;
  const size_t n = (size_t)me->nranks;
  size_t matrix[n * n];
  make_matrix(s, size.series, size.bytes, matrix);
  return (double)(matrix_wire(matrix, me->nranks) * s->opt->type->size);
}

/* ---- one size -------------------------------------------------------------------------------- */

static void prepare(struct shared *s, struct bench_size size)
{
  const int n = s->me->nranks;
  make_matrix(s, size.series, size.bytes, s->matrix);
  struct program_buffers need = program_sizes(s->matrix, n, s->opt->type->size);
  for (int i = 0; i < n; i++) {
    s->sendcounts[i] = s->matrix[s->me->rank * n + i];
    s->recvcounts[i] = s->matrix[i * n + s->me->rank];
  }
  program_prefix_sums(s->sendcounts, s->sdispls, n);
  program_prefix_sums(s->recvcounts, s->rdispls, n);
  matrix_places(s->matrix, n, s->me->rank, s->places);
  s->send_stride = need.send_bytes;
  s->recv_stride = need.recv_bytes;
  s->slots = size.slots;
  while (s->slots > 1 && ((size_t)s->slots * need.send_bytes > s->buffers.send_bytes ||
                          (size_t)s->slots * need.recv_bytes > s->buffers.recv_bytes))
    s->slots--;
  CUDACHECK(cudaMemcpyAsync(s->device_counts, s->sendcounts, (size_t)n * sizeof(size_t),
                            cudaMemcpyHostToDevice, s->stream));
}

/* Plans and the bare push, which needs one, work on the first slot only. */
static long slots_of(const struct variant *v)
{
  return v->way == PLAN || v->way == BARE_PUSH ? 1 : v->shared->slots;
}

static void destroy_plan(struct variant *v)
{
  if (v->plan) ALLTOALLVCHECK(alltoallv_plan_destroy(v->plan));
  v->plan = NULL;
}

static void fill(void *state, struct bench_size size)
{
  struct variant *v = state;
  struct shared *s = v->shared;
  prepare(s, size);
  program_guard(buffers_of(v), s->stream);
  for (long slot = 0; slot < slots_of(v); slot++)
    program_fill(s->me, send_slot(s, slot), s->sendcounts, s->sdispls, s->opt->type->size,
                 (uint32_t)slot + 1, s->stream);
  if ((v->way == PLAN || v->way == BARE_PUSH) && memcmp(&v->planned, &size, sizeof size) != 0) {
    destroy_plan(v);
    ALLTOALLVCHECK(alltoallv_plan(send_slot(s, 0), s->sendcounts, s->sdispls, recv_slot(v, 0),
                                  s->recvcounts, s->rdispls, s->opt->type->nccl, s->handle,
                                  &v->plan));
    v->planned = size;
  }
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(s->me); /* the bare push waits for nobody, so all have to be ready */
}

static unsigned long long check(void *state, struct bench_size size)
{
  struct variant *v = state;
  struct shared *s = v->shared;
  const long slots = slots_of(v);
  const int n = s->me->nranks;
  struct segment *expected = calloc((size_t)(slots * n), sizeof *expected);
  if (!expected) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  (void)size;
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(s->me); /* ... and tells nobody when it is done */
  program_check_async(s->handle);
  for (long slot = 0; slot < slots; slot++)
    program_expect(s->me, recv_slot(v, slot), s->recvcounts, s->rdispls, s->opt->type->size,
                   (uint32_t)slot + 1, expected + slot * n);
  unsigned long long wrong =
      program_verify("bench", expected, (int)slots * n, buffers_of(v), s->stream);
  free(expected);
  return wrong;
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  struct variant *v = state;
  struct shared *s = v->shared;
  const struct datatype *type = s->opt->type;
  const int n = s->me->nranks;
  (void)size;
  switch (v->way) {
  case SENDRECV:
    NCCLCHECK(sendrecv_alltoallv(send_slot(s, slot), s->sendcounts, s->sdispls, recv_slot(v, slot),
                                 s->recvcounts, s->rdispls, type->nccl, type->size, n, s->comm,
                                 stream));
    break;
  case BARRIER:
    barrier_alltoallv(s->push, send_slot(s, slot), recv_at(s, slot),
                      (struct barrier_parts){s->sendcounts, s->sdispls, s->places, type->size},
                      stream);
    break;
  case KERNEL:
    ALLTOALLVCHECK(alltoallv(send_slot(s, slot), s->sendcounts, s->sdispls, recv_slot(v, slot),
                             s->recvcounts, s->rdispls, type->nccl, s->handle, stream));
    break;
  case DEVICE_COUNTS:
    ALLTOALLVCHECK(alltoallv_device_counts(send_slot(s, slot), s->device_counts, NULL,
                                           recv_slot(v, slot), s->recv_stride / type->size,
                                           s->device_counts + n, s->device_counts + 2 * n, NULL,
                                           ALLTOALLV_PACKED, type->nccl, s->handle, stream));
    break;
  case PLAN:
    ALLTOALLVCHECK(alltoallv_start(v->plan, stream));
    break;
  case BARE_PUSH:
    ALLTOALLVCHECK(alltoallv_start_bare(v->plan, stream));
    break;
  }
}

static void teardown(void *state)
{
  destroy_plan(state);
}

/* ---- the limit ------------------------------------------------------------------------------- */

/* GB/s that each rank's copy engines move to all others at the same time, without synchronisation:
 * the median of some passes, slowest rank. 0 where ranks do not see each other's memory. */
static double copy_limit(const struct shared *s)
{
  enum { PASSES = 7 };
  const struct alltoallv_handle *h = s->handle;
  const int n = s->me->nranks;
  const size_t bytes = (s->buffers.recv_bytes < s->buffers.send_bytes ? s->buffers.recv_bytes
                                                                      : s->buffers.send_bytes) /
                       (size_t)n / 4096 * 4096;
  double rates[PASSES];
  cudaStream_t streams[n];
  cudaEvent_t start, stop, done[n];
  if (!h->lsa || h->lsa_n < n || n == 1 || bytes == 0) return 0;
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  for (int peer = 0; peer < n; peer++) {
    CUDACHECK(cudaStreamCreateWithFlags(&streams[peer], cudaStreamNonBlocking));
    CUDACHECK(cudaEventCreateWithFlags(&done[peer], cudaEventDisableTiming));
  }
  for (int pass = 0; pass < PASSES; pass++) {
    float ms;
    launcher_barrier(s->me);
    CUDACHECK(cudaEventRecord(start, s->stream));
    for (int i = 1; i < n; i++) {
      const int peer = (s->me->rank + i) % n;
      CUDACHECK(cudaStreamWaitEvent(streams[peer], start, 0));
      for (int turn = 0; turn < 4; turn++) /* long enough for launches not to matter */
        CUDACHECK(cudaMemcpyAsync((char *)h->windows[0].peers[peer] + PROGRAM_GUARD +
                                      (size_t)s->me->rank * bytes,
                                  s->buffers.send + (size_t)peer * bytes, bytes,
                                  cudaMemcpyDeviceToDevice, streams[peer]));
      CUDACHECK(cudaEventRecord(done[peer], streams[peer]));
      CUDACHECK(cudaStreamWaitEvent(s->stream, done[peer], 0));
    }
    CUDACHECK(cudaEventRecord(stop, s->stream));
    CUDACHECK(cudaEventSynchronize(stop));
    CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
    rates[pass] = 4.0 * (double)bytes * (n - 1) / launcher_max(s->me, ms) / 1e6;
  }
  for (int peer = 0; peer < n; peer++) {
    CUDACHECK(cudaStreamDestroy(streams[peer]));
    CUDACHECK(cudaEventDestroy(done[peer]));
  }
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  return bench_median(rates, PASSES);
}

/* ---- everything ------------------------------------------------------------------------------ */

/* The patterns to sweep. Returns their number. */
static int choose_patterns(const char **patterns)
{
  patterns[0] = program_options.matrix_file ? "matrix" : program_options.pattern;
  if (patterns[0]) return 1;
  return pattern_sweep(patterns);
}

/* Checks the options, sets the sizes of buffers that are large enough for every pattern, and the
 * sizes of the sweep: a matrix from a file has one size only. Returns an exit code. Collective. */
static int choose_sizes(struct shared *s, int npatterns, struct options *sweep)
{
  const size_t size = s->opt->type->size;
  for (int i = 0; i < npatterns; i++) {
    size_t *matrix = program_matrix(s->me, s->opt, s->patterns[i], sweep->max_bytes / size + 1);
    if (!matrix) return EXIT_USAGE;
    struct program_buffers need = program_sizes(matrix, s->me->nranks, size);
    if (need.send_bytes > s->buffers.send_bytes) s->buffers.send_bytes = need.send_bytes;
    if (need.recv_bytes > s->buffers.recv_bytes) s->buffers.recv_bytes = need.recv_bytes;
    if (program_options.matrix_file)
      s->file_matrix = matrix; /* there is one pattern then */
    else
      free(matrix);
  }
  s->buffers.window_bytes = s->buffers.recv_bytes + 2 * PROGRAM_GUARD;
  if (s->file_matrix) sweep->min_bytes = sweep->max_bytes = s->buffers.send_bytes;
  if (sweep->max_bytes == 0) sweep->min_bytes = sweep->max_bytes = 1;
  const size_t bytes = program_bytes(s->buffers, s->me->nranks) + s->buffers.window_bytes;
  return launcher_has_memory(s->me, bytes) ? EXIT_VERIFIED : EXIT_USAGE;
}

int bench_example(const struct rank *me, const struct options *opt)
{
  const size_t n = (size_t)me->nranks;
  const char *patterns[PATTERN_COUNT];
  struct options sweep = *opt;
  struct shared s = {.me = me, .opt = &sweep, .patterns = patterns};
  if (launcher_graphs_can_deadlock && opt->graph_launches)
    return launcher_refuse(me, "--cudagraph with several GPUs in one process can deadlock; "
                               "allowed: the build with MPI=1");
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  const int npatterns = choose_patterns(patterns);
  int code = choose_sizes(&s, npatterns, &sweep);
  if (code != EXIT_VERIFIED) {
    free(s.file_matrix);
    return code;
  }
  s.matrix = calloc(n * n + 5 * n, sizeof *s.matrix);
  if (!s.matrix) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  s.sendcounts = s.matrix + n * n;
  s.sdispls = s.sendcounts + n, s.recvcounts = s.sdispls + n, s.rdispls = s.recvcounts + n;
  s.places = s.rdispls + n;

  ncclUniqueId id;
  const char *why;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&s.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  CUDACHECK(cudaMalloc((void **)&s.device_counts, 3 * n * sizeof(size_t)));
  NCCLCHECK(ncclMemAlloc((void **)&s.buffers.send, s.buffers.send_bytes + 1));
  NCCLCHECK(ncclMemAlloc((void **)&s.buffers.window, s.buffers.window_bytes));
  s.barrier_buffers = s.buffers;
  NCCLCHECK(ncclMemAlloc((void **)&s.barrier_buffers.window, s.buffers.window_bytes));
  program_init(me, s.comm, &s.handle);
  ALLTOALLVCHECK(alltoallv_register(s.handle, s.buffers.window, s.buffers.window_bytes));
  s.push = barrier_create(s.comm, s.barrier_buffers.window, s.buffers.window_bytes, &why);
  if (!s.push) launcher_note(me, "no column barrier: %s", why);

  const bool all_by_kernel = s.handle->lsa_n == me->nranks;
  const struct {
    const char *name;
    bool possible;
  } ways[] = {
      [SENDRECV] = {"send/recv", true},
      [BARRIER] = {"barrier", s.push != NULL},
      [KERNEL] = {all_by_kernel         ? "alltoallv"
                  : s.handle->lsa_n > 0 ? "alltoallv (kernel + send/recv)"
                                        : "alltoallv (send/recv)",
                  true},
      [DEVICE_COUNTS] = {"device counts", all_by_kernel},
      [PLAN] = {"plan", all_by_kernel},
      [BARE_PUSH] = {"bare push", all_by_kernel},
  };
  enum { WAYS = sizeof ways / sizeof *ways };
  struct variant states[WAYS];
  struct bench_variant variants[WAYS];
  int nvariants = 0;
  for (int way = 0; way < WAYS; way++) {
    states[way] = (struct variant){.shared = &s, .way = (enum way)way};
    if (ways[way].possible)
      variants[nvariants++] =
          (struct bench_variant){ways[way].name, &states[way], NULL, teardown, call, fill, check};
  }
  const struct bench bench = {
      .title = "AlltoAllV",
      .variants = variants,
      .nvariants = nvariants,
      .rate = "wire",
      .moved = moved,
      .context = &s,
      .series = patterns,
      .nseries = npatterns,
      .series_name = "pattern",
      .limit = copy_limit(&s),
  };
  code = bench_run(me, &sweep, &bench, s.stream);

  CUDACHECK(cudaStreamSynchronize(s.stream));
  launcher_barrier(me); /* no rank takes away what a slower one has not finished with */
  if (s.push) barrier_destroy(s.push);
  ALLTOALLVCHECK(alltoallv_unregister(s.handle, s.buffers.window));
  ALLTOALLVCHECK(alltoallv_destroy(s.handle));
  NCCLCHECK(ncclMemFree(s.barrier_buffers.window));
  NCCLCHECK(ncclMemFree(s.buffers.window));
  NCCLCHECK(ncclMemFree(s.buffers.send));
  CUDACHECK(cudaFree(s.device_counts));
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(s.comm));
  NCCLCHECK(ncclCommDestroy(s.comm));
  free(s.matrix);
  free(s.file_matrix);
  return code;
}
