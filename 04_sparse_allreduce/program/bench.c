/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: every path at several sizes and densities, and beside them, in the same run and timed in
 * the same way, what they have to beat: an AllReduce of the whole gradient, NCCL's on plain buffers
 * or on symmetric windows, or that of example 02, whichever is fastest.
 *
 * The mean over a full cycle, which contains the exact and the repartition steps as often as
 * training does, is the figure that counts; the median is that of a step that reuses thresholds.
 * The gradient comes from several buffers in turn, so that none stays in the cache. Every
 * configuration is verified bit for bit before it is timed, and so are the timed calls. */
#include <math.h>
#include <string.h>

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
enum { NMODELS = sizeof MODELS / sizeof *MODELS };

/* ---- a row ----------------------------------------------------------------------------------- */

/* Of the file, and what is shown of the table, too. */
static void write_row(struct sweep *s, const char *name, const char *mode, double density,
                      const struct timing *time, bool shown, int code)
{
  const struct rank *me = s->me;
  struct rows *rows = &s->rows;
  const double us = time->mean, elements = (double)s->count;
  /* gradient and residual read, residual written: what the selection cannot do without */
  const double bytes = (8.0 + (double)s->job->opt->type->size) * elements;
  const bool selects = strcmp(mode, "allreduce") != 0;
  const double pass = selects ? 100 * bytes / time->phases[0] / s->copy_rate : (double)NAN;
#define SHOWN(format) (shown ? (format) : NULL)
  rows_text(rows, "path", name);
  rows_text(rows, "mode", mode);
  rows_integer(rows, "ranks", (unsigned long long)me->nranks);
  rows_integer(rows, "count", s->count);
  rows_text(rows, "type", s->job->opt->type->name);
  rows_number(rows, "density", density);
  rows_integer(rows, "steps", s->steps);
  report_number(me, rows, NULL, time->median, SHOWN(" %10.1f"));
  report_number(me, rows, "us", us, SHOWN(" %10.1f"));
  rows_number(rows, "us_min", time->mean_min);
  rows_number(rows, "us_max", time->mean_max);
  rows_number(rows, "us_median_step", time->median);
  rows_number(rows, "dense_us", s->dense_us);
  report_number(me, rows, "ratio", s->dense_us / us, SHOWN(" %7.2f"));
  for (int p = 0; p < PHASES; p++)
    report_number(me, rows, phase_names[p], time->phases[p], SHOWN(" %8.1f"));
  report_number(me, rows, "bytes_per_element", us * s->copy_rate / elements, SHOWN(" %8.1f"));
  report_number(me, rows, "select_percent", pass, SHOWN(" %8.1f"));
  rows_number(rows, "copy_gb_per_s", s->copy_rate / 1e3);
  rows_integer(rows, "wrong", code != EXIT_VERIFIED);
  rows_end(rows);
  if (code != EXIT_VERIFIED) s->code = code;
#undef SHOWN
}

/* ---- one path -------------------------------------------------------------------------------- */

/* How a path is run, a row each. The last two are those of --result entries, the second of them
 * with weights that each step updates. */
enum version { BY_LIBRARY, BY_SIMPLE, ENTRIES, ENTRIES_ADDED, VERSIONS };

static bool has_version(const struct job *job, int path, int version)
{
  if (version == BY_LIBRARY) return true;
  if (version == BY_SIMPLE) /* the two that are read first */
    return (path == SPARSE_TOPKA || path == SPARSE_OKTOPK) && job->opt->type->nccl == ncclFloat &&
           program_options.nonfinite == SPARSE_NONFINITE_ERROR;
  return program_options.result == SPARSE_RESULT_ENTRIES && path != SPARSE_DENSE;
}

static void bench_path(struct sweep *s, int path, int version, sparse_allreduce_config_t config)
{
  static const char *const words[VERSIONS] = {"", "", " entries", " entries added"};
  const struct rank *me = s->me;
  const char *prefix = version == BY_SIMPLE ? "simple " : "", *name = simple_paths[path].name;
  struct runner runner;
  char shown[32], full[48]; /* names in the table and in files */
  int code;
  config.algorithm = (sparse_allreduce_algorithm_t)path;
  config.result = version >= ENTRIES ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  snprintf(shown, sizeof shown, "%s%s", prefix, name);
  snprintf(full, sizeof full, "%s%s%s", prefix, name, words[version]);
  runner_create(&runner, me, s->comm, s->count, &config, version == BY_SIMPLE,
                version == ENTRIES_ADDED);
  const char *mode = runner_mode(&runner);
  launcher_barrier(me); /* with several GPUs in one process, allocating may wait for all of them */
  const struct timing time = time_path(s, &runner, &code);
  const bool right = code == EXIT_VERIFIED;
  launcher_print(me, "%-15s", shown);
  write_row(s, full, mode, config.density, &time, right, code);
  if (right)
    launcher_print(me, "  %s%s%s\n", mode, *words[version] ? "," : "", words[version]);
  else
    launcher_print(me, " WRONG, no times: see standard error\n");
  runner_destroy(&runner);
}

/* ---- one size -------------------------------------------------------------------------------- */

/* A cycle has a step of each kind. */
static uint64_t cycle_of(const sparse_allreduce_config_t *c)
{
  struct sparse_constants k;
  if (program_options.steps > 0) return (uint64_t)program_options.steps;
  sparse_constants_init(&k, c->preset);
  return (uint64_t)fmax(fmax(k.local_interval, k.topkaopt_interval),
                        fmax(k.global_interval, k.repartition_interval));
}

/* All paths at one density. */
static void bench_density(struct sweep *s, const sparse_allreduce_config_t *config)
{
  const struct rank *me = s->me;
  bool wrong = false;
  launcher_print(me, "# %zu elements, density %g; dense us:", s->count, config->density);
  for (int i = 0; i < DENSE_KINDS; i++) {
    char name[32];
    if (s->dense_codes[i] == EXIT_CANNOT_RUN) continue;
    wrong |= s->dense_codes[i] != EXIT_VERIFIED;
    if (i > 0) launcher_print(me, ",");
    report_number(me, NULL, NULL, s->dense[i].mean, " %.1f");
    launcher_print(me, " %s", dense_names[i]);
    snprintf(name, sizeof name, "%s allreduce", dense_names[i]);
    write_row(s, name, "allreduce", config->density, &s->dense[i], false, s->dense_codes[i]);
  }
  launcher_print(me, "; %llu steps a cycle%s\n", (unsigned long long)s->steps,
                 wrong ? "; WRONG" : "");
  for (int path = 0; path < SPARSE_ALGORITHMS; path++)
    for (int version = 0; version < VERSIONS; version++)
      if (job_wants(s->job, path) && has_version(s->job, path, version))
        bench_path(s, path, version, *config);
}

static void bench_size(struct sweep *s, const struct model *model)
{
  const struct job *job = s->job;
  sparse_allreduce_config_t config = job_config(job->opt, model->preset);
  bool wrong = false;
  s->steps = cycle_of(&config);
  for (int i = 0; i < GRADIENTS; i++) {
    CUDACHECK(cudaMalloc(&s->gradients[i], s->count * job->opt->type->size));
    gradient_upload(job, s->gradients[i], s->count, (uint64_t)i, s->stream);
  }
  s->dense_us = INFINITY;
  for (int i = 0; i < DENSE_KINDS; i++) {
    time_dense(s, (enum dense_kind)i);
    wrong |= s->dense_codes[i] == EXIT_WRONG_DATA;
    s->dense_us = fmin(s->dense_us, s->dense[i].mean); /* of a number and NaN, the number */
  }
  /* one that is wrong is no measure, nor are the others then; and the stand-in has no times */
  if (wrong || isinf(s->dense_us)) s->dense_us = (double)NAN;
  for (int d = 0; d < (program_options.density > 0 ? 1 : model->densities); d++) {
    if (program_options.density <= 0) config.density = DENSITIES[d];
    bench_density(s, &config);
  }
  for (int i = 0; i < GRADIENTS; i++) CUDACHECK(cudaFree(s->gradients[i]));
  launcher_barrier(s->me);
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Handle, gradients, the buffers of a dense AllReduce, and those of the copy. */
static size_t bytes_needed(const struct job *job, size_t count)
{
  const double density = program_options.density > 0 ? program_options.density : DENSITIES[1];
  return job_bytes(job, count, density, 2 * GRADIENTS + 1) + 2 * (size_t)COPY_BYTES;
}

static void sweep_sizes(struct sweep *s)
{
  const struct rank *me = s->me;
  size_t available, total;
  s->copy_rate = time_copy(s);
  launcher_print(me, "# Sparse AllReduce: %d rank%s, %s; us, slowest rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s", s->job->opt->type->name,
                 s->graphs ? ", in CUDA graphs" : "");
  launcher_print(me, "# B/elem: bytes per element that a copy could have moved in a mean step; "
                     "%%copy: of the copy rate, by select\n# copy rate:");
  report_number(me, NULL, NULL, s->copy_rate / 1e3, " %.1f");
  launcher_print(me, " GB/s read and written\n%-15s %10s %10s %7s", "path", "median", "mean",
                 "ratio");
  for (int p = 0; p < PHASES; p++) launcher_print(me, " %8s", phase_names[p]);
  launcher_print(me, " %8s %8s  %s\n", "B/elem", "%copy", "mode");
  for (int i = 0; i < (program_options.count ? 1 : NMODELS); i++) {
    const size_t count = program_options.count ? program_options.count : MODELS[i].count;
    CUDACHECK(cudaMemGetInfo(&available, &total));
    const bool fits = bytes_needed(s->job, count) <= available - available / 32;
    if (!program_options.count && launcher_max(me, !fits) > 0) { /* on any rank */
      launcher_note(me, "%zu elements do not fit into device memory", count);
      continue;
    }
    s->count = count;
    bench_size(s, &MODELS[i]);
  }
}

int bench_job(struct job *job)
{
  const struct rank *me = job->me;
  struct sweep s = {.job = job, .me = me, .graphs = program_options.graphs > 0};
  ncclUniqueId id;
  launcher_step("bench: setup");
  CUDACHECK(cudaSetDevice(me->device));
  /* of several sizes those that do not fit are left out, but not the first */
  const size_t smallest = program_options.count ? program_options.count : MODELS[0].count;
  if (!launcher_has_memory(me, bytes_needed(job, smallest))) return EXIT_USAGE;
  s.code = report_file(me, &s.rows);
  if (s.code != EXIT_VERIFIED) return s.code;

  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&s.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  verifier_init(&s.verifier, me, job->opt->type, s.stream);
  sweep_sizes(&s);
  verifier_free(&s.verifier);
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(s.comm));
  NCCLCHECK(ncclCommDestroy(s.comm));
  rows_finish(&s.rows);
  return job_publish(job, &s.rows.output, s.code);
}
