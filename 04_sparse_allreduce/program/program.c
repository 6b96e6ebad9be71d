/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "update.h"
#include "verification.h"
#include "version.h"

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options = {.preset = -1, .gradient = -1, .balance = -1, .seed = -1};

#ifdef CPU_STANDIN /* where a step of all ranks, in the device's and the reference's way, takes \
                      long */
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
     "topkA and oktopk by the version to read first, in simple/", 0, 0},
    {"verify", 0, OPTION_CHOICE, &program_options.verify, "full|sample|off",
     "compare with the reference in all steps, every eighth, none (full)", 0, 0},
    {"restart-after", 0, OPTION_LONG, &program_options.restart_after, "N",
     "after N steps save the state and go on with a new handle", 1, 1000000},
    {"input", 0, OPTION_RANK_INPUT, &program_options.input, "FILE",
     "gradients from a .npy file per rank, %r in the name is the rank", 0, 0},
    {"output", 0, OPTION_RANK_OUTPUT, &program_options.output, "FILE",
     "results to a .npy file per rank, likewise", 0, 0},
    {"residual", 0, OPTION_RANK_OUTPUT, &program_options.residual, "FILE",
     "residual after the last step to a .npy file per rank, likewise", 0, 0},
    {"table", 'J', OPTION_OUTPUT, &program_options.results, "FILE",
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

/* The names of --algorithm. */
static void choose_algorithms(struct job *job, char *error, size_t error_size)
{
  const char *list = program_options.algorithms ? program_options.algorithms : "all";
  const bool all = strcmp(list, "all") == 0;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++) job->wanted[a] = all;
  if (program_options.simple && !program_options.algorithms) {
    for (int a = 0; a < SPARSE_ALGORITHMS; a++)
      job->wanted[a] = version_has_simple((sparse_allreduce_algorithm_t)a);
  }
  while (!all) {
    const size_t length = strcspn(list, ",");
    int a = 0;
    for (; a < SPARSE_ALGORITHMS; a++) {
      const char *name = sparse_allreduce_name((sparse_allreduce_algorithm_t)a);
      if (strlen(name) == length && strncmp(name, list, length) == 0) break;
    }
    if (a == SPARSE_ALGORITHMS && length == strlen("all") && strncmp(list, "all", length) == 0) {
      snprintf(error, error_size,
               "--algorithm: 'all' beside other names; allowed: all alone, or names of paths");
      return;
    }
    if (a == SPARSE_ALGORITHMS) {
      int at = snprintf(error, error_size, "--algorithm: unknown '%.*s'; allowed: all",
                        length < 40 ? (int)length : 40, list);
      for (a = 0; a < SPARSE_ALGORITHMS; a++)
        at += snprintf(error + at, error_size - (size_t)at, ", %s",
                       sparse_allreduce_name((sparse_allreduce_algorithm_t)a));
      return;
    }
    job->wanted[a] = true;
    if (list[length] == '\0') return;
    list += length + 1;
  }
}

/* What --simple cannot do; NULL: nothing is asked for that it cannot. */
static const char *beyond_simple(const struct job *job)
{
  const struct program_options *own = &program_options;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++)
    if (job->wanted[a] && !version_has_simple((sparse_allreduce_algorithm_t)a))
      return "--algorithm with other paths; allowed: topkA, oktopk";
  if (job->opt->type->nccl != ncclFloat) return "--datatype with 16 bits; allowed: float";
  if (own->balance > SPARSE_BALANCE_NEVER) return "--balance; allowed: never";
  if (own->nonfinite != SPARSE_NONFINITE_ERROR) return "--nonfinite; allowed: gradients without";
  if (own->exchange != SPARSE_EXCHANGE_AUTO) return "--exchange; allowed: one of them";
  if (own->result != SPARSE_RESULT_DENSE) return "--result; allowed: dense";
  if (own->throttle > 0) return "--throttle; allowed: one of them";
  if (own->warmup_steps > 0) return "--warmup-steps; allowed: one of them";
  if (own->restart_after > 0) return "--restart-after; allowed: one of them";
  if (job->opt->bench) return "--bench, which has it beside the library; allowed: one of them";
  return NULL;
}

/* Rules between options; the first that is broken. */
static void check_together(const struct job *job, char *error, size_t error_size)
{
  const struct program_options *own = &program_options;
  const char *files = own->input ? "--input" : own->output ? "--output" : "--residual";
  int wanted = 0;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++) wanted += job->wanted[a];
#define REFUSE(condition, ...)                \
  if (condition) {                            \
    snprintf(error, error_size, __VA_ARGS__); \
    return;                                   \
  }
  REFUSE(job->opt->bench && (own->input || own->output || own->residual),
         "%s is not for --bench; allowed: one of them", files);
  const char *beyond = own->simple ? beyond_simple(job) : NULL;
  REFUSE(beyond, "--simple and %s", beyond);
  REFUSE(job->opt->bench && own->restart_after,
         "--restart-after is not for --bench; allowed: one of them");
  REFUSE(job->opt->bench && own->warmup_steps,
         "--warmup-steps is not for --bench, which times sparse steps; allowed: one of them");
  REFUSE(job->opt->bench && own->verify != VERIFY_FULL,
         "--verify is not for --bench, which times nothing that is not verified; allowed: one of "
         "them");
  REFUSE(own->input && own->count, "--input and --count together; allowed: one of them");
  REFUSE(own->input && own->steps, "--input and --steps together; allowed: one of them");
  REFUSE(own->input && own->gradient >= 0, "--input and --gradient together; allowed: one of them");
  REFUSE(own->input && own->seed >= 0, "--input and --seed together; allowed: one of them");
  REFUSE(own->input && job->opt->type->nccl != ncclFloat,
         "--input with --datatype %s; allowed: float, as the file", job->opt->type->name);
  REFUSE((own->output || own->residual) && wanted != 1,
         "%s with %d paths; allowed: one, by --algorithm", own->output ? "--output" : "--residual",
         wanted);
#undef REFUSE
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
  if (own->simple) config.balance = SPARSE_BALANCE_NEVER;
  config.nonfinite = (sparse_nonfinite_t)own->nonfinite;
  config.exchange = (sparse_exchange_t)own->exchange;
  config.result = (sparse_result_t)own->result;
  return config;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Of dimensions, steps and elements. */
static const char *shape_text(char text[64], const size_t shape[3])
{
  if (shape[0] == 1)
    snprintf(text, 64, "[%zu]", shape[2]);
  else
    snprintf(text, 64, "[%zu, %zu]", shape[1], shape[2]);
  return text;
}

/* All ranks have the same shape, or it is told which has not. */
static int open_input(struct job *job)
{
  char error[LAUNCHER_TEXT] = "", *path = file_of_rank(program_options.input, job->me->rank);
  npy_open(&job->input, path, error, sizeof error);
  free(path);
  int code = launcher_refuse(job->me, error);
  if (code != EXIT_VERIFIED) return code;

  const size_t mine[3] = {(size_t)job->input.dimensions, job->input.steps, job->input.count};
  size_t all[job->me->nranks][3];
  launcher_allgather(job->me, mine, all, sizeof mine);
  if (mine[2] > 0xfffffffe)
    snprintf(error, sizeof error, "%s: %zu elements are too many; allowed: up to %u",
             job->input.name, mine[2], 0xfffffffe);
  else if (memcmp(mine, all[0], sizeof mine) != 0)
    snprintf(error, sizeof error,
             "%s: the shape %s differs from rank 0's %s; allowed: the same shape on all ranks",
             job->input.name, shape_text((char[64]){""}, mine), shape_text((char[64]){""}, all[0]));
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

/* Paths may need more elements than others. */
static void check_paths(const struct job *job, char *error, size_t error_size)
{
  sparse_allreduce_config_t config = job->config;
  for (int a = 0; a < SPARSE_ALGORITHMS && !*error; a++) {
    config.algorithm = (sparse_allreduce_algorithm_t)a;
    if (job->wanted[a] &&
        sparse_allreduce_check(&config, job->count, job->me->nranks) != ncclSuccess)
      snprintf(error, error_size, "%s with %zu elements, density %g: %s",
               sparse_allreduce_name(config.algorithm), job->count, config.density,
               sparse_allreduce_last_error());
  }
}

int job_open(struct job *job, const struct rank *me, const struct options *opt)
{
  const struct program_options *own = &program_options;
  char error[LAUNCHER_TEXT] = "";
  *job = (struct job){.me = me, .opt = opt, .config = job_config(opt, SPARSE_PRESET_VGG)};
  choose_algorithms(job, error, sizeof error);
  if (!*error) check_together(job, error, sizeof error);
  int code = launcher_refuse(me, error);
  if (code != EXIT_VERIFIED) return code;

  job->count = own->count ? own->count : DEFAULT_COUNT;
  job->steps = (uint64_t)(own->steps ? own->steps : DEFAULT_STEPS);
  job->kind = own->gradient < 0 ? GRADIENT_HEAVY : (enum gradient_kind)own->gradient;
  job->seed = own->seed < 0 ? 1 : (uint64_t)own->seed;
  if (own->input) code = open_input(job);
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
  create_file(job, &job->output, own->output, job->input.file ? job->input.dimensions : 2, error,
              sizeof error);
  create_file(job, &job->residual, own->residual, 1, error, sizeof error);
  if (!*error && (job->input.file || job->output.output.stream || job->residual.output.stream)) {
    job->host = malloc(job->count * sizeof *job->host);
    if (!job->host)
      snprintf(error, sizeof error, "no memory for %zu elements on the host", job->count);
  }
  return launcher_refuse(me, error);
}

void job_close(struct job *job)
{
  npy_close(&job->input);
  npy_close(&job->output);
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
  if (step == 0) npy_rewind(&job->input);
  CUDACHECK(cudaStreamSynchronize(stream)); /* the step before may still be on its way */
  int failed = npy_read(&job->input, job->host, error, sizeof error);
  if (!failed)
    CUDACHECK(cudaMemcpyAsync(gradient, job->host, job->count * sizeof *job->host,
                              cudaMemcpyHostToDevice, stream));
  return file_result(job, failed, error);
}

/* What goes to a file is compared itself: the copy of it that was verified before is another one.
 */
static int write_compared(struct job *job, struct npy *npy, int compared)
{
  char error[LAUNCHER_TEXT];
  const int code = launcher_agree(job->me, compared);
  if (code != EXIT_VERIFIED) return code;
  return file_result(job, npy_write(npy, job->host, error, sizeof error), error);
}

int job_write_result(struct job *job, const struct verification *v, const float *result,
                     cudaStream_t stream)
{
  if (!job->output.output.stream) return EXIT_VERIFIED;
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaMemcpyAsync(job->host, result, job->count * sizeof *job->host,
                            cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  return write_compared(job, &job->output, verification_of_result(v, job->host));
}

int job_write_residual(struct job *job, const struct verification *v, const struct version *version)
{
  if (!job->residual.output.stream) return EXIT_VERIFIED;
  version_left(version, NULL, job->host);
  return write_compared(job, &job->residual, verification_of_residual(v, job->host));
}

int job_publish(struct job *job, struct output_file *table, int code)
{
  struct output_file *files[3];
  int n = 0;
  const bool ran = code == EXIT_VERIFIED || code == EXIT_WRONG_DATA; /* the table says which */
  if (table->stream && ran) files[n++] = table;
  if (job->output.output.stream && code == EXIT_VERIFIED) files[n++] = &job->output.output;
  if (job->residual.output.stream && code == EXIT_VERIFIED) files[n++] = &job->residual.output;
  const int published = output_files_publish(job->me, files, n);
  output_file_close(table);
  return published == EXIT_VERIFIED ? code : published;
}

/* ---- memory ---------------------------------------------------------------------------------- */

size_t job_bytes(const struct job *job, size_t count, double density, int gradients)
{
  size_t capacity;
  sparse_allreduce_sizes(count, density, NULL, &capacity);
  const size_t library = 2 * sizeof(float) * count + count / 8 +
                         24 * (size_t)job->me->nranks * capacity + ((size_t)64 << 20);
  const size_t simple = version_simple_bytes(count, density, job->me->nranks);
  const size_t update = program_options.result ? update_bytes(count) : 0;
  return (size_t)gradients * job->opt->type->size * count +
         (program_options.simple ? simple : library + update);
}
