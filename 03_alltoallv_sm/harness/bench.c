/* SPDX-License-Identifier: Apache-2.0 */
/* All that options ask for and main.c does not do. --bench: the ways to do an AlltoAllV side by
 * side, and two limits measured in the same run: what copy engines move between all pairs, and what
 * stores of a kernel move without waiting. Without --bench: one exchange of that pattern, type and
 * method. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "patterns.h"
#include "alltoallv_program.h"
#include "verify.h"

/* What all columns use in turn. */
struct sweep {
  const char *const *patterns;
  int npatterns;
  cudaStream_t stream;
  struct exchange x;        /* of the size that is being measured */
  struct pattern_most most; /* of that */
  size_t slot; /* bytes of one of the exchanges that lie side by side, in both buffers */
  struct segment *expected; /* what arrives in all slots */
  int reach;       /* ranks that the library's kernel reaches, and so do those of simple/ */
  const char *how; /* the bytes of the library move */
};

struct column {
  struct sweep *sweep;
  const struct method *method;
  char *guarded;
};

static struct column column_of(struct sweep *s, const struct method *method)
{
  return (struct column){s, method, method->simple ? s->x.simple.guarded : s->x.guarded};
}

static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  const struct sweep *s = bench->context; /* whose last size was this one */
  (void)me, (void)size;
  return (double)(s->most.wire * s->x.type->size);
}

/* Counts for `count` elements per sender. If something is wrong, one line in `error`, which is ""
 * before. */
static void set_counts(struct sweep *s, int pattern, size_t count, char *error)
{
  struct exchange *x = &s->x;
  s->most = pattern_counts(s->patterns[pattern], x->me, count, x->type->size, x->sendcounts,
                           x->recvcounts, error);
}

/* ---- one size -------------------------------------------------------------------------------- */

static void fill(void *state, struct bench_size size)
{
  const struct column *c = state;
  struct sweep *s = c->sweep;
  struct exchange *x = &s->x;
  const int n = x->me->nranks;
  char error[LAUNCHER_TEXT] = ""; /* none: checked before */
  set_counts(s, size.series, size.count, error);
  program_layout(x);
  s->slot = s->most.buffer * x->type->size;
  CUDACHECK(cudaMemcpyAsync(x->device_counts, x->sendcounts, (size_t)n * sizeof(size_t),
                            cudaMemcpyHostToDevice, s->stream));
  program_guard(x, c->guarded, s->stream);
  for (size_t slot = 0; slot < (size_t)size.slots; slot++)
    program_prepare(x, x->send + slot * s->slot, c->guarded + PROGRAM_GUARD + slot * s->slot,
                    (uint32_t)slot + 1, s->expected + slot * (size_t)n, s->stream);
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(x->me); /* the bare push waits for nobody, so all have to be ready */
}

static unsigned long long check(void *state, struct bench_size size)
{
  const struct column *c = state;
  const struct sweep *s = c->sweep;
  ncclResult_t async_error; /* counts of two ranks that differ, or a peer that did not come */
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(s->x.me); /* ... and tells nobody when it is done */
  ALLTOALLVCHECK(alltoallv_get_async_error(s->x.handle, &async_error, NULL, NULL));
  ALLTOALLVCHECK(async_error);
  return program_verify(c->method->name, s->expected, (int)size.slots * s->x.me->nranks, &s->x,
                        c->guarded, s->stream);
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  const struct column *c = state;
  const struct sweep *s = c->sweep;
  (void)size;
  const size_t at = (size_t)slot * s->slot;
  c->method->call(&s->x, s->x.send + at, c->guarded + PROGRAM_GUARD + at, stream);
}

/* GB/s that each rank's copy engines move to all others, without synchronization; slowest rank. */
static double copy_limit(const struct sweep *s)
{
  enum { COPIES = 28 }; /* long enough for launches not to matter */
  struct exchange x = s->x;
  const int n = x.me->nranks;
  const size_t bytes = x.bytes / (size_t)n / 4096 * 4096;
  if (n == 1 || bytes == 0) return 0;
  for (int p = 0; p < n; p++)
    x.sendcounts[p] = x.recvcounts[p] = p == x.me->rank ? 0 : bytes / x.type->size;
  program_layout(&x);
  copy_to_peers(&x, x.send, x.guarded, s->stream); /* to warm up */
  CUDACHECK(cudaStreamSynchronize(s->stream));
  launcher_barrier(x.me);
  const double start = launcher_microseconds();
  for (int i = 0; i < COPIES; i++) copy_to_peers(&x, x.send, x.guarded, s->stream);
  CUDACHECK(cudaStreamSynchronize(s->stream));
  const double us = launcher_microseconds() - start;
  return COPIES * (double)bytes * (n - 1) / launcher_max(x.me, us) / 1e3;
}

/* ---- everything ------------------------------------------------------------------------------ */

/* What is wrong with the options together, or "". */
static const char *wrong_options(const struct options *opt, int nranks)
{
  const bool simple = !methods[program_options.method].library;
  if (nranks > EXCHANGE_MAX_RANKS) return "too many ranks; allowed: up to 512";
  if (opt->bench && (simple || program_options.method == METHOD_DEVICE_COUNTS))
    return "--bench measures all methods; allowed: --method auto, lsa, lib-sendrecv";
  if (launcher_graphs_can_deadlock && opt->graph_launches)
    return "--cudagraph with several GPUs in one process can deadlock; allowed: the build with "
           "MPI=1";
  return "";
}

/* Checks the options, and makes s->x as large as the largest exchange of any rank. `sizes`: only
 * those of the sweep are set already. Collective. */
static int choose_sizes(struct sweep *s, const struct options *opt, struct options *sizes)
{
  enum { HANDLE = 32 << 20 }; /* with scratch memory, at most */
  struct exchange *x = &s->x;
  const size_t n = (size_t)x->me->nranks, size = x->type->size;
  char error[LAUNCHER_TEXT];
  if (!opt->bench) {
    if (!sizes->count) sizes->count = 2048;
    sizes->max_bytes = sizes->count * size;
    sizes->iterations = 1;
  }
  const size_t most = sizes->max_bytes / size;
  snprintf(error, sizeof error, "%s", wrong_options(opt, x->me->nranks));
  for (int i = 0; i < s->npatterns && !*error; i++) {
    set_counts(s, i, most, error);
    if (s->most.buffer * size > x->bytes) x->bytes = s->most.buffer * size;
  }
  if (launcher_refuse(x->me, error) != EXIT_VERIFIED) return EXIT_USAGE;
  /* counts are rounded up, at most by 16 bytes each, in all exchanges side by side */
  x->bytes += 16 * n * (size_t)sizes->iterations;
  const size_t bytes = 3 * x->bytes + HANDLE;
  return launcher_has_memory(x->me, bytes) ? EXIT_VERIFIED : EXIT_USAGE;
}

/* The columns that can be measured. */
static int make_columns(struct sweep *s, bool graphs, struct column *columns,
                        struct bench_variant *variants)
{
  static const int shown[] = {METHOD_SENDRECV, METHOD_BARRIER,       METHOD_LINES,
                              METHOD_AUTO,     METHOD_DEVICE_COUNTS, METHOD_COPY_ENGINE,
                              METHOD_BARE_PUSH};
  int count = 0;
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    const struct method *method = &methods[shown[i]];
    const char *name = method->name, *why = NULL;
    if (s->reach == 0 && shown[i] == METHOD_AUTO) name = "alltoallv (send/recv)";
    if (s->reach == 0 && method->handle == ALLTOALLV_LSA) why = s->how;
    if (shown[i] == METHOD_COPY_ENGINE && graphs) why = "it was never tried in a graph";
    if (why) {
      launcher_note(s->x.me, "no column %s: %s", name, why);
      continue;
    }
    columns[count] = column_of(s, method);
    variants[count] = (struct bench_variant){name, &columns[count], NULL, NULL, call, fill, check};
    count++;
  }
  return count;
}

static int run_sweep(struct sweep *s, const struct options *sizes)
{
  struct column columns[BENCH_MAX_VARIANTS];
  struct bench_variant variants[BENCH_MAX_VARIANTS];
  const struct bench bench = {
      .title = "AlltoAllV",
      .variants = variants,
      .nvariants = make_columns(s, sizes->graph_launches > 0, columns, variants),
      .rate = "wire",
      .moved = moved,
      .context = s,
      .series = s->patterns,
      .nseries = s->npatterns,
      .series_name = "pattern",
      .limit = s->reach > 0 ? copy_limit(s) : 0,
  };
  return bench_run(s->x.me, sizes, &bench, s->stream);
}

static int run_once(struct sweep *s, const struct options *opt)
{
  struct exchange *x = &s->x;
  const int n = x->me->nranks;
  const struct method *method = &methods[program_options.method];
  const struct bench_size size = {.count = opt->count, .slots = 1};
  struct column c = column_of(s, method);
  struct verifier verifier; /* for --digest */
  launcher_step(method->name);
  launcher_note(x->me, "AlltoAllV: %s: %s", method->name, method->library ? s->how : "simple/");
  fill(&c, size);
  call(&c, size, 0, s->stream);
  if (program_options.method == METHOD_DEVICE_COUNTS) {
    const size_t row = (size_t)n * sizeof(size_t), *counts = x->device_counts + n;
    CUDACHECK(cudaMemcpyAsync(x->recvcounts, counts, row, cudaMemcpyDeviceToHost, s->stream));
    CUDACHECK(cudaMemcpyAsync(x->rdispls, counts + n, row, cudaMemcpyDeviceToHost, s->stream));
  }
  verifier_init(&verifier, x->me, x->type, s->stream);
  verifier_digest(&verifier, c.guarded + PROGRAM_GUARD, x->receives);
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
  const char *one = program_options.pattern ? program_options.pattern : "halving";
  const bool several = opt->bench && !program_options.pattern;
  struct options sizes = *opt;
  struct sweep s = {.patterns = several ? usual : &one,
                    .npatterns = several ? (int)(sizeof usual / sizeof *usual) : 1,
                    .x = {.me = me, .type = opt->type}};
  struct exchange *x = &s.x;
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  int code = choose_sizes(&s, opt, &sizes);
  if (code != EXIT_VERIFIED) return code;

  ncclUniqueId id;
  s.expected = launcher_allocate((size_t)sizes.iterations * n * sizeof *s.expected);
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&x->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  program_allocate(x);
  program_init(x);
  ALLTOALLVCHECK(alltoallv_info(x->handle, &s.reach, &s.how));
  if (s.reach > 0) simple_open(x);
  code = opt->bench ? run_sweep(&s, &sizes) : run_once(&s, &sizes);
  CUDACHECK(cudaStreamSynchronize(s.stream));
  launcher_barrier(me); /* no rank takes away what a slower one has not finished with */
  if (s.reach > 0) simple_close(x);
  ALLTOALLVCHECK(alltoallv_unregister(x->handle, x->guarded));
  ALLTOALLVCHECK(alltoallv_destroy(x->handle));
  program_free(x);
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(x->comm));
  NCCLCHECK(ncclCommDestroy(x->comm));
  free(s.expected);
  return code;
}
