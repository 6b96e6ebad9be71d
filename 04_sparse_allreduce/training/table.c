/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <unistd.h>

#include "bench.h"
#include "digits.h"
#include "mlp.h"
#include "training.h"

int table_open(struct table *table, const struct training *training, const struct rank *me)
{
  size_t k;
  *table = (struct table){.training = training, .me = me};
  const int failed = me->rank == 0 && rows_open(&table->rows, training->table) != 0;
  const int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code != EXIT_VERIFIED) return code;
  sparse_allreduce_sizes(MLP_WEIGHTS, training->density, &k, NULL);
  launcher_print(me,
                 "Perceptron %d-%d-%d-%d: %d weights; k = %zu (density %g)\n"
                 "%d images in batches of %ld, %ld epochs, rate %g, %ld seed%s; %d held out\n"
                 "%-27s %8s %9s %9s %12s %9s\n",
                 MLP_INPUT, MLP_HIDDEN_1, MLP_HIDDEN_2, MLP_OUTPUT, MLP_WEIGHTS, k,
                 training->density, DIGITS_TRAINING, training->batch, training->epochs,
                 training->rate, training->seeds, training->seeds == 1 ? "" : "s", DIGITS_HELD_OUT,
                 "path", "loss", "accuracy", "of 360", "words/step", "us/step");
  return EXIT_VERIFIED;
}

/* Means over steps: of what the ranks send, and the time of the slowest rank, NaN on the stand-in,
 * whose times mean nothing. The latter is a median. Collective. */
static double words_per_step(const struct table *table, const struct course *course)
{
  double all[table->me->nranks], sum = 0;
  launcher_allgather(table->me, &course->words, all, sizeof *all);
  for (int rank = 0; rank < table->me->nranks; rank++) sum += all[rank];
  return sum / table->me->nranks / (double)course->steps;
}

static double us_per_step(const struct table *table, const struct course *course)
{
  const double us = launcher_max(table->me, bench_median(course->us, course->steps));
#ifdef CPU_STANDIN
  return us * (double)NAN;
#else
  return us;
#endif
}

void table_epoch(struct table *table, const struct course *course, const struct epoch *epoch)
{
  const struct training *t = table->training;
  struct rows *rows = &table->rows;
  size_t k;
  const double words = words_per_step(table, course), us = us_per_step(table, course);
  if (table->me->rank != 0) return;
  sparse_allreduce_sizes(MLP_WEIGHTS, t->density, &k, NULL);
  const bool dense = course->path->algorithm == SPARSE_DENSE;
  rows_text(rows, "trained", course->path->name);
  rows_text(rows, "mode", course->mode);
  rows_integer(rows, "ranks", (unsigned long long)table->me->nranks);
  rows_integer(rows, "weights", MLP_WEIGHTS);
  rows_number(rows, "density", dense ? 1 : t->density);
  rows_integer(rows, "k", dense ? MLP_WEIGHTS : k);
  rows_integer(rows, "batch", (unsigned long long)t->batch);
  rows_number(rows, "rate", t->rate);
  rows_integer(rows, "seed", (unsigned long long)epoch->seed);
  rows_integer(rows, "epoch", (unsigned long long)epoch->number);
  rows_number(rows, "loss", epoch->loss);
  rows_integer(rows, "right", (unsigned long long)epoch->right);
  rows_integer(rows, "held_out", DIGITS_HELD_OUT);
  rows_number(rows, "accuracy", (double)epoch->right / DIGITS_HELD_OUT);
  rows_number(rows, "words_sent", words);
  rows_number(rows, "us", us);
  rows_end(rows);
  if (isatty(STDERR_FILENO))
    fprintf(stderr, "\r\033[K%s, seed %ld, epoch %ld of %ld: loss %.4f, %d of %d right",
            course->path->name, epoch->seed, epoch->number, t->epochs, epoch->loss, epoch->right,
            DIGITS_HELD_OUT);
}

void table_path(struct table *table, const struct course *course, int code)
{
  const double words = words_per_step(table, course), us = us_per_step(table, course);
  const double seeds = (double)course->seeds;
  char range[32] = "";
  if (table->me->rank == 0 && isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
  if (code != EXIT_VERIFIED) {
    launcher_print(table->me, "%-27s stopped, see standard error\n", course->path->name);
    return;
  }
  snprintf(range, sizeof range, course->seeds > 1 ? "%d-%d" : "%d", course->lowest,
           course->highest);
  launcher_note(table->me, "%s (%s)", course->path->name, course->mode);
  launcher_print(table->me, "%-27s %8.4f %8.2f%% %9s %12.0f", course->path->name,
                 course->loss / seeds, 100 * (double)course->right / seeds / DIGITS_HELD_OUT, range,
                 words);
  if (isfinite(us))
    launcher_print(table->me, " %9.1f\n", us);
  else
    launcher_print(table->me, " %9s\n", "-");
}

int table_close(struct table *table, int code)
{
  struct output_file *file = &table->rows.output;
  rows_finish(&table->rows);
  const bool complete = file->stream && code == EXIT_VERIFIED;
  const int published = output_files_publish(table->me, &file, complete);
  output_file_close(file);
  return published == EXIT_VERIFIED ? code : published;
}
