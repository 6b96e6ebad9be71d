/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_output.h"

#include <math.h>
#include <string.h>

int bench_output_start(struct bench_output *out)
{
  const struct bench *bench = out->bench;
  const struct options *opt = out->opt;
#ifndef CPU_STANDIN /* whose times mean nothing, and so do its limits */
  out->limit = bench->limit;
#endif
  launcher_print(out->me, "# %s: %d rank%s, %s\n# %ld calls ", bench->title, out->me->nranks,
                 out->me->nranks == 1 ? "" : "s", opt->type->name, opt->iterations);
  if (opt->graph_launches)
    launcher_print(out->me, "in a CUDA graph launched %ldx", opt->graph_launches);
  else
    launcher_print(out->me, "eager");
  launcher_print(out->me, "; slowest rank, median of %ld repetitions; us, GB/s = 1e9 B/s\n",
                 opt->repetitions);
  if (out->limit > 0)
    launcher_print(out->me, "# %% of the limit of %.1f GB/s, measured in this run\n", out->limit);
  launcher_print(out->me, "#%12s", "");
  for (int v = 0; v < bench->nvariants; v++)
    launcher_print(out->me, "  %*s", 27 + (out->limit > 0 ? 8 : 0) + (v ? 8 : 0),
                   bench->variants[v].name);
  launcher_print(out->me, "\n#%12s", "bytes");
  for (int v = 0; v < bench->nvariants; v++)
    launcher_print(out->me, "  %11s%8s%8s%s%s", "us", "algbw", bench->rate,
                   out->limit > 0 ? "       %" : "", v ? "   ratio" : "");
  launcher_print(out->me, "   wrong\n");
  return rows_open(&out->rows, opt->output);
}

void bench_output_series(struct bench_output *out, int series)
{
  if (!out->bench->series) return;
  launcher_print(out->me, "# %s %s\n", out->bench->series_name, out->bench->series[series]);
}

/* One number of the table, right-aligned; "-" where there is none. */
static void print_number(const struct bench_output *out, int width, int digits, double value,
                         const char *unit)
{
  if (isfinite(value))
    launcher_print(out->me, "%*.*f%s", width - (int)strlen(unit), digits, value, unit);
  else
    launcher_print(out->me, "%*s", width, "-");
}

static void output_cell(struct bench_output *out, const struct bench_row *row, int v)
{
  const struct bench *bench = out->bench;
  const struct bench_cell *cell = &row->cells[v];
  const double algbw = (double)row->size.bytes / cell->us / 1e3; /* as nccl-tests has it */
  const double rate = bench->moved(bench, out->me, row->size) / cell->us / 1e3;
  const double ratio = row->cells[0].us / cell->us;
  print_number(out, 13, 2, cell->us, "");
  print_number(out, 8, 2, algbw, "");
  print_number(out, 8, 2, rate, "");
  if (out->limit > 0) print_number(out, 8, 1, 100 * rate / out->limit, "");
  if (v) print_number(out, 8, 3, ratio, "x");

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
  rows_number(rows, "algbw", algbw);
  rows_number(rows, bench->rate, rate);
  rows_number(rows, "ratio", ratio);
  rows_number(rows, "limit", out->limit > 0 ? out->limit : (double)NAN);
  rows_integer(rows, "wrong", cell->wrong);
  rows_end(rows);
}

void bench_output_row(struct bench_output *out, const struct bench_row *row)
{
  unsigned long long wrong = 0;
  launcher_print(out->me, " %12zu", row->size.bytes);
  for (int v = 0; v < out->bench->nvariants; v++) {
    output_cell(out, row, v);
    wrong += row->cells[v].wrong;
  }
  launcher_print(out->me, "%8llu\n", wrong);
}
