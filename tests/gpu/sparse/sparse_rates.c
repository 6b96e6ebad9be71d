/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: how long the operators take at the sizes of the paper's three models, as CUDA graphs of
 * 30 launches over three gradients in turn (so that no gradient is still in the L2 cache), median
 * of 11. Where memory is the limit: bytes moved per second, and in percent of what a
 * device-to-device copy of 256 MiB moves, read and written, in the same run. The copy is no graph:
 * there, copies are slower. */
#include "sparse_bare.h"
#include "sparse_world.h"

#include <stdio.h>

enum { LAUNCHES = ON_GPU ? 30 : 2, REPETITIONS = ON_GPU ? 11 : 1, SAMPLE = 1 << 21 };
enum { COPY_BYTES = ON_GPU ? 256 << 20 : 1 << 20 };

struct rates {
  struct test *t;
  struct world w;
  char *gradients; /* three */
  double copy_rate;
  uint32_t *sources; /* device: nothing, list, residual */
  struct sparse_list to;
  enum sparse_removal removal; /* the residual, after a pass */
};

typedef void (*operator_t)(struct rates *r, const void *gradient);

static int by_value(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median microseconds of a launch. */
static double time_of(struct rates *r, operator_t operator)
{
  const size_t vector = (r->w.m.n + 16) / 4 * 4 * sizeof(float);
  cudaStream_t stream = r->w.stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t start, stop;
  double times[REPETITIONS + 1];
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (size_t i = 0; i < LAUNCHES; i++) operator(r, r->gradients + i % 3 * vector);
  CUDACHECK(cudaStreamEndCapture(stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = -1; i < REPETITIONS; i++) { /* -1: not counted */
    float ms;
    CUDACHECK(cudaEventRecord(start, stream));
    CUDACHECK(cudaGraphLaunch(exec, stream));
    CUDACHECK(cudaEventRecord(stop, stream));
    CUDACHECK(cudaEventSynchronize(stop));
    CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
    times[i < 0 ? REPETITIONS : i] = ms * 1e3 / LAUNCHES;
  }
  qsort(times, REPETITIONS, sizeof *times, by_value);
  CUDACHECK(cudaGraphExecDestroy(exec));
  CUDACHECK(cudaGraphDestroy(graph));
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  return times[REPETITIONS / 2];
}

/* Bytes per microsecond of a copy, read and written. */
static double copy_rate(cudaStream_t stream)
{
  cudaEvent_t start, stop;
  double times[REPETITIONS];
  char *buffer;
  CUDACHECK(cudaMalloc((void **)&buffer, 2 * (size_t)COPY_BYTES));
  CUDACHECK(cudaMemsetAsync(buffer, 1, 2 * (size_t)COPY_BYTES, stream));
  CUDACHECK(cudaEventCreate(&start));
  CUDACHECK(cudaEventCreate(&stop));
  for (int i = 0; i < REPETITIONS; i++) {
    float ms;
    CUDACHECK(cudaEventRecord(start, stream));
    CUDACHECK(cudaMemcpyAsync(buffer + (i & 1 ? COPY_BYTES : 0), buffer + (i & 1 ? 0 : COPY_BYTES),
                              COPY_BYTES, cudaMemcpyDeviceToDevice, stream));
    CUDACHECK(cudaEventRecord(stop, stream));
    CUDACHECK(cudaEventSynchronize(stop));
    CUDACHECK(cudaEventElapsedTime(&ms, start, stop));
    times[i] = ms * 1e3;
  }
  qsort(times, REPETITIONS, sizeof *times, by_value);
  CUDACHECK(cudaFree(buffer));
  CUDACHECK(cudaEventDestroy(start));
  CUDACHECK(cudaEventDestroy(stop));
  return 2.0 * COPY_BYTES / times[REPETITIONS / 2];
}

static void row(struct rates *r, const char *name, operator_t operator, double bytes)
{
  const double us = time_of(r, operator);
  if (bytes > 0)
    launcher_print(r->t->me, "%-28s %9.1f us %8.0f GB/s %6.1f %% of copy\n", name, us,
                   bytes / us * 1e-3, 100 * bytes / us / r->copy_rate);
  else
    launcher_print(r->t->me, "%-28s %9.1f us\n", name, us);
  fflush(stdout);
}

/* ---- the operators ----------------------------------------------------------------------------
 */

static struct sparse_list offered(const struct rates *r)
{
  return (struct sparse_list){r->w.m.offered, &r->w.m.state->offered_count, 1};
}

static struct sparse_list gathered(const struct rates *r)
{
  return (struct sparse_list){r->w.m.gathered, &r->w.m.state->result_count, 1};
}

/* See sparse_bare.h. The stand-in has no limit to show. */
static void bare(struct rates *r, const void *gradient)
{
#ifdef CPU_STANDIN
  (void)r, (void)gradient;
#else
  CUDACHECK(bare_pass(r->w.m.residual, gradient, r->w.m.n, r->w.stream));
#endif
}

static void pass(struct rates *r, const void *gradient)
{
  OPSCHECK(ops_local_pass(&r->w.m, gradient, SPARSE_ABOVE_LEVELS, r->removal, r->w.stream));
}

static void pass_moments(struct rates *r, const void *gradient)
{
  OPSCHECK(ops_local_pass_moments(&r->w.m, gradient, SPARSE_ABOVE_LEVELS, r->removal, r->w.stream));
}

static void pass_without(struct rates *r, const void *gradient)
{
  (void)gradient;
  OPSCHECK(ops_local_pass(&r->w.m, NULL, SPARSE_ABOVE_LEVELS, r->removal, r->w.stream));
}

/* The search, the filter, or both; NULL leaves one out. */
static void select_from(struct rates *r, const uint32_t *to_search, const uint32_t *to_keep)
{
  const struct sparse_select select = {.from = offered(r),
                                       .to = gathered(r),
                                       .search = to_search,
                                       .keep = to_keep,
                                       .selection = &r->w.m.state->selection};
  OPSCHECK(ops_select(&r->w.m, &select, r->w.stream));
}

static void select_nothing(struct rates *r, const void *gradient)
{
  (void)gradient;
  select_from(r, r->sources + SPARSE_FROM_NOTHING, r->sources + SPARSE_FROM_NOTHING);
}

static void search_list(struct rates *r, const void *gradient)
{
  (void)gradient;
  select_from(r, r->sources + SPARSE_FROM_LIST, NULL);
}

static void search_residual(struct rates *r, const void *gradient)
{
  (void)gradient;
  select_from(r, r->sources + SPARSE_FROM_RESIDUAL, NULL);
}

static void keep_list(struct rates *r, const void *gradient)
{
  (void)gradient;
  select_from(r, NULL, r->sources + SPARSE_FROM_LIST);
}

static void keep_residual(struct rates *r, const void *gradient)
{
  (void)gradient;
  select_from(r, NULL, r->sources + SPARSE_FROM_RESIDUAL);
}

static void control(struct rates *r, const void *gradient)
{
  (void)gradient;
  OPSCHECK(ops_decide(&r->w.m, SPARSE_THEN_NOTHING, r->w.stream));
}

static void partition(struct rates *r, const void *gradient)
{
  (void)gradient;
  OPSCHECK(ops_partition(&r->w.m, r->w.stream));
}

static void reduce_whole(struct rates *r, const void *gradient)
{
  const struct sparse_memory *m = &r->w.m;
  (void)gradient;
  OPSCHECK(ops_reduce(m, m->received, m->state->received_displs, m->state->received_counts, 0, 1,
                      m->state->whole, SPARSE_SUMS_ABOVE, r->to, SPARSE_THEN_NOTHING, r->w.stream));
}

/* As the owner of a quarter of the indices: lists with just these. */
static void reduce_region(struct rates *r, const void *gradient)
{
  const struct sparse_memory *m = &r->w.m;
  (void)gradient;
  OPSCHECK(ops_reduce(m, m->received, m->state->gathered_displs, m->state->gathered_counts, 0, 1,
                      m->state->boundaries + 1, SPARSE_SUMS_ABOVE, r->to, SPARSE_THEN_NOTHING,
                      r->w.stream));
}

static void merge(struct rates *r, const void *gradient)
{
  const struct sparse_memory *m = &r->w.m;
  (void)gradient;
  OPSCHECK(ops_merge(m, offered(r), (struct sparse_list){m->received, m->state->received_counts, 1},
                     r->to, r->w.stream));
}

static void apply(struct rates *r, const void *gradient)
{
  (void)gradient;
  OPSCHECK(ops_apply(&r->w.m, gathered(r), r->w.stream));
}

static void apply_entries(struct rates *r, const void *gradient)
{
  struct sparse_memory m = r->w.m;
  (void)gradient;
  m.config.result = SPARSE_RESULT_ENTRIES;
  OPSCHECK(ops_apply(&m, gathered(r), r->w.stream));
}

static void add(struct rates *r, const void *gradient)
{
  (void)gradient;
  OPSCHECK(ops_add_entries(&r->w.m, gathered(r), -0.1f, r->w.m.dense, r->w.stream));
}

/* ---- one size ---------------------------------------------------------------------------------
 */

static void put_state(struct rates *r)
{
  CUDACHECK(cudaMemcpy(r->w.m.state, r->w.state, sizeof *r->w.state, cudaMemcpyHostToDevice));
}

/* Levels as Ok-Topk's, from `threshold` on; the list is what is above it. */
static void set_levels(struct rates *r, double threshold, int nlevels)
{
  struct sparse_state *s = r->w.state;
  s->nlevels = nlevels;
  for (int j = 0; j < nlevels; j++) s->levels[j] = sparse_level(threshold * pow(1.03, j));
  put_state(r);
}

/* The same sample again and again; returns its quantile. */
static double fill_residual(struct rates *r, double density)
{
  float *sample = malloc(SAMPLE * sizeof *sample);
  double *sorted = malloc(SAMPLE * sizeof *sorted);
  for (size_t i = 0; i < SAMPLE; i++) {
    sample[i] = element(r->t, RANDOM);
    sorted[i] = fabs((double)sample[i]);
  }
  for (size_t i = 0; i < r->w.m.n; i += SAMPLE) {
    const size_t left = r->w.m.n - i;
    CUDACHECK(cudaMemcpy(r->w.m.residual + i, sample,
                         (left < SAMPLE ? left : SAMPLE) * sizeof *sample, cudaMemcpyHostToDevice));
  }
  qsort(sorted, SAMPLE, sizeof *sorted, by_value);
  const double threshold = sorted[(size_t)((1 - density) * SAMPLE)];
  free(sample);
  free(sorted);
  return threshold;
}

/* Four lists of k entries each over everything, and where a quarter begins and ends in them. */
static void fill_lists(struct rates *r)
{
  struct world *w = &r->w;
  struct sparse_state *s = w->state;
  const size_t n = w->m.n;
  uint64_t used = 0;
  for (int p = 0; p < 4; p++) {
    s->received_displs[p] = used;
    s->received_counts[p] =
        random_list(r->t, w->received + used, w->m.capacity, 0, n, (uint32_t)(n / w->m.k), RANDOM);
    uint64_t first = used, last;
    while (w->received[first].index < n / 4) first++;
    for (last = first; w->received[last].index < n / 2; last++) continue;
    s->gathered_displs[p] = first;
    s->gathered_counts[p] = last - first;
    used += s->received_counts[p];
  }
  for (uint64_t j = 0; j <= 4; j++) s->boundaries[j] = j * (n / 4);
  s->boundaries[4] = s->whole[1] = n;
  s->global_threshold = 0.01;
  memcpy(w->gathered, w->received, s->received_counts[0] * sizeof *w->gathered);
  s->result_count = s->received_counts[0];
  CUDACHECK(
      cudaMemcpy(w->m.received, w->received, used * sizeof *w->received, cudaMemcpyHostToDevice));
  put_state(r);
}

/* As a step of oktopk leaves it: a result whose entries are to leave the residual. */
static void leave_result(struct rates *r, double threshold)
{
  struct sparse_state *s = r->w.state;
  s->selection = (struct sparse_selection){sparse_level(threshold), SPARSE_INFINITY_LEVEL, -1, 0};
  s->pending = SPARSE_REMOVE_IN_RESULT;
  r->removal = SPARSE_REMOVE_IN_RESULT;
  CUDACHECK(cudaMemcpy(r->w.m.gathered, r->w.gathered, s->result_count * sizeof *r->w.gathered,
                       cudaMemcpyHostToDevice));
  put_state(r);
  apply(r, NULL);
}

static void rates_of(struct test *t, size_t n, double density)
{
  struct rates r = {.t = t, .removal = SPARSE_REMOVE_OFFERED};
  const double words = 4.0 * (double)n;
  const size_t vector = (n + 16) / 4 * 4 * sizeof(float);
  const uint32_t sources[] = {SPARSE_FROM_NOTHING, SPARSE_FROM_LIST, SPARSE_FROM_RESIDUAL};
  launcher_step("rates");
  world_open(&r.w, t, n, (size_t)((double)n * density), 4);
  struct sparse_state *s = r.w.state;
  const size_t list = r.w.lists * sizeof(struct sparse_pair);
  CUDACHECK(cudaMalloc((void **)&r.gradients, 3 * vector));
  CUDACHECK(cudaMalloc((void **)&r.sources, sizeof sources));
  CUDACHECK(cudaMalloc((void **)&r.to.pairs, list));
  CUDACHECK(cudaMemcpy(r.sources, sources, sizeof sources, cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemset(r.gradients, 0x20, 3 * vector)); /* 1e-19: the residual stays as it is */
  r.to.counts = &r.w.m.state->reduced_count;
  r.to.parts = 1;
  const double threshold = fill_residual(&r, density);
  s->limit = SPARSE_INFINITY_LEVEL;
  s->wanted = r.w.m.k;
  fill_lists(&r);

  r.copy_rate = copy_rate(r.w.stream);
  launcher_print(t->me, "n = %zu, density %g, k = %zu\n%-28s %9.1f us %8.0f GB/s\n", n, density,
                 r.w.m.k, "12 bytes per element, copied", 3 * words / r.copy_rate,
                 r.copy_rate * 1e-3);
  row(&r, "residual += gradient alone", bare, 3 * words);
  leave_result(&r, threshold);
  set_levels(&r, threshold, 6);
  row(&r, "local pass, float", pass, 3 * words);
  row(&r, "local pass, float, moments", pass_moments, 3 * words);
  r.w.m.config.gradient_type = ncclBfloat16;
  row(&r, "local pass, bfloat16", pass, 2.5 * words);
  row(&r, "local pass, no gradient", pass_without, words);
  r.w.m.config.gradient_type = ncclFloat;
  row(&r, "control", control, 0);
  row(&r, "search and keep, nothing", select_nothing, 0);
  set_levels(&r, threshold * 0.85, 1); /* candidates of an exact selection */
  row(&r, "local pass, float, 1 level", pass, 3 * words);
  row(&r, "search, list", search_list, 0);
  row(&r, "keep, list", keep_list, 0);
  row(&r, "partition", partition, 0);
  row(&r, "search, residual", search_residual, 3 * words);
  row(&r, "keep, residual", keep_residual, words);
  row(&r, "merge", merge, 0);
  row(&r, "reduce, a quarter of all", reduce_region, 0);
  row(&r, "reduce, all", reduce_whole, 0);
  leave_result(&r, threshold); /* again: keeping has written to the list */
  row(&r, "apply", apply, 0);
  row(&r, "apply, entries only", apply_entries, 0);
  row(&r, "add entries to a vector", add, 0);
  CUDACHECK(cudaFree(r.gradients));
  CUDACHECK(cudaFree(r.sources));
  CUDACHECK(cudaFree(r.to.pairs));
  world_close(&r.w);
}

void test_rates(struct test *t)
{
  if (!ON_GPU) {
    rates_of(t, 300000, 0.02);
    return;
  }
  rates_of(t, 14728266, 0.02);  /* VGG-16 */
  rates_of(t, 27569568, 0.02);  /* LSTM */
  rates_of(t, 133547324, 0.01); /* BERT */
}
