/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "output_file.h"

/* ---- sizes --------------------------------------------------------------------------------- */

/* Up to here calls get slower by more than a constant: where methods change. Above, every call
 * takes milliseconds. */
enum { SMALL_BYTES = 64 << 10, LARGE_BYTES = 64 << 20 };

/* Without -f the sizes are close where methods change. */
static size_t next_size(const struct options *opt, size_t bytes)
{
  if (opt->factor) return bytes * (size_t)opt->factor;
  return bytes * (bytes >= SMALL_BYTES && bytes < LARGE_BYTES ? 2 : 4);
}

/* Calls in one repetition. */
static long calls_of(const struct options *opt, size_t bytes)
{
  return bytes > LARGE_BYTES ? (opt->iterations + 3) / 4 : opt->iterations;
}

/* ---- output: the table on stdout, the file of --output; rank 0 only ----------------------- */

/* Of the times of all repetitions. */
enum { MEDIAN, MIN, Q1, Q3, MAX, TIMES };
static const char *const time_names[TIMES] = {"us", "us_min", "us_q1", "us_q3", "us_max"};

/* One variant at one size. */
struct cell {
  double us[TIMES];         /* per call; NaN: no time */
  unsigned long long wrong; /* elements, over all ranks */
};

#ifdef CPU_STANDIN
bool bench_shows_times = false; /* they mean nothing */
#else
bool bench_shows_times = true;
#endif

/* The sweep of one rank. */
struct sweep {
  const struct rank *me;
  const struct options *opt;
  const struct bench *bench;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  struct rows rows; /* the file of --output */
  double limit;     /* of the bench; 0: unknown */
};

enum { US, ALGBW, RATE, PERCENT, RATIO, COLUMNS };
static const struct {
  int width, digits;
  const char *unit;
} columns[COLUMNS] = {{12, 2, ""}, {9, 2, ""}, {9, 2, ""}, {8, 1, ""}, {9, 3, "x"}};

static bool has_column(const struct sweep *s, int column)
{
  return column != PERCENT || s->limit > 0;
}

static void print_headings(const struct sweep *s)
{
  const char *const names[COLUMNS] = {"us", "algbw", s->bench->rate, "%", "ratio"};
  printf("#%12s  %-22s", "bytes", "variant");
  for (int c = 0; c < COLUMNS; c++)
    if (has_column(s, c)) printf("%*s", columns[c].width, names[c]);
  launcher_print(s->me, "   wrong\n");
}

/* Prints the heading, opens the file. Returns 0, or -1 after a line on stderr. */
static int start_output(struct sweep *s)
{
  const struct options *opt = s->opt;
  printf("# %s: %d rank%s, %s\n# %ld calls%s ", s->bench->title, s->me->nranks,
         s->me->nranks == 1 ? "" : "s", opt->type->name, opt->iterations,
         opt->max_bytes > LARGE_BYTES ? ", above 64 MiB a quarter," : "");
  if (opt->graph_launches)
    printf("in a CUDA graph launched %ldx", opt->graph_launches);
  else
    printf("eager");
  printf("; slowest rank, median of %ld repetitions; us, GB/s = 1e9 B/s\n", opt->repetitions);
  if (s->limit > 0) printf("# %% of the limit of %.1f GB/s, measured in this run\n", s->limit);
  print_headings(s);
  return rows_open(&s->rows, opt->output);
}

/* A line of the table, and a row of the file. */
static void output_variant(struct sweep *s, struct bench_size size, const struct cell *cells, int v)
{
  const struct bench *bench = s->bench;
  const double us = cells[v].us[MEDIAN], rate = bench->moved(bench, s->me, size) / us / 1e3;
  double values[COLUMNS];
  values[US] = us;
  values[ALGBW] = (double)size.bytes / us / 1e3; /* as nccl-tests defines it */
  values[RATE] = rate;
  values[PERCENT] = 100 * rate / s->limit;
  values[RATIO] = cells[0].us[MEDIAN] / us;
  printf(" %12zu  %-22s", size.bytes, bench->variants[v].name);
  for (int c = 0; c < COLUMNS; c++) {
    const int width = columns[c].width;
    if (!has_column(s, c)) continue;
    if (isfinite(values[c]))
      printf("%*.*f%s", width - (int)strlen(columns[c].unit), columns[c].digits, values[c],
             columns[c].unit);
    else
      printf("%*s", width, "-");
  }
  launcher_print(s->me, "%8llu\n", cells[v].wrong);

  struct rows *rows = &s->rows;
  if (bench->series) rows_text(rows, bench->series_name, bench->series[size.series]);
  rows_integer(rows, "bytes", size.bytes);
  rows_integer(rows, "count", size.count);
  rows_text(rows, "type", s->opt->type->name);
  rows_integer(rows, "ranks", (unsigned long long)s->me->nranks);
  rows_integer(rows, "graph", (unsigned long long)s->opt->graph_launches);
  rows_text(rows, "variant", bench->variants[v].name);
  for (int t = 0; t < TIMES; t++) rows_number(rows, time_names[t], cells[v].us[t]);
  rows_number(rows, "algbw", values[ALGBW]);
  rows_number(rows, bench->rate, rate);
  rows_number(rows, "ratio", values[RATIO]);
  rows_number(rows, "limit", s->limit > 0 ? s->limit : (double)NAN);
  rows_integer(rows, "wrong", cells[v].wrong);
  rows_end(rows);
}

/* ---- what is measured --------------------------------------------------------------------- */

static void enqueue_calls(const struct sweep *s, const struct bench_variant *variant,
                          struct bench_size size, long calls)
{
  for (long i = 0; i < calls; i++) variant->call(variant->state, size, i % size.slots, s->stream);
}

/* Captures the calls and does not run them. To capture a collective is collective as well. */
static cudaGraphExec_t make_graph(const struct sweep *s, const struct bench_variant *variant,
                                  struct bench_size size)
{
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  /* thread-local: under the pthread launcher other ranks may allocate meanwhile */
  CUDACHECK(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
  enqueue_calls(s, variant, size, size.calls);
  CUDACHECK(cudaStreamEndCapture(s->stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDACHECK(cudaGraphDestroy(graph));
  return exec;
}

/* Microseconds per call on the slowest rank. `graph` may be NULL. */
static double time_repetition(const struct sweep *s, const struct bench_variant *variant,
                              struct bench_size size, cudaGraphExec_t graph)
{
  const long launches = s->opt->graph_launches;
  const long calls = size.calls * (graph ? launches : 1);
  float ms;
  launcher_barrier(s->me); /* start together: waiting for a late rank is not part of the call */
  CUDACHECK(cudaEventRecord(s->start, s->stream));
  if (!graph) enqueue_calls(s, variant, size, calls);
  for (long i = 0; i < launches; i++) CUDACHECK(cudaGraphLaunch(graph, s->stream));
  CUDACHECK(cudaEventRecord(s->stop, s->stream));
  CUDACHECK(cudaEventSynchronize(s->stop));
  CUDACHECK(cudaEventElapsedTime(&ms, s->start, s->stop));
  return launcher_max(s->me, ms * 1e3 / (double)calls);
}

/* The number of wrong elements in the results, over all ranks. */
static unsigned long long check(const struct rank *me, const struct bench_variant *variant,
                                struct bench_size size)
{
  unsigned long long mine = variant->check(variant->state, size), all[me->nranks], wrong = 0;
  launcher_allgather(me, &mine, all, sizeof mine);
  for (int rank = 0; rank < me->nranks; rank++) wrong += all[rank];
  return wrong;
}

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(double *values, long n)
{
  qsort(values, (size_t)n, sizeof *values, ascending);
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* A variant with a wrong result gets no time. cell->wrong is set before. */
static void summarise(struct cell *cell, double *us, long n)
{
  const bool shown = cell->wrong == 0 && bench_shows_times;
  const double median = bench_median(us, n); /* sorts them */
  const double times[TIMES] = {median, us[0], us[(n - 1) / 4], us[n - 1 - (n - 1) / 4], us[n - 1]};
  for (int t = 0; t < TIMES; t++) cell->us[t] = shown ? times[t] : (double)NAN;
}

/* Measures all variants at one size. Returns whether a result was wrong. */
static bool run_size(struct sweep *s, struct bench_size size)
{
  const struct bench_variant *variants = s->bench->variants;
  const int nvariants = s->bench->nvariants;
  const long n = s->opt->repetitions;
  struct cell cells[BENCH_MAX_VARIANTS];
  cudaGraphExec_t graphs[BENCH_MAX_VARIANTS] = {NULL};
  bool wrong = false;
  double *us = launcher_allocate((size_t)(nvariants * n) * sizeof *us);

  for (int v = 0; v < nvariants; v++) {
    launcher_step("bench: verification before timing");
    variants[v].fill(variants[v].state, size);
    enqueue_calls(s, &variants[v], size, size.slots);
    cells[v].wrong = check(s->me, &variants[v], size);
    launcher_step("bench: warm-up");
    enqueue_calls(s, &variants[v], size, s->opt->warmup);
    CUDACHECK(cudaStreamSynchronize(s->stream));
    if (!s->opt->graph_launches) continue;
    graphs[v] = make_graph(s, &variants[v], size);
    time_repetition(s, &variants[v], size, graphs[v]); /* a graph's first launch is slow */
  }
  for (long i = 0; i < n; i++) {
    launcher_step("bench: timing");
    for (int v = 0; v < nvariants; v++) {
      const bool last = i == n - 1; /* verified at once, because variants may share buffers */
      if (last) variants[v].fill(variants[v].state, size);
      us[v * n + i] = time_repetition(s, &variants[v], size, graphs[v]);
      if (last) cells[v].wrong += check(s->me, &variants[v], size);
    }
  }
  for (int v = 0; v < nvariants; v++) {
    summarise(&cells[v], us + v * n, n);
    wrong |= cells[v].wrong != 0;
    if (graphs[v]) CUDACHECK(cudaGraphExecDestroy(graphs[v]));
    if (s->me->rank == 0) output_variant(s, size, cells, v);
  }
  free(us);
  return wrong;
}

/* Measures all sizes of one series. Returns whether a result was wrong. */
static bool run_series(struct sweep *s, int series)
{
  const struct options *opt = s->opt;
  const size_t element = opt->type->size;
  bool wrong = false;
  if (s->bench->series)
    launcher_print(s->me, "# %s %s\n", s->bench->series_name, s->bench->series[series]);
  size_t bytes = opt->min_bytes < element ? element : opt->min_bytes;
  do { /* once at least, even if an element is larger than maxbytes */
    struct bench_size size = {.series = series, .count = bytes / element};
    size.bytes = size.count * element;
    size.calls = calls_of(opt, bytes);
    size.slots = (long)(opt->max_bytes / size.bytes);
    if (size.slots > size.calls) size.slots = size.calls;
    if (size.slots == 0) size.slots = 1;
    wrong |= run_size(s, size);
    bytes = next_size(opt, bytes);
  } while (bytes <= opt->max_bytes);
  return wrong;
}

int bench_run(const struct rank *me, const struct options *opt, const struct bench *bench,
              cudaStream_t stream)
{
  struct sweep s = {.me = me, .opt = opt, .bench = bench, .stream = stream};
  if (bench_shows_times) s.limit = bench->limit;
  bool wrong = false, failed = me->rank == 0 && start_output(&s) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;

  CUDACHECK(cudaEventCreate(&s.start));
  CUDACHECK(cudaEventCreate(&s.stop));
  for (int v = 0; v < bench->nvariants; v++)
    if (bench->variants[v].setup) bench->variants[v].setup(bench->variants[v].state);
  for (int series = 0; series < (bench->series ? bench->nseries : 1); series++)
    wrong |= run_series(&s, series);
  launcher_step("bench: teardown");
  for (int v = 0; v < bench->nvariants; v++)
    if (bench->variants[v].teardown) bench->variants[v].teardown(bench->variants[v].state);
  CUDACHECK(cudaEventDestroy(s.start));
  CUDACHECK(cudaEventDestroy(s.stop));
  rows_finish(&s.rows);
  code = output_files_publish(me, &(struct output_file *){&s.rows.output},
                              s.rows.output.stream != NULL);
  return launcher_agree(me, wrong && code == EXIT_VERIFIED ? EXIT_WRONG_DATA : code);
}
