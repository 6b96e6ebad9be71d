/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options = {.preset = -1, .gradient = -1, .balance = -1, .seed = -1};

static const size_t DEFAULT_COUNT = 64 << 10;
static const double DEFAULT_DENSITY = 0.01;
static const long DEFAULT_STEPS = 70; /* exact, reuse and repartition steps all occur */

const struct option_spec harness_options[] = {
    {"algorithm", 0, OPTION_STRING, &program_options.algorithms, "NAMES",
     "paths, separated by commas, or all (all)", 0, 0},
    {"count", 0, OPTION_SIZE, &program_options.count, "SIZE", "elements of the gradient (64K)", 1,
     0xfffffffe},
    {"density", 0, OPTION_DOUBLE, &program_options.density, "D",
     "share of the elements that a rank offers (0.01, or the preset's)", 0, 1},
    {"steps", 0, OPTION_LONG, &program_options.steps, "N",
     "steps of each path (70; with --bench one full cycle: 64 or 128)", 1, 1000000},
    {"preset", 0, OPTION_CHOICE, &program_options.preset, "vgg|lstm|bert",
     "constants of the paper's training jobs (vgg, but density 0.01)", 0, 0},
    {"gradient", 0, OPTION_CHOICE, &program_options.gradient, GRADIENT_KINDS,
     "which gradients to generate (heavy)", 0, 0},
    {"seed", 0, OPTION_LONG, &program_options.seed, "N", "seed of the generated gradients (1)", 0,
     1LL << 40},
    {"throttle", 0, OPTION_LONG, &program_options.throttle, "N",
     "peers that a rank exchanges with at a time (4)", 1, 1024},
    {"warmup-steps", 0, OPTION_LONG, &program_options.warmup_steps, "N",
     "dense steps before the sparse ones (0)", 0, 1000000},
    {"balance", 0, OPTION_CHOICE, &program_options.balance, "never|always",
     "oktopk: even out the sums before they are gathered (never, or the preset's)", 0, 0},
    {"nonfinite", 0, OPTION_CHOICE, &program_options.nonfinite, "error|drop",
     "what to do with NaN and infinity in a gradient (error)", 0, 0},
    {"gtopk-exact-residual", 0, OPTION_FLAG, &program_options.gtopk_exact_residual, NULL,
     "gtopk: keep what the published algorithm loses", 0, 0},
    {"exchange", 0, OPTION_CHOICE, &program_options.exchange, "auto|sendrecv",
     "how entries move between ranks (auto)", 0, 0},
    {"result", 0, OPTION_CHOICE, &program_options.result, "dense|entries",
     "entries: no dense result; each step updates a vector in place (dense)", 0, 0},
    {"simple", 0, OPTION_FLAG, &program_options.simple, NULL,
     "run the readable versions in simple/ instead of the library", 0, 0},
    {"input", 0, OPTION_RANK_INPUT, &program_options.input, "FILE",
     "read gradients from a .npy file per rank; %r is the rank", 0, 0},
    {"results", 0, OPTION_RANK_OUTPUT, &program_options.results, "FILE",
     "write the results to a .npy file per rank; %r is the rank", 0, 0},
    {"residual", 0, OPTION_RANK_OUTPUT, &program_options.residual, "FILE",
     "write the residual after the last step to a .npy file per rank; %r is the rank", 0, 0},
    {"output", 'J', OPTION_OUTPUT, &program_options.output, "FILE",
     "write the table to FILE, which ends in .json or .csv", 0, 0},
    {"minbytes", .kind = OPTION_ABSENT},
    {"maxbytes", .kind = OPTION_ABSENT},
    {"stepfactor", .kind = OPTION_ABSENT},
    {"iters", .kind = OPTION_ABSENT},
    {"warmup_iters", .kind = OPTION_ABSENT},
    {"repetitions", .kind = OPTION_ABSENT},
    {"cudagraph", 'G', OPTION_LONG, &program_options.graphs, "N",
     "--bench: 1 launches captured CUDA graphs, 0 does not (0)", 0, 1},
    {0},
};

/* The names of --algorithm. With --simple there may be more than the library has. */
static void choose_paths(struct job *job, char error[LAUNCHER_TEXT])
{
  const char *list = program_options.algorithms ? program_options.algorithms : "all";
  const int known = program_options.simple ? simple_path_count : SPARSE_ALGORITHMS;
  char names[LAUNCHER_TEXT], *rest = names, *name;
  snprintf(names, sizeof names, "%s", list);
  if (strcmp(list, "all") == 0) {
    job->paths = (UINT64_C(1) << known) - 1;
    return;
  }
  while ((name = strsep(&rest, ",")) && !*error) {
    int p = 0;
    while (p < known && strcmp(simple_paths[p].name, name) != 0) p++;
    job->paths |= UINT64_C(1) << p;
    if (p < known) continue;
    int at = snprintf(error, LAUNCHER_TEXT,
                      "--algorithm: unknown '%.40s'; allowed: 'all' alone, or a list of", name);
    for (p = 0; p < known; p++)
      at += snprintf(error + at, LAUNCHER_TEXT - (size_t)at, "%s %s", p ? "," : "",
                     simple_paths[p].name);
  }
}

/* Rules between options. `error` becomes the first rule that is broken. */
static void check_together(const struct job *job, char error[LAUNCHER_TEXT])
{
  const struct program_options *own = &program_options;
  const bool bench = job->opt->bench, simple = own->simple, input = own->input != NULL;
  const bool is_float = job->opt->type->nccl == ncclFloat;
  const bool several = job->paths & (job->paths - 1);
  const struct {
    bool broken;
    const char *rule;
  } rules[] = {
      {bench && (input || own->results || own->residual || own->warmup_steps),
       "--bench does not work with --input, --results, --residual or --warmup-steps"},
      {bench && own->graphs && launcher_graphs_can_deadlock,
       "-G 1 can deadlock with several GPUs in one process: build with MPI=1"},
      {simple && (bench || own->exchange || own->throttle || own->result),
       "--simple does not work with --bench (which has it anyway), --exchange, --throttle or "
       "--result"},
      {input && (own->count || own->steps || own->gradient >= 0 || own->seed >= 0),
       "--input does not work with --count, --steps, --gradient or --seed"},
      {(simple || input) && !is_float,
       "--simple and --input do not take 16-bit types; allowed: --datatype float"},
      {(own->results || own->residual) && several,
       "--results and --residual need a single path: choose one with --algorithm"},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules && !*error; i++)
    if (rules[i].broken) snprintf(error, LAUNCHER_TEXT, "%s", rules[i].rule);
}

sparse_allreduce_config_t job_config(const struct options *opt, sparse_preset_t otherwise)
{
  const struct program_options *own = &program_options;
  const sparse_preset_t preset = own->preset < 0 ? otherwise : (sparse_preset_t)own->preset;
  sparse_allreduce_config_t config = sparse_allreduce_config(preset);
  if (own->preset < 0) config.density = DEFAULT_DENSITY;
  if (own->density > 0) config.density = own->density;
  if (own->throttle > 0) config.throttle = own->throttle;
  config.gradient_type = opt->type->nccl;
  config.warmup_steps = own->warmup_steps;
  config.gtopk_exact_residual = own->gtopk_exact_residual;
  if (own->balance >= 0) config.balance = own->balance;
  config.nonfinite = (sparse_nonfinite_t)own->nonfinite;
  config.exchange = (sparse_exchange_t)own->exchange;
  config.result = (sparse_result_t)own->result;
  return config;
}

/* Some paths need more elements than others. */
static void check_paths(const struct job *job, char error[LAUNCHER_TEXT])
{
  sparse_allreduce_config_t config = job->config;
  for (int a = 0; a < SPARSE_ALGORITHMS && !*error; a++) {
    config.algorithm = (sparse_allreduce_algorithm_t)a;
    if (job_wants(job, a) &&
        sparse_allreduce_check(&config, job->count, job->me->nranks) != ncclSuccess)
      snprintf(error, LAUNCHER_TEXT, "%s with count %zu, density %g: %s", simple_paths[a].name,
               job->count, config.density, sparse_allreduce_last_error());
  }
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
      .kind = own->gradient < 0 ? GRADIENT_HEAVY : (enum gradient_kind)own->gradient,
      .seed = own->seed < 0 ? 1 : (uint64_t)own->seed,
      .dimensions = 2,
      .dense_us = (double)NAN,
  };
  choose_paths(job, error);
  check_together(job, error);
  int code = launcher_refuse(me, error);
  if (code == EXIT_VERIFIED && own->input) code = job_open_input(job);
  if (code != EXIT_VERIFIED) return code;
  sparse_allreduce_sizes(job->count, job->config.density, &job->k, NULL);

  check_paths(job, error);
  if (own->warmup_steps >= (long)job->steps)
    snprintf(error, sizeof error, "--warmup-steps must be less than the number of steps, %ld",
             (long)job->steps);
  job_create_file(job, &job->results, own->results, job->dimensions, error);
  job_create_file(job, &job->residual, own->residual, 1, error);
  return launcher_refuse(me, error);
}

void job_close(struct job *job)
{
  if (job->input) fclose(job->input);
  output_file_close(&job->results);
  output_file_close(&job->residual);
}

size_t job_bytes(const struct job *job, size_t count, double density, int gradients)
{
  const bool is_float = job->opt->type->nccl == ncclFloat;
  const bool simple = program_options.simple || (job->opt->bench && is_float);
  size_t capacity;
  sparse_allreduce_sizes(count, density, NULL, &capacity);
  /* Two vectors and bits; --result entries has two more; simple/ has three, and keys to sort. */
  const size_t element = simple ? 44 : program_options.result ? 17 : 9;
  return ((size_t)gradients * job->opt->type->size + element) * count +
         24 * (size_t)job->me->nranks * capacity + ((size_t)64 << 20);
}
