/* SPDX-License-Identifier: Apache-2.0 */
/* --bench times every path at several sizes and densities. In the same run it times, in the same
 * way, what they have to beat: an AllReduce of the whole gradient.
 *
 * The number that counts is the mean over a full cycle, which has exact and repartition steps as
 * often as training does. The median is that of a step that reuses thresholds. The gradient comes
 * from several buffers in turn, so that none stays in the cache. What is timed is verified bit for
 * bit before and after. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "allreduce.h"
#include "bench.h"
#include "program.h"

/* What is measured: a size, whose constants, and how many of the densities. */
struct model {
  size_t count;
  sparse_preset_t preset;
  int densities;
};
#ifdef CPU_STANDIN
enum { REPETITIONS = 1, COPY_BYTES = 1 << 20 };
static const struct model MODELS[] = {{1 << 14, SPARSE_PRESET_VGG, 2},
                                      {1 << 16, SPARSE_PRESET_BERT, 1}};
#else
enum { REPETITIONS = 5, COPY_BYTES = 256 << 20 };
/* and the paper's models: VGG-16, an LSTM, and BERT, which takes long and trains with 1 % */
static const struct model MODELS[] = {{1 << 20, SPARSE_PRESET_VGG, 2},
                                      {14728266, SPARSE_PRESET_VGG, 2},
                                      {27569568, SPARSE_PRESET_LSTM, 2},
                                      {133547324, SPARSE_PRESET_BERT, 1}};
#endif
static const double DENSITIES[] = {0.01, 0.02};
enum { NMODELS = sizeof MODELS / sizeof *MODELS };
enum { GRADIENTS = 3, COPIES = 11 }; /* buffers that gradients come from in turn */

/* Microseconds of a step: the mean of a cycle (its median, least and most over repetitions); the
 * median over all steps, of other cycles, with events between them. */
struct timing {
  double mean, mean_min, mean_max, median;
  int code; /* an exit code, the same on all ranks; EXIT_CANNOT_RUN: it is not possible here */
};

/* AllReduces: NCCL's on plain buffers, on symmetric windows (where NCCL cannot use those, this
 * equals the plain one), and the direct one of example 02, where all ranks share memory. */
enum dense_kind { PLAIN, SYMMETRIC, DIRECT, DENSE_KINDS };
static const char *const dense_names[DENSE_KINDS] = {"plain", "symmetric", "direct"};

struct sweep {
  struct job *job;
  struct verifier verifier; /* of AllReduces; it has the type of gradients */
  double copy_rate;         /* bytes per microsecond */
  int code;                 /* EXIT_VERIFIED, or that of the last error */
  /* of the current size */
  size_t count;
  uint64_t steps; /* of a cycle */
  void *gradients[GRADIENTS];
  struct timing dense[DENSE_KINDS];
};

#define DIRECTCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

static struct timing no_timing(int code)
{
  const double no = (double)NAN;
  return (struct timing){no, no, no, no, code};
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What is timed: a step of a path, an AllReduce from one of the send buffers, or a copy. */
struct subject {
  struct runner *runner; /* NULL: it is no path, ... */
  allreduce_t direct;    /* ... but this AllReduce of example 02, or if NULL that of NCCL */
  char *send[GRADIENTS], *recv;
  bool copies; /* ... or a copy of send[0] to recv */
  /* With -G: captured steps, by gradient and kind; an AllReduce has one kind. */
  cudaGraphExec_t graphs[GRADIENTS][SPARSE_KINDS];
  bool eager; /* no graphs: without -G, and where the host takes part in the steps of a path */
  /* A path's reference, and the state of the runner in the beginning. Every repetition is the same
   * cycle from there: the gradients come again and again, which no training does, and thresholds
   * that follow them swing more and more. */
  struct verification reference;
  void *state;
};

static ncclResult_t enqueue_eagerly(struct sweep *sweep, struct subject *s, uint64_t slot)
{
  const ncclDataType_t type = sweep->verifier.type->nccl;
  if (s->runner) return runner_step(s->runner, sweep->gradients[slot]);
  if (s->copies)
    CUDACHECK(cudaMemcpyAsync(s->recv, s->send[0], COPY_BYTES, cudaMemcpyDeviceToDevice,
                              sweep->job->stream));
  else if (s->direct)
    DIRECTCHECK(
        allreduce_run(s->direct, s->send[slot], s->recv, sweep->count, type, sweep->job->stream));
  else
    NCCLCHECK(ncclAllReduce(s->send[slot], s->recv, sweep->count, type, ncclSum, sweep->job->comm,
                            sweep->job->stream));
  return ncclSuccess;
}

/* NULL if the step cannot be captured. */
static cudaGraphExec_t capture(struct sweep *sweep, struct subject *s, uint64_t slot)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec = NULL;
  CUDACHECK(cudaStreamBeginCapture(sweep->job->stream, cudaStreamCaptureModeThreadLocal));
  const ncclResult_t result = enqueue_eagerly(sweep, s, slot);
  CUDACHECK(cudaStreamEndCapture(sweep->job->stream, &graph));
  if (result != ncclInvalidUsage) {
    SPARSECHECK(result);
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

static void enqueue_step(struct sweep *sweep, struct subject *s, uint64_t step)
{
  const uint64_t slot = step % GRADIENTS;
  int kind = 0;
  if (s->runner && !s->eager) SPARSECHECK(sparse_allreduce_kind(s->runner->handle, &kind));
  cudaGraphExec_t *graph = &s->graphs[slot][kind];
  if (!s->eager && !*graph) *graph = capture(sweep, s, slot);
  s->eager = s->eager || !*graph;
  if (s->eager) {
    SPARSECHECK(enqueue_eagerly(sweep, s, slot));
    return;
  }
  CUDACHECK(cudaGraphLaunch(*graph, sweep->job->stream));
  if (s->runner) SPARSECHECK(sparse_allreduce_replayed(s->runner->handle));
}

/* There is an event before the first and after the last step. One after every step takes time
 * itself, and says what each step took. */
static void run_cycle(struct sweep *sweep, struct subject *s, cudaEvent_t *events, bool every_step)
{
  launcher_step("bench: timing");
  if (s->runner) runner_load(s->runner, s->state);
  launcher_barrier(sweep->job->me);
  CUDACHECK(cudaEventRecord(events[0], sweep->job->stream));
  for (uint64_t step = 1; step <= sweep->steps; step++) {
    enqueue_step(sweep, s, step - 1);
    if (every_step || step == sweep->steps)
      CUDACHECK(cudaEventRecord(events[step], sweep->job->stream));
  }
  CUDACHECK(cudaStreamSynchronize(sweep->job->stream));
}

static double elapsed_us(cudaEvent_t start, cudaEvent_t stop)
{
  float ms;
  CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
  return ms * 1e3;
}

/* Median over n steps of the slowest rank's time; NaN if times mean nothing. `us` has the same n on
 * all ranks, and is changed. Collective. */
static double slowest_us(const struct rank *me, double *us, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) us[i] = launcher_max(me, us[i]);
  return bench_shows_times ? bench_median(us, (long)n) : (double)NAN;
}

static struct timing time_steps(struct sweep *sweep, struct subject *s)
{
  /* a simple version takes ten times as long as the library: once is enough to see that */
  const int repetitions = s->runner && s->runner->simple ? 1 : REPETITIONS;
  double medians[REPETITIONS], means[REPETITIONS],
      *us = launcher_allocate(sweep->steps * sizeof *us);
  cudaEvent_t *events = launcher_allocate((sweep->steps + 1) * sizeof *events);
  struct timing time = no_timing(EXIT_VERIFIED);
  for (uint64_t i = 0; i <= sweep->steps; i++) CUDACHECK(cudaEventCreate(&events[i]));
  launcher_step("bench: warm-up");
  if (!s->eager) { /* all kinds with each gradient: all graphs */
    for (uint64_t step = 0; step < GRADIENTS * sweep->steps; step++) enqueue_step(sweep, s, step);
    CUDACHECK(cudaStreamSynchronize(sweep->job->stream));
  }
  for (int i = 0; i < repetitions; i++) {
    run_cycle(sweep, s, events, false);
    means[i] = elapsed_us(events[0], events[sweep->steps]) / (double)sweep->steps;
    means[i] = slowest_us(sweep->job->me, &means[i], 1);
    run_cycle(sweep, s, events, true);
    for (uint64_t step = 0; step < sweep->steps; step++)
      us[step] = elapsed_us(events[step], events[step + 1]);
    medians[i] = slowest_us(sweep->job->me, us, sweep->steps);
  }
  for (uint64_t i = 0; i <= sweep->steps; i++) CUDACHECK(cudaEventDestroy(events[i]));
  free(events);
  free(us);
  time.mean = bench_median(means, repetitions); /* sorts */
  time.mean_min = means[0];
  time.mean_max = means[repetitions - 1];
  time.median = bench_median(medians, repetitions);
  return time;
}

/* ---- verifying and timing -------------------------------------------------------------------- */

static void fill_buffers(struct sweep *sweep, struct subject *s)
{
  for (int i = 0; i < GRADIENTS; i++)
    verifier_fill(&sweep->verifier, s->send[i], s->recv, sweep->count);
  /* a symmetric kernel may start before what is in front of it has finished; and with several
   * GPUs in one process, allocating may wait for all of them */
  CUDACHECK(cudaStreamSynchronize(sweep->job->stream));
  launcher_barrier(sweep->job->me);
}

/* Compares what a step of a path with each gradient leaves, or the last AllReduce. */
static int verify_steps(struct sweep *sweep, struct subject *s)
{
  int code = EXIT_VERIFIED;
  for (uint64_t i = 0; s->runner && i < GRADIENTS && code == EXIT_VERIFIED; i++) {
    enqueue_step(sweep, s, i);
    code = runner_finish(s->runner);
    if (code == EXIT_VERIFIED) code = verification_step(&s->reference, sweep->gradients[i]);
  }
  if (s->runner) return code;
  CUDACHECK(cudaStreamSynchronize(sweep->job->stream));
  verifier_compare(&sweep->verifier, s->recv, sweep->count);
  const bool wrong = verifier_report(&sweep->verifier, "ncclAllReduce") != 0;
  return launcher_agree(sweep->job->me, wrong ? EXIT_WRONG_DATA : EXIT_VERIFIED);
}

/* Verifies, times, and verifies what was timed, also graphs. Wrong results have no time. */
static struct timing time_verified(struct sweep *sweep, struct subject *s)
{
  struct runner *runner = s->runner;
  launcher_step("bench: verification before timing");
  s->eager = true;
  if (!runner) {
    fill_buffers(sweep, s);
    enqueue_step(sweep, s, 0);
  }
  int code = verify_steps(sweep, s);
  if (code != EXIT_VERIFIED) return no_timing(code);
  s->eager = !program_options.graphs || (runner && runner->simple);
  if (!runner) fill_buffers(sweep, s);
  const struct timing time = time_steps(sweep, s);

  launcher_step("bench: verification after timing");
  if (runner) { /* step 0 finds thresholds and regions, 1 and 2 use them: all kinds of graphs */
    runner_load(runner, s->state);
    simple_reset(s->reference.ref);
    if (runner->weights)
      CUDACHECK(cudaMemcpy(runner->weights, s->reference.weights, sweep->count * sizeof(float),
                           cudaMemcpyHostToDevice));
  }
  code = verify_steps(sweep, s);
  for (int slot = 0; slot < GRADIENTS; slot++)
    for (int kind = 0; kind < SPARSE_KINDS; kind++)
      if (s->graphs[slot][kind]) CUDACHECK(cudaGraphExecDestroy(s->graphs[slot][kind]));
  return code == EXIT_VERIFIED ? time : no_timing(code);
}

static struct timing time_path(struct sweep *sweep, struct runner *runner)
{
  struct subject s = {.runner = runner, .state = runner_save(runner)};
  verification_init(&s.reference, runner, false);
  const struct timing time = time_verified(sweep, &s);
  verification_free(&s.reference);
  free(s.state);
  return time;
}

static struct timing time_dense(struct sweep *sweep, enum dense_kind kind)
{
  const size_t bytes = sweep->count * sweep->verifier.type->size;
  const size_t stride = (bytes + 4095) / 4096 * 4096, all = (GRADIENTS + 1) * stride;
  struct subject s = {0};
  ncclWindow_t window = NULL; /* of all buffers */
  char *memory;
  ncclResult_t result;
  launcher_step("bench: dense");
  if (kind == DIRECT) {
    result = allreduce_create(sweep->job->comm, NULL, &s.direct);
    if (result == ncclInvalidUsage) return no_timing(EXIT_CANNOT_RUN); /* on all ranks */
    CHECK_NCCL_RESULT(result, "allreduce_create", allreduce_last_error());
  }
  if (kind == PLAIN) {
    CUDACHECK(cudaMalloc((void **)&memory, all));
  } else {
    NCCLCHECK(ncclMemAlloc((void **)&memory, all));
    NCCLCHECK(
        ncclCommWindowRegister(sweep->job->comm, memory, all, &window, NCCL_WIN_COLL_SYMMETRIC));
  }
  if (s.direct) DIRECTCHECK(allreduce_add_window(s.direct, window, memory, all));
  for (int i = 0; i < GRADIENTS; i++) s.send[i] = memory + (size_t)i * stride;
  s.recv = memory + GRADIENTS * stride;

  const struct timing time = time_verified(sweep, &s);
  if (s.direct) {
    DIRECTCHECK(allreduce_get_async_error(s.direct, &result));
    CHECK_NCCL_RESULT(result, "allreduce_run", allreduce_last_error());
    DIRECTCHECK(allreduce_destroy(s.direct));
  }
  launcher_barrier(sweep->job->me); /* a slower peer may still read this rank's memory */
  if (window) NCCLCHECK(ncclCommWindowDeregister(sweep->job->comm, window));
  if (kind == PLAIN)
    CUDACHECK(cudaFree(memory));
  else
    NCCLCHECK(ncclMemFree(memory));
  launcher_barrier(sweep->job->me); /* freeing may wait for all GPUs, and for what runs there */
  return time;
}

/* Bytes per microsecond that a copy within device memory moves: reads and writes. */
static double copy_rate(struct sweep *sweep)
{
  struct subject s = {.copies = true, .eager = true};
  CUDACHECK(cudaMalloc((void **)&s.recv, 2 * (size_t)COPY_BYTES));
  CUDACHECK(cudaMemsetAsync(s.recv, 1, 2 * (size_t)COPY_BYTES, sweep->job->stream));
  s.send[0] = s.recv + COPY_BYTES;
  sweep->steps = COPIES;
  const double us = time_steps(sweep, &s).median;
  CUDACHECK(cudaFree(s.recv));
  launcher_barrier(sweep->job->me);
  return 2.0 * COPY_BYTES / us;
}

/* Writes a row to the file and, if `shown`, to the table. */
static void write_row(struct sweep *s, const char *name, const char *mode, double density,
                      const struct timing *time, bool shown)
{
  const struct rank *me = s->job->me;
  struct rows *rows = &s->job->rows;
  const double us = time->mean, elements = (double)s->count;
#define SHOWN(format) (shown ? (format) : NULL)
  rows_text(rows, "path", name);
  rows_text(rows, "mode", mode);
  rows_integer(rows, "ranks", (unsigned long long)me->nranks);
  rows_integer(rows, "count", s->count);
  rows_text(rows, "type", s->job->opt->type->name);
  rows_number(rows, "density", density);
  rows_integer(rows, "steps", s->steps);
  report_number(s->job, NULL, time->median, SHOWN(" %8.1f"));
  report_number(s->job, "us", us, SHOWN(" %8.1f"));
  rows_number(rows, "us_min", time->mean_min);
  rows_number(rows, "us_max", time->mean_max);
  rows_number(rows, "us_median_step", time->median);
  rows_number(rows, "dense_us", s->job->dense_us);
  report_number(s->job, "ratio", s->job->dense_us / us, SHOWN(" %6.2f"));
  report_number(s->job, "bytes_per_element", us * s->copy_rate / elements, SHOWN(" %7.1f"));
  rows_number(rows, "copy_gb_per_s", s->copy_rate / 1e3);
  rows_integer(rows, "wrong", time->code != EXIT_VERIFIED);
  rows_end(rows);
  if (time->code != EXIT_VERIFIED) s->code = time->code;
#undef SHOWN
}

/* How a path is run, a row each. The last two are those of --result entries, the second of them
 * with weights that each step updates. */
enum version { BY_LIBRARY, BY_SIMPLE, ENTRIES, ENTRIES_ADDED, VERSIONS };

static bool has_version(const struct job *job, int path, int version)
{
  if (version >= ENTRIES)
    return program_options.result == SPARSE_RESULT_ENTRIES && path != SPARSE_DENSE;
  return version == BY_LIBRARY || /* or one of the two that are read first */
         ((path == SPARSE_TOPKA || path == SPARSE_OKTOPK) && job->opt->type->nccl == ncclFloat &&
          program_options.nonfinite == SPARSE_NONFINITE_ERROR);
}

static void bench_path(struct sweep *s, int path, int version, sparse_allreduce_config_t config)
{
  static const char *const words[VERSIONS] = {"", "", " entries", " entries added"};
  const struct rank *me = s->job->me;
  struct runner runner;
  char row[48];
  config.algorithm = (sparse_allreduce_algorithm_t)path;
  config.result = version >= ENTRIES ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  snprintf(row, sizeof row, "%s%s%s", version == BY_SIMPLE ? "simple " : "",
           simple_paths[path].name, words[version]);
  runner_create(&runner, s->job, s->count, &config, version == BY_SIMPLE, version == ENTRIES_ADDED);
  const char *reason, *mode = runner_mode(&runner, &reason);
  launcher_barrier(me); /* with several GPUs in one process, allocating may wait for all of them */
  const struct timing time = time_path(s, &runner);
  const bool right = time.code == EXIT_VERIFIED;
  launcher_print(me, "%-20s", row);
  write_row(s, row, mode, config.density, &time, right);
  launcher_print(me, right ? "  %s\n" : " WRONG, no times: see standard error\n", mode);
  runner_destroy(&runner);
}

/* A cycle has a step of each kind. */
static uint64_t cycle_of(const sparse_allreduce_config_t *c)
{
  struct sparse_constants k;
  if (program_options.steps > 0) return (uint64_t)program_options.steps;
  sparse_constants_init(&k, c->preset);
  return (uint64_t)fmax(fmax(k.local_interval, k.topkaopt_interval),
                        fmax(k.global_interval, k.repartition_interval));
}

static void bench_density(struct sweep *s, const sparse_allreduce_config_t *config)
{
  const struct rank *me = s->job->me;
  launcher_print(me, "# %zu elements, density %g; dense us:", s->count, config->density);
  for (int i = 0; i < DENSE_KINDS; i++) {
    char name[32];
    if (s->dense[i].code == EXIT_CANNOT_RUN) continue;
    if (i > 0) launcher_print(me, ",");
    report_number(s->job, NULL, s->dense[i].mean, " %.1f");
    launcher_print(me, s->dense[i].code ? " %s: WRONG" : " %s", dense_names[i]);
    snprintf(name, sizeof name, "%s allreduce", dense_names[i]);
    write_row(s, name, "allreduce", config->density, &s->dense[i], false);
  }
  launcher_print(me, "; %llu steps a cycle\n", (unsigned long long)s->steps);
  for (int path = 0; path < SPARSE_ALGORITHMS; path++)
    for (int version = 0; version < VERSIONS; version++)
      if (job_wants(s->job, path) && has_version(s->job, path, version))
        bench_path(s, path, version, *config);
}

static void bench_size(struct sweep *s, const struct model *model)
{
  struct job *job = s->job;
  sparse_allreduce_config_t config = job_config(job->opt, model->preset);
  s->steps = cycle_of(&config);
  for (int i = 0; i < GRADIENTS; i++) {
    CUDACHECK(cudaMalloc(&s->gradients[i], s->count * job->opt->type->size));
    job_gradient(job, s->count, (uint64_t)i, s->gradients[i]);
  }
  /* what paths are compared with is the fastest; if one is wrong, nothing: NaN */
  job->dense_us = (double)INFINITY;
  for (int i = 0; i < DENSE_KINDS; i++) {
    const struct timing time = s->dense[i] = time_dense(s, (enum dense_kind)i);
    if (time.mean < job->dense_us || time.code == EXIT_WRONG_DATA) job->dense_us = time.mean;
  }
  for (int d = 0; d < (program_options.density > 0 ? 1 : model->densities); d++) {
    if (program_options.density <= 0) config.density = DENSITIES[d];
    bench_density(s, &config);
  }
  for (int i = 0; i < GRADIENTS; i++) CUDACHECK(cudaFree(s->gradients[i]));
  launcher_barrier(job->me);
}

/* Handle, gradients, the buffers of a dense AllReduce, and those of the copy. */
size_t bench_bytes(const struct job *job, int model)
{
  const double density = program_options.density > 0 ? program_options.density : DENSITIES[1];
  const size_t count = program_options.count ? program_options.count : MODELS[model].count;
  return job_bytes(job, count, density, 2 * GRADIENTS + 1) + 2 * (size_t)COPY_BYTES;
}

static void sweep_sizes(struct sweep *s)
{
  const struct rank *me = s->job->me;
  s->copy_rate = copy_rate(s);
  launcher_print(me, "# Sparse AllReduce: %d rank%s, %s; us, slowest rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s", s->job->opt->type->name,
                 program_options.graphs ? ", in CUDA graphs" : "");
  launcher_print(me, "# B/elem: bytes per element that a copy could have moved in a mean step\n"
                     "# copy rate:");
  report_number(s->job, NULL, s->copy_rate / 1e3, " %.1f");
  launcher_print(me, " GB/s read and written\n%-20s %8s %8s %6s %7s  %s\n", "path", "median",
                 "mean", "ratio", "B/elem", "mode");
  for (int i = 0; i < (program_options.count ? 1 : NMODELS); i++) {
    /* main.c has checked the first one; larger ones that do not fit are left out, after a line */
    if (i > 0 && !launcher_has_memory(me, bench_bytes(s->job, i))) break;
    s->count = program_options.count ? program_options.count : MODELS[i].count;
    bench_size(s, &MODELS[i]);
  }
}

int bench_paths(struct job *job)
{
  struct sweep s = {.job = job};
  verifier_init(&s.verifier, job->me, job->opt->type, job->stream);
  sweep_sizes(&s);
  verifier_free(&s.verifier);
  return s.code;
}
