/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the ways to do an AlltoAllV side by side, and two limits measured in the same run: what
 * copy engines move between all pairs, and what stores of a kernel move without waiting. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "patterns.h"
#include "program.h"

/* What is measured where no --pattern says otherwise. */
static const char *const sweep_patterns[] = {"uniform", "skew", "unaligned"};

/* What all variants use in turn. */
struct shared {
  const struct options *opt;
  const char *const *patterns;
  size_t *file_matrix; /* of --matrix, read once; NULL without it */
  cudaStream_t stream;
  alltoallv_t handle;
  /* The exchange of the size that is being measured, in buffers of the largest one, into which
   * several fit side by side, in slots. */
  struct exchange x;
  size_t *matrix;
  size_t send_stride, recv_stride; /* bytes from slot to slot */
  long slots;
};

struct variant {
  struct shared *shared;
  struct way way;
};

/* The matrix of a pattern with `bytes` per sender; patterns were checked before. */
static void make_matrix(const struct shared *s, int series, size_t bytes, size_t *matrix)
{
  const int n = s->x.me->nranks;
  const size_t size = s->opt->type->size;
  char error[256];
  if (s->file_matrix)
    memcpy(matrix, s->file_matrix, (size_t)(n * n) * sizeof *matrix);
  else
    pattern_matrix(s->patterns[series], n, bytes / size, size,
                   (unsigned long long)program_options.seed, matrix, error, sizeof error);
}

static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  const struct shared *s = bench->context;
  size_t matrix[me->nranks * me->nranks];
  make_matrix(s, size.series, size.bytes, matrix);
  return (double)(matrix_most(matrix, me->nranks).wire * s->opt->type->size);
}

/* ---- one size -------------------------------------------------------------------------------- */

static char *send_slot(const struct shared *s, long slot)
{
  return s->x.send + (size_t)(slot % s->slots) * s->send_stride;
}

/* Where a slot begins in a window. */
static size_t recv_at(const struct shared *s, long slot)
{
  return PROGRAM_GUARD + (size_t)(slot % s->slots) * s->recv_stride;
}

static void fill(void *state, struct bench_size size)
{
  struct variant *v = state;
  struct shared *s = v->shared;
  struct exchange *x = &s->x;
  const int n = x->me->nranks, me = x->me->rank;
  make_matrix(s, size.series, size.bytes, s->matrix);
  for (int i = 0; i < n; i++) {
    x->sendcounts[i] = s->matrix[me * n + i];
    x->recvcounts[i] = s->matrix[i * n + me];
  }
  program_prefix_sums(x->sendcounts, x->sdispls, n);
  program_prefix_sums(x->recvcounts, x->rdispls, n);
  program_places(x, s->handle);
  const struct matrix_most most = matrix_most(s->matrix, n);
  s->send_stride = most.sends * x->type->size;
  s->recv_stride = most.receives * x->type->size;
  s->slots = size.slots;
  while (s->slots > 1 && ((size_t)s->slots * s->send_stride > x->send_bytes ||
                          (size_t)s->slots * s->recv_stride > x->recv_bytes))
    s->slots--;
  v->way.room = most.receives;
  if (v->way.method == &methods[METHOD_DEVICE_COUNTS])
    CUDACHECK(cudaMemcpyAsync(v->way.device_counts, x->sendcounts, (size_t)n * sizeof(size_t),
                              cudaMemcpyHostToDevice, s->stream));
  program_guard(x, v->way.window, s->stream);
  for (long slot = 0; slot < s->slots; slot++)
    program_fill(x, send_slot(s, slot), (uint32_t)slot + 1, s->stream);
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(x->me); /* the bare push waits for nobody, so all have to be ready */
}

static unsigned long long check(void *state, struct bench_size size)
{
  struct variant *v = state;
  struct shared *s = v->shared;
  const int n = s->x.me->nranks;
  struct segment *expected = calloc((size_t)(s->slots * n), sizeof *expected);
  if (!expected) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  (void)size;
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(s->x.me); /* ... and tells nobody when it is done */
  program_check_async(s->handle);
  for (long slot = 0; slot < s->slots; slot++)
    program_expect(&s->x, v->way.window + recv_at(s, slot), (uint32_t)slot + 1,
                   expected + slot * n);
  unsigned long long wrong =
      program_verify("bench", expected, (int)s->slots * n, &s->x, v->way.window, s->stream);
  free(expected);
  return wrong;
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  struct variant *v = state;
  (void)size;
  v->way.method->call(&v->way, send_slot(v->shared, slot), recv_at(v->shared, slot), stream);
}

/* ---- the limit ------------------------------------------------------------------------------- */

/* GB/s that each rank's copy engines move to all others at the same time, without synchronisation:
 * the median of some passes, slowest rank. 0 where ranks do not see each other's memory. */
static double copy_limit(const struct shared *s)
{
  enum { PASSES = 7, COPIES = 4 }; /* long enough for launches not to matter */
  const struct exchange *x = &s->x;
  const int n = x->me->nranks;
  const size_t smaller = x->recv_bytes < x->send_bytes ? x->recv_bytes : x->send_bytes;
  const size_t bytes = smaller / (size_t)n / 4096 * 4096;
  double rates[PASSES];
  cudaStream_t streams[n];
  cudaEvent_t start, stop, done;
  int reach;
  ALLTOALLVCHECK(alltoallv_info(s->handle, &reach, NULL));
  if (reach < n || n == 1 || bytes == 0) return 0;
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  CUDACHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  for (int p = 0; p < n; p++)
    CUDACHECK(cudaStreamCreateWithFlags(&streams[p], cudaStreamNonBlocking));
  for (int pass = 0; pass < PASSES; pass++) {
    float ms;
    launcher_barrier(x->me);
    CUDACHECK(cudaEventRecord(start, s->stream));
    for (int i = 1; i < n; i++) {
      const int p = (x->me->rank + i) % n;
      void *to;
      ALLTOALLVCHECK(alltoallv_peer(s->handle, x->window, p, &to));
      CUDACHECK(cudaStreamWaitEvent(streams[p], start, 0));
      for (int copy = 0; copy < COPIES; copy++)
        CUDACHECK(cudaMemcpyAsync((char *)to + PROGRAM_GUARD + (size_t)x->me->rank * bytes,
                                  x->send + (size_t)p * bytes, bytes, cudaMemcpyDeviceToDevice,
                                  streams[p]));
      CUDACHECK(cudaEventRecord(done, streams[p]));
      CUDACHECK(cudaStreamWaitEvent(s->stream, done, 0));
    }
    CUDACHECK(cudaEventRecord(stop, s->stream));
    CUDACHECK(cudaEventSynchronize(stop));
    CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
    rates[pass] = (double)COPIES * (double)bytes * (n - 1) / launcher_max(x->me, ms) / 1e6;
  }
  for (int p = 0; p < n; p++) CUDACHECK(cudaStreamDestroy(streams[p]));
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  CUDACHECK(cudaEventDestroy(done));
  return bench_median(rates, PASSES);
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Checks the options, sets the sizes of buffers that are large enough for every pattern, and the
 * sizes of the sweep: a matrix from a file has one size only. Returns an exit code. Collective. */
static int choose_sizes(struct shared *s, int npatterns, struct options *sweep)
{
  const size_t size = s->opt->type->size;
  struct exchange *x = &s->x;
  for (int i = 0; i < npatterns; i++) {
    size_t *matrix = program_matrix(x->me, s->opt, s->patterns[i], sweep->max_bytes / size + 1);
    if (!matrix) return EXIT_USAGE;
    const struct matrix_most most = matrix_most(matrix, x->me->nranks);
    if (most.sends > x->sends) x->sends = most.sends;
    if (most.receives > x->receives) x->receives = most.receives;
    if (program_options.matrix_file)
      s->file_matrix = matrix; /* there is one pattern then */
    else
      free(matrix);
  }
  if (s->file_matrix) sweep->min_bytes = sweep->max_bytes = x->sends * size;
  if (sweep->max_bytes == 0) sweep->min_bytes = sweep->max_bytes = 1;
  const size_t bytes = program_bytes(x->sends * size, 3 * x->receives * size, x->me->nranks);
  return launcher_has_memory(x->me, bytes) ? EXIT_VERIFIED : EXIT_USAGE;
}

int bench_example(const struct rank *me, const struct options *opt)
{
  static const int columns[] = {METHOD_SENDRECV, METHOD_BARRIER,       METHOD_LINES,
                                METHOD_AUTO,     METHOD_DEVICE_COUNTS, METHOD_COPY_ENGINE,
                                METHOD_BARE_PUSH};
  enum { COLUMNS = sizeof columns / sizeof *columns };
  const size_t n = (size_t)me->nranks;
  const char *one[] = {program_options.matrix_file ? "matrix" : program_options.pattern};
  struct options sweep = *opt;
  struct shared s = {.opt = &sweep, .patterns = one[0] ? one : sweep_patterns};
  if (launcher_graphs_can_deadlock && opt->graph_launches)
    return launcher_refuse(me, "--cudagraph with several GPUs in one process can deadlock; "
                               "allowed: the build with MPI=1");
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  s.x = program_exchange(me, opt->type);
  const int npatterns = one[0] ? 1 : (int)(sizeof sweep_patterns / sizeof *sweep_patterns);
  int code = choose_sizes(&s, npatterns, &sweep);
  if (code != EXIT_VERIFIED) {
    free(s.x.sendcounts);
    free(s.file_matrix);
    return code;
  }
  s.matrix = calloc(n * n, sizeof *s.matrix);
  if (!s.matrix) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);

  ncclUniqueId id;
  ncclComm_t comm;
  char *others[2]; /* windows of barrier and bare push: in the hands of another communicator */
  size_t *counts;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  CUDACHECK(cudaMalloc((void **)&counts, 3 * n * sizeof *counts));
  program_allocate(&s.x);
  const size_t window_bytes = s.x.recv_bytes + 2 * PROGRAM_GUARD;
  for (int i = 0; i < 2; i++) NCCLCHECK(ncclMemAlloc((void **)&others[i], window_bytes));
  program_init(me, comm, &s.handle);
  ALLTOALLVCHECK(alltoallv_register(s.handle, s.x.window, window_bytes));

  struct variant states[COLUMNS];
  struct bench_variant variants[COLUMNS];
  int nvariants = 0, reach;
  ALLTOALLVCHECK(alltoallv_info(s.handle, &reach, NULL));
  for (int i = 0; i < COLUMNS; i++) {
    struct variant *v = &states[nvariants];
    const int method = columns[i];
    char *window = method == METHOD_BARRIER     ? others[0]
                   : method == METHOD_BARE_PUSH ? others[1]
                                                : s.x.window;
    *v = (struct variant){.shared = &s,
                          .way = {.method = &methods[method],
                                  .x = &s.x,
                                  .comm = comm,
                                  .handle = s.handle,
                                  .window = window,
                                  .bytes = window_bytes,
                                  .device_counts = counts}};
    const char *name = v->way.method->column;
    const char *why = method == METHOD_COPY_ENGINE && opt->graph_launches
                          ? "graphs do not take its flags"
                          : way_open(&v->way);
    if (why) {
      launcher_note(me, "no column %s: %s", name, why);
      continue;
    }
    if (method == METHOD_AUTO && reach < me->nranks)
      name = reach > 0 ? "alltoallv (kernel + send/recv)" : "alltoallv (send/recv)";
    variants[nvariants++] = (struct bench_variant){name, v, NULL, NULL, call, fill, check};
  }
  const struct bench bench = {
      .title = "AlltoAllV",
      .variants = variants,
      .nvariants = nvariants,
      .rate = "wire",
      .moved = moved,
      .context = &s,
      .series = s.patterns,
      .nseries = npatterns,
      .series_name = "pattern",
      .limit = copy_limit(&s),
  };
  code = bench_run(me, &sweep, &bench, s.stream);

  CUDACHECK(cudaStreamSynchronize(s.stream));
  launcher_barrier(me); /* no rank takes away what a slower one has not finished with */
  for (int i = 0; i < nvariants; i++) way_close(&states[i].way);
  ALLTOALLVCHECK(alltoallv_unregister(s.handle, s.x.window));
  ALLTOALLVCHECK(alltoallv_destroy(s.handle));
  for (int i = 0; i < 2; i++) NCCLCHECK(ncclMemFree(others[i]));
  NCCLCHECK(ncclMemFree(s.x.window));
  NCCLCHECK(ncclMemFree(s.x.send));
  CUDACHECK(cudaFree(counts));
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  free(s.x.sendcounts);
  free(s.matrix);
  free(s.file_matrix);
  return code;
}
