/* SPDX-License-Identifier: Apache-2.0 */
/* All that options ask for and main.c does not do. --bench: the ways to do an AlltoAllV side by
 * side, and two limits measured in the same run: what copy engines move between all pairs, and what
 * stores of a kernel move without waiting. Without it: one exchange of that pattern, type and
 * method. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "patterns.h"
#include "alltoallv_program.h"
#include "verify.h"

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
  return program_verify(c->method->name, s->expected, (int)s->slots * s->x.me->nranks, &s->x,
                        c->window, s->stream);
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

#ifdef CPU_STANDIN
enum { BESIDE_COUNT = 2048, NUMBERS = 256, ROUNDS = 64 };
#else
enum { BESIDE_COUNT = 4 << 20, NUMBERS = 4 << 20, ROUNDS = 7000 }; /* some milliseconds */
#endif

static size_t count_of(const struct options *opt)
{
  return opt->count ? opt->count : program_options.beside ? BESIDE_COUNT : 2048;
}

/* Sizes of buffers that are large enough for every pattern, and those of the sweep: a matrix from a
 * file has one only. Returns an exit code. Collective. */
static int choose_sizes(struct sweep *s, int npatterns, struct options *opt)
{
  const size_t size = opt->type->size, once = count_of(opt);
  const size_t count = opt->bench ? opt->max_bytes / size + 1 : once;
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

static int run_sweep(struct sweep *s, const struct options *sizes, int npatterns,
                     const char *why_not)
{
  struct column columns[BENCH_MAX_VARIANTS];
  struct bench_variant variants[BENCH_MAX_VARIANTS];
  const struct bench bench = {
      .title = "AlltoAllV",
      .variants = variants,
      .nvariants = make_columns(s, sizes->graph_launches > 0, why_not, columns, variants),
      .rate = "wire",
      .moved = moved,
      .context = s,
      .series = s->patterns,
      .nseries = npatterns,
      .series_name = "pattern",
      .limit = why_not ? 0 : copy_limit(s),
  };
  return bench_run(s->x.me, sizes, &bench, s->stream);
}

/* Median microseconds of the slowest rank, of an exchange (1), a kernel that computes (2), or both
 * at the same time (3). */
static double time_beside(struct column *c, struct bench_size size, long repetitions, int what,
                          float *numbers, cudaStream_t other)
{
  double us[repetitions];
  fill(c, size);
  for (long i = -1; i < repetitions; i++) { /* once to warm up */
    launcher_barrier(c->sweep->x.me);
    const double start = launcher_microseconds();
    if (what & 2) compute_launch(numbers, NUMBERS, ROUNDS, other);
    if (what & 1) call(c, size, 0, c->sweep->stream);
    CUDACHECK(cudaStreamSynchronize(c->sweep->stream));
    CUDACHECK(cudaStreamSynchronize(other));
    const double mine = launcher_microseconds() - start;
    if (i >= 0) us[i] = launcher_max(c->sweep->x.me, mine);
  }
  return bench_median(us, repetitions);
}

/* --beside: a kernel that exchanges takes multiprocessors from one that computes, or waits for
 * them; a copy engine does not. "both" is at best the larger of the two, at worst their sum. */
static int run_beside(struct sweep *s, const struct options *opt, const char *why_not_simple)
{
  struct column columns[BENCH_MAX_VARIANTS];
  struct bench_variant variants[BENCH_MAX_VARIANTS];
  const struct bench_size size = {.count = count_of(opt), .slots = 1};
  const struct rank *me = s->x.me;
  const int n = make_columns(s, false, why_not_simple, columns, variants);
  const size_t bytes = NUMBERS * sizeof(float);
  int code = EXIT_VERIFIED;
  float *numbers, *host = malloc(bytes);
  cudaStream_t other;
  CUDACHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  if (!host) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  CUDACHECK(cudaMalloc((void **)&numbers, bytes));
  launcher_print(me, "%-22s %12s %12s %12s\n", "us", "exchange", "compute", "both");
  for (int v = 0; v < n; v++) {
    launcher_print(me, "%-22s", variants[v].name);
    CUDACHECK(cudaMemset(numbers, 0, bytes));
    CUDACHECK(cudaDeviceSynchronize());
    for (int what = 1; what <= 3; what++) {
      launcher_step(variants[v].name);
      const double us = time_beside(&columns[v], size, opt->repetitions, what, numbers, other);
      if (isfinite(us))
        launcher_print(me, " %12.1f", us);
      else
        launcher_print(me, " %12s", "-");
      if (what != 2 && check(&columns[v], size)) code = EXIT_WRONG_DATA;
    }
    launcher_print(me, "\n");
    CUDACHECK(cudaMemcpy(host, numbers, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < NUMBERS && code == EXIT_VERIFIED; i++) {
      if (host[i] == 2) continue;
      launcher_error("beside %s: number %d is %g, expected 2", variants[v].name, i, host[i]);
      code = EXIT_WRONG_DATA;
    }
  }
  free(host);
  CUDACHECK(cudaFree(numbers));
  CUDACHECK(cudaStreamDestroy(other));
  code = launcher_agree(me, code);
  launcher_print(me, code == EXIT_VERIFIED ? "Results structure verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  return code;
}

/* Without --bench. */
static int run_once(struct sweep *s, const struct options *opt, const char *why_not_simple)
{
  struct exchange *x = &s->x;
  const int n = x->me->nranks;
  const struct method *method = &methods[program_options.method];
  struct column c = {s, method, method->simple ? x->simple.window : x->window};
  const struct bench_size size = {.count = count_of(opt), .slots = 1};
  const size_t row = (size_t)n * sizeof *x->device_counts;
  const bool device = program_options.device_counts;
  const char *what;
  struct verifier verifier; /* for --digest */
  launcher_step(method->name);
  if (method->simple && why_not_simple) program_cannot_run(x->me, why_not_simple);
  ALLTOALLVCHECK(alltoallv_info(x->handle, NULL, &what));
  launcher_note(x->me, "AlltoAllV: %s%s%s", method->library ? "" : method->name,
                method->library ? what : " (simple)", device ? " (device counts)" : "");
  if (device) c.method = &methods[METHOD_DEVICE_COUNTS];
  fill(&c, size);
  call(&c, size, 0, s->stream);
  if (device) {
    size_t *counts = x->device_counts; /* of the device: sends, receives, displacements */
    CUDACHECK(cudaMemcpyAsync(x->recvcounts, counts + n, row, cudaMemcpyDeviceToHost, s->stream));
    CUDACHECK(cudaMemcpyAsync(x->rdispls, counts + 2 * n, row, cudaMemcpyDeviceToHost, s->stream));
  }
  verifier_init(&verifier, x->me, x->type, s->stream);
  verifier_digest(&verifier, c.window + PROGRAM_GUARD, x->receives);
  int code = check(&c, size) ? EXIT_WRONG_DATA : EXIT_VERIFIED;
  for (int from = 0; from < n; from++)
    if (x->recvcounts[from] != s->expected[from].count) code = EXIT_WRONG_DATA;
  code = launcher_agree(x->me, code);
  for (int from = 0; from < n; from++)
    launcher_print(x->me, "  Received from rank %d: %zu elements at offset %zu\n", from,
                   x->recvcounts[from], x->rdispls[from]);
  launcher_print(x->me, code == EXIT_VERIFIED ? "Results structure verified correctly\n"
                                              : "Results are WRONG, see standard error\n");
  if (opt->digest) verifier_print_digest(&verifier);
  verifier_free(&verifier);
  return code;
}

int harness(const struct rank *me, const struct options *opt)
{
  const size_t n = (size_t)me->nranks;
  static const char *const usual[] = {"uniform", "skew", "unaligned"};
  const char *pattern = program_options.pattern || opt->bench ? program_options.pattern : "halving";
  const char *one[] = {program_options.matrix_file ? "matrix" : pattern};
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
  code = opt->bench               ? run_sweep(&s, &sizes, npatterns, why_not)
         : program_options.beside ? run_beside(&s, opt, why_not)
                                  : run_once(&s, opt, why_not);
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
