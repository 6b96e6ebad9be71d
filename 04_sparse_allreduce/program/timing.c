/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "allreduce.h"
#include "bench.h"

#ifdef CPU_STANDIN
enum { REPETITIONS = 1 };
#else
enum { REPETITIONS = 5 };
#endif
enum { PHASE_STEPS = 8, COPIES = 11 };

#define DIRECTCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

static struct timing no_timing(void)
{
  const double no = (double)NAN;
  return (struct timing){no, no, no, no, {no, no, no, no, no}};
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What is timed: a step of a path, or an AllReduce from one of the send buffers. */
struct subject {
  struct runner *runner; /* NULL: it is an AllReduce, ... */
  allreduce_t direct;    /* ... if not NULL that of example 02, else NCCL's */
  char *send[GRADIENTS], *recv;
  /* With -G: captured steps, by gradient and kind; an AllReduce has one kind. */
  cudaGraphExec_t graphs[GRADIENTS][SPARSE_KINDS];
  bool eager; /* the host takes part in the steps of this path: no graphs */
  /* What the runner had at the beginning. Every repetition is the same cycle: the gradients come
   * again and again, which no training does, and thresholds that follow them swing more and more.
   */
  void *state;
};

static ncclResult_t enqueue_eagerly(struct sweep *sweep, struct subject *s, uint64_t slot)
{
  const ncclDataType_t type = sweep->verifier.type->nccl;
  if (s->runner) return runner_step(s->runner, sweep->gradients[slot], sweep->stream);
  if (s->direct)
    DIRECTCHECK(
        allreduce_run(s->direct, s->send[slot], s->recv, sweep->count, type, sweep->stream));
  else
    NCCLCHECK(ncclAllReduce(s->send[slot], s->recv, sweep->count, type, ncclSum, sweep->comm,
                            sweep->stream));
  return ncclSuccess;
}

/* NULL if the step cannot be captured. */
static cudaGraphExec_t capture(struct sweep *sweep, struct subject *s, uint64_t slot)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec = NULL;
  CUDACHECK(cudaStreamBeginCapture(sweep->stream, cudaStreamCaptureModeThreadLocal));
  const ncclResult_t result = enqueue_eagerly(sweep, s, slot);
  CUDACHECK(cudaStreamEndCapture(sweep->stream, &graph));
  if (result != ncclInvalidUsage) {
    SPARSECHECK(result);
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

static void enqueue_step(struct sweep *sweep, struct subject *s, uint64_t step)
{
  const uint64_t slot = step % GRADIENTS;
  int kind = 0;
  if (sweep->graphs && !s->eager) {
    if (s->runner) SPARSECHECK(sparse_allreduce_kind(s->runner->handle, &kind));
    cudaGraphExec_t *graph = &s->graphs[slot][kind];
    if (!*graph) *graph = capture(sweep, s, slot);
    s->eager = !*graph;
  }
  if (!sweep->graphs || s->eager) {
    SPARSECHECK(enqueue_eagerly(sweep, s, slot));
    return;
  }
  CUDACHECK(cudaGraphLaunch(s->graphs[slot][kind], sweep->stream));
  if (s->runner) SPARSECHECK(sparse_allreduce_replayed(s->runner->handle));
}

static void free_graphs(struct subject *s)
{
  for (int slot = 0; slot < GRADIENTS; slot++)
    for (int kind = 0; kind < SPARSE_KINDS; kind++)
      if (s->graphs[slot][kind]) CUDACHECK(cudaGraphExecDestroy(s->graphs[slot][kind]));
}

static double elapsed(cudaEvent_t start, cudaEvent_t stop)
{
  float ms;
  CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
  return ms * 1e3;
}

/* With an event before the first and after the last of the steps. One after every step takes time
 * of its own, and says what each step took. */
static void run_cycle(struct sweep *sweep, struct subject *s, cudaEvent_t *events, bool every_step)
{
  launcher_step("bench: timing");
  if (s->runner) runner_load(s->runner, s->state);
  launcher_barrier(sweep->me);
  CUDACHECK(cudaEventRecord(events[0], sweep->stream));
  for (uint64_t step = 1; step <= sweep->steps; step++) {
    enqueue_step(sweep, s, step - 1);
    if (every_step || step == sweep->steps) CUDACHECK(cudaEventRecord(events[step], sweep->stream));
  }
  CUDACHECK(cudaStreamSynchronize(sweep->stream));
}

static struct timing time_steps(struct sweep *sweep, struct subject *s)
{
  /* a simple version takes ten times as long as the library: once is enough to see that */
  const int repetitions = s->runner && s->runner->simple ? 1 : REPETITIONS;
  double medians[REPETITIONS], means[REPETITIONS], *us = allocate(sweep->steps * sizeof *us);
  cudaEvent_t *events = allocate((sweep->steps + 1) * sizeof *events);
  struct timing time = no_timing();
  for (uint64_t i = 0; i <= sweep->steps; i++) CUDACHECK(cudaEventCreate(&events[i]));
  launcher_step("bench: warm-up");
  if (sweep->graphs && !s->eager) { /* all kinds with each gradient, so that all graphs are there */
    for (uint64_t step = 0; step < GRADIENTS * sweep->steps; step++) enqueue_step(sweep, s, step);
    CUDACHECK(cudaStreamSynchronize(sweep->stream));
  }
  for (int i = 0; i < repetitions; i++) {
    run_cycle(sweep, s, events, false);
    means[i] = elapsed(events[0], events[sweep->steps]) / (double)sweep->steps;
    means[i] = report_time(sweep->me, &means[i], 1);
    run_cycle(sweep, s, events, true);
    for (uint64_t step = 0; step < sweep->steps; step++)
      us[step] = elapsed(events[step], events[step + 1]);
    medians[i] = report_time(sweep->me, us, sweep->steps);
  }
  for (uint64_t i = 0; i <= sweep->steps; i++) CUDACHECK(cudaEventDestroy(events[i]));
  free(events);
  free(us);
  time.mean = bench_median(means, repetitions); /* sorts */
  time.mean_min = means[0];
  time.mean_max = means[repetitions - 1];
  time.median = bench_median(medians, repetitions);
  return time;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* A step with each gradient, compared with the reference. */
static int verify_steps(struct sweep *sweep, struct subject *s, struct verification *v)
{
  int code = EXIT_VERIFIED;
  for (uint64_t i = 0; i < GRADIENTS && code == EXIT_VERIFIED; i++) {
    enqueue_step(sweep, s, i);
    code = runner_check(s->runner, i);
    if (code != EXIT_VERIFIED) break;
    const struct step_outcome left = runner_outcome(s->runner);
    code = verification_step(v, &left, sweep->gradients[i]);
  }
  return code;
}

const char *const phase_names[PHASES] = {"select", "exchange", "reduce", "gather", "apply"};

/* The parts of a step. */
static void time_phases(struct sweep *sweep, struct runner *runner, double us[PHASES])
{
  struct subject s = {.runner = runner, .eager = true}; /* events do not go into graphs */
  int steps = 0;
  memset(us, 0, PHASES * sizeof *us);
  SPARSECHECK(sparse_allreduce_time_phases(runner->handle, 1));
  for (uint64_t step = 0; step < PHASE_STEPS; step++) {
    sparse_allreduce_phases_t phases;
    sparse_allreduce_statistics_t statistics;
    enqueue_step(sweep, &s, step);
    SPARSECHECK(sparse_allreduce_phases(runner->handle, &phases));
    SPARSECHECK(sparse_allreduce_statistics(runner->handle, &statistics));
    if (statistics.exact_global || statistics.repartitioned) continue;
    const float ms[PHASES] = {phases.select, phases.exchange, phases.reduce, phases.gather,
                              phases.apply};
    for (int p = 0; p < PHASES; p++) us[p] += ms[p] * 1e3;
    steps++;
  }
  for (int p = 0; p < PHASES; p++) {
    us[p] /= steps;
    us[p] = report_time(sweep->me, &us[p], 1);
  }
}

struct timing time_path(struct sweep *sweep, struct runner *runner, int *code)
{
  struct subject s = {.runner = runner, .eager = true};
  struct timing time = no_timing();
  struct verification v;
  launcher_step("bench: verification before timing");
  *code = verification_init(&v, runner, true, false);
  if (*code == EXIT_VERIFIED) *code = verify_steps(sweep, &s, &v);
  if (*code == EXIT_VERIFIED) {
    s.eager = runner->simple;
    s.state = runner_save(runner);
    time = time_steps(sweep, &s);
    launcher_step("bench: verification after timing");
    runner_load(runner, s.state); /* the state in which the reference is */
    if (runner->simple) simple_reset(v.ref);
    if (runner->weights)
      CUDACHECK(cudaMemcpy(runner->weights, v.weights, sweep->count * sizeof *v.weights,
                           cudaMemcpyHostToDevice));
    *code = verify_steps(sweep, &s, &v);
    if (!runner->simple) time_phases(sweep, runner, time.phases);
    free_graphs(&s);
    free(s.state);
  }
  verification_free(&v);
  return *code == EXIT_VERIFIED ? time : no_timing();
}

/* ---- what they are compared with ------------------------------------------------------------- */

const char *const dense_names[DENSE_KINDS] = {"plain", "symmetric", "direct"};

void time_dense(struct sweep *sweep, enum dense_kind kind)
{
  const size_t bytes = sweep->count * sweep->verifier.type->size;
  const size_t stride = (bytes + 4095) / 4096 * 4096, all = (GRADIENTS + 1) * stride;
  struct timing *time = &sweep->dense[kind];
  int *code = &sweep->dense_codes[kind];
  struct subject s = {0};
  ncclWindow_t window = NULL; /* of all buffers */
  char *memory;
  ncclResult_t result;
  launcher_step("bench: dense");
  *code = EXIT_CANNOT_RUN;
  *time = no_timing();
  if (kind == DIRECT) {
    result = allreduce_create(sweep->comm, NULL, &s.direct);
    if (result == ncclInvalidUsage) return; /* on all ranks */
    CHECK_NCCL_RESULT(result, "allreduce_create", allreduce_last_error());
  }
  if (kind == PLAIN) {
    CUDACHECK(cudaMalloc((void **)&memory, all));
  } else {
    NCCLCHECK(ncclMemAlloc((void **)&memory, all));
    NCCLCHECK(ncclCommWindowRegister(sweep->comm, memory, all, &window, NCCL_WIN_COLL_SYMMETRIC));
  }
  if (s.direct) DIRECTCHECK(allreduce_add_window(s.direct, window, memory, all));
  for (int i = 0; i < GRADIENTS; i++) s.send[i] = memory + (size_t)i * stride;
  s.recv = memory + GRADIENTS * stride;

  *code = EXIT_VERIFIED;
  for (int timed = 0; timed < 2 && *code == EXIT_VERIFIED; timed++) {
    for (int i = 0; i < GRADIENTS; i++)
      verifier_fill(&sweep->verifier, VERIFY_INDEXED, s.send[i], s.recv, sweep->count);
    /* a symmetric kernel may start before what is in front of it has finished; and with several
     * GPUs in one process, allocating may wait for all of them */
    CUDACHECK(cudaStreamSynchronize(sweep->stream));
    launcher_barrier(sweep->me);
    if (timed)
      *time = time_steps(sweep, &s);
    else
      enqueue_step(sweep, &s, 0);
    CUDACHECK(cudaStreamSynchronize(sweep->stream));
    verifier_compare(&sweep->verifier, s.recv, sweep->count);
    const bool wrong = verifier_report(&sweep->verifier, "ncclAllReduce") != 0;
    *code = launcher_agree(sweep->me, wrong ? EXIT_WRONG_DATA : EXIT_VERIFIED);
  }
  free_graphs(&s);
  if (s.direct) {
    DIRECTCHECK(allreduce_get_async_error(s.direct, &result));
    CHECK_NCCL_RESULT(result, "allreduce_run", allreduce_last_error());
    DIRECTCHECK(allreduce_destroy(s.direct));
  }
  launcher_barrier(sweep->me); /* a slower peer may still read this rank's memory */
  if (window) NCCLCHECK(ncclCommWindowDeregister(sweep->comm, window));
  if (kind == PLAIN)
    CUDACHECK(cudaFree(memory));
  else
    NCCLCHECK(ncclMemFree(memory));
  launcher_barrier(sweep->me); /* freeing may wait for all GPUs, and for what runs there */
  if (*code != EXIT_VERIFIED) *time = no_timing();
}

double time_copy(struct sweep *sweep)
{
  double us[COPIES];
  char *half[2];
  cudaEvent_t start, stop;
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  CUDACHECK(cudaMalloc((void **)&half[0], 2 * (size_t)COPY_BYTES));
  CUDACHECK(cudaMemsetAsync(half[0], 1, 2 * (size_t)COPY_BYTES, sweep->stream));
  half[1] = half[0] + COPY_BYTES;
  for (int i = 0; i < COPIES; i++) {
    CUDACHECK(cudaEventRecord(start, sweep->stream));
    CUDACHECK(cudaMemcpyAsync(half[i % 2], half[1 - i % 2], COPY_BYTES, cudaMemcpyDeviceToDevice,
                              sweep->stream));
    CUDACHECK(cudaEventRecord(stop, sweep->stream));
    CUDACHECK(cudaStreamSynchronize(sweep->stream));
    us[i] = elapsed(start, stop);
  }
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  CUDACHECK(cudaFree(half[0]));
  launcher_barrier(sweep->me);
  return 2.0 * COPY_BYTES / report_time(sweep->me, us, COPIES);
}
