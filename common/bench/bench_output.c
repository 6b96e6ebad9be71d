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

/* A number, or `none` where there is no time. */
static const char *number(char *text, size_t size, const char *format, double value,
                          const char *none)
{
  if (!isfinite(value)) return none;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(text, size, format, value);
#pragma GCC diagnostic pop
  return text;
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
static void print_number(const struct bench_output *out, int width, const char *format,
                         double value)
{
  char text[32];
  launcher_print(out->me, "%*s", width, number(text, sizeof text, format, value, "-"));
}

static void print_row(const struct bench_output *out, const struct bench_row *row)
{
  unsigned long long wrong = 0;
  launcher_print(out->me, " %12zu", row->size.bytes);
  for (int v = 0; v < out->bench->nvariants; v++) {
    print_number(out, 13, "%.2f", row->cells[v].us);
    print_number(out, 8, "%.2f", algbw(row, v));
    print_number(out, 8, "%.2f", rate(out, row, v));
    if (limit(out) > 0) print_number(out, 8, "%.1f", 100 * rate(out, row, v) / limit(out));
    if (v) print_number(out, 8, "%.3fx", ratio(row, v));
    wrong += row->cells[v].wrong;
  }
  launcher_print(out->me, "%8llu\n", wrong);
}

/* ---- the file ------------------------------------------------------------------------------- */

static bool is_json(const struct bench_output *out)
{
  return strcmp(strrchr(out->opt->output, '.'), ".json") == 0;
}

static void write_heading(const struct bench_output *out)
{
  const struct options *opt = out->opt;
  int nccl = 0;
  ncclGetVersion(&nccl);
  if (!is_json(out)) {
    fprintf(out->file.stream,
            "%s%sbytes,count,type,ranks,graph,variant,us,us_min,us_q1,us_q3,us_max,algbw,%s,ratio,"
            "limit,wrong\n",
            out->bench->series ? out->bench->series_name : "", out->bench->series ? "," : "",
            out->bench->rate);
    return;
  }
  fprintf(out->file.stream,
          "{\n  \"title\": \"%s\",\n  \"ranks\": %d,\n  \"type\": \"%s\",\n"
          "  \"graph_launches\": %ld,\n  \"iterations\": %ld,\n  \"warmup\": %ld,\n"
          "  \"repetitions\": %ld,\n  \"nccl_header\": %d,\n  \"nccl_runtime\": %d,\n"
          "  \"limit\": %.1f,\n  \"stand_in\": %s,\n  \"rows\": [",
          out->bench->title, out->me->nranks, opt->type->name, opt->graph_launches, opt->iterations,
          opt->warmup, opt->repetitions, NCCL_VERSION_CODE, nccl, limit(out),
#ifdef CPU_STANDIN
          "true"
#else
          "false"
#endif
  );
}

static void write_cell(const struct bench_output *out, const struct bench_row *row, int v)
{
  const struct bench *bench = out->bench;
  const struct bench_cell *cell = &row->cells[v];
  const char *none = is_json(out) ? "null" : "";
  const double values[] = {cell->us,     cell->us_min,  cell->us_q1,       cell->us_q3,
                           cell->us_max, algbw(row, v), rate(out, row, v), ratio(row, v)};
  const char *const names[] = {"us",     "us_min", "us_q1",     "us_q3",
                               "us_max", "algbw",  bench->rate, "ratio"};
  char text[32];
  if (is_json(out)) {
    fprintf(out->file.stream, "%s\n    {", out->rows || v ? "," : "");
    if (bench->series)
      fprintf(out->file.stream, "\"%s\": \"%s\", ", bench->series_name,
              bench->series[row->size.series]);
    fprintf(out->file.stream, "\"bytes\": %zu, \"count\": %zu, \"variant\": \"%s\", ",
            row->size.bytes, row->size.count, bench->variants[v].name);
  } else {
    if (bench->series) fprintf(out->file.stream, "%s,", bench->series[row->size.series]);
    fprintf(out->file.stream, "%zu,%zu,%s,%d,%ld,%s,", row->size.bytes, row->size.count,
            out->opt->type->name, out->me->nranks, out->opt->graph_launches,
            bench->variants[v].name);
  }
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    if (is_json(out)) fprintf(out->file.stream, "\"%s\": ", names[i]);
    fprintf(out->file.stream, "%s,%s", number(text, sizeof text, "%.4f", values[i], none),
            is_json(out) ? " " : "");
  }
  if (!is_json(out)) /* JSON has the limit in its heading */
    fprintf(out->file.stream, "%s,",
            number(text, sizeof text, "%.1f", limit(out) > 0 ? limit(out) : NAN, none));
  fprintf(out->file.stream, is_json(out) ? "\"wrong\": %llu}" : "%llu\n", cell->wrong);
}

/* ---- the interface -------------------------------------------------------------------------- */

int bench_output_start(struct bench_output *out)
{
  char error[LAUNCHER_TEXT];
  print_heading(out);
  if (!out->opt->output) return 0;
  if (output_file_open(&out->file, out->opt->output, error, sizeof error) != 0) {
    launcher_error("%s", error);
    return -1;
  }
  write_heading(out);
  return 0;
}

void bench_output_series(struct bench_output *out, int series)
{
  if (!out->bench->series) return;
  launcher_print(out->me, "# %s %s\n", out->bench->series_name, out->bench->series[series]);
}

void bench_output_row(struct bench_output *out, const struct bench_row *row)
{
  print_row(out, row);
  for (int v = 0; out->file.stream && v < out->bench->nvariants; v++) write_cell(out, row, v);
  out->rows++;
}

void bench_output_finish(struct bench_output *out)
{
  if (out->file.stream && is_json(out)) fprintf(out->file.stream, "\n  ]\n}\n");
}
