/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "program/report.h"
#include "program/verification.h"

#ifdef CPU_STANDIN
enum { REPETITIONS = 1, COPY_BYTES = 1 << 20 };
#else
enum { REPETITIONS = 5, COPY_BYTES = 256 << 20 };
#endif
enum { PHASE_STEPS = 8 };

const struct timing no_timing = {(double)NAN, (double)NAN, (double)NAN, (double)NAN};

void timer_init(struct timer *timer, const struct rank *me, const struct datatype *type,
                uint64_t most, bool graphs)
{
  ncclUniqueId id;
  *timer = (struct timer){.me = me, .type = type, .steps = most, .most = most, .graphs = graphs};
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&timer->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&timer->stream));
  timer->events = calloc(most + 1, sizeof *timer->events);
  if (!timer->events) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  for (uint64_t i = 0; i <= most; i++) CUDACHECK(cudaEventCreate(&timer->events[i]));
}

void timer_free(struct timer *timer)
{
  for (uint64_t i = 0; i <= timer->most; i++) CUDACHECK(cudaEventDestroy(timer->events[i]));
  free(timer->events);
  CUDACHECK(cudaStreamDestroy(timer->stream));
  NCCLCHECK(ncclCommFinalize(timer->comm));
  NCCLCHECK(ncclCommDestroy(timer->comm));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What is timed: a step of a path, or an allreduce from one of the send buffers. */
struct subject {
  const struct runner *runner;
  allreduce_call *call;
  void *const *send;
  void *recv;
  /* With -G: captured steps, by gradient and kind; an allreduce has one kind. */
  cudaGraphExec_t graphs[GRADIENTS][SPARSE_KINDS];
  bool eager; /* the host takes part in the steps of this path: no graphs */
  /* What the runner had at the beginning. Every repetition is the same cycle: the gradients come
   * again and again, which no training does, and thresholds that follow them swing more and more.
   */
  void *state;
};

static ncclResult_t enqueue_eagerly(struct timer *timer, const struct subject *s, uint64_t slot)
{
  const float *result;
  if (s->runner) return runner_step(s->runner, timer->gradients[slot], &result, timer->stream);
  return s->call(timer, s->send[slot], s->recv);
}

/* NULL if the step cannot be captured. */
static cudaGraphExec_t capture(struct timer *timer, const struct subject *s, uint64_t slot)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec = NULL;
  CUDACHECK(cudaStreamBeginCapture(timer->stream, cudaStreamCaptureModeThreadLocal));
  const ncclResult_t result = enqueue_eagerly(timer, s, slot);
  CUDACHECK(cudaStreamEndCapture(timer->stream, &graph));
  if (result != ncclInvalidUsage) {
    NCCLCHECK(result);
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

static void enqueue_step(struct timer *timer, struct subject *s, uint64_t step)
{
  const uint64_t slot = step % GRADIENTS;
  int kind = 0;
  if (timer->graphs && !s->eager) {
    if (s->runner) SPARSECHECK(sparse_allreduce_kind(s->runner->handle, &kind));
    cudaGraphExec_t *graph = &s->graphs[slot][kind];
    if (!*graph) *graph = capture(timer, s, slot);
    s->eager = !*graph;
  }
  if (!timer->graphs || s->eager) {
    NCCLCHECK(enqueue_eagerly(timer, s, slot));
    return;
  }
  CUDACHECK(cudaGraphLaunch(s->graphs[slot][kind], timer->stream));
  if (s->runner) SPARSECHECK(sparse_allreduce_replayed(s->runner->handle));
}

static void free_graphs(struct subject *s)
{
  for (int slot = 0; slot < GRADIENTS; slot++)
    for (int kind = 0; kind < SPARSE_KINDS; kind++)
      if (s->graphs[slot][kind]) CUDACHECK(cudaGraphExecDestroy(s->graphs[slot][kind]));
}

/* A cycle of steps, in microseconds. Returns a step's mean, of the slowest rank. With `us` there is
 * an event after every step as well: that takes time of its own, and says what each step took. */
static double time_cycle(struct timer *timer, struct subject *s, double *us)
{
  float ms;
  launcher_step("bench: timing");
  if (s->runner) runner_load(s->runner, s->state);
  launcher_barrier(timer->me);
  CUDACHECK(cudaEventRecord(timer->events[0], timer->stream));
  for (uint64_t step = 1; step <= timer->steps; step++) {
    enqueue_step(timer, s, step - 1);
    if (us || step == timer->steps) CUDACHECK(cudaEventRecord(timer->events[step], timer->stream));
  }
  CUDACHECK(cudaStreamSynchronize(timer->stream));
  for (uint64_t step = 0; us && step < timer->steps; step++) {
    CUDACHECK(cudaEventElapsedTime(&ms, timer->events[step], timer->events[step + 1]));
    us[step] = ms * 1e3;
  }
  CUDACHECK(cudaEventElapsedTime(&ms, timer->events[0], timer->events[timer->steps]));
  const double mean = ms * 1e3 / (double)timer->steps;
  return report_time(timer->me, &mean, 1).mean;
}

static struct timing time_steps(struct timer *timer, struct subject *s)
{
  /* a simple version takes ten times as long as the library: once is enough to see that */
  const int repetitions = s->runner && s->runner->simple ? 1 : REPETITIONS;
  double medians[REPETITIONS], means[REPETITIONS], *us = malloc(timer->steps * sizeof *us);
  if (!us) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  launcher_step("bench: warm-up");
  if (timer->graphs && !s->eager) { /* all kinds with each gradient, so that all graphs are there */
    for (uint64_t step = 0; step < GRADIENTS * timer->steps; step++) enqueue_step(timer, s, step);
    CUDACHECK(cudaStreamSynchronize(timer->stream));
  }
  for (int repetition = 0; repetition < repetitions; repetition++) {
    means[repetition] = time_cycle(timer, s, NULL);
    time_cycle(timer, s, us);
    medians[repetition] = report_time(timer->me, us, timer->steps).median;
  }
  free(us);
  const double mean = bench_median(means, repetitions); /* sorts */
  return (struct timing){mean, means[0], means[repetitions - 1],
                         bench_median(medians, repetitions)};
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* The calls that were timed, graphs among them, from the state in which the reference is. */
static int verify_timed(struct timer *timer, struct subject *s, struct verification *v,
                        const float *result)
{
  const struct runner *r = s->runner;
  int code = EXIT_VERIFIED;
  launcher_step("bench: verification after timing");
  runner_load(r, s->state);
  if (r->simple) simple_reset(v->ref);
  if (r->weights) {
    CUDACHECK(cudaMemset(r->weights, 0, timer->count * sizeof *r->weights));
    CUDACHECK(cudaDeviceSynchronize());
    memset(v->weights, 0, timer->count * sizeof *v->weights);
  }
  for (uint64_t i = 0; i < GRADIENTS && code == EXIT_VERIFIED; i++) {
    enqueue_step(timer, s, i);
    code = verification_step(v, r, result, timer->gradients[i]);
  }
  return code;
}

struct timing time_path(struct timer *timer, const struct runner *runner,
                        const sparse_allreduce_config_t *config, bool updates, int *code)
{
  const char *name = simple_paths[config->algorithm].name;
  const float *result = NULL;
  struct timing time = no_timing;
  struct verification v;
  launcher_step("bench: verification before timing");
  *code = verification_init(&v, timer->me, config, timer->count, true, false);
  for (uint64_t i = 0; i < GRADIENTS && *code == EXIT_VERIFIED; i++) {
    SPARSECHECK(runner_step(runner, timer->gradients[i], &result, timer->stream));
    *code = runner_check(runner, name, i);
    if (*code == EXIT_VERIFIED) *code = verification_step(&v, runner, result, timer->gradients[i]);
  }
  if (*code == EXIT_VERIFIED) {
    struct runner timed = *runner;
    if (!updates) timed.weights = NULL;
    struct subject s = {.runner = &timed, .state = runner_save(runner), .eager = runner->simple};
    time = time_steps(timer, &s);
    *code = verify_timed(timer, &s, &v, result);
    if (*code == EXIT_VERIFIED) *code = runner_check(runner, name, 0);
    free_graphs(&s);
    free(s.state);
  }
  verification_free(&v);
  return *code == EXIT_VERIFIED ? time : no_timing;
}

struct timing time_allreduce(struct timer *timer, allreduce_call *call, void *const send[],
                             void *recv, int *code)
{
  struct subject s = {.call = call, .send = send, .recv = recv};
  const ncclDataType_t type = timer->type->nccl;
  struct timing time = no_timing;
  uint64_t last = 0;
  *code = EXIT_VERIFIED;
  for (int timed = 0; timed < 2 && *code == EXIT_VERIFIED; timed++) {
    if (timed) {
      time = time_steps(timer, &s);
      last = (timer->steps - 1) % GRADIENTS;
    } else {
      enqueue_step(timer, &s, last);
    }
    CUDACHECK(cudaStreamSynchronize(timer->stream));
    *code = verify_sum(timer->me, "ncclAllReduce", send[last], type, recv, type, timer->count, 1);
  }
  free_graphs(&s);
  return *code == EXIT_VERIFIED ? time : no_timing;
}

/* ---- the parts of a step --------------------------------------------------------------------- */

const char *const phase_names[PHASES] = {"select", "exchange", "reduce", "gather", "apply"};

void time_phases(struct timer *timer, const struct runner *runner, double us[PHASES])
{
  struct runner plain = *runner;
  plain.weights = NULL;
  struct subject s = {.runner = &plain, .eager = true}; /* events do not go into graphs */
  int steps = 0;
  memset(us, 0, PHASES * sizeof *us);
  SPARSECHECK(sparse_allreduce_time_phases(runner->handle, 1));
  for (uint64_t step = 0; step < PHASE_STEPS; step++) {
    sparse_allreduce_phases_t phases;
    sparse_allreduce_statistics_t statistics;
    enqueue_step(timer, &s, step);
    SPARSECHECK(sparse_allreduce_phases(runner->handle, &phases));
    SPARSECHECK(sparse_allreduce_statistics(runner->handle, &statistics));
    if (statistics.exact_global || statistics.repartitioned) continue;
    const float ms[PHASES] = {phases.select, phases.exchange, phases.reduce, phases.gather,
                              phases.apply};
    for (int p = 0; p < PHASES; p++) us[p] += ms[p] * 1e3;
    steps++;
  }
  for (int p = 0; p < PHASES; p++) us[p] = launcher_max(timer->me, us[p] / steps);
#ifdef CPU_STANDIN
  for (int p = 0; p < PHASES; p++) us[p] = (double)NAN;
#endif
}

size_t time_copy_bytes(void)
{
  return 2 * (size_t)COPY_BYTES;
}

double time_copy(struct timer *timer)
{
  enum { COPIES = 11 };
  double us[COPIES];
  char *buffer;
  CUDACHECK(cudaMalloc((void **)&buffer, time_copy_bytes()));
  CUDACHECK(cudaMemsetAsync(buffer, 1, time_copy_bytes(), timer->stream));
  for (int i = 0; i < COPIES; i++) {
    float ms;
    CUDACHECK(cudaEventRecord(timer->events[0], timer->stream));
    CUDACHECK(cudaMemcpyAsync(buffer + (i & 1 ? COPY_BYTES : 0), buffer + (i & 1 ? 0 : COPY_BYTES),
                              COPY_BYTES, cudaMemcpyDeviceToDevice, timer->stream));
    CUDACHECK(cudaEventRecord(timer->events[1], timer->stream));
    CUDACHECK(cudaStreamSynchronize(timer->stream));
    CUDACHECK(cudaEventElapsedTime(&ms, timer->events[0], timer->events[1]));
    us[i] = ms * 1e3;
  }
  CUDACHECK(cudaFree(buffer));
  launcher_barrier(timer->me);
  return 2.0 * COPY_BYTES / report_time(timer->me, us, COPIES).median;
}
