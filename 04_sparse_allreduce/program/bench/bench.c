/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: every path at several sizes and densities, and beside them, in the same run and timed in
 * the same way, what they have to beat: an AllReduce of the whole gradient, NCCL's on plain buffers
 * or on symmetric windows, or that of example 02, whichever is fastest.
 *
 * The mean over a full cycle, which contains the exact and the repartition steps as often as
 * training does, is the figure that counts; the median is that of a step that reuses thresholds.
 * The gradient comes from several buffers in turn, so that none stays in the cache. Every
 * configuration is verified before it is timed. */
#include "constants.h"
#include "bench.h"

#include <math.h>

#include "program/bench/bench_dense.h"
#include "program/bench/bench_time.h"
#include "program/bench/bench_verify.h"
#include "check.h"
#include "program/program.h"
#include "program/report.h"
#include "program/version.h"

/* What is measured: sizes, whose constants, and how many of the densities. */
struct model {
  size_t count;
  sparse_preset_t preset;
  int densities;
};
#ifdef CPU_STANDIN
static const struct model MODELS[] = {{1 << 14, SPARSE_PRESET_VGG, 2},
                                      {1 << 16, SPARSE_PRESET_BERT, 1}};
#else
/* and the models of the paper: VGG-16, an LSTM, and BERT, which takes long and trains with 1 % */
static const struct model MODELS[] = {{1 << 20, SPARSE_PRESET_VGG, 2},
                                      {14728266, SPARSE_PRESET_VGG, 2},
                                      {27569568, SPARSE_PRESET_LSTM, 2},
                                      {133547324, SPARSE_PRESET_BERT, 1}};
#endif
static const double DENSITIES[] = {0.01, 0.02};
enum { NMODELS = sizeof MODELS / sizeof *MODELS, NDENSITIES = 2 };

struct sweep {
  struct job *job;
  struct bench_timer timer;
  struct rows rows;
  double copy_rate;
  double means[NDENSITIES][SPARSE_ALGORITHMS]; /* of the current size; NaN: not measured */
};

/* ---- one path -------------------------------------------------------------------------------- */

static void print_number(const struct rank *me, int width, int digits, double value)
{
  if (isfinite(value))
    launcher_print(me, " %*.*f", width, digits, value);
  else
    launcher_print(me, " %*s", width, "-");
}

static void write_row(struct sweep *s, const char *name, const char *mode, double density,
                      struct bench_time time, double dense, const double *phases, double pass,
                      bool wrong)
{
  struct rows *rows = &s->rows;
  if (s->job->me->rank != 0) return;
  rows_text(rows, "path", name);
  rows_text(rows, "mode", mode);
  rows_integer(rows, "ranks", (unsigned long long)s->job->me->nranks);
  rows_integer(rows, "count", s->timer.count);
  rows_text(rows, "type", s->job->opt->type->name);
  rows_number(rows, "density", density);
  rows_integer(rows, "steps", s->timer.steps);
  rows_number(rows, "us", time.mean);
  rows_number(rows, "us_min", time.mean_min);
  rows_number(rows, "us_max", time.mean_max);
  rows_number(rows, "us_median_step", time.median);
  rows_number(rows, "dense_us", dense);
  rows_number(rows, "ratio", dense / time.mean);
  for (int p = 0; p < BENCH_PHASES; p++)
    rows_number(rows, bench_phase_names[p], phases ? phases[p] : (double)NAN);
  rows_number(rows, "bytes_per_element", time.mean * s->copy_rate / (double)s->timer.count);
  rows_number(rows, "select_percent", pass);
  rows_number(rows, "copy_gb_per_s", s->copy_rate / 1e3);
  rows_integer(rows, "wrong", wrong);
  rows_end(rows);
}

/* How a path is run: a row each. The last two are those of --result entries, the second of them
 * with weights that each step updates. */
enum way { WAY_LIBRARY, WAY_SIMPLE, WAY_ENTRIES, WAY_UPDATES, WAYS };
static const char *const way_words[WAYS] = {"", "", "entries", "entries added"};

static int bench_path(struct sweep *s, sparse_allreduce_algorithm_t algorithm, enum way way, int d,
                      const sparse_allreduce_config_t *base, const struct bench_dense *dense)
{
  const struct rank *me = s->job->me;
  sparse_allreduce_config_t config = *base;
  struct version version;
  struct bench_time time = bench_no_time;
  double phases[BENCH_PHASES];
  char name[32], path[48]; /* in the table and in files */
  const bool simple = way == WAY_SIMPLE, entries = way == WAY_ENTRIES || way == WAY_UPDATES;
  config.algorithm = algorithm;
  config.result = entries ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  s->timer.updates = way == WAY_UPDATES;
  if (simple) config.balance = SPARSE_BALANCE_NEVER;
  snprintf(name, sizeof name, "%s%s", simple ? "simple " : "", sparse_allreduce_name(algorithm));
  snprintf(path, sizeof path, "%s%s%s", name, entries ? " " : "", way_words[way]);
  for (int p = 0; p < BENCH_PHASES; p++) phases[p] = (double)NAN;
  launcher_step("bench: verification before timing");
  version_create(&version, s->job, s->timer.comm, s->timer.count, &config, simple);
  const char *mode = algorithm == SPARSE_DENSE ? "allreduce" : version_mode(&version);
  launcher_barrier(me); /* with several GPUs in one process, allocating may wait for all of them */
  int code =
      bench_verify_path(me, &config, &version, s->timer.count, s->timer.gradients, s->timer.stream);
  if (code == EXIT_VERIFIED) {
    time = bench_time_path(&s->timer, &version);
    if (!simple) bench_time_phases(&s->timer, version.handle, phases);
    code = version_check_async(&version, s->job, name, 0);
  }
  if (code == EXIT_VERIFIED) { /* the timed steps too */
    /* gradient and residual read, residual written: what the selection cannot do without */
    const double bytes = (8.0 + (double)s->job->opt->type->size) * (double)s->timer.count;
    const bool selects = algorithm != SPARSE_DENSE;
    const double pass = selects ? 100 * bytes / phases[0] / s->copy_rate : (double)NAN;
    launcher_print(me, "%-15s", name);
    print_number(me, 10, 1, time.median);
    print_number(me, 10, 1, time.mean);
    print_number(me, 7, 2, dense->best.mean / time.mean);
    for (int p = 0; p < BENCH_PHASES; p++) print_number(me, 8, 1, phases[p]);
    print_number(me, 8, 1, time.mean * s->copy_rate / (double)s->timer.count);
    print_number(me, 8, 1, pass);
    launcher_print(me, "  %s%s%s\n", mode, entries ? ", " : "", way_words[way]);
    write_row(s, path, mode, config.density, time, dense->best.mean, phases, pass, false);
    if (way == WAY_LIBRARY) s->means[d][algorithm] = time.mean;
  } else {
    launcher_print(me, "%-15s WRONG, no times: see standard error\n", name);
    write_row(s, path, mode, config.density, bench_no_time, dense->best.mean, NULL, (double)NAN,
              true);
  }
  version_destroy(&version);
  launcher_barrier(me);
  return code;
}

/* ---- one size -------------------------------------------------------------------------------- */

/* The time of a path grows with its density, about linearly. */
static void print_crossover(const struct sweep *s, double dense)
{
  launcher_print(s->job->me, "# as fast as dense at density (extrapolated):");
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    const double slope = (s->means[1][a] - s->means[0][a]) / (DENSITIES[1] - DENSITIES[0]);
    double at = DENSITIES[0] + (dense - s->means[0][a]) / slope;
    if (!s->job->wanted[a]) continue;
    launcher_print(s->job->me, " %s", sparse_allreduce_name((sparse_allreduce_algorithm_t)a));
    if (slope <= 0) at = s->means[1][a] < dense; /* noise: no crossing to be seen */
    if (isnan(at))
      launcher_print(s->job->me, " -");
    else
      launcher_print(s->job->me, " %.2g%%", 100 * fmax(0, fmin(1, at)));
  }
  launcher_print(s->job->me, "\n");
}

/* The version to read first can do what is asked for. */
static bool has_simple(const struct job *job)
{
  return job->opt->type->nccl == ncclFloat && program_options.nonfinite == SPARSE_NONFINITE_ERROR;
}

static bool has_way(const struct job *job, sparse_allreduce_algorithm_t algorithm, enum way way)
{
  switch (way) {
  case WAY_LIBRARY:
    return true;
  case WAY_SIMPLE:
    return version_has_simple(algorithm) && has_simple(job);
  default:
    return program_options.result == SPARSE_RESULT_ENTRIES && algorithm != SPARSE_DENSE;
  }
}

/* A cycle has a step of each kind. */
static uint64_t cycle_of(const sparse_allreduce_config_t *c)
{
  struct sparse_constants k;
  sparse_constants_init(&k, c->preset);
  const int intervals[] = {k.local_interval, k.topkaopt_interval, k.global_interval,
                           k.repartition_interval};
  uint64_t steps = (uint64_t)program_options.steps;
  for (int i = 0; i < 4 && program_options.steps == 0; i++)
    if (steps < (uint64_t)intervals[i]) steps = (uint64_t)intervals[i];
  return steps;
}

static int bench_size(struct sweep *s, const struct model *model)
{
  struct job *job = s->job;
  const sparse_allreduce_config_t of_preset = job_config(job->opt, model->preset);
  const struct rank *me = job->me;
  const double given = program_options.density;
  const int densities = given > 0 ? 1 : model->densities;
  struct bench_dense dense;
  int code, result;
  s->timer.steps = cycle_of(&of_preset);
  for (int i = 0; i < BENCH_GRADIENTS; i++) {
    CUDACHECK(cudaMalloc(&s->timer.gradients[i], s->timer.count * job->opt->type->size));
    CUDACHECK(gradient_fill(s->timer.gradients[i], job->opt->type->nccl, s->timer.count, job->kind,
                            job->seed, (uint64_t)i, me->rank, me->nranks, s->timer.stream));
  }
  CUDACHECK(cudaStreamSynchronize(s->timer.stream));
  launcher_step("bench: dense");
  const int dense_code = code = bench_time_dense(&s->timer, &dense);
  for (int d = 0; d < densities && code != EXIT_FAILED_CALL; d++) {
    sparse_allreduce_config_t config = of_preset;
    if (given <= 0) config.density = DENSITIES[d];
    launcher_print(me, "# %zu elements, density %g; dense us:", s->timer.count, config.density);
    for (int i = 0; i < BENCH_DENSE_WAYS; i++) {
      if (dense.codes[i] == EXIT_CANNOT_RUN) continue;
      if (i) launcher_print(me, ",");
      print_number(me, 0, 1, dense.times[i].mean);
      launcher_print(me, " %s", bench_dense_names[i]);
    }
    launcher_print(me, "; %llu steps a cycle%s\n", (unsigned long long)s->timer.steps,
                   dense_code == EXIT_VERIFIED ? "" : "; WRONG");
    for (int i = 0; i < BENCH_DENSE_WAYS; i++) {
      char name[32];
      if (dense.codes[i] == EXIT_CANNOT_RUN) continue;
      snprintf(name, sizeof name, "%s allreduce", bench_dense_names[i]);
      write_row(s, name, "allreduce", config.density, dense.times[i], dense.best.mean, NULL,
                (double)NAN, dense.codes[i] != EXIT_VERIFIED);
    }
    for (int a = 0; a < SPARSE_ALGORITHMS; a++) {
      const sparse_allreduce_algorithm_t algorithm = (sparse_allreduce_algorithm_t)a;
      if (!job->wanted[a]) continue;
      for (int way = 0; way < WAYS; way++) {
        if (!has_way(job, algorithm, (enum way)way)) continue;
        result = bench_path(s, algorithm, (enum way)way, d, &config, &dense);
        if (result != EXIT_VERIFIED) code = result;
      }
    }
  }
  if (densities == NDENSITIES) print_crossover(s, dense.best.mean);
  for (int i = 0; i < BENCH_GRADIENTS; i++) CUDACHECK(cudaFree(s->timer.gradients[i]));
  launcher_barrier(me);
  return code;
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Handle, gradients, and the buffers of the symmetric allreduce. */
static size_t bytes_needed(const struct job *job, size_t count)
{
  const double density = program_options.density > 0 ? program_options.density : DENSITIES[1];
  const size_t simple = version_simple_bytes(count, density, job->me->nranks);
  const size_t library = job_bytes(job, count, density, 0);
  const size_t more = has_simple(job) && simple > library ? simple - library : 0;
  return more + job_bytes(job, count, density, 2 * BENCH_GRADIENTS + 2);
}

/* On all ranks. */
static bool fits(const struct job *job, size_t count)
{
  size_t available, total;
  CUDACHECK(cudaMemGetInfo(&available, &total));
  return launcher_max(job->me, bytes_needed(job, count) > available - available / 32) == 0;
}

static int sweep_sizes(struct sweep *s)
{
  struct job *job = s->job;
  const struct rank *me = job->me;
  int code = EXIT_VERIFIED;
  s->copy_rate = bench_copy_rate(&s->timer);
  launcher_print(me, "# Sparse AllReduce: %d rank%s, %s; us, slowest rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s", job->opt->type->name,
                 s->timer.graphs ? ", in CUDA graphs" : "");
  launcher_print(me, "# B/elem: bytes per element that a copy could have moved in a mean step; "
                     "%%copy: of the copy rate, by select\n# copy rate:");
  print_number(me, 0, 1, s->copy_rate / 1e3);
  launcher_print(me, " GB/s read and written\n%-15s %10s %10s %7s", "path", "median", "mean",
                 "ratio");
  for (int p = 0; p < BENCH_PHASES; p++) launcher_print(me, " %8s", bench_phase_names[p]);
  launcher_print(me, " %8s %8s  %s\n", "B/elem", "%copy", "mode");
  for (int i = 0; i < (program_options.count ? 1 : NMODELS); i++) {
    s->timer.count = program_options.count ? program_options.count : MODELS[i].count;
    for (int d = 0; d < NDENSITIES; d++)
      for (int a = 0; a < SPARSE_ALGORITHMS; a++) s->means[d][a] = (double)NAN;
    if (!program_options.count && !fits(job, s->timer.count)) {
      launcher_note(me, "%zu elements do not fit into device memory", s->timer.count);
      continue;
    }
    const int result = bench_size(s, &MODELS[i]);
    if (result != EXIT_VERIFIED) code = result;
  }
  return code;
}

static int bench_job(struct job *job)
{
  const struct rank *me = job->me;
  if (launcher_graphs_can_deadlock && program_options.graphs > 0)
    return launcher_refuse(me, "-G 1 with several GPUs in one process can deadlock; "
                               "allowed: the build with MPI=1");
  struct sweep s = {.job = job};
  uint64_t steps = 0; /* at most */
  for (int i = 0; i < NMODELS; i++) {
    const sparse_allreduce_config_t config = job_config(job->opt, MODELS[i].preset);
    if (steps < cycle_of(&config)) steps = cycle_of(&config);
  }
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  /* of several sizes those that do not fit are left out, but not the first */
  const size_t smallest = program_options.count ? program_options.count : MODELS[0].count;
  const size_t need = bytes_needed(job, smallest), copies = bench_copy_bytes();
  if (!launcher_has_memory(me, need > copies ? need : copies)) return EXIT_USAGE;
  const int failed = me->rank == 0 && rows_open(&s.rows, program_options.results) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;

  bench_timer_init(&s.timer, me, job->opt->type, steps, program_options.graphs > 0);
  code = sweep_sizes(&s);
  bench_timer_free(&s.timer);
  rows_finish(&s.rows);
  return job_publish(job, &s.rows.output, code);
}

int bench_example(const struct rank *me, const struct options *opt)
{
  struct job job;
  int code = job_open(&job, me, opt);
  if (code == EXIT_VERIFIED) code = bench_job(&job);
  job_close(&job);
  return code;
}
