/* SPDX-License-Identifier: Apache-2.0 */
#include "program/bench/bench_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"
#include "program/program.h"

#ifdef CPU_STANDIN
enum { REPETITIONS = 1, COPY_BYTES = 1 << 20 };
#else
enum { REPETITIONS = 5, COPY_BYTES = 256 << 20 };
#endif
enum { PHASE_STEPS = 8 };

const struct bench_time bench_no_time = {(double)NAN, (double)NAN, (double)NAN, (double)NAN};

void bench_timer_init(struct bench_timer *timer, const struct rank *me, const struct datatype *type,
                      uint64_t most, bool graphs)
{
  ncclUniqueId id;
  *timer =
      (struct bench_timer){.me = me, .type = type, .steps = most, .most = most, .graphs = graphs};
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&timer->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&timer->stream));
  timer->events = calloc(most + 1, sizeof *timer->events);
  if (!timer->events) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  for (uint64_t i = 0; i <= most; i++) CUDACHECK(cudaEventCreate(&timer->events[i]));
}

void bench_timer_free(struct bench_timer *timer)
{
  for (uint64_t i = 0; i <= timer->most; i++) CUDACHECK(cudaEventDestroy(timer->events[i]));
  free(timer->events);
  CUDACHECK(cudaStreamDestroy(timer->stream));
  NCCLCHECK(ncclCommFinalize(timer->comm));
  NCCLCHECK(ncclCommDestroy(timer->comm));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What is timed: a step of a handle, or an allreduce from one of the send buffers. */
struct way {
  const struct version *version;
  bench_allreduce_t *allreduce;
  void *const *send;
  void *recv;
  /* With -G: captured steps, by gradient and kind; an allreduce has one kind. */
  cudaGraphExec_t graphs[BENCH_GRADIENTS][SPARSE_KINDS];
  bool eager; /* the host takes part in the steps of this path: no graphs */
  /* What the version had at the beginning. Every repetition is the same cycle: the gradients come
   * again and again, which no training does, and thresholds that follow them swing more and more.
   */
  void *state;
};

static void begin_cycle(const struct way *w)
{
  if (w->version) version_load(w->version, w->state);
}

static ncclResult_t enqueue_eagerly(struct bench_timer *timer, const struct way *w, uint64_t slot)
{
  if (w->version && w->version->handle) {
    const sparse_allreduce_t handle = w->version->handle;
    const ncclResult_t result =
        sparse_allreduce_run(handle, timer->gradients[slot], NULL, timer->stream);
    const struct update *update = timer->updates ? w->version->update : NULL;
    return result != ncclSuccess || !update ? result
                                            : update_weights(update, handle, timer->stream);
  }
  if (w->version) {
    version_run(w->version, timer->gradients[slot], NULL, timer->stream);
    return ncclSuccess;
  }
  return w->allreduce(timer, w->send[slot], w->recv);
}

/* NULL if the step cannot be captured. */
static cudaGraphExec_t capture(struct bench_timer *timer, const struct way *w, uint64_t slot)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec = NULL;
  CUDACHECK(cudaStreamBeginCapture(timer->stream, cudaStreamCaptureModeThreadLocal));
  const ncclResult_t result = enqueue_eagerly(timer, w, slot);
  CUDACHECK(cudaStreamEndCapture(timer->stream, &graph));
  if (result != ncclInvalidUsage) {
    NCCLCHECK(result);
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

static void enqueue_step(struct bench_timer *timer, struct way *w, uint64_t step)
{
  const uint64_t slot = step % BENCH_GRADIENTS;
  int kind = 0;
  if (timer->graphs && !w->eager) {
    if (w->version) SPARSECHECK(sparse_allreduce_kind(w->version->handle, &kind));
    cudaGraphExec_t *graph = &w->graphs[slot][kind];
    if (!*graph) *graph = capture(timer, w, slot);
    w->eager = !*graph;
  }
  if (!timer->graphs || w->eager) {
    NCCLCHECK(enqueue_eagerly(timer, w, slot));
    return;
  }
  CUDACHECK(cudaGraphLaunch(w->graphs[slot][kind], timer->stream));
  if (w->version) SPARSECHECK(sparse_allreduce_replayed(w->version->handle));
}

/* All kinds of steps once with each gradient, so that all graphs are there. */
static void warm_up(struct bench_timer *timer, struct way *w)
{
  for (uint64_t step = 0; step < BENCH_GRADIENTS * timer->steps; step++)
    enqueue_step(timer, w, step);
  CUDACHECK(cudaStreamSynchronize(timer->stream));
}

static void free_graphs(struct way *w)
{
  for (int slot = 0; slot < BENCH_GRADIENTS; slot++)
    for (int kind = 0; kind < SPARSE_KINDS; kind++)
      if (w->graphs[slot][kind]) CUDACHECK(cudaGraphExecDestroy(w->graphs[slot][kind]));
}

/* A cycle of steps, in microseconds. Returns a step's mean, of the slowest rank. With `us` there is
 * an event after every step as well: that takes time of its own, and says what each step took. */
static double time_cycle(struct bench_timer *timer, struct way *w, double *us)
{
  float ms;
  launcher_step("bench: timing");
  begin_cycle(w);
  launcher_barrier(timer->me);
  CUDACHECK(cudaEventRecord(timer->events[0], timer->stream));
  for (uint64_t step = 1; step <= timer->steps; step++) {
    enqueue_step(timer, w, step - 1);
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

static struct bench_time time_steps(struct bench_timer *timer, struct way *w)
{
  /* a simple version takes ten times as long as the library: once is enough to see that */
  const int repetitions = w->version && w->version->simple ? 1 : REPETITIONS;
  double medians[REPETITIONS], means[REPETITIONS], *us = malloc(timer->steps * sizeof *us);
  if (!us) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  launcher_step("bench: warm-up");
  if (timer->graphs && !w->eager) warm_up(timer, w);
  for (int repetition = 0; repetition < repetitions; repetition++) {
    means[repetition] = time_cycle(timer, w, NULL);
    time_cycle(timer, w, us);
    medians[repetition] = report_time(timer->me, us, timer->steps).median;
  }
  free(us);
  free_graphs(w);
  const double mean = bench_median(means, repetitions); /* sorts */
  return (struct bench_time){mean, means[0], means[repetitions - 1],
                             bench_median(medians, repetitions)};
}

struct bench_time bench_time_path(struct bench_timer *timer, const struct version *version)
{
  struct way w = {.version = version, .state = version_save(version), .eager = version->simple};
  const struct bench_time time = time_steps(timer, &w);
  free(w.state);
  return time;
}

struct bench_time bench_time_allreduce(struct bench_timer *timer, bench_allreduce_t *allreduce,
                                       void *const send[], void *recv, int *code)
{
  struct way w = {.allreduce = allreduce, .send = send, .recv = recv};
  enqueue_step(timer, &w, 0);
  *code = bench_verify_dense(timer->me, timer->type, send[0], recv, timer->count, timer->stream);
  /* what is wrong on any rank (on all of them then) is not timed */
  return *code == EXIT_VERIFIED ? time_steps(timer, &w) : bench_no_time;
}

/* ---- the parts of a step --------------------------------------------------------------------- */

const char *const bench_phase_names[BENCH_PHASES] = {"select", "exchange", "reduce", "gather",
                                                     "apply"};

void bench_time_phases(struct bench_timer *timer, sparse_allreduce_t handle,
                       double us[BENCH_PHASES])
{
  const struct version version = {.handle = handle};
  struct way w = {.version = &version, .eager = true}; /* events do not go into graphs */
  int steps = 0;
  memset(us, 0, BENCH_PHASES * sizeof *us);
  SPARSECHECK(sparse_allreduce_time_phases(handle, 1));
  for (uint64_t step = 0; step < PHASE_STEPS; step++) {
    sparse_allreduce_phases_t phases;
    sparse_allreduce_statistics_t statistics;
    enqueue_step(timer, &w, step);
    SPARSECHECK(sparse_allreduce_phases(handle, &phases));
    SPARSECHECK(sparse_allreduce_statistics(handle, &statistics));
    if (statistics.exact_global || statistics.repartitioned) continue;
    const float ms[BENCH_PHASES] = {phases.select, phases.exchange, phases.reduce, phases.gather,
                                    phases.apply};
    for (int p = 0; p < BENCH_PHASES; p++) us[p] += ms[p] * 1e3;
    steps++;
  }
  for (int p = 0; p < BENCH_PHASES; p++) us[p] = launcher_max(timer->me, us[p] / steps);
#ifdef CPU_STANDIN
  for (int p = 0; p < BENCH_PHASES; p++) us[p] = (double)NAN;
#endif
}

size_t bench_copy_bytes(void)
{
  return 2 * (size_t)COPY_BYTES;
}

double bench_copy_rate(struct bench_timer *timer)
{
  enum { COPIES = 11 };
  double us[COPIES];
  char *buffer;
  CUDACHECK(cudaMalloc((void **)&buffer, bench_copy_bytes()));
  CUDACHECK(cudaMemsetAsync(buffer, 1, bench_copy_bytes(), timer->stream));
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
