/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_output.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gigabytes (1e9) per second, as nccl-tests has it. */
static double algbw(const struct bench_row *row, int v)
{
  return (double)row->size.bytes / row->cells[v].us / 1e3;
}

static double rate(const struct bench_output *out, const struct bench_row *row, int v)
{
  return out->bench->moved(out->bench, out->me, row->size) / row->cells[v].us / 1e3;
}

/* The stand-in's times mean nothing, and so do its limits. */
static double limit(const struct bench_output *out)
{
#ifdef CPU_STANDIN
  (void)out;
  return 0;
#else
  return out->bench->limit;
#endif
}

/* How many times faster than variant 0. */
static double ratio(const struct bench_row *row, int v)
{
  return row->cells[0].us / row->cells[v].us;
}

/* ---- the table ------------------------------------------------------------------------------ */

static void print_heading(const struct bench_output *out)
{
  const struct bench *bench = out->bench;
  const struct options *opt = out->opt;
  const int width = 27 + (limit(out) > 0 ? 8 : 0);
  char how[96] = "eager";
  if (opt->graph_launches)
    snprintf(how, sizeof how, "in a CUDA graph launched %ldx", opt->graph_launches);
  launcher_print(out->me, "# %s: %d rank%s, %s\n", bench->title, out->me->nranks,
                 out->me->nranks == 1 ? "" : "s", opt->type->name);
  launcher_print(out->me,
                 "# %ld calls %s; slowest rank, median of %ld repetitions; us, GB/s = 1e9 B/s\n",
                 opt->iterations, how, opt->repetitions);
  if (limit(out) > 0)
    launcher_print(out->me, "# %% of the limit of %.1f GB/s, measured in this run\n", limit(out));
  launcher_print(out->me, "#%12s", "");
  for (int v = 0; v < bench->nvariants; v++)
    launcher_print(out->me, "  %*s", width + (v ? 8 : 0), bench->variants[v].name);
  launcher_print(out->me, "\n#%12s", "bytes");
  for (int v = 0; v < bench->nvariants; v++)
    launcher_print(out->me, "  %11s%8s%8s%s%s", "us", "algbw", bench->rate,
                   limit(out) > 0 ? "       %" : "", v ? "   ratio" : "");
  launcher_print(out->me, "   wrong\n");
}

/* One number of a row, right-aligned; "-" where there is none. */
static void print_number(const struct bench_output *out, int width, int digits, double value,
                         const char *unit)
{
  if (isfinite(value))
    launcher_print(out->me, "%*.*f%s", width - (int)strlen(unit), digits, value, unit);
  else
    launcher_print(out->me, "%*s", width, "-");
}

static void print_row(const struct bench_output *out, const struct bench_row *row)
{
  unsigned long long wrong = 0;
  launcher_print(out->me, " %12zu", row->size.bytes);
  for (int v = 0; v < out->bench->nvariants; v++) {
    print_number(out, 13, 2, row->cells[v].us, "");
    print_number(out, 8, 2, algbw(row, v), "");
    print_number(out, 8, 2, rate(out, row, v), "");
    if (limit(out) > 0) print_number(out, 8, 1, 100 * rate(out, row, v) / limit(out), "");
    if (v) print_number(out, 8, 3, ratio(row, v), "x");
    wrong += row->cells[v].wrong;
  }
  launcher_print(out->me, "%8llu\n", wrong);
}

/* ---- the file ------------------------------------------------------------------------------- */

static void write_cell(struct bench_output *out, const struct bench_row *row, int v)
{
  const struct bench *bench = out->bench;
  const struct bench_cell *cell = &row->cells[v];
  struct rows *rows = &out->rows;
  if (bench->series) rows_text(rows, bench->series_name, bench->series[row->size.series]);
  rows_integer(rows, "bytes", row->size.bytes);
  rows_integer(rows, "count", row->size.count);
  rows_text(rows, "type", out->opt->type->name);
  rows_integer(rows, "ranks", (unsigned long long)out->me->nranks);
  rows_integer(rows, "graph", (unsigned long long)out->opt->graph_launches);
  rows_text(rows, "variant", bench->variants[v].name);
  rows_number(rows, "us", cell->us);
  rows_number(rows, "us_min", cell->us_min);
  rows_number(rows, "us_q1", cell->us_q1);
  rows_number(rows, "us_q3", cell->us_q3);
  rows_number(rows, "us_max", cell->us_max);
  rows_number(rows, "algbw", algbw(row, v));
  rows_number(rows, bench->rate, rate(out, row, v));
  rows_number(rows, "ratio", ratio(row, v));
  rows_number(rows, "limit", limit(out) > 0 ? limit(out) : (double)NAN);
  rows_integer(rows, "wrong", cell->wrong);
  rows_end(rows);
}

/* ---- the interface -------------------------------------------------------------------------- */

int bench_output_start(struct bench_output *out)
{
  print_heading(out);
  return rows_open(&out->rows, out->opt->output);
}

void bench_output_series(struct bench_output *out, int series)
{
  if (!out->bench->series) return;
  launcher_print(out->me, "# %s %s\n", out->bench->series_name, out->bench->series[series]);
}

void bench_output_row(struct bench_output *out, const struct bench_row *row)
{
  print_row(out, row);
  for (int v = 0; v < out->bench->nvariants; v++) write_cell(out, row, v);
}
