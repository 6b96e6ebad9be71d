/* SPDX-License-Identifier: Apache-2.0 */
/* Random small jobs of the sparse allreduce, every step of every algorithm compared bit for bit
 * with the reference: sizes, densities, schedules, gradients
 * with ties, zeros and values that are not finite, both exchanges, results as dense vectors and as
 * entries, which are added to weights, checkpoints between both, graphs, steps that are enqueued
 * without waiting for the one before. First a few jobs that are not random: see burst_job().
 *
 *   sparse_steps [--cases N] [--seed N] [--steps N] [--verbose]
 *   sparse_steps --late
 *
 * --steps makes the jobs long ones of oktopk, one for each kind of gradient in turn, in graphs.
 * --late: a rank comes too late for a one-sided step of oktopk; every rank has to hear of it.
 *
 * Every rank draws the same numbers. Each runs its own side of the reference.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "hash.h"
#include "launcher.h"
#include "tests/unit/reference.h"
#include "sparse_allreduce.h"
#include "constants.h"

#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

static long cases = 200, first_seed = 1, long_steps;
static bool verbose, late;
static const struct option_spec own_options[] = {
    {"cases", 0, OPTION_LONG, &cases, "N", "random jobs (default 200)", 1, 1000000000},
    {"seed", 0, OPTION_LONG, &first_seed, "N", "number of the first (default 1)", 0, 1000000000},
    {"steps", 0, OPTION_LONG, &long_steps, "N", "of jobs of oktopk, in graphs", 1, 1000000},
    {"late", 0, OPTION_FLAG, &late, NULL, "a rank is too late", 0, 0},
    {"verbose", 0, OPTION_FLAG, &verbose, NULL, "say what each job is", 0, 0},
    {0},
};

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t below(uint64_t *state, uint64_t limit)
{
  return hash_next(state) % limit;
}

/* ---- a job -------------------------------------------------------------------------------------
 */

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

struct job {
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

static struct job draw_job(uint64_t seed, bool onesided, bool graphs)
{
  static const size_t sizes[] = {1, 2, 3, 4, 5, 16, 63, 257, 1000, 4096, 4099, 20011};
  uint64_t state = seed * 7919 + 1;
  struct job job = {.seed = seed};
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
  c->exchange = onesided && below(&state, 2) ? SPARSE_EXCHANGE_ONESIDED : SPARSE_EXCHANGE_SENDRECV;
  c->timeout_seconds = (double)below(&state, 3) - 1; /* never, the default, late */
  if (c->timeout_seconds > 0) c->timeout_seconds = 50;
  job.steps = 3 + (int)below(&state, 8);
  job.graphs = graphs && c->exchange == SPARSE_EXCHANGE_ONESIDED && c->algorithm != SPARSE_TOPKSA &&
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
  size_t k;
  sparse_allreduce_sizes(job.n, c->density, &k, NULL);
  if ((k < 4 && (job.thinner || job.constants.local_interval == 1)) ||
      sparse_allreduce_check(c, job.n, 1) != ncclSuccess) { /* that could never send anything */
    job.n = 63;
    c->density = 0.1;
  }
  return job;
}

static struct job long_job(uint64_t seed, bool onesided, bool graphs)
{
  struct job job = draw_job(seed, onesided, graphs);
  job.kind = (enum kind)(seed % KINDS);
  job.n = 4099;
  job.steps = (int)long_steps;
  job.config.density = 0.02;
  job.config.algorithm = SPARSE_OKTOPK;
  job.config.exchange = onesided ? SPARSE_EXCHANGE_ONESIDED : SPARSE_EXCHANGE_SENDRECV;
  job.graphs = graphs && onesided;
  job.checkpoint = job.ahead = job.shared = false;
  job.thinner = 0;
  return job;
}

/* A threshold selects more than may be offered, but not more than a list of candidates holds, and
 * some elements are not finite: NaN, which no threshold selects, is among the k largest. */
static struct job burst_job(sparse_allreduce_algorithm_t algorithm, sparse_exchange_t exchange)
{
  struct job job = {.config = sparse_allreduce_config(SPARSE_PRESET_VGG),
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
static struct job overflow_job(sparse_exchange_t exchange)
{
  struct job job = burst_job(SPARSE_OKTOPK, exchange);
  job.kind = HUGE_VALUES;
  job.burst = false;
  job.n = 1000;
  job.config.density = 0.02;
  job.constants.raise_steps = 0; /* or local thresholds overflow, too */
  job.constants.global_interval = 2;
  return job;
}

static float draw_element(const struct job *job, uint64_t *state, int step, int rank, size_t i)
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

static void draw_gradients(const struct job *job, int step, int nranks, float **gradients)
{
  const uint64_t first = job->seed * 1000003 + (uint64_t)step;
  uint64_t state = first;
  for (int r = 0; r < nranks; r++) {
    if (job->kind == ALIKE) state = first; /* on all ranks: there are as few sums as can be */
    for (size_t i = 0; i < job->n; i++) gradients[r][i] = draw_element(job, &state, step, r, i);
  }
}

/* ---- weights -----------------------------------------------------------------------------------
 * A vector that every step updates by sparse_allreduce_add(), and what it has to be. */

struct weights {
  size_t n;
  float *device, *expected;
};

static const float SCALE = -0.3f;

static void weights_init(struct weights *w, size_t n)
{
  *w = (struct weights){.n = n, .expected = malloc(n * sizeof(float))};
  for (size_t i = 0; i < n; i++)
    w->expected[i] = i % 5 == 0 ? 0.0f : i % 5 == 1 ? -0.0f : (float)(i % 1000) / 7 - 70;
  CUDACHECK(cudaMalloc((void **)&w->device, n * sizeof(float)));
  CUDACHECK(cudaMemcpy(w->device, w->expected, n * sizeof(float), cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
}

static void weights_free(struct weights *w)
{
  CUDACHECK(cudaFree(w->device));
  free(w->expected);
}

static void weights_add(const struct weights *w, sparse_allreduce_t handle, cudaStream_t stream)
{
  SPARSECHECK(sparse_allreduce_add(handle, SCALE, w->device, stream));
}

static float one_nan(float x)
{
  const uint32_t bits = 0x7fffffff;
  if (isnan(x)) memcpy(&x, &bits, sizeof x);
  return x;
}

/* What a kernel has computed. On the stand-in it has the NaN of the processor. */
static float computed(float x)
{
#ifdef SPARSE_KERNELS
  return one_nan(x);
#else
  return x;
#endif
}

static void weights_update(struct weights *w, size_t i, float average)
{
  w->expected[i] = one_nan(fmaf(SCALE, average, w->expected[i]));
}

static void weights_expect(struct weights *w, const struct reference *ref, const float *dense)
{
  if (ref->dense || ref->fell_back) {
    float *host = malloc(w->n * sizeof(float));
    CUDACHECK(cudaMemcpy(host, dense, w->n * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < w->n; i++) weights_update(w, i, host[i]);
    free(host);
  } else {
    for (size_t e = 0; e < ref->nglobal; e++)
      weights_update(w, ref->global[e].index, one_nan(ref->global[e].value / (float)ref->nranks));
  }
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

struct checker {
  const struct rank *me;
  const struct job *job;
  int step, code;
  sparse_allreduce_config_t config; /* of this rank's handle */
  struct weights weights;
};

static void wrong(struct checker *c, const char *what, double got, double expected, long long index)
{
  if (c->code == EXIT_VERIFIED)
    launcher_error("job %llu (%s, %zu elements, density %g, %s, %s%s%s), step %d: %s[%lld] is "
                   "%.9g, expected %.9g",
                   (unsigned long long)c->job->seed,
                   sparse_allreduce_name(c->job->config.algorithm), c->job->n,
                   c->job->config.density, kind_names[c->job->kind],
                   c->job->config.exchange == SPARSE_EXCHANGE_ONESIDED ? "one-sided" : "send/recv",
                   c->config.result == SPARSE_RESULT_ENTRIES ? ", entries" : "",
                   c->job->graphs ? ", graphs" : "", c->step, what, index, got, expected);
  c->code = EXIT_WRONG_DATA;
}

static void same_floats(struct checker *c, const char *what, const float *host,
                        const float *expected, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    const float got = computed(host[i]);
    if (memcmp(&got, &expected[i], sizeof(got)) != 0) {
      wrong(c, what, got, expected[i], (long long)i);
      break;
    }
  }
}

static void same_vector(struct checker *c, const char *what, const float *device,
                        const float *expected, size_t n)
{
  float *host = malloc(n * sizeof(*host));
  CUDACHECK(cudaMemcpy(host, device, n * sizeof(*host), cudaMemcpyDeviceToHost));
  same_floats(c, what, host, expected, n);
  free(host);
}

static void same_residual(struct checker *c, sparse_allreduce_t handle, const float *expected,
                          size_t n)
{
  float *device;
  SPARSECHECK(sparse_allreduce_residual(handle, &device));
  same_vector(c, "residual", device, expected, n);
}

static void same_number(struct checker *c, const char *what, double got, double expected)
{
  if (isnan(got) && isnan(expected)) return; /* a threshold of NaN has no particular bits */
  if (memcmp(&got, &expected, sizeof(got)) != 0) wrong(c, what, got, expected, 0);
}

static void same_entries(struct checker *c, sparse_allreduce_t handle, const struct reference *ref)
{
  const struct sparse_pair *pairs;
  const uint64_t *count;
  SPARSECHECK(sparse_allreduce_sparse_result(handle, &pairs, &count));
  if (pairs == NULL) {
    if (!ref->dense && !ref->fell_back) wrong(c, "sparse result", 0, (double)ref->nglobal, 0);
    return;
  }
  uint64_t n;
  CUDACHECK(cudaMemcpy(&n, count, sizeof(n), cudaMemcpyDeviceToHost));
  struct sparse_pair *host = malloc((n + 1) * sizeof(*host));
  CUDACHECK(cudaMemcpy(host, pairs, n * sizeof(*host), cudaMemcpyDeviceToHost));
  size_t found = 0;
  for (uint64_t i = 0; i < n; i++) {
    host[i].value = computed(host[i].value);
    if (found < ref->nglobal && memcmp(&host[i], &ref->global[found], sizeof(*host)) != 0) {
      wrong(c, "entry", host[i].index, ref->global[found].index, (long long)found);
      break;
    }
    found++;
  }
  if (found != ref->nglobal) wrong(c, "entries", (double)found, (double)ref->nglobal, 0);
  free(host);
}

/* The sentence names the first rank whose gradient is not finite, and its first such element. */
static void same_culprit(struct checker *c, float *const *gradients, int nranks)
{
  char expected[128] = "";
  for (int r = nranks - 1; r >= 0; r--)
    for (size_t i = c->job->n; i-- > 0;)
      if (!isfinite(gradients[r][i]))
        snprintf(expected, sizeof expected, "element %zu of rank %d's gradient is not finite", i,
                 r);
  if (strcmp(sparse_allreduce_last_error(), expected) == 0) return;
  wrong(c, "sentence", 0, 1, 0);
  launcher_error("'%s', expected '%s'", sparse_allreduce_last_error(), expected);
}

/* A dense one, and where entries are asked for none, but in steps that can have no entries. */
static void same_result(struct checker *c, const float *result, const struct reference *ref)
{
  const bool entries = c->config.result == SPARSE_RESULT_ENTRIES && !ref->dense && !ref->fell_back;
  if (entries != (result == NULL)) wrong(c, "address of the result", !!result, !entries, 0);
  if (result == NULL) return;
  /* NCCL's order of sums: integers are exact in any */
  if (!ref->dense || c->job->kind < SPREAD || (c->job->kind > SPREAD && c->job->kind < NOT_FINITE))
    same_vector(c, "result", result, ref->result, ref->n);
}

static void compare(struct checker *c, sparse_allreduce_t handle, const float *result,
                    const struct reference *ref, float *const *gradients)
{
  const int nranks = ref->nranks;
  const struct reference_rank *mine = &ref->ranks[c->me->rank];
  sparse_allreduce_statistics_t s;
  SPARSECHECK(sparse_allreduce_statistics(handle, &s));
  same_number(c, "dense", s.dense, ref->dense);
  same_number(c, "words sent", (double)s.words_sent, (double)mine->words_sent);
  same_number(c, "words received", (double)s.words_received, (double)mine->words_received);
  same_result(c, result, ref);
  same_vector(c, "weights", c->weights.device, c->weights.expected, ref->n);
  if (ref->dense) return;
  same_residual(c, handle, mine->residual, ref->n);
  same_entries(c, handle, ref);
  same_number(c, "offered", (double)s.local, (double)mine->noffered);
  same_number(c, "selected_above", s.selected_above, mine->selected_above);
  same_number(c, "selected_tie", (double)s.selected_tie, (double)mine->selected_tie);
  same_number(c, "overflowed", s.overflowed, mine->overflowed);
  same_number(c, "fell back", s.fell_back, ref->fell_back);
  const sparse_allreduce_algorithm_t a = c->job->config.algorithm;
  if (a != SPARSE_TOPKA && a != SPARSE_TOPKA2 && a != SPARSE_GTOPK && a != SPARSE_TOPKSA)
    same_number(c, "local threshold", s.local_threshold, mine->local_threshold);
  if (a == SPARSE_OKTOPK) {
    same_number(c, "global threshold", s.global_threshold, ref->global_threshold);
    for (int j = 0; j <= nranks; j++)
      same_number(c, "boundary", (double)s.boundaries[j], (double)ref->boundaries[j]);
  }
  ncclResult_t async;
  SPARSECHECK(sparse_allreduce_get_async_error(handle, &async));
  same_number(c, "async error", async == ncclInvalidArgument, ref->nonfinite);
  if (ref->nonfinite) same_culprit(c, gradients, nranks);
}

/* The Gaussian threshold may differ in its last bits: close is required, and then the reference
 * goes on with those of the ranks. */
static bool gaussian(const sparse_allreduce_config_t *config)
{
  return config->algorithm == SPARSE_GAUSSIANK || config->algorithm == SPARSE_GAUSSIANKCONCAT;
}

static bool gaussian_thresholds(struct checker *c, sparse_allreduce_t handle, double *all)
{
  const bool used = gaussian(&c->job->config);
  sparse_allreduce_statistics_t s;
  SPARSECHECK(sparse_allreduce_statistics(handle, &s));
  launcher_allgather(c->me, &s.gaussian_threshold, all, sizeof(double));
  return used && !s.dense;
}

static void close_threshold(struct checker *c, double got, double expected)
{
  const bool close = isnan(expected)   ? isnan(got)
                     : isinf(expected) ? got == expected
                                       : fabs(got - expected) <= 1e-6 * fabs(expected) + 1e-30;
  if (!close) wrong(c, "gaussian threshold", got, expected, 0);
}

/* ---- running -----------------------------------------------------------------------------------
 */

struct graphs {
  cudaGraphExec_t of_kind[SPARSE_KINDS];
  const float *results[SPARSE_KINDS];
};

/* With the update of weights. */
static void run_step(const struct checker *c, sparse_allreduce_t handle, struct graphs *graphs,
                     const float *gradient, const float **result, cudaStream_t stream)
{
  const struct job *job = c->job;
  if (!job->graphs) {
    SPARSECHECK(sparse_allreduce_run(handle, gradient, result, stream));
    weights_add(&c->weights, handle, stream);
    return;
  }
  int kind;
  SPARSECHECK(sparse_allreduce_kind(handle, &kind));
  if (graphs->of_kind[kind] == NULL) {
    cudaGraph_t graph;
    CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    SPARSECHECK(sparse_allreduce_run(handle, gradient, &graphs->results[kind], stream));
    if (!job->apart) weights_add(&c->weights, handle, stream);
    CUDACHECK(cudaStreamEndCapture(stream, &graph));
    CUDACHECK(cudaGraphInstantiate(&graphs->of_kind[kind], graph, 0));
    CUDACHECK(cudaGraphDestroy(graph));
  }
  CUDACHECK(cudaGraphLaunch(graphs->of_kind[kind], stream));
  SPARSECHECK(sparse_allreduce_replayed(handle));
  if (job->apart) weights_add(&c->weights, handle, stream);
  *result = graphs->results[kind];
}

/* Nobody asked for the times of these steps, or they are graphs, which have none. */
static void no_times(struct checker *c, sparse_allreduce_t handle)
{
  sparse_allreduce_phases_t phases;
  const ncclResult_t got = sparse_allreduce_phases(handle, &phases);
  if (got != ncclInvalidUsage) wrong(c, "result of phases()", got, ncclInvalidUsage, 0);
}

/* What a caller with gradients of its own making does: adds them to the residual. */
static void add_to_residual(const struct job *job, sparse_allreduce_t handle, const float *gradient,
                            cudaStream_t stream)
{
  const size_t bytes = job->n * sizeof(float);
  float *host = malloc(bytes), *residual;
  SPARSECHECK(sparse_allreduce_residual(handle, &residual));
  CUDACHECK(cudaMemcpyAsync(host, residual, bytes, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < job->n; i++) host[i] += gradient[i];
  CUDACHECK(cudaMemcpyAsync(residual, host, bytes, cudaMemcpyHostToDevice, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  free(host);
}

/* Every step is enqueued behind the one before, which is still running, and its result is copied
 * behind it; only then are they compared. */
static int run_ahead(struct checker *c, sparse_allreduce_t handle, struct reference *ref,
                     float **gradients, const cudaStream_t streams[2])
{
  const struct job *job = c->job;
  const size_t bytes = job->n * sizeof(float);
  const float *result = NULL;
  float *device, *results;
  cudaEvent_t done;
  CUDACHECK(cudaMalloc((void **)&device, bytes * (size_t)job->steps));
  CUDACHECK(cudaMalloc((void **)&results, bytes * (size_t)job->steps));
  CUDACHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  for (int step = 0; step < job->steps; step++) {
    draw_gradients(job, step, c->me->nranks, gradients);
    CUDACHECK(cudaMemcpy(device + (size_t)step * job->n, gradients[c->me->rank], bytes,
                         cudaMemcpyHostToDevice));
  }
  CUDACHECK(cudaDeviceSynchronize());
  for (int step = 0; step < job->steps; step++) {
    cudaStream_t stream = streams[step % 2];
    if (step > 0) CUDACHECK(cudaStreamWaitEvent(stream, done, 0));
    SPARSECHECK(sparse_allreduce_run(handle, device + (size_t)step * job->n, &result, stream));
    weights_add(&c->weights, handle, stream);
    if (result != NULL)
      CUDACHECK(cudaMemcpyAsync(results + (size_t)step * job->n, result, bytes,
                                cudaMemcpyDeviceToDevice, stream));
    CUDACHECK(cudaEventRecord(done, stream));
  }
  CUDACHECK(cudaDeviceSynchronize());
  for (c->step = 0; c->step < job->steps; c->step++) {
    draw_gradients(job, c->step, c->me->nranks, gradients);
    reference_step(ref, (const float *const *)gradients, NULL);
    const float *copy = results + (size_t)c->step * job->n;
    const bool entries = c->config.result == SPARSE_RESULT_ENTRIES;
    if (!entries || ref->dense || ref->fell_back) same_result(c, copy, ref);
    weights_expect(&c->weights, ref, copy);
  }
  compare(c, handle, result, ref, gradients);
  CUDACHECK(cudaEventDestroy(done));
  CUDACHECK(cudaFree(results));
  CUDACHECK(cudaFree(device));
  return launcher_agree(c->me, c->code);
}

/* A state with a flipped bit, wherever it is, is refused, and nothing of it gets into the handle.
 */
static void refuse_damage(struct checker *c, sparse_allreduce_t handle, char *state)
{
  const size_t bytes = sparse_allreduce_state_bytes(handle);
  uint64_t random = c->job->seed;
  for (int i = 0; i < 24; i++) {
    const size_t at = i < 8 ? (size_t)i * 8 % bytes : below(&random, i < 16 ? 256 : bytes);
    const char bit = (char)(1 << below(&random, 8));
    state[at] ^= bit;
    if (sparse_allreduce_load(handle, state) != ncclInvalidArgument ||
        !strstr(sparse_allreduce_last_error(), " state"))
      wrong(c, "result of load(), damaged byte", 0, ncclInvalidArgument, (long long)at);
    state[at] ^= bit;
  }
}

/* Saves the state and goes on with a new handle that has loaded it, and has the other kind of
 * result, and others of all that makes no difference to results. The reference has to know of
 * `balance`, by which words are counted. */
static void restart(struct checker *c, sparse_allreduce_t *handle, ncclComm_t comm,
                    struct reference *ref)
{
  const struct rank *me = c->me;
  const struct job *job = c->job;
  void *state = malloc(sparse_allreduce_state_bytes(*handle));
  SPARSECHECK(sparse_allreduce_save(*handle, state));
  SPARSECHECK(sparse_allreduce_destroy(*handle));
  launcher_barrier(me); /* see sparse_allreduce_destroy */
  const bool entries = c->config.result == SPARSE_RESULT_ENTRIES;
  c->config.result = entries ? SPARSE_RESULT_DENSE : SPARSE_RESULT_ENTRIES;
  c->config.exchange = c->config.exchange == SPARSE_EXCHANGE_SENDRECV ? SPARSE_EXCHANGE_AUTO
                                                                      : SPARSE_EXCHANGE_SENDRECV;
  c->config.balance = !c->config.balance;
  c->config.throttle++;
  c->config.timeout_seconds++;
  ref->config.balance = c->config.balance;
  SPARSECHECK(sparse_allreduce_create_with(comm, job->n, &c->config, &job->constants, handle));
  SPARSECHECK(sparse_allreduce_load(*handle, state));
  refuse_damage(c, *handle, state);
  free(state);
}

/* Before the first step there is nothing to add, and no word was moved. */
static void refuse_add(struct checker *c, sparse_allreduce_t handle, cudaStream_t stream)
{
  sparse_allreduce_statistics_t s;
  SPARSECHECK(sparse_allreduce_statistics(handle, &s));
  same_number(c, "words before the first step", (double)s.words_received, 0);
  const ncclResult_t early = sparse_allreduce_add(handle, 1, c->weights.device, stream);
  if (early != ncclInvalidUsage) wrong(c, "result of add(), no step", early, ncclInvalidUsage, 0);
  const ncclResult_t null = sparse_allreduce_add(handle, 1, NULL, stream);
  if (null != ncclInvalidArgument) wrong(c, "result of add(NULL)", null, ncclInvalidArgument, 0);
}

/* Takes back a step, which would have been an error where that is possible. What it has left for
 * the caller goes with it. */
static void take_back(struct checker *c, sparse_allreduce_t handle, float *device,
                      cudaStream_t stream)
{
  const float nan = NAN;
  ncclResult_t async;
  const struct sparse_pair *pairs;
  void *state = malloc(sparse_allreduce_state_bytes(handle));
  SPARSECHECK(sparse_allreduce_save(handle, state));
  CUDACHECK(cudaMemcpyAsync(device, &nan, sizeof(nan), cudaMemcpyHostToDevice, stream));
  SPARSECHECK(sparse_allreduce_run(handle, device, NULL, stream));
  SPARSECHECK(sparse_allreduce_load(handle, state));
  SPARSECHECK(sparse_allreduce_get_async_error(handle, &async));
  same_number(c, "async error after load()", async, ncclSuccess);
  const ncclResult_t added = sparse_allreduce_add(handle, 1, c->weights.device, stream);
  if (added != ncclInvalidUsage)
    wrong(c, "result of add() after load()", added, ncclInvalidUsage, 0);
  SPARSECHECK(sparse_allreduce_sparse_result(handle, &pairs, NULL));
  if (pairs != NULL) wrong(c, "sparse result after load()", 1, 0, 0);
  free(state);
}

/* Turns the residual round, of the handle and of the reference: nothing of the last step, which
 * knew where its elements were, may touch them any more. */
static void move_residual(const struct checker *c, sparse_allreduce_t handle, struct reference *ref)
{
  const size_t n = c->job->n;
  float *host = malloc(n * sizeof(*host)), *residual = ref->ranks[c->me->rank].residual, *device;
  SPARSECHECK(sparse_allreduce_residual(handle, &device));
  for (size_t i = 0; i < n; i++) host[i] = residual[n - 1 - i];
  memcpy(residual, host, n * sizeof(*host));
  if (device != NULL)
    CUDACHECK(cudaMemcpy(device, host, n * sizeof(*host), cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  free(host);
}

/* Halves the density, which can come back, but not exceed what the handle was made for. */
static void change_density(struct checker *c, sparse_allreduce_t handle, struct reference *ref)
{
  const double most = c->config.density;
  const ncclResult_t more = sparse_allreduce_set_density(handle, 2 * most);
  if (more != ncclInvalidArgument) wrong(c, "result of set_density()", more, 0, 0);
  SPARSECHECK(sparse_allreduce_set_density(handle, most));
  SPARSECHECK(sparse_allreduce_set_density(handle, most / 2));
  reference_set_density(ref, most / 2);
}

static int run_job(const struct rank *me, const struct job *job, ncclComm_t comm,
                   const cudaStream_t streams[2])
{
  cudaStream_t stream = streams[0];
  struct checker c = {.me = me, .job = job, .code = EXIT_VERIFIED, .config = job->config};
  struct reference *ref = reference_create(&job->config, job->n, me->nranks, me);
  ref->constants = job->constants;
  float *gradients[64], *device;
  const float *result = NULL;
  double thresholds[64];
  struct graphs graphs = {.of_kind = {0}};
  sparse_allreduce_t handle;
  for (int r = 0; r < me->nranks; r++) gradients[r] = malloc(job->n * sizeof(float));
  CUDACHECK(cudaMalloc((void **)&device, job->n * sizeof(float)));
  if (job->mixed && me->rank % 2) c.config.result = !c.config.result;
  weights_init(&c.weights, job->n);
  SPARSECHECK(sparse_allreduce_create_with(comm, job->n, &c.config, &job->constants, &handle));
  refuse_add(&c, handle, stream);
  const bool ahead = job->ahead && !job->graphs && !job->shared && !gaussian(&job->config);
  if (job->graphs) SPARSECHECK(sparse_allreduce_time_phases(handle, 1));
  if (ahead) c.code = run_ahead(&c, handle, ref, gradients, streams);
  for (c.step = 0; !ahead && c.step < job->steps && c.code == EXIT_VERIFIED; c.step++) {
    if (job->thinner > 0 && c.step == job->thinner) change_density(&c, handle, ref);
    if (job->checkpoint && !job->graphs && c.step == job->steps / 2)
      restart(&c, &handle, comm, ref);
    if (job->checkpoint && !job->graphs && c.step == job->steps - 1)
      take_back(&c, handle, device, stream);
    if (job->moved) move_residual(&c, handle, ref);
    draw_gradients(job, c.step, me->nranks, gradients);
    CUDACHECK(cudaMemcpyAsync(device, gradients[me->rank], job->n * sizeof(float),
                              cudaMemcpyHostToDevice, stream));
    if (job->shared) add_to_residual(job, handle, gradients[me->rank], stream);
    run_step(&c, handle, &graphs, job->shared ? NULL : device, &result, stream);
    CUDACHECK(cudaStreamSynchronize(stream));
    const bool inject = gaussian_thresholds(&c, handle, thresholds);
    reference_step(ref, (const float *const *)gradients, inject ? thresholds : NULL);
    if (inject) close_threshold(&c, thresholds[me->rank], ref->ranks[me->rank].gaussian_threshold);
    weights_expect(&c.weights, ref, result);
    compare(&c, handle, result, ref, gradients);
    no_times(&c, handle);
    c.code = launcher_agree(me, c.code);
  }
  for (int i = 0; i < SPARSE_KINDS; i++)
    if (graphs.of_kind[i] != NULL) CUDACHECK(cudaGraphExecDestroy(graphs.of_kind[i]));
  SPARSECHECK(sparse_allreduce_destroy(handle));
  CUDACHECK(cudaFree(device));
  weights_free(&c.weights);
  launcher_barrier(me);
  for (int r = 0; r < me->nranks; r++) free(gradients[r]);
  reference_destroy(ref);
  return c.code;
}

/* The last rank comes too late for a step, of which the others have given up: what they told it of
 * would be sums without its own. */
static int run_late(const struct rank *me, bool exact, sparse_result_t result, ncclComm_t comm,
                    cudaStream_t stream)
{
  enum { COUNT = 4099, STEPS = 3 };
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  config.exchange = SPARSE_EXCHANGE_ONESIDED;
  struct sparse_constants constants;
  sparse_constants_init(&constants, config.preset);
  if (exact) constants.local_interval = constants.global_interval = 1;
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
  ncclResult_t error;
  /* A state that is saved now would lack what the step has sent. Whatever is asked, in any order,
   * the answer is the error. */
  void *state = malloc(sparse_allreduce_state_bytes(handle));
  ncclResult_t got[8];
  float *residual;
  int kind, nwrong = 0;
  sparse_allreduce_statistics_t statistics;
  got[0] = sparse_allreduce_save(handle, state);
  SPARSECHECK(sparse_allreduce_get_async_error(handle, &error));
  got[1] = sparse_allreduce_load(handle, state);
  got[2] = sparse_allreduce_residual(handle, &residual);
  got[3] = sparse_allreduce_statistics(handle, &statistics);
  got[4] = sparse_allreduce_run(handle, gradient, NULL, stream);
  got[5] = sparse_allreduce_add(handle, 1, gradient, stream);
  got[6] = sparse_allreduce_kind(handle, &kind);
  got[7] = sparse_allreduce_set_density(handle, 0.01);
  for (int i = 0; i < 8; i++) nwrong += got[i] != ncclRemoteError;
  free(state);
  const bool good = error == ncclRemoteError && nwrong == 0;
  if (!good) launcher_error("a rank is late: got %s", ncclGetErrorString(error));
  SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(me);
  CUDACHECK(cudaFree(gradient));
  const int code = launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  if (code == EXIT_VERIFIED)
    launcher_print(me, "a rank that is late for %s step%s is reported by all\n",
                   exact ? "an exact" : "a",
                   result == SPARSE_RESULT_ENTRIES ? " without a dense result" : "");
  return code;
}

/* A configuration of another version's header, or of none, or another one on rank 0: all ranks
 * refuse it. */
static int refuse_configuration(const struct rank *me, ncclComm_t comm)
{
  bool good = true;
  for (int i = 0; i < (me->nranks > 1 ? 4 : 2); i++) {
    sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
    sparse_allreduce_t handle;
    const bool valid = i == 3, other = i < 2 || me->rank == 0;
    if (valid) config.throttle += other;
    if (!valid && other) config.size = i > 0 ? config.size - sizeof(double) : 0;
    const ncclResult_t wanted = valid || other ? ncclInvalidArgument : ncclRemoteError;
    const char *sentence = valid ? "differ" : other ? "config.size" : "another rank failed";
    good = good && sparse_allreduce_create(comm, 64, &config, &handle) == wanted &&
           strstr(sparse_allreduce_last_error(), sentence);
  }
  if (!good) launcher_error("a configuration is not refused: '%s'", sparse_allreduce_last_error());
  launcher_barrier(me); /* see sparse_allreduce_destroy */
  return launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
}

/* check() refuses `config` with a sentence that begins like that, or takes it where that is NULL.
 */
static bool is_checked(const sparse_allreduce_config_t *config, size_t count, int ranks,
                       const char *begin)
{
  const ncclResult_t got = sparse_allreduce_check(config, count, ranks);
  const char *sentence = got == ncclSuccess ? NULL : sparse_allreduce_last_error();
  if (begin == NULL ? got == ncclSuccess
                    : got == ncclInvalidArgument && strncmp(sentence, begin, strlen(begin)) == 0)
    return true;
  launcher_error("sparse_allreduce_check, %zu elements, %d ranks: '%s', expected '%s'", count,
                 ranks, sentence ? sentence : "", begin ? begin : "");
  return false;
}

/* What create would refuse, and what could never send anything. */
static int refuse_what_cannot_be(const struct rank *me)
{
  const char *ranks = "ranks must be 1 to 256", *seconds = "timeout_seconds must be at most 1e9";
  const char *exact = "count * density must be 2 or more", *normal = "count must be 2 or more";
  const sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  const struct {
    double seconds;
    int result;
    size_t count;
    int ranks;
    const char *error;
  } cases_of[] = {{60, 0, 64, 1, NULL},
                  {60, 0, 0, 1, "count must be 1 to 2^32 - 2"},
                  {60, 0, 64, 0, ranks},
                  {60, 0, 0xffffffff, 1, "count must be 1 to 2^32 - 2"},
                  {60, 0, 64, 257, ranks},
                  {60, 0, 64, 256, NULL},
                  {1e9, 0, 64, 1, NULL},
                  {1.1e9, 0, 64, 1, seconds},
                  {INFINITY, 0, 64, 1, seconds},
                  {NAN, 0, 64, 1, seconds},
                  {0, 0, 64, 1, NULL},
                  {-1, 0, 64, 1, NULL},
                  {60, 2, 64, 1, "unknown result"}};
  bool good = sparse_allreduce_check(NULL, 64, 1) == ncclInvalidArgument;
  sparse_allreduce_config_t c = config;
  for (size_t i = 0; i < sizeof cases_of / sizeof *cases_of; i++) {
    c.timeout_seconds = cases_of[i].seconds;
    c.result = (sparse_result_t)cases_of[i].result;
    good = good && is_checked(&c, cases_of[i].count, cases_of[i].ranks, cases_of[i].error);
  }
  for (int a = 0; a < SPARSE_ALGORITHMS; a++) {
    c = config;
    c.algorithm = (sparse_allreduce_algorithm_t)a;
    c.density = 0.1;
    const bool is_exact = a == SPARSE_GAUSSIANKSA;
    const char *of_one = is_exact ? exact : gaussian(&c) ? normal : NULL;
    good = good && is_checked(&c, 1, 2, of_one) && is_checked(&c, 19, 2, is_exact ? exact : NULL) &&
           is_checked(&c, 20, 2, NULL) && (is_exact || is_checked(&c, 2, 2, NULL));
  }
  return launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
}

/* A result that is added after a step that was only captured is that of the step before it. */
static bool weights_beside_capture(ncclComm_t comm, cudaStream_t stream)
{
  enum { COUNT = 1000 };
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  sparse_allreduce_t handle;
  struct weights w;
  float ones[COUNT], got[COUNT], *gradient;
  cudaGraph_t graph;
  config.algorithm = SPARSE_TOPKA;
  config.warmup_steps = 1;
  config.result = SPARSE_RESULT_ENTRIES;
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  weights_init(&w, COUNT);
  CUDACHECK(cudaMalloc((void **)&gradient, sizeof ones));
  CUDACHECK(cudaMemcpy(gradient, ones, sizeof ones, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  SPARSECHECK(sparse_allreduce_create(comm, COUNT, &config, &handle));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamEndCapture(stream, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  weights_add(&w, handle, stream);
  for (size_t i = 0; i < COUNT; i++) weights_update(&w, i, 1);
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaMemcpy(got, w.device, sizeof got, cudaMemcpyDeviceToHost));
  const bool good = memcmp(got, w.expected, sizeof got) == 0;
  SPARSECHECK(sparse_allreduce_destroy(handle));
  CUDACHECK(cudaFree(gradient));
  weights_free(&w);
  return good;
}

/* Is SPARSE_EXCHANGE_ONESIDED possible here? Then both are tried. */
static bool has_onesided(const struct rank *me, ncclComm_t comm)
{
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  config.exchange = SPARSE_EXCHANGE_ONESIDED;
  sparse_allreduce_t handle;
  const ncclResult_t result = sparse_allreduce_create(comm, 64, &config, &handle);
  if (result == ncclSuccess) SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(me);
  return result == ncclSuccess;
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
  const bool onesided = has_onesided(me, comm);
  const bool graphs = me->nranks == 1 || !launcher_graphs_can_deadlock;
  launcher_note(me, "exchange ONESIDED: %s", onesided ? "yes" : sparse_allreduce_last_error());
  int code = refuse_configuration(me, comm);
  if (code == EXIT_VERIFIED) code = refuse_what_cannot_be(me);
  if (graphs && code == EXIT_VERIFIED) {
    const bool good = weights_beside_capture(comm, streams[0]);
    if (!good) launcher_error("a result is added as that of a step that is only captured");
    launcher_barrier(me); /* see sparse_allreduce_destroy */
    code = launcher_agree(me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  }
  for (int i = 0; i < 3 && late && code == EXIT_VERIFIED; i++)
    code = run_late(me, i == 1, i == 2 ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE, comm,
                    streams[0]);
  const sparse_allreduce_algorithm_t reuse[] = {SPARSE_TOPKAOPT, SPARSE_OKTOPK};
  for (int i = 0; i < (onesided ? 4 : 2) && !late && code == EXIT_VERIFIED; i++) {
    launcher_step("thresholds that select too many");
    const struct job job =
        burst_job(reuse[i % 2], i < 2 ? SPARSE_EXCHANGE_SENDRECV : SPARSE_EXCHANGE_ONESIDED);
    code = run_job(me, &job, comm, streams);
  }
  for (int i = 0; i < (onesided ? 2 : 1) && !late && code == EXIT_VERIFIED; i++) {
    launcher_step("sums that overflow");
    const struct job job = overflow_job(i ? SPARSE_EXCHANGE_ONESIDED : SPARSE_EXCHANGE_SENDRECV);
    code = run_job(me, &job, comm, streams);
  }
  for (long i = 0; i < cases && !late && code == EXIT_VERIFIED; i++) {
    launcher_step("random jobs");
    const uint64_t seed = (uint64_t)(first_seed + i);
    const struct job job =
        long_steps > 0 ? long_job(seed, onesided, graphs) : draw_job(seed, onesided, graphs);
    if (verbose)
      launcher_print(me, "job %llu: %s, %zu elements, density %g, %s, %d steps%s%s\n",
                     (unsigned long long)job.seed, sparse_allreduce_name(job.config.algorithm),
                     job.n, job.config.density, kind_names[job.kind], job.steps,
                     job.config.exchange == SPARSE_EXCHANGE_ONESIDED ? ", one-sided" : "",
                     job.graphs   ? ", graphs"
                     : job.shared ? ", shared residual"
                                  : "");
    code = run_job(me, &job, comm, streams);
  }
  for (int i = 0; i < 2; i++) CUDACHECK(cudaStreamDestroy(streams[i]));
  NCCLCHECK(ncclCommDestroy(comm));
  if (code == EXIT_VERIFIED && !late) launcher_print(me, "%ld jobs verified\n", cases);
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
