/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* ---- a path's steps -------------------------------------------------------------------------- */

void path_steps_add(struct path_steps *steps, const sparse_allreduce_statistics_t *s)
{
  if (s->dense && steps->sparse) return;
  if (!s->dense && steps->sparse++ == 0) steps->local = steps->global = steps->words = 0;
  steps->local += (double)s->local;
  steps->global += (double)s->global;
  steps->words += (double)s->words_sent;
}

double report_time(const struct rank *me, double *us, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) us[i] = launcher_max(me, us[i]);
#ifdef CPU_STANDIN
  n = 0; /* no times */
#endif
  return n ? bench_median(us, (long)n) : (double)NAN;
}

/* The words that a rank sends according to the paper's Table 1, at best and at worst, for k chosen
 * entries of n on P ranks. The paper counts elements; a word is one. */
struct paper_words {
  double low, high;
};

static struct paper_words paper_words(int path, double n, double k, double ranks)
{
  const double others = (ranks - 1) / ranks, rounds = ceil(log2(ranks));
  switch (path) {
  case SPARSE_DENSE:
    return (struct paper_words){2 * n * others, 2 * n * others};
  case SPARSE_GTOPK:
    return (struct paper_words){4 * k * rounds, 4 * k * rounds};
  case SPARSE_OKTOPK: /* the gather alone; with a split and balancing of as much each */
    return (struct paper_words){2 * k * others, 6 * k * others};
  case SPARSE_TOPKSA:
    return (struct paper_words){fmin(4 * k, 2 * k + n) * others, (2 * k + n) * others};
  case SPARSE_GAUSSIANKSA: /* not in the table: as TOPKSA, and all gathered however much it is */
    return (struct paper_words){4 * k * others, 2 * k * others + 2 * k * (ranks - 1)};
  default: /* every rank sends what it offers to all others */
    return (struct paper_words){2 * k * (ranks - 1), 2 * k * (ranks - 1)};
  }
}

/* ---- the table ------------------------------------------------------------------------------- */

void report_heading(const struct job *job)
{
  static const char *const kinds[] = {"heavy", "normal", "uniform", "ties", "one-region"};
  const struct rank *me = job->me;
  launcher_print(me, "Gradient: %zu elements of type %s, %s, %llu steps; k = %llu (density %g)\n",
                 job->count, job->opt->type->name,
                 job->input ? program_options.input : kinds[job->kind],
                 (unsigned long long)job->steps, (unsigned long long)job->k, job->config.density);
  launcher_print(me, "%-15s %9s %8s %8s %8s %12s %21s %8s  %s\n", "path", "us/step", "ratio",
                 "local/k", "global/k", "words sent", "words in the paper", "xi", "verified");
}

void report_number(struct job *job, const char *column, double value, const char *format)
{
  if (format && isfinite(value))
    launcher_print(job->me, format, value);
  else if (format) /* without a width " %.1f" */
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
  const double steps = (double)(of->sparse ? of->sparse : of->begun), ranks = me->nranks;
  const double k = of->sparse ? (double)job->k : (double)NAN; /* dense steps choose nothing */
  const double local = sums[0] / steps / ranks / k, global = of->global / steps / k;
  const double words = sums[1] / steps / ranks;
  const double xi = v->xi_steps ? v->xi / (double)v->xi_steps : (double)NAN;
  const struct paper_words paper = paper_words(path, (double)job->count, (double)job->k, ranks);
  /* what is wrong has no time */
  const double us = report_time(me, of->us, code == EXIT_VERIFIED ? of->begun : 0);
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
  snprintf(range, sizeof range, paper.low == paper.high ? "%.0f" : "%.0f-%.0f", paper.low,
           paper.high);
  launcher_print(me, " %21s", range);
  rows_number(rows, "paper_words_low", paper.low);
  rows_number(rows, "paper_words_high", paper.high);
  report_number(job, "xi", xi, " %8.4f");
  rows_integer(rows, "verified_steps", v->compared);
  rows_integer(rows, "wrong", code != EXIT_VERIFIED);
  rows_end(rows);
  if (code != EXIT_VERIFIED)
    launcher_print(me, code == EXIT_WRONG_DATA ? "  NO: step %llu\n" : "  stopped at step %llu\n",
                   (unsigned long long)of->begun - 1);
  else if (v->compared == 0)
    launcher_print(me, "  not compared\n");
  else
    launcher_print(me, "  %llu steps x %d ranks\n", (unsigned long long)v->compared, me->nranks);

  /* the table's lines are fixed, but several versions of a path can have run */
  if (path == SPARSE_DENSE) return;
  launcher_note(me, "%s (%s%s)%s%s", name, mode, runner->weights ? ", entries" : "",
                *reason ? ": " : "", reason);
}
