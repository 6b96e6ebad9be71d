/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: every path at several sizes and densities, and beside them, in the same run and timed in
 * the same way, what they have to beat: an AllReduce of the whole gradient, NCCL's on plain buffers
 * or on symmetric windows, or that of example 02, whichever is fastest.
 *
 * The mean over a full cycle, which contains the exact and the repartition steps as often as
 * training does, is the figure that counts; the median is that of a step that reuses thresholds.
 * The gradient comes from several buffers in turn, so that none stays in the cache. Every
 * configuration is verified bit for bit before it is timed, and so are the timed calls. */
#include "bench.h"

#include <math.h>

#include "program/report.h"
#include "program/timing.h"

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
  struct timer timer;
  struct rows rows;
  double copy_rate;
};

/* ---- one path -------------------------------------------------------------------------------- */

static void write_row(struct sweep *s, const char *name, const char *mode, double density,
                      struct timing time, double dense, const double *phases, double pass,
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
  for (int p = 0; p < PHASES; p++)
    rows_number(rows, phase_names[p], phases ? phases[p] : (double)NAN);
  rows_number(rows, "bytes_per_element", time.mean * s->copy_rate / (double)s->timer.count);
  rows_number(rows, "select_percent", pass);
  rows_number(rows, "copy_gb_per_s", s->copy_rate / 1e3);
  rows_integer(rows, "wrong", wrong);
  rows_end(rows);
}

/* How a path is run, a row each. The last two are those of --result entries, the second of them
 * with weights that each step updates. */
enum row { BY_LIBRARY, BY_SIMPLE, ENTRIES, ENTRIES_ADDED, ROWS };
static const char *const row_words[ROWS] = {"", "", "entries", "entries added"};

/* Of simple/ the two that are read first. */
static bool has_simple(const struct job *job)
{
  return job->opt->type->nccl == ncclFloat && program_options.nonfinite == SPARSE_NONFINITE_ERROR;
}

static bool has_row(const struct job *job, int path, enum row row)
{
  if (row == BY_SIMPLE) return (path == SPARSE_TOPKA || path == SPARSE_OKTOPK) && has_simple(job);
  return row == BY_LIBRARY ||
         (program_options.result == SPARSE_RESULT_ENTRIES && path != SPARSE_DENSE);
}

static int bench_path(struct sweep *s, int path, enum row row,
                      const sparse_allreduce_config_t *base, const struct dense_times *dense)
{
  const struct rank *me = s->job->me;
  sparse_allreduce_config_t config = *base;
  struct runner runner;
  double phases[PHASES], pass = (double)NAN;
  char name[32], full_name[48]; /* in the table and in files */
  const bool simple = row == BY_SIMPLE, entries = row == ENTRIES || row == ENTRIES_ADDED;
  int code;
  config.algorithm = (sparse_allreduce_algorithm_t)path;
  config.result = entries ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  snprintf(name, sizeof name, "%s%s", simple ? "simple " : "", simple_paths[path].name);
  snprintf(full_name, sizeof full_name, "%s%s%s", name, entries ? " " : "", row_words[row]);
  for (int p = 0; p < PHASES; p++) phases[p] = (double)NAN;
  runner_create(&runner, me, s->timer.comm, s->timer.count, &config, simple);
  const char *mode = path == SPARSE_DENSE ? "allreduce" : runner_mode(&runner);
  launcher_barrier(me); /* with several GPUs in one process, allocating may wait for all of them */
  const struct timing time = time_path(&s->timer, &runner, &config, row == ENTRIES_ADDED, &code);
  if (code == EXIT_VERIFIED && !simple) time_phases(&s->timer, &runner, phases);
  if (code == EXIT_VERIFIED) {
    /* gradient and residual read, residual written: what the selection cannot do without */
    const double bytes = (8.0 + (double)s->job->opt->type->size) * (double)s->timer.count;
    if (path != SPARSE_DENSE) pass = 100 * bytes / phases[0] / s->copy_rate;
    launcher_print(me, "%-15s", name);
    report_number(me, 10, 1, time.median, "");
    report_number(me, 10, 1, time.mean, "");
    report_number(me, 7, 2, dense->best.mean / time.mean, "");
    for (int p = 0; p < PHASES; p++) report_number(me, 8, 1, phases[p], "");
    report_number(me, 8, 1, time.mean * s->copy_rate / (double)s->timer.count, "");
    report_number(me, 8, 1, pass, "");
    launcher_print(me, "  %s%s%s\n", mode, entries ? ", " : "", row_words[row]);
  } else {
    launcher_print(me, "%-15s WRONG, no times: see standard error\n", name);
  }
  write_row(s, full_name, mode, config.density, time, dense->best.mean, phases, pass,
            code != EXIT_VERIFIED);
  runner_destroy(&runner);
  return code;
}

/* ---- one size -------------------------------------------------------------------------------- */

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
  struct dense_times dense;
  int code, result;
  s->timer.steps = cycle_of(&of_preset);
  for (int i = 0; i < GRADIENTS; i++) {
    CUDACHECK(cudaMalloc(&s->timer.gradients[i], s->timer.count * job->opt->type->size));
    CUDACHECK(gradient_fill(s->timer.gradients[i], job->opt->type->nccl, s->timer.count, job->kind,
                            job->seed, (uint64_t)i, me->rank, me->nranks, s->timer.stream));
  }
  CUDACHECK(cudaStreamSynchronize(s->timer.stream));
  launcher_step("bench: dense");
  const int dense_code = code = time_dense(&s->timer, &dense);
  for (int d = 0; d < densities && code != EXIT_FAILED_CALL; d++) {
    sparse_allreduce_config_t config = of_preset;
    if (given <= 0) config.density = DENSITIES[d];
    launcher_print(me, "# %zu elements, density %g; dense us:", s->timer.count, config.density);
    for (int i = 0; i < DENSE_KINDS; i++) {
      if (dense.codes[i] == EXIT_CANNOT_RUN) continue;
      if (i) launcher_print(me, ",");
      report_number(me, 0, 1, dense.times[i].mean, "");
      launcher_print(me, " %s", dense_names[i]);
    }
    launcher_print(me, "; %llu steps a cycle%s\n", (unsigned long long)s->timer.steps,
                   dense_code == EXIT_VERIFIED ? "" : "; WRONG");
    for (int i = 0; i < DENSE_KINDS; i++) {
      char name[32];
      if (dense.codes[i] == EXIT_CANNOT_RUN) continue;
      snprintf(name, sizeof name, "%s allreduce", dense_names[i]);
      write_row(s, name, "allreduce", config.density, dense.times[i], dense.best.mean, NULL,
                (double)NAN, dense.codes[i] != EXIT_VERIFIED);
    }
    for (int path = 0; path < SPARSE_ALGORITHMS; path++)
      for (int row = 0; row < ROWS; row++) {
        if (!job_wants(job, path) || !has_row(job, path, (enum row)row)) continue;
        result = bench_path(s, path, (enum row)row, &config, &dense);
        if (result != EXIT_VERIFIED) code = result;
      }
  }
  for (int i = 0; i < GRADIENTS; i++) CUDACHECK(cudaFree(s->timer.gradients[i]));
  launcher_barrier(me);
  return code;
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Handle, gradients, and the buffers of the symmetric allreduce. */
static size_t bytes_needed(const struct job *job, size_t count)
{
  const double density = program_options.density > 0 ? program_options.density : DENSITIES[1];
  const int gradients = 2 * GRADIENTS + 2;
  const size_t library = job_bytes(job, count, density, gradients, false);
  const size_t simple = has_simple(job) ? job_bytes(job, count, density, gradients, true) : 0;
  return simple > library ? simple : library;
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
  s->copy_rate = time_copy(&s->timer);
  launcher_print(me, "# Sparse AllReduce: %d rank%s, %s; us, slowest rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s", job->opt->type->name,
                 s->timer.graphs ? ", in CUDA graphs" : "");
  launcher_print(me, "# B/elem: bytes per element that a copy could have moved in a mean step; "
                     "%%copy: of the copy rate, by select\n# copy rate:");
  report_number(me, 0, 1, s->copy_rate / 1e3, "");
  launcher_print(me, " GB/s read and written\n%-15s %10s %10s %7s", "path", "median", "mean",
                 "ratio");
  for (int p = 0; p < PHASES; p++) launcher_print(me, " %8s", phase_names[p]);
  launcher_print(me, " %8s %8s  %s\n", "B/elem", "%copy", "mode");
  for (int i = 0; i < (program_options.count ? 1 : NMODELS); i++) {
    s->timer.count = program_options.count ? program_options.count : MODELS[i].count;
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
  const size_t need = bytes_needed(job, smallest), copies = time_copy_bytes();
  if (!launcher_has_memory(me, need > copies ? need : copies)) return EXIT_USAGE;
  const int failed = me->rank == 0 && rows_open(&s.rows, program_options.output) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;

  timer_init(&s.timer, me, job->opt->type, steps, program_options.graphs > 0);
  code = sweep_sizes(&s);
  timer_free(&s.timer);
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
