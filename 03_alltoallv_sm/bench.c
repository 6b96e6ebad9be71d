/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the ways to do an AlltoAllV side by side, and two limits measured in the same run: what
 * copy engines move between all pairs, and what stores of a kernel move without waiting. */
#include "bench.h"

#include <stdlib.h>

#include "check.h"
#include "patterns.h"
#include "alltoallv_program.h"

/* What all columns use in turn. */
struct sweep {
  const char *const *patterns;
  cudaStream_t stream;
  struct exchange x; /* of the size that is being measured, */
  size_t *matrix;    /* which this is the matrix of */
  struct matrix_most most;
  long slots; /* so many fit side by side into the buffers: bytes of one */
  size_t send_slot, recv_slot;
  struct segment *expected; /* what arrives in all slots */
};

struct column {
  struct sweep *sweep;
  const struct method *method;
  char *window;
};

static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  const struct sweep *s = bench->context; /* whose last size was this one */
  (void)me, (void)size;
  return (double)(s->most.wire * s->x.type->size);
}

/* ---- one size -------------------------------------------------------------------------------- */

static void fill(void *state, struct bench_size size)
{
  const struct column *c = state;
  struct sweep *s = c->sweep;
  struct exchange *x = &s->x;
  const int n = x->me->nranks, me = x->me->rank;
  char error[LAUNCHER_TEXT] = ""; /* none: checked before */
  if (!program_options.matrix_file)
    pattern_matrix(s->patterns[size.series], n, size.count, x->type->size, s->matrix, error,
                   sizeof error);
  s->most = matrix_most(s->matrix, n);
  for (int i = 0; i < n; i++) {
    x->sendcounts[i] = s->matrix[me * n + i];
    x->recvcounts[i] = s->matrix[i * n + me];
  }
  program_layout(x);
  x->room = s->most.receives;
  s->send_slot = s->most.sends * x->type->size;
  s->recv_slot = s->most.receives * x->type->size;
  s->slots = size.slots;
  while (s->slots > 1 && ((size_t)s->slots * s->send_slot > x->send_bytes ||
                          (size_t)s->slots * s->recv_slot > x->recv_bytes))
    s->slots--;
  CUDACHECK(cudaMemcpyAsync(x->device_counts, x->sendcounts, (size_t)n * sizeof(size_t),
                            cudaMemcpyHostToDevice, s->stream));
  program_guard(x, c->window, s->stream);
  for (size_t slot = 0; slot < (size_t)s->slots; slot++)
    program_prepare(x, x->send + slot * s->send_slot,
                    c->window + PROGRAM_GUARD + slot * s->recv_slot, (uint32_t)slot + 1,
                    s->expected + slot * (size_t)n, s->stream);
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(x->me); /* the bare push waits for nobody, so all have to be ready */
}

static unsigned long long check(void *state, struct bench_size size)
{
  const struct column *c = state;
  const struct sweep *s = c->sweep;
  (void)size;
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(s->x.me); /* ... and tells nobody when it is done */
  program_check_async(s->x.handle);
  return program_verify("bench", s->expected, (int)s->slots * s->x.me->nranks, &s->x, c->window,
                        s->stream);
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  const struct column *c = state;
  const struct sweep *s = c->sweep;
  const size_t at = (size_t)(slot % s->slots);
  (void)size;
  c->method->call(&s->x, s->x.send + at * s->send_slot,
                  c->window + PROGRAM_GUARD + at * s->recv_slot, stream);
}

/* GB/s that each rank's copy engines move to all others, without synchronization; slowest rank. */
static double copy_limit(const struct sweep *s)
{
  enum { COPIES = 28 }; /* long enough for launches not to matter */
  struct exchange x = s->x;
  const int n = x.me->nranks, me = x.me->rank;
  const size_t smaller = x.recv_bytes < x.send_bytes ? x.recv_bytes : x.send_bytes;
  const size_t bytes = smaller / (size_t)n / 4096 * 4096, count = bytes / x.type->size;
  cudaEvent_t start, stop;
  float ms;
  if (n == 1 || bytes == 0) return 0;
  for (int p = 0; p < n; p++) {
    x.sendcounts[p] = p == me ? 0 : count;
    x.sdispls[p] = (size_t)p * count;
    x.places[p] = (size_t)me * count;
  }
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  for (int i = -1; i < COPIES; i++) { /* once to warm up */
    if (i == 0) launcher_barrier(x.me);
    if (i == 0) CUDACHECK(cudaEventRecord(start, s->stream));
    copy_to_peers(&x, x.send, x.simple.window, s->stream);
  }
  CUDACHECK(cudaEventRecord(stop, s->stream));
  CUDACHECK(cudaEventSynchronize(stop));
  CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  return COPIES * (double)bytes * (n - 1) / launcher_max(x.me, ms) / 1e6;
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Sizes of buffers that are large enough for every pattern, and those of the sweep: a matrix from a
 * file has one only. Returns an exit code. Collective. */
static int choose_sizes(struct sweep *s, int npatterns, struct options *opt)
{
  const size_t size = opt->type->size, count = opt->max_bytes / size + 1;
  int code = EXIT_VERIFIED;
  for (int i = 0; i < npatterns && code == EXIT_VERIFIED; i++)
    code = program_matrix(&s->x, opt, s->patterns[i], count, s->matrix);
  if (program_options.matrix_file) opt->min_bytes = opt->max_bytes = s->x.sends * size;
  if (opt->max_bytes == 0) opt->min_bytes = opt->max_bytes = 1;
  return code;
}

/* The columns that can be measured. */
static int make_columns(struct sweep *s, bool graphs, const char *why_not_simple,
                        struct column *columns, struct bench_variant *variants)
{
  static const int shown[] = {METHOD_SENDRECV, METHOD_BARRIER,       METHOD_LINES,
                              METHOD_AUTO,     METHOD_DEVICE_COUNTS, METHOD_COPY_ENGINE,
                              METHOD_BARE_PUSH};
  int count = 0, reach;
  ALLTOALLVCHECK(alltoallv_info(s->x.handle, &reach, NULL));
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    const struct method *method = &methods[shown[i]];
    const char *name = method->name, *why = method->simple ? why_not_simple : NULL;
    if (shown[i] == METHOD_AUTO && reach < s->x.me->nranks) name = "alltoallv (send/recv)";
    if (shown[i] == METHOD_DEVICE_COUNTS && reach < s->x.me->nranks)
      why = "the kernel does not reach all ranks";
    if (shown[i] == METHOD_COPY_ENGINE && graphs) why = "it was never tried in a graph";
    if (why) {
      launcher_note(s->x.me, "no column %s: %s", name, why);
      continue;
    }
    columns[count] = (struct column){s, method, method->simple ? s->x.simple.window : s->x.window};
    variants[count] = (struct bench_variant){name, &columns[count], NULL, NULL, call, fill, check};
    count++;
  }
  return count;
}

int bench_example(const struct rank *me, const struct options *opt)
{
  const size_t n = (size_t)me->nranks;
  static const char *const usual[] = {"uniform", "skew", "unaligned"};
  const char *one[] = {program_options.matrix_file ? "matrix" : program_options.pattern};
  const int npatterns = one[0] ? 1 : (int)(sizeof usual / sizeof *usual);
  size_t matrix[n * n];
  struct options sizes = *opt;
  struct sweep s = {
      .patterns = one[0] ? one : usual, .x = {.me = me, .type = opt->type}, .matrix = matrix};
  struct exchange *x = &s.x;
  if (launcher_graphs_can_deadlock && opt->graph_launches)
    return launcher_refuse(me, "--cudagraph with several GPUs in one process can deadlock; "
                               "allowed: the build with MPI=1");
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  int code = choose_sizes(&s, npatterns, &sizes);
  if (code != EXIT_VERIFIED) return code;

  ncclUniqueId id;
  s.expected = calloc((size_t)opt->iterations * n, sizeof *s.expected);
  if (!s.expected) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&x->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  program_allocate(x);
  program_init(x);
  ALLTOALLVCHECK(alltoallv_register(x->handle, x->window, x->window_bytes));
  const char *why_not = simple_open(x);

  struct column columns[BENCH_MAX_VARIANTS];
  struct bench_variant variants[BENCH_MAX_VARIANTS];
  const struct bench bench = {
      .title = "AlltoAllV",
      .variants = variants,
      .nvariants = make_columns(&s, opt->graph_launches > 0, why_not, columns, variants),
      .rate = "wire",
      .moved = moved,
      .context = &s,
      .series = s.patterns,
      .nseries = npatterns,
      .series_name = "pattern",
      .limit = why_not ? 0 : copy_limit(&s),
  };
  code = bench_run(me, &sizes, &bench, s.stream);

  CUDACHECK(cudaStreamSynchronize(s.stream));
  launcher_barrier(me); /* no rank takes away what a slower one has not finished with */
  if (!why_not) simple_close(x);
  ALLTOALLVCHECK(alltoallv_unregister(x->handle, x->window));
  ALLTOALLVCHECK(alltoallv_destroy(x->handle));
  program_free(x);
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(x->comm));
  NCCLCHECK(ncclCommDestroy(x->comm));
  free(s.expected);
  return code;
}
