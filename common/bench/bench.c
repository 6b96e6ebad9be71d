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

struct row {
  struct bench_size size;
  struct cell cells[BENCH_MAX_VARIANTS];
};

#ifdef CPU_STANDIN
bool bench_shows_times = false; /* they mean nothing */
#else
bool bench_shows_times = true;
#endif

struct output {
  const struct bench *bench;
  const struct options *opt;
  const struct rank *me;
  struct rows rows; /* the file of --output */
  double limit;     /* of the bench; 0: unknown */
};

/* The columns of a variant. */
enum { US, ALGBW, RATE, PERCENT, RATIO, COLUMNS };
static const struct {
  int width, digits;
  const char *unit;
} columns[COLUMNS] = {{13, 2, ""}, {8, 2, ""}, {8, 2, ""}, {8, 1, ""}, {8, 3, "x"}};

static bool has_column(const struct output *out, int variant, int column)
{
  if (column == PERCENT) return out->limit > 0;
  return column != RATIO || variant > 0;
}

static void print_headings(const struct output *out)
{
  const char *const names[COLUMNS] = {"us", "algbw", out->bench->rate, "%", "ratio"};
  const int nvariants = out->bench->nvariants;
  printf("#%12s", "");
  for (int v = 0; v < nvariants; v++) {
    int width = 0;
    for (int c = 0; c < COLUMNS; c++)
      if (has_column(out, v, c)) width += columns[c].width;
    printf("%*s", width, out->bench->variants[v].name);
  }
  printf("\n#%12s", "bytes");
  for (int v = 0; v < nvariants; v++)
    for (int c = 0; c < COLUMNS; c++)
      if (has_column(out, v, c)) printf("%*s", columns[c].width, names[c]);
  launcher_print(out->me, "   wrong\n");
}

/* Prints the heading, opens the file. Returns 0, or -1 after a line on stderr. */
static int start_output(struct output *out)
{
  const struct options *opt = out->opt;
  if (bench_shows_times) out->limit = out->bench->limit;
  printf("# %s: %d rank%s, %s\n# %ld calls%s ", out->bench->title, out->me->nranks,
         out->me->nranks == 1 ? "" : "s", opt->type->name, opt->iterations,
         opt->max_bytes > LARGE_BYTES ? ", above 64 MiB a quarter," : "");
  if (opt->graph_launches)
    printf("in a CUDA graph launched %ldx", opt->graph_launches);
  else
    printf("eager");
  printf("; slowest rank, median of %ld repetitions; us, GB/s = 1e9 B/s\n", opt->repetitions);
  if (out->limit > 0) printf("# %% of the limit of %.1f GB/s, measured in this run\n", out->limit);
  print_headings(out);
  return rows_open(&out->rows, opt->output);
}

static void output_cell(struct output *out, const struct row *row, int v)
{
  const struct bench *bench = out->bench;
  const struct cell *cell = &row->cells[v];
  const double us = cell->us[MEDIAN], rate = bench->moved(bench, out->me, row->size) / us / 1e3;
  const double values[COLUMNS] = {
      [US] = us,
      [ALGBW] = (double)row->size.bytes / us / 1e3, /* as nccl-tests defines it */
      [RATE] = rate,
      [PERCENT] = 100 * rate / out->limit,
      [RATIO] = row->cells[0].us[MEDIAN] / us,
  };
  for (int c = 0; c < COLUMNS; c++) {
    const int width = columns[c].width;
    if (!has_column(out, v, c)) continue;
    if (isfinite(values[c]))
      printf("%*.*f%s", width - (int)strlen(columns[c].unit), columns[c].digits, values[c],
             columns[c].unit);
    else
      printf("%*s", width, "-");
  }

  struct rows *rows = &out->rows;
  if (bench->series) rows_text(rows, bench->series_name, bench->series[row->size.series]);
  rows_integer(rows, "bytes", row->size.bytes);
  rows_integer(rows, "count", row->size.count);
  rows_text(rows, "type", out->opt->type->name);
  rows_integer(rows, "ranks", (unsigned long long)out->me->nranks);
  rows_integer(rows, "graph", (unsigned long long)out->opt->graph_launches);
  rows_text(rows, "variant", bench->variants[v].name);
  for (int t = 0; t < TIMES; t++) rows_number(rows, time_names[t], cell->us[t]);
  rows_number(rows, "algbw", values[ALGBW]);
  rows_number(rows, bench->rate, rate);
  rows_number(rows, "ratio", values[RATIO]);
  rows_number(rows, "limit", out->limit > 0 ? out->limit : (double)NAN);
  rows_integer(rows, "wrong", cell->wrong);
  rows_end(rows);
}

static void output_row(struct output *out, const struct row *row)
{
  unsigned long long wrong = 0;
  printf(" %12zu", row->size.bytes);
  for (int v = 0; v < out->bench->nvariants; v++) {
    output_cell(out, row, v);
    wrong += row->cells[v].wrong;
  }
  launcher_print(out->me, "%8llu\n", wrong);
}

/* ---- what is measured --------------------------------------------------------------------- */

/* One variant at one size, ready to be timed. */
struct timing {
  const struct bench_variant *variant;
  struct bench_size size;
  const struct options *opt;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaGraphExec_t graph; /* size.calls calls, with -G */
};

static void enqueue_calls(const struct timing *t, long calls)
{
  for (long i = 0; i < calls; i++)
    t->variant->call(t->variant->state, t->size, i % t->size.slots, t->stream);
}

/* Captures the calls and does not run them. To capture a collective is collective as well. */
static void make_graph(struct timing *t)
{
  cudaGraph_t graph;
  /* thread-local: under the pthread launcher other ranks may allocate meanwhile */
  CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
  enqueue_calls(t, t->size.calls);
  CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
  CUDACHECK(cudaGraphInstantiate(&t->graph, graph, 0));
  CUDACHECK(cudaGraphDestroy(graph));
}

/* Microseconds per call on the slowest rank. */
static double time_repetition(const struct rank *me, const struct timing *t)
{
  const long launches = t->opt->graph_launches;
  const long calls = t->size.calls * (launches ? launches : 1);
  float ms;
  launcher_barrier(me); /* start together: waiting for a late rank is not part of the call */
  CUDACHECK(cudaEventRecord(t->start, t->stream));
  if (!launches) enqueue_calls(t, calls);
  for (long i = 0; i < launches; i++) CUDACHECK(cudaGraphLaunch(t->graph, t->stream));
  CUDACHECK(cudaEventRecord(t->stop, t->stream));
  CUDACHECK(cudaEventSynchronize(t->stop));
  CUDACHECK(cudaEventElapsedTime(&ms, t->start, t->stop));
  return launcher_max(me, ms * 1e3 / (double)calls);
}

/* The number of wrong elements in the results, over all ranks. */
static unsigned long long check(const struct rank *me, const struct timing *t)
{
  unsigned long long mine = t->variant->check(t->variant->state, t->size), all[me->nranks];
  unsigned long long wrong = 0;
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

/* Measures all variants at one size. */
static void run_size(const struct rank *me, const struct options *opt, const struct bench *bench,
                     cudaStream_t stream, struct row *row)
{
  struct timing timings[BENCH_MAX_VARIANTS];
  const long n = opt->repetitions;
  double *us = malloc((size_t)(bench->nvariants * n) * sizeof *us);
  if (!us) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);

  for (int v = 0; v < bench->nvariants; v++) {
    struct timing *t = &timings[v];
    *t = (struct timing){&bench->variants[v], row->size, opt, stream, NULL, NULL, NULL};
    launcher_step("bench: verification before timing");
    CUDACHECK(cudaEventCreate(&t->start));
    CUDACHECK(cudaEventCreate(&t->stop));
    t->variant->fill(t->variant->state, t->size);
    enqueue_calls(t, t->size.slots);
    row->cells[v].wrong = check(me, t);
    launcher_step("bench: warm-up");
    enqueue_calls(t, opt->warmup);
    CUDACHECK(cudaStreamSynchronize(stream));
    if (opt->graph_launches) make_graph(t);
  }
  for (int v = 0; v < bench->nvariants; v++)
    if (timings[v].graph) time_repetition(me, &timings[v]); /* a graph's first launch is slow */
  for (long i = 0; i < n; i++) {
    launcher_step("bench: timing");
    for (int v = 0; v < bench->nvariants; v++) {
      const struct timing *t = &timings[v];
      const bool last = i == n - 1; /* verified at once, because variants may share buffers */
      if (last) t->variant->fill(t->variant->state, t->size);
      us[v * n + i] = time_repetition(me, t);
      if (last) row->cells[v].wrong += check(me, t);
    }
  }
  for (int v = 0; v < bench->nvariants; v++) {
    struct timing *t = &timings[v];
    summarise(&row->cells[v], us + v * n, n);
    CUDACHECK(cudaEventDestroy(t->start));
    CUDACHECK(cudaEventDestroy(t->stop));
    if (t->graph) CUDACHECK(cudaGraphExecDestroy(t->graph));
  }
  free(us);
}

/* Measures all sizes of one series. Returns whether a result was wrong. */
static bool run_series(const struct rank *me, const struct options *opt, const struct bench *bench,
                       int series, cudaStream_t stream, struct output *out)
{
  size_t last_bytes = 0;
  bool wrong = false;
  if (bench->series) launcher_print(me, "# %s %s\n", bench->series_name, bench->series[series]);
  for (size_t bytes = opt->min_bytes; bytes <= opt->max_bytes; bytes = next_size(opt, bytes)) {
    struct row row = {.size = {.series = series, .count = bytes / opt->type->size}};
    if (row.size.count == 0) row.size.count = 1;
    row.size.bytes = row.size.count * opt->type->size;
    if (row.size.bytes == last_bytes) continue; /* several sizes below one element */
    last_bytes = row.size.bytes;
    row.size.calls = calls_of(opt, row.size.bytes);
    row.size.slots = (long)(opt->max_bytes / row.size.bytes);
    if (row.size.slots > row.size.calls) row.size.slots = row.size.calls;
    if (row.size.slots == 0) row.size.slots = 1; /* an element is larger than maxbytes */
    run_size(me, opt, bench, stream, &row);
    for (int v = 0; v < bench->nvariants; v++) wrong |= row.cells[v].wrong != 0;
    if (me->rank == 0) output_row(out, &row);
  }
  return wrong;
}

int bench_run(const struct rank *me, const struct options *opt, const struct bench *bench,
              cudaStream_t stream)
{
  struct output out = {.bench = bench, .opt = opt, .me = me};
  bool wrong = false, failed = me->rank == 0 && start_output(&out) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;

  for (int v = 0; v < bench->nvariants; v++)
    if (bench->variants[v].setup) bench->variants[v].setup(bench->variants[v].state);
  for (int series = 0; series < (bench->series ? bench->nseries : 1); series++)
    wrong |= run_series(me, opt, bench, series, stream, &out);
  launcher_step("bench: teardown");
  for (int v = 0; v < bench->nvariants; v++)
    if (bench->variants[v].teardown) bench->variants[v].teardown(bench->variants[v].state);
  rows_finish(&out.rows);
  code = output_files_publish(me, &(struct output_file *){&out.rows.output},
                              out.rows.output.stream != NULL);
  return launcher_agree(me, wrong && code == EXIT_VERIFIED ? EXIT_WRONG_DATA : code);
}
