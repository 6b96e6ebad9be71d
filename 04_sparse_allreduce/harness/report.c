/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <math.h>

void report_heading(const struct job *job)
{
  static const char *const kinds[] = {"heavy", "normal", "ties", "one-region"};
  const struct rank *me = job->me;
  launcher_print(me, "Gradient: %zu elements of type %s, %s, %llu step%s; k = %llu (density %g)\n",
                 job->count, job->opt->type->name,
                 job->input ? program_options.input : kinds[job->kind],
                 (unsigned long long)job->steps, job->steps == 1 ? "" : "s",
                 (unsigned long long)job->k, job->config.density);
  launcher_print(me, "%-15s %9s %8s %8s %8s %12s %21s %8s  %s\n", "path", "us/step", "ratio",
                 "local/k", "global/k", "words sent", "words in the paper", "xi", "verified");
}

void report_number(struct job *job, const char *column, double value, const char *format)
{
  if (format && isfinite(value))
    launcher_print(job->me, format, value);
  else if (format) /* " %.1f" has no width */
    launcher_print(job->me, "%*s", format[2] == '.' ? 2 : snprintf(NULL, 0, format, 0.0), "-");
  if (column) rows_number(&job->rows, column, value);
}

void report_path(struct job *job, const struct path_steps *of, const struct verification *v,
                 int code)
{
  const struct runner *runner = v->runner;
  const int path = (int)runner->config.algorithm;
  const struct rank *me = job->me;
  /* what only this rank knows, and its sums over all ranks */
  const double mine[2] = {of->local, of->words};
  double all[me->nranks][2], sums[2] = {0};
  launcher_allgather(me, mine, all, sizeof mine);
  for (int rank = 0; rank < me->nranks; rank++)
    for (int i = 0; i < 2; i++) sums[i] += all[rank][i];
  const double steps = (double)of->counted, ranks = me->nranks;
  const double k = path == SPARSE_DENSE ? (double)NAN : (double)job->k; /* dense chooses nothing */
  const double local = sums[0] / steps / ranks / k, global = of->global / steps / k;
  const double words = sums[1] / steps / ranks;
  const double xi = v->xi_steps ? v->xi / (double)v->xi_steps : (double)NAN;
  double low, high;
  simple_paper_words(path, (double)job->count, (double)job->k, ranks, &low, &high);
  /* wrong results have no time */
  const double mean = launcher_max(me, of->us / ((double)of->begun - 1));
  const double us = code == EXIT_VERIFIED ? mean : (double)NAN;
  if (path == SPARSE_DENSE) job->dense_us = us;
  const char *reason, *name = simple_paths[path].name, *mode = runner_mode(runner, &reason);
  struct rows *rows = &job->rows;

  launcher_print(me, "%-15s", name);
  rows_text(rows, "path", name);
  rows_text(rows, "mode", mode);
  rows_text(rows, "result", runner->weights ? "entries" : "dense");
  rows_integer(rows, "ranks", (unsigned long long)me->nranks);
  rows_integer(rows, "count", job->count);
  rows_text(rows, "type", job->opt->type->name);
  rows_number(rows, "density", job->config.density);
  rows_integer(rows, "k", job->k);
  rows_integer(rows, "steps", job->steps);
  report_number(job, "us", us, " %9.1f");
  report_number(job, "ratio", job->dense_us / us, " %7.2fx");
  report_number(job, "local_k", local, " %8.3f");
  report_number(job, "global_k", global, " %8.3f");
  report_number(job, "words_sent", words, " %12.0f");
  char range[64];
  snprintf(range, sizeof range, low == high ? "%.0f" : "%.0f-%.0f", low, high);
  launcher_print(me, " %21s", range);
  rows_number(rows, "paper_words_low", low);
  rows_number(rows, "paper_words_high", high);
  report_number(job, "xi", xi, " %8.4f");
  rows_integer(rows, "verified_steps", v->compared);
  rows_integer(rows, "wrong", code != EXIT_VERIFIED);
  rows_end(rows);
  if (code != EXIT_VERIFIED)
    launcher_print(me, code == EXIT_WRONG_DATA ? "  NO: step %llu\n" : "  stopped at step %llu\n",
                   (unsigned long long)of->begun - 1);
  else
    launcher_print(me, "  %llu step%s x %d rank%s\n", (unsigned long long)v->compared,
                   v->compared == 1 ? "" : "s", me->nranks, me->nranks == 1 ? "" : "s");

  /* the table is the same for all modes, so a note says which one ran */
  if (path == SPARSE_DENSE) return;
  launcher_note(me, "%s (%s%s)%s%s", name, mode, runner->weights ? ", entries" : "",
                *reason ? ": " : "", reason);
}
