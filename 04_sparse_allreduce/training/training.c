/* SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "mlp.h"

#define WITHOUT "-no-residual"

static struct {
  const char *algorithms, *table;
  double density, rate;
  long epochs, batch, seed, seeds;
  int exchange;
} own = {"dense,oktopk,topkA,oktopk" WITHOUT, NULL, 0.01, 0.2, 20, 64, 1, 1, 0};

const struct option_spec training_option_table[] = {
    {"algorithm", 0, OPTION_STRING, &own.algorithms, "NAMES",
     "paths, separated by commas, or all; oktopk" WITHOUT " forgets what is not sent, and so with "
     "other paths (dense,oktopk,topkA,oktopk" WITHOUT ")",
     0, 0},
    {"density", 0, OPTION_DOUBLE, &own.density, "D",
     "share of the entries that a rank offers (0.01)", 0, 1},
    {"epochs", 0, OPTION_LONG, &own.epochs, "N", "how often each image is seen (20)", 1, 10000},
    {"batch", 0, OPTION_LONG, &own.batch, "N", "images of all ranks together in a step (64)", 1,
     100000},
    {"rate", 0, OPTION_DOUBLE, &own.rate, "R", "weights -= R * average gradient (0.2)", 0, 1000},
    {"seed", 0, OPTION_LONG, &own.seed, "N", "of initial weights and order of images (1)", 0,
     1LL << 40},
    {"seeds", 0, OPTION_LONG, &own.seeds, "N", "trains with N seeds from --seed on (1)", 1, 1000},
    {"exchange", 0, OPTION_CHOICE, &own.exchange, "auto|sendrecv|onesided",
     "how entries move between ranks (auto)", 0, 0},
    {"table", 'J', OPTION_OUTPUT, &own.table, "FILE",
     "loss and accuracy after each epoch to FILE.json or FILE.csv", 0, 0},
    {"count", 0, OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"datatype", 'd', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"bench", 0, OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"minbytes", 'b', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"maxbytes", 'e', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"stepfactor", 'f', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"iters", 'n', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"warmup_iters", 'w', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"repetitions", 0, OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {"cudagraph", 'G', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {0},
};

static void add_path(struct training *t, int algorithm, bool forgets)
{
  struct path *path = &t->paths[t->npaths++];
  path->algorithm = (sparse_allreduce_algorithm_t)algorithm;
  path->forgets = forgets;
  snprintf(path->name, sizeof path->name, "%s%s", sparse_allreduce_name(path->algorithm),
           forgets ? WITHOUT : "");
}

/* One name of --algorithm. Returns whether it is one. */
static bool add_named(struct training *t, const char *name, size_t length)
{
  for (int a = 0; a < 2 * SPARSE_ALGORITHMS; a++) {
    struct training one = {.npaths = 0};
    add_path(&one, a / 2, a % 2 != 0);
    if (strlen(one.paths[0].name) != length || strncmp(one.paths[0].name, name, length) != 0)
      continue;
    if (one.paths[0].forgets && one.paths[0].algorithm == SPARSE_DENSE) return false; /* has none */
    for (int i = 0; i < t->npaths; i++)
      if (strcmp(t->paths[i].name, one.paths[0].name) == 0) return true; /* once is enough */
    add_path(t, a / 2, a % 2 != 0);
    return true;
  }
  return false;
}

static void choose_paths(struct training *t, char *error, size_t error_size)
{
  const char *name = own.algorithms;
  if (strcmp(name, "all") == 0) {
    for (int a = 0; a < SPARSE_ALGORITHMS; a++) add_path(t, a, false);
    add_path(t, SPARSE_OKTOPK, true);
    return;
  }
  for (;; name++) {
    const size_t length = strcspn(name, ",");
    if (length == strlen("all") && strncmp(name, "all", length) == 0) {
      snprintf(error, error_size,
               "--algorithm: 'all' beside other names; allowed: all alone, or names of paths");
      return;
    }
    if (!add_named(t, name, length)) {
      int at = snprintf(error, error_size, "--algorithm: unknown '%.*s'; allowed: all, or of dense",
                        length < 40 ? (int)length : 40, name);
      for (int a = 1; a < SPARSE_ALGORITHMS; a++)
        at += snprintf(error + at, error_size - (size_t)at, ", %s",
                       sparse_allreduce_name((sparse_allreduce_algorithm_t)a));
      snprintf(error + at, error_size - (size_t)at,
               ", and all but dense with " WITHOUT " after it");
      return;
    }
    name += length;
    if (*name == '\0') return;
  }
}

int training_open(struct training *t, const struct rank *me)
{
  char error[LAUNCHER_TEXT] = "";
  *t = (struct training){.density = own.density,
                         .rate = own.rate,
                         .epochs = own.epochs,
                         .batch = own.batch,
                         .seed = own.seed,
                         .seeds = own.seeds,
                         .exchange = (sparse_exchange_t)own.exchange,
                         .table = own.table};
  choose_paths(t, error, sizeof error);
  for (int i = 0; i < t->npaths && !*error; i++) {
    const sparse_allreduce_config_t config = training_config(t, &t->paths[i]);
    if (sparse_allreduce_check(&config, MLP_WEIGHTS, me->nranks) != ncclSuccess)
      snprintf(error, sizeof error, "%s with %d weights, density %g: %s", t->paths[i].name,
               MLP_WEIGHTS, t->density, sparse_allreduce_last_error());
  }
  return launcher_refuse(me, error);
}

sparse_allreduce_config_t training_config(const struct training *training, const struct path *path)
{
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  config.algorithm = path->algorithm;
  config.density = training->density;
  config.exchange = training->exchange;
  return config;
}

const char *training_mode(const struct path *path, sparse_allreduce_t handle)
{
  sparse_mode_t mode;
  SPARSECHECK(sparse_allreduce_mode(handle, &mode));
  return path->algorithm == SPARSE_DENSE     ? "allreduce"
         : mode == SPARSE_MODE_ONESIDED      ? "one-sided"
         : mode == SPARSE_MODE_DEVICE_COUNTS ? "device counts"
                                             : "send/recv";
}
