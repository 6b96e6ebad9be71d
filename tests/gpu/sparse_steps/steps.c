/* SPDX-License-Identifier: Apache-2.0 */
/* Random small jobs of the sparse allreduce, every step of every algorithm compared bit for bit
 * with the reference, as the harness does it: sizes, densities, schedules, gradients with ties,
 * zeros and values that are not finite, both exchanges, results as dense vectors and as entries,
 * which are added to weights, checkpoints between both, graphs, steps that are enqueued without
 * waiting for the one before. First a few jobs that are not random: see burst_job().
 *
 *   sparse_steps [--cases N] [--seed N] [--steps N]
 *   sparse_steps --late
 *
 * --steps makes the jobs long ones of oktopk, one for each kind of gradient in turn, in graphs.
 * --late: a rank comes too late for a one-sided step of oktopk; every rank has to hear of it.
 *
 * Every rank draws the same numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "float16.h"
#include "harness/program.h"
#include "hash.h"

static long cases = 200, first_seed = 1, long_steps;
static bool late;
static const struct option_spec own_options[] = {
    {"cases", 0, OPTION_LONG, &cases, "N", "random jobs (default 200)", 1, 1000000000},
    {"seed", 0, OPTION_LONG, &first_seed, "N", "number of the first (default 1)", 0, 1000000000},
    {"steps", 0, OPTION_LONG, &long_steps, "N", "of jobs of oktopk, in graphs", 1, 1000000},
    {"late", 0, OPTION_FLAG, &late, NULL, "a rank is too late", 0, 0},
    {0},
};

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t below(uint64_t *state, uint64_t limit)
{
  return hash_next(state) % limit;
}

/* ---- a job ----------------------------------------------------------------------------------- */

enum kind {
  INTEGERS,
  SPREAD,
  ALL_EQUAL,
  ALL_ZERO,
  ONE_REGION,
  NOT_FINITE,
  GROWING,
  ALIKE,
  HUGE_VALUES,
  KINDS
};
static const char *const kind_names[] = {"integers",   "spread",  "all equal", "zero", "one region",
                                         "not finite", "growing", "alike",     "huge"};

struct plan {
  uint64_t seed;
  sparse_allreduce_config_t config;
  struct sparse_constants constants;
  size_t n;
  int steps;
  enum kind kind;
  bool graphs, checkpoint;
  bool shared; /* the gradient is added to the residual by the caller */
  bool mixed;  /* every second rank has the other kind of result */
  bool apart;  /* weights are updated after a step's graph, not in it */
  bool moved;  /* before each step the residual is turned round */
  bool ahead;  /* all steps are enqueued, on two streams in turns, before the first is looked at */
  bool quiet;  /* the first gradient is 0, and with it all thresholds */
  int thinner; /* from this step on the density is half of the configured one; 0: never */
  bool burst;  /* after the first step every third element is large: thresholds select too many */
};

static bool gaussian(sparse_allreduce_algorithm_t algorithm)
{
  return algorithm == SPARSE_GAUSSIANK || algorithm == SPARSE_GAUSSIANKCONCAT;
}

static struct plan draw_job(uint64_t seed, bool others, bool graphs)
{
  static const size_t sizes[] = {1, 2, 3, 4, 5, 16, 63, 257, 1000, 4096, 4099, 20011};
  uint64_t state = seed * 7919 + 1;
  struct plan job = {.seed = seed};
  job.config = sparse_allreduce_config((sparse_preset_t)below(&state, 3));
  sparse_allreduce_config_t *c = &job.config;
  c->algorithm = (sparse_allreduce_algorithm_t)below(&state, SPARSE_ALGORITHMS + 5);
  if (c->algorithm >= SPARSE_ALGORITHMS) c->algorithm = SPARSE_OKTOPK; /* has most to get wrong */
  job.n = sizes[below(&state, sizeof(sizes) / sizeof(*sizes))];
  const double densities[] = {0.001, 0.01, 0.02, 0.1, 0.5, 1};
  c->density = densities[below(&state, 6)];
  sparse_constants_init(&job.constants, c->preset);
  job.constants.local_interval = job.constants.topkaopt_interval = 1 + (int)below(&state, 5);
  job.constants.global_interval = 1 + (int)below(&state, 5);
  job.constants.repartition_interval = 1 + (int)below(&state, 7);
  c->throttle = 1 + (int)below(&state, 8);
  c->balance = (int)below(&state, 2);
  c->gtopk_exact_residual = (int)below(&state, 2);
  c->warmup_steps = below(&state, 4) ? 0 : (long)below(&state, 3);
  job.kind = (enum kind)below(&state, KINDS);
  c->nonfinite = (sparse_nonfinite_t)below(&state, 2);
  if (c->algorithm == SPARSE_DENSE && job.kind == NOT_FINITE) job.kind = SPREAD;
  c->exchange = others && below(&state, 2) ? SPARSE_EXCHANGE_AUTO : SPARSE_EXCHANGE_SENDRECV;
  c->timeout_seconds = (double)below(&state, 3) - 1; /* never, the default, late */
  if (c->timeout_seconds > 0) c->timeout_seconds = 50;
  job.steps = 3 + (int)below(&state, 8);
  job.graphs = graphs && c->exchange == SPARSE_EXCHANGE_AUTO && c->algorithm != SPARSE_TOPKSA &&
               below(&state, 2);
  job.checkpoint = below(&state, 3) == 0;
  job.ahead = below(&state, 3) == 0;
  job.shared = below(&state, 4) == 0 && c->algorithm != SPARSE_DENSE && c->warmup_steps == 0 &&
               job.kind != NOT_FINITE && !job.checkpoint;
  c->result = below(&state, 2) ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  job.mixed = below(&state, 4) == 0;
  job.apart = below(&state, 2);
  job.moved = below(&state, 4) == 0;
  job.quiet = below(&state, 4) == 0;
  job.thinner = below(&state, 2) && !job.graphs && !job.ahead ? 1 + (int)below(&state, 4) : 0;
  if (job.graphs || job.shared || gaussian(c->algorithm) || c->algorithm == SPARSE_DENSE ||
      c->warmup_steps > 0)
    job.ahead = false;
  const ncclDataType_t types[] = {ncclFloat, ncclHalf, ncclBfloat16};
  if (!job.shared && job.kind != HUGE_VALUES) c->gradient_type = types[below(&state, 3)];
  size_t k;
  sparse_allreduce_sizes(job.n, c->density, &k, NULL);
  if ((k < 4 && (job.thinner || job.constants.local_interval == 1)) ||
      sparse_allreduce_check(c, job.n, 1) != ncclSuccess) { /* that could never send anything */
    job.n = 63;
    c->density = 0.1;
  }
  return job;
}

static struct plan long_job(uint64_t seed, bool others, bool graphs)
{
  struct plan job = draw_job(seed, others, graphs);
  job.kind = (enum kind)(seed % KINDS);
  job.n = 4099;
  job.steps = (int)long_steps;
  job.config.density = 0.02;
  job.config.algorithm = SPARSE_OKTOPK;
  job.config.exchange = others ? SPARSE_EXCHANGE_AUTO : SPARSE_EXCHANGE_SENDRECV;
  job.graphs = graphs && others;
  job.checkpoint = job.ahead = job.shared = false;
  job.thinner = 0;
  return job;
}

/* A threshold selects more than may be offered, but not more than a list of candidates holds, and
 * some elements are not finite: NaN, which no threshold selects, is among the k largest. */
static struct plan burst_job(sparse_allreduce_algorithm_t algorithm, sparse_exchange_t exchange)
{
  struct plan job = {.config = sparse_allreduce_config(SPARSE_PRESET_VGG),
                     .n = 20011,
                     .steps = 4,
                     .kind = NOT_FINITE,
                     .burst = true};
  job.config.algorithm = algorithm;
  job.config.density = 0.005;
  sparse_constants_init(&job.constants, job.config.preset);
  job.config.exchange = exchange;
  return job;
}

/* An exact step finds sums that are NaN, which then is the global threshold: nothing exceeds it. */
static struct plan overflow_job(sparse_exchange_t exchange)
{
  struct plan job = burst_job(SPARSE_OKTOPK, exchange);
  job.kind = HUGE_VALUES;
  job.burst = false;
  job.n = 1000;
  job.config.density = 0.02;
  job.constants.raise_steps = 0; /* or local thresholds overflow, too */
  job.constants.global_interval = 2;
  return job;
}

static float draw_element(const struct plan *job, uint64_t *state, int step, int rank, size_t i)
{
  if (job->quiet && step == 0) return 0;
  if (job->burst && step > 0 && i % 3 == 0) return 1e7f + (float)below(state, 1000);
  switch (job->kind) {
  case INTEGERS: /* many ties, and sums that cancel */
    return (float)((int)below(state, 9) - 4);
  case ALL_EQUAL:
    return 0.5f;
  case ALL_ZERO:
    return 0;
  case HUGE_VALUES: /* finite, but sums of them are not, or NaN, and so is the global threshold */
    if (step >= 2) return (float)below(state, 1000);
    return ((i + (size_t)rank) % 2 ? 1e35f : -1e35f) * (float)(2000 + below(state, 1000));
  case ONE_REGION:
    return i / (job->n / 4 + 1) == (size_t)step % 4 ? (float)below(state, 1000) : 0;
  default: {
    const uint64_t bits = hash_next(state);
    const float x = ldexpf((float)(int)(bits % 2001) - 1000, -(int)(bits >> 11) % 12);
    if (job->kind == NOT_FINITE && bits >> 56 == 7) return bits >> 55 & 1 ? INFINITY : NAN;
    if (bits >> 56 == 8) return ldexpf(x, -140); /* denormal */
    /* growing: reused thresholds are raised, and more than once */
    return job->kind == GROWING ? x * powf(1.5f, (float)(step % 8)) : x;
  }
  }
}

static void draw_gradients(const struct plan *job, int step, int nranks, float **gradients)
{
  const uint64_t first = job->seed * 1000003 + (uint64_t)step;
  uint64_t state = first;
  for (int r = 0; r < nranks; r++) {
    if (job->kind == ALIKE) state = first; /* on all ranks: there are as few sums as can be */
    for (size_t i = 0; i < job->n; i++) gradients[r][i] = draw_element(job, &state, step, r, i);
  }
}

/* ---- running --------------------------------------------------------------------------------- */

enum { MAX_RANKS = 64 };

struct trial {
  const struct plan *plan;
  struct job job; /* what the harness has to know of it */
  struct runner runner;
  struct verification compared;
  float *gradients[MAX_RANKS], *device;
  cudaGraphExec_t graphs[SPARSE_KINDS];
  const float *results[SPARSE_KINDS];
  int code;
};

static void expect(struct trial *t, bool good, const char *what)
{
  if (good) return;
  launcher_error("%s: '%s'", what, sparse_allreduce_last_error());
  t->code = EXIT_WRONG_DATA;
}

/* The sentence names the first rank whose gradient is not finite, and its first such element. */
static void expect_culprit(struct trial *t)
{
  const struct runner *r = &t->runner;
  char expected[sizeof r->reason] = "";
  const bool reports = r->config.nonfinite == SPARSE_NONFINITE_ERROR && !r->last.dense;
  for (int p = t->job.me->nranks - 1; reports && p >= 0; p--)
    for (size_t i = r->count; i-- > 0;)
      if (!isfinite(t->gradients[p][i]))
        snprintf(expected, sizeof expected, "element %zu of rank %d's gradient is not finite", i,
                 p);
  expect(t, strcmp(r->reason, expected) == 0, "the sentence about the gradient");
}

/* Compares all that the last step has left; `result` is what sparse_allreduce_run() returned. */
static void compare(struct trial *t, const float *result)
{
  const struct runner *r = &t->runner;
  const bool entries = r->config.result == SPARSE_RESULT_ENTRIES;
  runner_read(&t->runner);
  expect_culprit(t);
  expect(t, (entries && !r->last.dense && !r->last.fell_back) == (result == NULL),
         "where there is a dense result");
}

/* As the harness does, or by graphs. */
static void run_step(struct trial *t, const float *gradient)
{
  struct runner *r = &t->runner;
  int kind;
  if (!t->plan->graphs) {
    SPARSECHECK(runner_step(r, gradient));
    return;
  }
  SPARSECHECK(sparse_allreduce_kind(r->handle, &kind));
  if (t->graphs[kind] == NULL) {
    cudaGraph_t graph;
    CUDACHECK(cudaStreamBeginCapture(t->job.stream, cudaStreamCaptureModeThreadLocal));
    SPARSECHECK(t->plan->apart
                    ? sparse_allreduce_run(r->handle, gradient, &r->result, t->job.stream)
                    : runner_step(r, gradient));
    CUDACHECK(cudaStreamEndCapture(t->job.stream, &graph));
    CUDACHECK(cudaGraphInstantiate(&t->graphs[kind], graph, 0));
    CUDACHECK(cudaGraphDestroy(graph));
    t->results[kind] = r->result;
  }
  CUDACHECK(cudaGraphLaunch(t->graphs[kind], t->job.stream));
  SPARSECHECK(sparse_allreduce_replayed(r->handle));
  if (t->plan->apart) SPARSECHECK(runner_update(r));
  r->result = t->results[kind];
}

/* What a caller with gradients of its own making does: adds them to the residual. */
static void add_to_residual(struct trial *t)
{
  const size_t n = t->runner.count;
  float *host = launcher_allocate(n * sizeof *host), *residual;
  SPARSECHECK(sparse_allreduce_residual(t->runner.handle, &residual));
  CUDACHECK(cudaMemcpy(host, residual, n * sizeof *host, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < n; i++) host[i] += t->gradients[t->job.me->rank][i];
  CUDACHECK(cudaMemcpy(residual, host, n * sizeof *host, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  free(host);
}

/* Rounds the gradient of this rank to its type, in whose range it is; `to` has room for floats. */
static void load_gradient(struct trial *t, int step, float *to)
{
  const size_t n = t->runner.count;
  const ncclDataType_t type = t->runner.config.gradient_type;
  const float *gradient = t->gradients[t->job.me->rank];
  uint16_t *words = launcher_allocate(n * sizeof *words);
  draw_gradients(t->plan, step, t->job.me->nranks, t->gradients);
  for (size_t i = 0; i < n && type != ncclFloat; i++)
    words[i] =
        type == ncclHalf ? float_to_half(gradient[i] * 0x1p-10f) : float_to_bfloat16(gradient[i]);
  CUDACHECK(type == ncclFloat ? cudaMemcpy(to, gradient, n * sizeof *to, cudaMemcpyHostToDevice)
                              : cudaMemcpy(to, words, n * sizeof *words, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  free(words);
}

/* Every step is enqueued behind the one before, which is still running; only then is the last one
 * looked at. What another one did wrong is in the weights. */
static void run_ahead(struct trial *t, const cudaStream_t streams[2])
{
  const size_t n = t->runner.count;
  float *device;
  cudaEvent_t done;
  CUDACHECK(cudaMalloc((void **)&device, n * sizeof *device * (size_t)t->plan->steps));
  CUDACHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  for (int step = 0; step < t->plan->steps; step++)
    load_gradient(t, step, device + (size_t)step * n);
  for (int step = 0; step < t->plan->steps; step++) {
    t->job.stream = streams[step % 2];
    if (step > 0) CUDACHECK(cudaStreamWaitEvent(t->job.stream, done, 0));
    run_step(t, device + (size_t)step * n);
    CUDACHECK(cudaEventRecord(done, t->job.stream));
  }
  compare(t, t->runner.result);
  for (int step = 0; step < t->plan->steps; step++)
    verification_reference(&t->compared, device + (size_t)step * n);
  expect(t, verification_compare(&t->compared), "steps without a look in between");
  CUDACHECK(cudaEventDestroy(done));
  CUDACHECK(cudaFree(device));
}

/* A state with a flipped bit, wherever it is, is refused, and nothing of it gets into the handle.
 */
static void refuse_damage(struct trial *t, char *state)
{
  const size_t bytes = sparse_allreduce_state_bytes(t->runner.handle);
  uint64_t random = t->plan->seed;
  for (int i = 0; i < 24; i++) {
    const size_t at = i < 8 ? (size_t)i * 8 % bytes : below(&random, i < 16 ? 256 : bytes);
    const char bit = (char)(1 << below(&random, 8));
    state[at] ^= bit;
    expect(t, sparse_allreduce_load(t->runner.handle, state) == ncclInvalidArgument,
           "a damaged state is loaded");
    state[at] ^= bit;
  }
}

/* Saves the state and goes on with a new handle that has loaded it, and has the other kind of
 * result, and others of all that makes no difference to results. The reference has to know of
 * `balance`, by which words are counted. */
static void restart(struct trial *t)
{
  struct runner *r = &t->runner;
  sparse_allreduce_config_t config = r->config;
  char *state = runner_save(r);
  runner_destroy(r);
  config.result =
      config.result == SPARSE_RESULT_ENTRIES ? SPARSE_RESULT_DENSE : SPARSE_RESULT_ENTRIES;
  config.exchange =
      config.exchange == SPARSE_EXCHANGE_SENDRECV ? SPARSE_EXCHANGE_AUTO : SPARSE_EXCHANGE_SENDRECV;
  config.balance = t->compared.ref->config.balance = !config.balance;
  config.throttle++;
  config.timeout_seconds++;
  runner_create(r, &t->job, r->count, &config, false, true);
  CUDACHECK(cudaMemcpy(r->weights, t->compared.weights, r->count * sizeof(float),
                       cudaMemcpyHostToDevice));
  runner_load(r, state);
  refuse_damage(t, state);
  free(state);
}

/* Before the first step there is nothing to add, and no word was moved. */
static void refuse_add(struct trial *t)
{
  sparse_allreduce_statistics_t s;
  const struct runner *r = &t->runner;
  SPARSECHECK(sparse_allreduce_statistics(r->handle, &s));
  expect(t, s.words_sent == 0, "words before the first step");
  expect(t, runner_update(r) == ncclInvalidUsage, "a result before the first step");
  expect(t, sparse_allreduce_add(r->handle, 1, NULL, 0) == ncclInvalidArgument, "add(NULL)");
}

/* Takes back a step, which would have been an error where that is possible. What it has left for
 * the caller goes with it. */
static void take_back(struct trial *t)
{
  const float nan = NAN;
  const sparse_allreduce_t handle = t->runner.handle;
  ncclResult_t async;
  const struct sparse_pair *pairs;
  void *state = runner_save(&t->runner);
  CUDACHECK(cudaMemcpy(t->device, &nan, sizeof nan, cudaMemcpyHostToDevice));
  SPARSECHECK(sparse_allreduce_run(handle, t->device, NULL, t->job.stream));
  runner_load(&t->runner, state);
  SPARSECHECK(sparse_allreduce_get_async_error(handle, &async));
  expect(t, async == ncclSuccess, "an error after load()");
  expect(t, runner_update(&t->runner) == ncclInvalidUsage, "a result after load()");
  SPARSECHECK(sparse_allreduce_sparse_result(handle, &pairs, NULL));
  expect(t, pairs == NULL, "entries after load()");
  free(state);
}

/* Turns the residual round, of the handle and of the reference: nothing of the last step, which
 * knew where its elements were, may touch them any more. */
static void move_residual(struct trial *t)
{
  const size_t n = t->runner.count;
  float *device, *residual = t->compared.ref->acc;
  SPARSECHECK(sparse_allreduce_residual(t->runner.handle, &device));
  for (size_t i = 0; i < n / 2; i++) {
    const float x = residual[i];
    residual[i] = residual[n - 1 - i];
    residual[n - 1 - i] = x;
  }
  if (device != NULL)
    CUDACHECK(cudaMemcpy(device, residual, n * sizeof *device, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
}

/* Halves the density, which can come back, but not exceed what the handle was made for. */
static void change_density(struct trial *t)
{
  const sparse_allreduce_t handle = t->runner.handle;
  const double most = t->runner.config.density;
  expect(t, sparse_allreduce_set_density(handle, 2 * most) == ncclInvalidArgument, "densities");
  SPARSECHECK(sparse_allreduce_set_density(handle, most));
  SPARSECHECK(sparse_allreduce_set_density(handle, most / 2));
  simple_set_density(t->compared.ref, most / 2);
}

/* The step of that number, and what a caller may do before it. */
static void run_and_compare(struct trial *t, int step)
{
  const struct plan *plan = t->plan;
  if (plan->thinner > 0 && step == plan->thinner) change_density(t);
  if (plan->checkpoint && !plan->graphs && step == plan->steps / 2) restart(t);
  if (plan->checkpoint && !plan->graphs && step == plan->steps - 1) take_back(t);
  if (plan->moved) move_residual(t);
  load_gradient(t, step, t->device);
  if (plan->shared) add_to_residual(t);
  run_step(t, plan->shared ? NULL : t->device);
  compare(t, t->runner.result);
  verification_reference(&t->compared, t->device);
  if (!verification_compare(&t->compared)) t->code = EXIT_WRONG_DATA;
}

static int run_job(const struct rank *me, const struct plan *plan, ncclComm_t comm,
                   const cudaStream_t streams[2])
{
  struct trial t = {.plan = plan,
                    .job = {.me = me,
                            .comm = comm,
                            .stream = streams[0],
                            .steps = (uint64_t)plan->steps,
                            .constants = &plan->constants}};
  sparse_allreduce_config_t config = plan->config;
  if (plan->mixed && me->rank % 2) config.result = !config.result;
  for (int r = 0; r < me->nranks; r++)
    t.gradients[r] = launcher_allocate(plan->n * sizeof *t.device);
  CUDACHECK(cudaMalloc((void **)&t.device, plan->n * sizeof *t.device));
  runner_create(&t.runner, &t.job, plan->n, &config, false, true);
  verification_init(&t.compared, &t.runner, false);
  refuse_add(&t);
  if (plan->ahead)
    run_ahead(&t, streams);
  else
    for (int step = 0; step < plan->steps && t.code == EXIT_VERIFIED; step++) {
      run_and_compare(&t, step);
      t.code = launcher_agree(me, t.code);
    }
  t.code = launcher_agree(me, t.code);
  if (t.code != EXIT_VERIFIED && me->rank == 0)
    launcher_error("job %llu: %s, %zu elements, density %g, %s, %s%s%s%s",
                   (unsigned long long)plan->seed, simple_paths[plan->config.algorithm].name,
                   plan->n, plan->config.density, kind_names[plan->kind],
                   plan->config.exchange == SPARSE_EXCHANGE_AUTO ? "auto" : "send/recv",
                   plan->graphs ? ", graphs" : "", plan->ahead ? ", ahead" : "",
                   plan->shared ? ", shared residual" : "");
  for (int i = 0; i < SPARSE_KINDS; i++)
    if (t.graphs[i] != NULL) CUDACHECK(cudaGraphExecDestroy(t.graphs[i]));
  verification_free(&t.compared);
  runner_destroy(&t.runner);
  CUDACHECK(cudaFree(t.device));
  for (int r = 0; r < me->nranks; r++) free(t.gradients[r]);
  return t.code;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* The last rank comes too late for a step, of which the others have given up: what they told it of
 * would be sums without its own. */
static int run_late(const struct rank *me, bool exact, sparse_result_t result, ncclComm_t comm,
                    cudaStream_t stream)
{
  enum { COUNT = 4099, STEPS = 3 };
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  struct sparse_constants constants;
  sparse_constants_init(&constants, config.preset);
  if (exact) constants.local_interval = constants.global_interval = 1;
  config.exchange = SPARSE_EXCHANGE_AUTO;
  config.result = result;
  config.timeout_seconds = 3; /* GPUs may be shared with other checks */
  sparse_allreduce_t handle;
  float *gradient;
  launcher_step("late rank: setup");
  CUDACHECK(cudaMalloc((void **)&gradient, COUNT * sizeof(float)));
  CUDACHECK(cudaMemset(gradient, 0x3f, COUNT * sizeof(float)));
  SPARSECHECK(sparse_allreduce_create_with(comm, COUNT, &config, &constants, &handle));
  for (int step = 0; step < STEPS; step++) {
    launcher_step("steps");
    if (step == STEPS - 1 && me->rank == me->nranks - 1) sleep(8);
    SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
  }
  /* A state that is saved now would lack what the step has sent. Whatever is asked, in any order,
   * the answer is the error. */
  void *state = launcher_allocate(sparse_allreduce_state_bytes(handle));
  ncclResult_t error;
  float *residual;
  int kind;
  sparse_allreduce_statistics_t statistics;
  bool good = sparse_allreduce_save(handle, state) == ncclRemoteError;
  SPARSECHECK(sparse_allreduce_get_async_error(handle, &error));
  const ncclResult_t got[] = {error,
                              sparse_allreduce_load(handle, state),
                              sparse_allreduce_residual(handle, &residual),
                              sparse_allreduce_statistics(handle, &statistics),
                              sparse_allreduce_run(handle, gradient, NULL, stream),
                              sparse_allreduce_add(handle, 1, gradient, stream),
                              sparse_allreduce_kind(handle, &kind),
                              sparse_allreduce_set_density(handle, 0.01)};
  for (size_t i = 0; i < sizeof got / sizeof *got; i++) good &= got[i] == ncclRemoteError;
  if (!good) launcher_error("a rank is late: got %s", ncclGetErrorString(error));
  free(state);
  SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(me);
  CUDACHECK(cudaFree(gradient));
  return launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
}

/* A configuration of another version's header, or another one on rank 0: all ranks refuse it. */
static bool refuses_configuration(const struct rank *me, ncclComm_t comm)
{
  bool good = true;
  for (int differs = 0; differs < (me->nranks > 1 ? 2 : 1); differs++) {
    sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
    sparse_allreduce_t handle;
    if (differs && me->rank == 0) config.throttle++;
    if (!differs && me->rank == 0) config.size -= sizeof(double);
    const bool remote = !differs && me->rank > 0;
    good &= sparse_allreduce_create(comm, 64, &config, &handle) ==
                (remote ? ncclRemoteError : ncclInvalidArgument) &&
            strstr(sparse_allreduce_last_error(), differs  ? "differ"
                                                  : remote ? "another rank failed"
                                                           : "config.size");
  }
  return good;
}

/* What create would refuse, and what could never send anything. */
static bool refuses_what_cannot_be(void)
{
  static const struct {
    sparse_allreduce_algorithm_t algorithm;
    double density, seconds;
    size_t count;
    int ranks;
    bool taken;
  } rows[] = {
      {SPARSE_OKTOPK, 0.02, 60, 64, 256, true},
      {SPARSE_OKTOPK, 0.02, -1, 1, 1, true},
      {SPARSE_OKTOPK, 0.02, 60, 64, 257, false},
      {SPARSE_OKTOPK, 0.02, 60, 64, 0, false},
      {SPARSE_OKTOPK, 0.02, 60, 0, 1, false},
      {SPARSE_OKTOPK, 0.02, 60, 0xffffffff, 1, false},
      {SPARSE_OKTOPK, 0.02, 1.1e9, 64, 1, false},
      {SPARSE_OKTOPK, 0.02, (double)NAN, 64, 1, false},
      {SPARSE_GAUSSIANKSA, 0.1, 60, 19, 1, false},
      {SPARSE_GAUSSIANKSA, 0.1, 60, 20, 1, true},
      {SPARSE_GAUSSIANK, 0.1, 60, 1, 1, false},
      {SPARSE_GAUSSIANK, 0.1, 60, 2, 1, true},
      {SPARSE_GAUSSIANKCONCAT, 0.1, 60, 1, 1, false},
      {SPARSE_ALGORITHMS, 0.1, 60, 64, 1, false},
  };
  bool good = sparse_allreduce_check(NULL, 64, 1) == ncclInvalidArgument;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
    config.algorithm = rows[i].algorithm;
    config.density = rows[i].density;
    config.timeout_seconds = rows[i].seconds;
    const ncclResult_t got = sparse_allreduce_check(&config, rows[i].count, rows[i].ranks);
    if (got != (rows[i].taken ? ncclSuccess : ncclInvalidArgument))
      launcher_error("configuration %zu: '%s'", i, sparse_allreduce_last_error()), good = false;
  }
  return good;
}

/* A result that is added after a step that was only captured is that of the step before it. */
static bool adds_beside_capture(ncclComm_t comm, cudaStream_t stream)
{
  enum { COUNT = 1000 };
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  sparse_allreduce_t handle;
  float *gradient, got[COUNT]; /* 1 in each step, and so the average; it is added to itself */
  cudaGraph_t graph;
  bool good = true;
  config.algorithm = SPARSE_TOPKA;
  config.warmup_steps = 1;
  config.result = SPARSE_RESULT_ENTRIES;
  for (int i = 0; i < COUNT; i++) got[i] = 1;
  CUDACHECK(cudaMalloc((void **)&gradient, sizeof got));
  CUDACHECK(cudaMemcpy(gradient, got, sizeof got, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  SPARSECHECK(sparse_allreduce_create(comm, COUNT, &config, &handle));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamEndCapture(stream, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  SPARSECHECK(sparse_allreduce_add(handle, 1, gradient, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaMemcpy(got, gradient, sizeof got, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) good &= got[i] == 2;
  SPARSECHECK(sparse_allreduce_destroy(handle));
  CUDACHECK(cudaFree(gradient));
  return good;
}

/* Are there exchanges without NCCL's messages here? Then both are tried. */
static bool has_others(const struct rank *me, ncclComm_t comm)
{
  static const char *const names[] = {"send/recv", "device counts", "one-sided"};
  const sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  sparse_allreduce_t handle;
  sparse_mode_t mode;
  const char *reason;
  SPARSECHECK(sparse_allreduce_create(comm, 64, &config, &handle));
  SPARSECHECK(sparse_allreduce_mode(handle, &mode, &reason));
  launcher_note(me, "oktopk: %s %s", names[mode], reason);
  SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(me);
  return mode != SPARSE_MODE_NCCL;
}

static int run_all(const struct rank *me, ncclComm_t comm, const cudaStream_t streams[2])
{
  const bool others = has_others(me, comm);
  const bool graphs = me->nranks == 1 || !launcher_graphs_can_deadlock;
  bool good = refuses_configuration(me, comm) && refuses_what_cannot_be();
  launcher_barrier(me); /* see sparse_allreduce_destroy */
  if (graphs) good &= adds_beside_capture(comm, streams[0]);
  launcher_barrier(me);
  if (!good) launcher_error("not refused, or added: '%s'", sparse_allreduce_last_error());
  int code = launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  for (int i = 0; i < 3 && late && code == EXIT_VERIFIED; i++)
    code = run_late(me, i == 1, i == 2 ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE, comm,
                    streams[0]);
  if (late) return code;
  for (int exchange = 0; exchange < (others ? 2 : 1); exchange++) {
    const sparse_exchange_t by = exchange ? SPARSE_EXCHANGE_AUTO : SPARSE_EXCHANGE_SENDRECV;
    const struct plan plans[] = {burst_job(SPARSE_TOPKAOPT, by), burst_job(SPARSE_OKTOPK, by),
                                 overflow_job(by)};
    launcher_step("thresholds that select too many, sums that overflow");
    for (int i = 0; i < 3 && code == EXIT_VERIFIED; i++)
      code = run_job(me, &plans[i], comm, streams);
  }
  for (long i = 0; i < cases && code == EXIT_VERIFIED; i++) {
    launcher_step("random jobs");
    const uint64_t seed = (uint64_t)(first_seed + i);
    const struct plan plan =
        long_steps > 0 ? long_job(seed, others, graphs) : draw_job(seed, others, graphs);
    code = run_job(me, &plan, comm, streams);
  }
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  (void)opt;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t streams[2];
  CUDACHECK(cudaSetDevice(me->device));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  for (int i = 0; i < 2; i++)
    CUDACHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  const int code = run_all(me, comm, streams);
  for (int i = 0; i < 2; i++) CUDACHECK(cudaStreamDestroy(streams[i]));
  NCCLCHECK(ncclCommDestroy(comm));
  if (code == EXIT_VERIFIED) launcher_print(me, "%ld jobs verified\n", late ? 0 : cases);
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "sparse_steps",
      .summary = "Random jobs of the sparse allreduce against the reference",
      .options = own_options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
