/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

/* ---- a path's steps -------------------------------------------------------------------------- */

void path_steps_add(struct path_steps *steps, const sparse_allreduce_statistics_t *s)
{
  if (s->dense && steps->sparse) return;
  if (!s->dense && steps->sparse++ == 0) steps->local = steps->global = steps->words = 0;
  steps->local += (double)s->local;
  steps->global += (double)s->global;
  steps->words += (double)s->words_sent;
}

struct report_time report_time(const struct rank *me, const double *us, uint64_t n)
{
  double *slowest = malloc((n + 1) * sizeof *slowest), mean = 0;
  if (!slowest) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  for (uint64_t step = 0; step < n; step++) {
    slowest[step] = launcher_max(me, us[step]);
    mean += slowest[step] / (double)n;
  }
  struct report_time time = {n ? bench_median(slowest, (long)n) : (double)NAN, mean};
#ifdef CPU_STANDIN
  time.median = time.mean = (double)NAN;
#endif
  free(slowest);
  return time;
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

int report_open(struct report *report, const struct job *job)
{
  const struct rank *me = job->me;
  static const char *const kinds[] = {"heavy", "normal", "uniform", "ties", "one-region"};
  *report = (struct report){.job = job, .dense_us = (double)NAN};
  int failed = me->rank == 0 && rows_open(&report->rows, program_options.output) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;
  launcher_print(me, "Gradient: %zu elements of type %s, %s, %llu steps; k = %llu (density %g)\n",
                 job->count, job->opt->type->name,
                 job->input.file ? program_options.input : kinds[job->kind],
                 (unsigned long long)job->steps, (unsigned long long)job->k, job->config.density);
  launcher_print(me, "%-15s %9s %8s %8s %8s %12s %21s %8s  %s\n", "path", "us/step", "ratio",
                 "local/k", "global/k", "words sent", "words in the paper", "xi", "verified");
  return EXIT_VERIFIED;
}

void report_number(const struct rank *me, int width, int digits, double value, const char *unit)
{
  if (isfinite(value))
    launcher_print(me, " %*.*f%s", width - (int)strlen(unit), digits, value, unit);
  else
    launcher_print(me, " %*s", width, "-");
}

/* Sums over ranks of what only they know. */
static struct path_steps join_ranks(const struct rank *me, const struct path_steps *mine)
{
  struct path_steps all[me->nranks], sum = *mine;
  launcher_allgather(me, mine, all, sizeof *mine);
  sum.local = sum.words = sum.xi = 0;
  sum.xi_steps = 0;
  for (int rank = 0; rank < me->nranks; rank++) {
    sum.local += all[rank].local;
    sum.words += all[rank].words;
    sum.xi += all[rank].xi;
    sum.xi_steps += all[rank].xi_steps;
  }
  return sum;
}

void report_path(struct report *report, int path, const struct runner *runner,
                 const struct path_steps *mine, int code)
{
  const struct job *job = report->job;
  const struct rank *me = job->me;
  const struct path_steps sum = join_ranks(me, mine);
  const double steps = (double)(sum.sparse ? sum.sparse : sum.timed), ranks = me->nranks;
  const double k = sum.sparse ? (double)job->k : (double)NAN; /* dense steps choose nothing */
  const double local = sum.local / steps / ranks / k, global = sum.global / steps / k;
  const double words = sum.words / steps / ranks;
  const double xi = sum.xi_steps ? sum.xi / (double)sum.xi_steps : (double)NAN;
  const struct paper_words paper = paper_words(path, (double)job->count, (double)job->k, ranks);
  const struct report_time time = report_time(me, mine->us, mine->timed);
  /* what was not right is never shown as a time */
  const double us = code == EXIT_VERIFIED ? time.median : (double)NAN;
  if (path == SPARSE_DENSE) report->dense_us = us;
  const double ratio = report->dense_us / us;
  const char *name = simple_paths[path].name, *mode = runner_mode(runner);

  launcher_print(me, "%-15s", name);
  report_number(me, 9, 1, us, "");
  report_number(me, 8, 2, ratio, "x");
  report_number(me, 8, 3, local, "");
  report_number(me, 8, 3, global, "");
  report_number(me, 12, 0, words, "");
  char range[64];
  snprintf(range, sizeof range, paper.low == paper.high ? "%.0f" : "%.0f-%.0f", paper.low,
           paper.high);
  launcher_print(me, " %21s", range);
  report_number(me, 8, 4, xi, "");
  if (code != EXIT_VERIFIED)
    launcher_print(me, code == EXIT_WRONG_DATA ? "  NO: step %llu\n" : "  stopped at step %llu\n",
                   (unsigned long long)sum.last);
  else if (sum.verified == 0)
    launcher_print(me, "  not compared\n");
  else
    launcher_print(me, "  %llu steps x %d ranks\n", (unsigned long long)sum.verified, me->nranks);

  /* the table's lines are fixed, but several versions of a path can have run */
  if (path != SPARSE_DENSE) {
    const char *reason = runner_reason(runner);
    launcher_note(me, "%s (%s%s)%s%s", name, mode, runner->weights ? ", entries" : "",
                  *reason ? ": " : "", reason);
  }

  if (me->rank != 0) return;
  struct rows *rows = &report->rows;
  rows_text(rows, "path", name);
  rows_text(rows, "mode", path == SPARSE_DENSE ? "allreduce" : mode);
  rows_text(rows, "result", runner->weights ? "entries" : "dense");
  rows_integer(rows, "ranks", (unsigned long long)me->nranks);
  rows_integer(rows, "count", job->count);
  rows_text(rows, "type", job->opt->type->name);
  rows_number(rows, "density", job->config.density);
  rows_integer(rows, "k", job->k);
  rows_integer(rows, "steps", job->steps);
  rows_number(rows, "us", us);
  rows_number(rows, "ratio", ratio);
  rows_number(rows, "local_k", local);
  rows_number(rows, "global_k", global);
  rows_number(rows, "words_sent", words);
  rows_number(rows, "paper_words_low", paper.low);
  rows_number(rows, "paper_words_high", paper.high);
  rows_number(rows, "xi", xi);
  rows_integer(rows, "verified_steps", sum.verified);
  rows_integer(rows, "wrong", code != EXIT_VERIFIED);
  rows_end(rows);
}
