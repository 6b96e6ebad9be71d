/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options = {.preset = -1, .gradient = -1, .balance = -1, .seed = -1};

#ifdef CPU_STANDIN /* where a step of all ranks, of the library and the reference, takes long */
#define DEFAULT_COUNT (64 << 10)
#define DEFAULT_COUNT_TEXT "64K"
#else
#define DEFAULT_COUNT (1 << 20)
#define DEFAULT_COUNT_TEXT "1M"
#endif
static const double DEFAULT_DENSITY = 0.01;
static const long DEFAULT_STEPS = 70; /* exact, reuse and repartition steps all occur */

const struct option_spec program_option_table[] = {
    {"algorithm", 0, OPTION_STRING, &program_options.algorithms, "NAMES",
     "paths, separated by commas, or all (all)", 0, 0},
    {"count", 0, OPTION_SIZE, &program_options.count, "N",
     "elements of the gradient (" DEFAULT_COUNT_TEXT ")", 1, 0xfffffffe},
    {"density", 0, OPTION_DOUBLE, &program_options.density, "D",
     "share of the entries that a rank offers (0.01, or the preset's)", 0, 1},
    {"steps", 0, OPTION_LONG, &program_options.steps, "N",
     "steps of each path (70; --bench: those between two exact ones)", 1, 1000000},
    {"preset", 0, OPTION_CHOICE, &program_options.preset, "vgg|lstm|bert",
     "constants of the paper's training jobs (vgg, but density 0.01)", 0, 0},
    {"gradient", 0, OPTION_CHOICE, &program_options.gradient, GRADIENT_KINDS,
     "what gradients are generated (heavy)", 0, 0},
    {"seed", 0, OPTION_LONG, &program_options.seed, "N", "of the generated gradients (1)", 0,
     1LL << 40},
    {"throttle", 0, OPTION_LONG, &program_options.throttle, "N",
     "peers that a rank exchanges with at a time (4)", 1, 1024},
    {"warmup-steps", 0, OPTION_LONG, &program_options.warmup_steps, "N",
     "dense steps before the sparse ones (0)", 0, 1000000},
    {"balance", 0, OPTION_CHOICE, &program_options.balance, "never|always|auto",
     "oktopk: even out the sums before they are gathered (never, or the preset's)", 0, 0},
    {"nonfinite", 0, OPTION_CHOICE, &program_options.nonfinite, "error|drop",
     "NaN and infinity in a gradient (error)", 0, 0},
    {"gtopk-exact-residual", 0, OPTION_FLAG, &program_options.gtopk_exact_residual, NULL,
     "gtopk: keep what the published algorithm loses", 0, 0},
    {"gk-threshold", 0, OPTION_CHOICE, &program_options.gk_threshold, "exact|gaussian",
     "gaussiankSA: how the threshold is found (exact)", 0, 0},
    {"exchange", 0, OPTION_CHOICE, &program_options.exchange, "auto|sendrecv|onesided",
     "how entries move between ranks (auto)", 0, 0},
    {"result", 0, OPTION_CHOICE, &program_options.result, "dense|entries",
     "entries: no dense result; each step updates a vector in place (dense)", 0, 0},
    {"simple", 0, OPTION_FLAG, &program_options.simple, NULL,
     "the paths as they stand in simple/, to be read", 0, 0},
    {"verify", 0, OPTION_CHOICE, &program_options.verify, "full|off",
     "compare with the reference in all steps, or in none (full)", 0, 0},
    {"restart-after", 0, OPTION_LONG, &program_options.restart_after, "N",
     "after N steps save the state and go on with a new handle", 1, 1000000},
    {"input", 0, OPTION_RANK_INPUT, &program_options.input, "FILE",
     "gradients from a .npy file per rank, %r in the name is the rank", 0, 0},
    {"results", 0, OPTION_RANK_OUTPUT, &program_options.results, "FILE",
     "results to a .npy file per rank, likewise", 0, 0},
    {"residual", 0, OPTION_RANK_OUTPUT, &program_options.residual, "FILE",
     "residual after the last step to a .npy file per rank, likewise", 0, 0},
    {"output", 'J', OPTION_OUTPUT, &program_options.output, "FILE",
     "the table to FILE.json or FILE.csv", 0, 0},
    {"minbytes", 'b', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"maxbytes", 'e', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"stepfactor", 'f', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"iters", 'n', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"warmup_iters", 'w', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"repetitions", 0, OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"cudagraph", 'G', OPTION_LONG, &program_options.graphs, "N",
     "--bench: 1: steps are launches of captured CUDA graphs; 0: eager (0)", 0, 1},
    {0},
};

/* The names of --algorithm. --simple also has paths that the library has not. */
static void choose_paths(struct job *job, char *error, size_t error_size)
{
  const char *list = program_options.algorithms ? program_options.algorithms : "all";
  const int known = program_options.simple ? simple_path_count : SPARSE_ALGORITHMS;
  if (strcmp(list, "all") == 0) {
    job->paths = (UINT64_C(1) << known) - 1;
    return;
  }
  for (;; list++) {
    const size_t length = strcspn(list, ",");
    int p = 0;
    while (p < known && (strlen(simple_paths[p].name) != length ||
                         strncmp(simple_paths[p].name, list, length) != 0))
      p++;
    if (p == known) {
      int at = snprintf(error, error_size, "--algorithm: unknown '%.*s'; allowed: all alone",
                        length < 40 ? (int)length : 40, list);
      for (p = 0; p < known; p++)
        at += snprintf(error + at, error_size - (size_t)at, ", %s", simple_paths[p].name);
      return;
    }
    job->paths |= UINT64_C(1) << p;
    list += length;
    if (*list == '\0') return;
  }
}

/* Rules between options; the first that is broken. */
static void check_together(const struct job *job, char *error, size_t error_size)
{
  const struct program_options *own = &program_options;
  const bool bench = job->opt->bench, simple = own->simple;
  const bool is_float = job->opt->type->nccl == ncclFloat;
  const int paths = __builtin_popcountll(job->paths);
  const struct {
    bool broken;
    const char *rule;
  } rules[] = {
      {bench && own->input, "--input is not for --bench; allowed: one of them"},
      {bench && own->results, "--results is not for --bench; allowed: one of them"},
      {bench && own->residual, "--residual is not for --bench; allowed: one of them"},
      {bench && own->restart_after, "--restart-after is not for --bench; allowed: one of them"},
      {bench && own->warmup_steps,
       "--warmup-steps is not for --bench, which times sparse steps; allowed: one of them"},
      {bench && own->verify, "--verify is not for --bench, which times nothing that is not "
                             "verified; allowed: one of them"},
      {simple && bench, "--simple and --bench, which has it beside the library; allowed: one of "
                        "them"},
      {simple && !is_float, "--simple and --datatype with 16 bits; allowed: float"},
      {simple && own->exchange, "--simple and --exchange; allowed: one of them"},
      {simple && own->result, "--simple and --result; allowed: dense"},
      {simple && own->throttle, "--simple and --throttle; allowed: one of them"},
      {simple && own->restart_after, "--simple and --restart-after; allowed: one of them"},
      {own->input && own->count, "--input and --count together; allowed: one of them"},
      {own->input && own->steps, "--input and --steps together; allowed: one of them"},
      {own->input && own->gradient >= 0, "--input and --gradient together; allowed: one of them"},
      {own->input && own->seed >= 0, "--input and --seed together; allowed: one of them"},
      {own->input && !is_float, "--input with --datatype of 16 bits; allowed: float, as the file"},
      {own->results && paths != 1, "--results with several paths; allowed: one, by --algorithm"},
      {own->residual && paths != 1, "--residual with several paths; allowed: one, by --algorithm"},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules && !*error; i++)
    if (rules[i].broken) snprintf(error, error_size, "%s", rules[i].rule);
}

sparse_allreduce_config_t job_config(const struct options *opt, sparse_preset_t otherwise)
{
  const struct program_options *own = &program_options;
  const sparse_preset_t preset = own->preset < 0 ? otherwise : (sparse_preset_t)own->preset;
  sparse_allreduce_config_t config = sparse_allreduce_config(preset);
  if (own->preset < 0) config.density = DEFAULT_DENSITY;
  if (own->density > 0) config.density = own->density;
  if (own->throttle > 0) config.throttle = (int)own->throttle;
  config.gradient_type = opt->type->nccl;
  config.warmup_steps = own->warmup_steps;
  config.gaussian_sa_threshold = own->gk_threshold;
  config.gtopk_exact_residual = own->gtopk_exact_residual;
  if (own->balance >= 0) config.balance = (sparse_balance_t)own->balance;
  config.nonfinite = (sparse_nonfinite_t)own->nonfinite;
  config.exchange = (sparse_exchange_t)own->exchange;
  config.result = (sparse_result_t)own->result;
  return config;
}

/* Paths may need more elements than others. */
static void check_paths(const struct job *job, char *error, size_t error_size)
{
  sparse_allreduce_config_t config = job->config;
  for (int a = 0; a < SPARSE_ALGORITHMS && !*error; a++) {
    config.algorithm = (sparse_allreduce_algorithm_t)a;
    if (job_wants(job, a) &&
        sparse_allreduce_check(&config, job->count, job->me->nranks) != ncclSuccess)
      snprintf(error, error_size, "%s with %zu elements, density %g: %s", simple_paths[a].name,
               job->count, config.density, sparse_allreduce_last_error());
  }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* All ranks have the same shape, or it is told which has not. */
static int open_input(struct job *job)
{
  char error[LAUNCHER_TEXT] = "", *path = file_of_rank(program_options.input, job->me->rank);
  npy_open(&job->input, path, error, sizeof error);
  free(path);
  int code = launcher_refuse(job->me, error);
  if (code != EXIT_VERIFIED) return code;

  char all[job->me->nranks][sizeof job->input.shape];
  launcher_allgather(job->me, job->input.shape, all, sizeof *all);
  if (job->input.count > 0xfffffffe)
    snprintf(error, sizeof error, "%s: %zu elements are too many; allowed: up to %u",
             job->input.name, job->input.count, 0xfffffffe);
  else if (strcmp(job->input.shape, all[0]) != 0)
    snprintf(error, sizeof error,
             "%s: the shape %s differs from rank 0's %s; allowed: the same shape on all ranks",
             job->input.name, job->input.shape, all[0]);
  job->steps = job->input.steps;
  job->count = job->input.count;
  return launcher_refuse(job->me, error);
}

static void create_file(struct job *job, struct npy *npy, const char *pattern, int dimensions,
                        char *error, size_t error_size)
{
  if (!pattern || *error) return;
  char *path = file_of_rank(pattern, job->me->rank);
  npy_create(npy, path, dimensions, (size_t)job->steps, job->count, error, error_size);
  free(path);
}

int job_open(struct job *job, const struct rank *me, const struct options *opt)
{
  const struct program_options *own = &program_options;
  char error[LAUNCHER_TEXT] = "";
  *job = (struct job){
      .me = me,
      .opt = opt,
      .config = job_config(opt, SPARSE_PRESET_VGG),
      .count = own->count ? own->count : DEFAULT_COUNT,
      .steps = (uint64_t)(own->steps ? own->steps : DEFAULT_STEPS),
      .compares = own->verify == 0,
      .kind = own->gradient < 0 ? GRADIENT_HEAVY : (enum gradient_kind)own->gradient,
      .seed = own->seed < 0 ? 1 : (uint64_t)own->seed,
  };
  choose_paths(job, error, sizeof error);
  check_together(job, error, sizeof error);
  int code = launcher_refuse(me, error);
  if (code == EXIT_VERIFIED && own->input) code = open_input(job);
  if (code != EXIT_VERIFIED) return code;
  sparse_allreduce_sizes(job->count, job->config.density, &job->k, NULL);

  check_paths(job, error, sizeof error);
  if (own->restart_after >= (long)job->steps)
    snprintf(error, sizeof error, "--restart-after %ld: there are %llu steps; allowed: fewer",
             own->restart_after, (unsigned long long)job->steps);
  if (own->warmup_steps >= (long)job->steps)
    snprintf(error, sizeof error,
             "--warmup-steps %ld: there are %llu steps, none would be sparse; allowed: fewer",
             own->warmup_steps, (unsigned long long)job->steps);
  create_file(job, &job->results, own->results, own->input ? job->input.dimensions : 2, error,
              sizeof error);
  create_file(job, &job->residual, own->residual, 1, error, sizeof error);
  if (!*error && (own->input || own->results || own->residual)) {
    job->host = malloc(job->count * sizeof *job->host);
    if (!job->host)
      snprintf(error, sizeof error, "no memory for %zu elements on the host", job->count);
  }
  return launcher_refuse(me, error);
}

void job_close(struct job *job)
{
  npy_close(&job->input);
  npy_close(&job->results);
  npy_close(&job->residual);
  free(job->host);
}

/* One line for a file that fails in the middle of the run. */
static int file_result(const struct job *job, int failed, const char *error)
{
  if (failed) launcher_error("%s", error);
  return launcher_agree(job->me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
}

int job_gradient(struct job *job, uint64_t step, void *gradient, cudaStream_t stream)
{
  char error[LAUNCHER_TEXT];
  if (!job->input.file) {
    CUDACHECK(gradient_fill(gradient, job->opt->type->nccl, job->count, job->kind, job->seed, step,
                            job->me->rank, job->me->nranks, stream));
    return EXIT_VERIFIED;
  }
  CUDACHECK(cudaStreamSynchronize(stream)); /* the step before may still be on its way */
  const int failed = npy_read(&job->input, step, job->host, error, sizeof error);
  if (!failed)
    CUDACHECK(cudaMemcpyAsync(gradient, job->host, job->count * sizeof *job->host,
                              cudaMemcpyHostToDevice, stream));
  CUDACHECK(cudaStreamSynchronize(stream)); /* the result will come to the same memory */
  return file_result(job, failed, error);
}

const float *job_copy_result(struct job *job, const float *result)
{
  if (!job->results.output.stream) return result;
  CUDACHECK(cudaMemcpy(job->host, result, job->count * sizeof *result, cudaMemcpyDeviceToHost));
  return job->host;
}

int job_write(struct job *job, struct npy *file)
{
  char error[LAUNCHER_TEXT];
  if (!file->output.stream) return EXIT_VERIFIED;
  return file_result(job, npy_write(file, job->host, error, sizeof error), error);
}

int job_publish(struct job *job, struct output_file *table, int code)
{
  struct output_file *files[3];
  int n = 0;
  const bool ran = code == EXIT_VERIFIED || code == EXIT_WRONG_DATA; /* the table says which */
  if (table->stream && ran) files[n++] = table;
  if (job->results.output.stream && code == EXIT_VERIFIED) files[n++] = &job->results.output;
  if (job->residual.output.stream && code == EXIT_VERIFIED) files[n++] = &job->residual.output;
  const int published = output_files_publish(job->me, files, n);
  output_file_close(table);
  return published == EXIT_VERIFIED ? code : published;
}

/* ---- memory ---------------------------------------------------------------------------------- */

size_t job_bytes(const struct job *job, size_t count, double density, int gradients, bool simple)
{
  size_t capacity;
  sparse_allreduce_sizes(count, density, NULL, &capacity);
  const size_t library = 2 * sizeof(float) * count + count / 8 +
                         24 * (size_t)job->me->nranks * capacity + ((size_t)64 << 20);
  const size_t weights = program_options.result ? 2 * sizeof(float) * count : 0;
  return (size_t)gradients * job->opt->type->size * count +
         (simple ? simple_device_bytes(count, density, job->me->nranks) : library + weights);
}
