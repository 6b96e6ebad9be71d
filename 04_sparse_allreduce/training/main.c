/* SPDX-License-Identifier: Apache-2.0 */
/* Does the model still learn? This trains a small network on all ranks, with several paths in turn.
 * It prints what each has learned and how much was sent for it. README.md says how to build and run
 * it. The last line of a good run is: All ranks had the same weights after every epoch */
#include <math.h>
#include <string.h>

#include "check.h"
#include "hash.h"
#include "mlp.h"
#include "output_file.h"
#include "sparse_allreduce.h"

/* As NCCLCHECK, with the sentence of sparse_allreduce_last_error(). */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())
#define FORGETS "oktopk-no-residual" /* the path whose residual is cleared in each step */

static const char *algorithms = "dense,oktopk,topkA," FORGETS, *table;
static double density = 0.01, rate = 0.4;
static long epochs = 20, batch = 64, seeds = 1;

static const struct option_spec option_table[] = {
    {"algorithm", 0, OPTION_STRING, &algorithms, "NAMES",
     "paths, separated by commas (dense,oktopk,topkA," FORGETS ")", 0, 0},
    {"density", 0, OPTION_DOUBLE, &density, "D", "share of the elements that a rank offers (0.01)",
     0, 1},
    {"epochs", 0, OPTION_LONG, &epochs, "N", "how often each image is seen (20)", 1, 10000},
    {"batch", 0, OPTION_LONG, &batch, "N", "images of all ranks in a step (64)", 1, 100000},
    {"rate", 0, OPTION_DOUBLE, &rate, "R", "weights -= R * average gradient (0.4)", 0, 1000},
    {"seeds", 0, OPTION_LONG, &seeds, "N", "train with N seeds: 1, 2, ... (1)", 1, 1000},
    {"table", 'J', OPTION_OUTPUT, &table, "FILE",
     "write loss and accuracy after each epoch to FILE.json or FILE.csv", 0, 0},
    {"count", .kind = OPTION_ABSENT},
    {"datatype", .kind = OPTION_ABSENT},
    {"bench", .kind = OPTION_ABSENT},
    {0},
};

/* One path of --algorithm, and its results with all seeds so far. */
struct path {
  const char *name;
  bool forgets; /* what is not sent is lost */
  sparse_allreduce_config_t config;
  long steps;
  double words, mean_words; /* sent by this rank in all steps; mean over steps and ranks */
  double loss;              /* sum over seeds, after their last epochs */
  int right;                /* of the held-out images, the same */
};

/* The next name of *list, which then begins after it. Returns 0, or -1 with a line in `error`. */
static int next_path(struct path *path, const char **list, int nranks, char *error)
{
  const size_t length = strcspn(*list, ",");
  int at = snprintf(error, LAUNCHER_TEXT,
                    "--algorithm: unknown '%.*s'; allowed:", length < 40 ? (int)length : 40, *list);
  for (int a = 0; a <= SPARSE_ALGORITHMS; a++) {
    const bool forgets = a == SPARSE_ALGORITHMS;
    const char *name = forgets ? FORGETS : sparse_allreduce_name((sparse_allreduce_algorithm_t)a);
    at += snprintf(error + at, (size_t)(LAUNCHER_TEXT - at), " %s", name);
    if (strlen(name) != length || strncmp(name, *list, length) != 0) continue;
    *list += length + ((*list)[length] == ',');
    *path = (struct path){name, forgets, .config = sparse_allreduce_config(SPARSE_PRESET_VGG)};
    if (!forgets) path->config.algorithm = (sparse_allreduce_algorithm_t)a;
    path->config.density = density;
    path->config.result = SPARSE_RESULT_ENTRIES;
    path->config.nonfinite = SPARSE_NONFINITE_DROP; /* the loss of the epoch shows it */
    if (sparse_allreduce_check(&path->config, MLP_WEIGHTS, nranks) == ncclSuccess) return 0;
    snprintf(error, LAUNCHER_TEXT, "%s with %d weights, density %g: %s", name, MLP_WEIGHTS, density,
             sparse_allreduce_last_error());
    break;
  }
  return -1;
}

/* ---- a step ---------------------------------------------------------------------------------- */

struct job {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  float *device_weights, *device_gradient;
  float weights[MLP_WEIGHTS], gradient[MLP_WEIGHTS]; /* on the host, which computes the network */
  int order[DIGITS_IMAGES];                          /* of the images in this epoch */
  uint64_t digest;                                   /* of the weights after each epoch so far */
  struct rows rows;                                  /* of -J, a row for each epoch */
};

/* The loss of this rank's share of images first .. first + n, the gradient of which is added to
 * `gradient`. Each rank takes as many images as the others, or one fewer, perhaps none. */
static double loss_of_share(struct job *job, int first, int n, float *gradient, int *right)
{
  const int begin = (int)((long long)n * job->me->rank / job->me->nranks);
  const int end = (int)((long long)n * (job->me->rank + 1) / job->me->nranks);
  return mlp_loss(job->weights, job->order + first + begin, end - begin, gradient, right);
}

/* Images first .. first + n of this epoch change the weights of all ranks. */
static void step(struct job *job, struct path *path, sparse_allreduce_t handle, int first, int n)
{
  float *residual;
  int right;
  ncclResult_t error;
  sparse_allreduce_statistics_t statistics;

  /* The library divides by the number of ranks, but training needs the mean over the images. With
   * this scale both are the same, also if a rank has one image fewer, or none. */
  launcher_step("STEP 4: gradient");
  const float scale = (float)job->me->nranks / (float)n;
  memset(job->gradient, 0, sizeof job->gradient);
  loss_of_share(job, first, n, job->gradient, &right);
  for (int i = 0; i < MLP_WEIGHTS; i++) job->gradient[i] *= scale;
  CUDACHECK(cudaMemcpyAsync(job->device_gradient, job->gradient, sizeof job->gradient,
                            cudaMemcpyHostToDevice, job->stream));

  /* One call for the gradients of all layers, on the stream that brings them. */
  launcher_step("STEP 5: sparse allreduce");
  if (path->forgets) {
    SPARSECHECK(sparse_allreduce_residual(handle, &residual));
    CUDACHECK(cudaMemsetAsync(residual, 0, MLP_WEIGHTS * sizeof *residual, job->stream));
  }
  SPARSECHECK(sparse_allreduce_run(handle, job->device_gradient, NULL, job->stream));

  /* This is plain SGD, where a gradient that arrives late is as good as one in time. With Adam,
   * ranks have to exchange what the optimizer changed: see ../pytorch. */
  launcher_step("STEP 6: update");
  SPARSECHECK(sparse_allreduce_add(handle, -(float)rate, job->device_weights, job->stream));
  CUDACHECK(cudaMemcpyAsync(job->weights, job->device_weights, sizeof job->weights,
                            cudaMemcpyDeviceToHost, job->stream));
  CUDACHECK(cudaStreamSynchronize(job->stream));

  SPARSECHECK(sparse_allreduce_get_async_error(handle, &error));
  SPARSECHECK(error); /* a rank was late */
  SPARSECHECK(sparse_allreduce_statistics(handle, &statistics));
  path->words += (double)statistics.words_sent;
  path->steps++;
}

/* ---- an epoch -------------------------------------------------------------------------------- */

/* An order of the images to learn from that depends on seed and epoch only. */
static void shuffle(int order[DIGITS_IMAGES], uint64_t seed, uint64_t epoch)
{
  uint64_t state = seed << 32 ^ epoch;
  for (int i = 0; i < DIGITS_IMAGES; i++) order[i] = i;
  for (int i = DIGITS_TRAINING - 1; i > 0; i--) { /* Fisher and Yates */
    const int j = (int)(hash_next(&state) % (uint64_t)(i + 1)), image = order[i];
    order[i] = order[j];
    order[j] = image;
  }
}

/* The results of an epoch on one rank: the sum of losses over its share of the images, words that
 * it has sent so far, how many held-out images it has right, a hash of its weights. */
struct outcome {
  double loss, words;
  int right;
  uint64_t weights;
};

/* All ranks began with the same weights and were given the same averages. So they have the same
 * weights now, to the last bit, or something is wrong. All ranks get what each has, and return the
 * same code. Collective. */
static int end_epoch(struct job *job, struct path *path, long seed, long epoch)
{
  const int nranks = job->me->nranks;
  struct outcome mine = {.words = path->words}, all[nranks], sum = {0};
  uint32_t bits[MLP_WEIGHTS];
  bool same = true;
  int ignored;

  mine.loss = loss_of_share(job, 0, DIGITS_TRAINING, NULL, &ignored);
  loss_of_share(job, DIGITS_TRAINING, DIGITS_HELD_OUT, NULL, &mine.right);
  memcpy(bits, job->weights, sizeof bits);
  for (int i = 0; i < MLP_WEIGHTS; i++) mine.weights = hash_mix(mine.weights + bits[i] + 1);
  launcher_allgather(job->me, &mine, all, sizeof mine);
  for (int rank = 0; rank < nranks; rank++) {
    sum.loss += all[rank].loss;
    sum.right += all[rank].right;
    sum.words += all[rank].words;
    same = same && all[rank].weights == all[0].weights;
  }
  if (mine.weights != all[0].weights)
    launcher_error("%s, epoch %ld: weights differ from those of rank 0", path->name, epoch);
  const double loss = sum.loss / DIGITS_TRAINING;
  if (!isfinite(loss) && job->me->rank == 0)
    launcher_error("%s: the loss of epoch %ld is not finite: choose a smaller --rate", path->name,
                   epoch);
  if (path->config.algorithm != SPARSE_DENSE) job->digest = hash_mix(job->digest + mine.weights);
  path->mean_words = sum.words / nranks / (double)path->steps;
  if (epoch == epochs) {
    path->loss += loss;
    path->right += sum.right;
  }
  rows_text(&job->rows, "trained", path->name);
  rows_integer(&job->rows, "ranks", (unsigned long long)nranks);
  rows_number(&job->rows, "density", density);
  rows_integer(&job->rows, "seed", (unsigned long long)seed);
  rows_integer(&job->rows, "epoch", (unsigned long long)epoch);
  rows_number(&job->rows, "loss", loss);
  rows_integer(&job->rows, "right", (unsigned long long)sum.right);
  rows_number(&job->rows, "accuracy", (double)sum.right / DIGITS_HELD_OUT);
  rows_number(&job->rows, "words_sent", path->mean_words);
  rows_end(&job->rows);
  return same && isfinite(loss) ? EXIT_VERIFIED : EXIT_WRONG_DATA;
}

/* ---- a path ---------------------------------------------------------------------------------- */

/* Trains with one seed, and adds the results to those of the others. */
static int train(struct job *job, struct path *path, long seed)
{
  sparse_allreduce_t handle;
  int code = EXIT_VERIFIED;

  launcher_step("STEP 3: handle");
  mlp_initial_weights(job->weights, (uint64_t)seed);
  CUDACHECK(
      cudaMemcpy(job->device_weights, job->weights, sizeof job->weights, cudaMemcpyHostToDevice));
  SPARSECHECK(sparse_allreduce_create(job->comm, MLP_WEIGHTS, &path->config, &handle));

  for (long epoch = 1; epoch <= epochs && code == EXIT_VERIFIED; epoch++) {
    shuffle(job->order, (uint64_t)seed, (uint64_t)epoch);
    for (int first = 0; first < DIGITS_TRAINING; first += (int)batch) {
      const int left = DIGITS_TRAINING - first;
      step(job, path, handle, first, batch < left ? (int)batch : left);
    }
    launcher_step("STEP 7: weights");
    code = end_epoch(job, path, seed, epoch);
  }
  SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(job->me); /* several GPUs in one process: see sparse_allreduce_destroy */
  return code;
}

/* ---- the whole run --------------------------------------------------------------------------- */

static int run(const struct rank *me, const struct options *opt)
{
  struct job job = {.me = me};
  struct path path;
  char error[LAUNCHER_TEXT] = "";
  const char *list = algorithms;
  int code = EXIT_VERIFIED;
  ncclUniqueId id;
  size_t k;
  do { /* before anything is begun */
    if (next_path(&path, &list, me->nranks, error) != 0) return launcher_refuse(me, error);
  } while (*list);

  launcher_step("STEP 1: communicator");
  CUDACHECK(cudaSetDevice(me->device));
  const size_t entries = (size_t)24 * (size_t)me->nranks * MLP_WEIGHTS; /* see sparse_allreduce.h */
  if (!launcher_has_memory(me, ((size_t)160 << 20) + entries)) return EXIT_USAGE;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&job.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&job.stream));

  launcher_step("STEP 2: memory");
  CUDACHECK(cudaMalloc((void **)&job.device_weights, sizeof job.weights));
  CUDACHECK(cudaMalloc((void **)&job.device_gradient, sizeof job.gradient));
  if (me->rank == 0 && rows_open(&job.rows, table) != 0) launcher_abort(EXIT_FAILED_CALL);
  sparse_allreduce_sizes(MLP_WEIGHTS, density, &k, NULL);
  launcher_print(me,
                 "Perceptron 64-128-64-10: %d weights; k = %zu (density %g)\n"
                 "%d images in batches of %ld, %ld epochs, rate %g, %ld seed%s; %d held out\n"
                 "%-27s %8s %9s %9s %12s\n",
                 MLP_WEIGHTS, k, density, DIGITS_TRAINING, batch, epochs, rate, seeds,
                 seeds == 1 ? "" : "s", DIGITS_HELD_OUT, "path", "loss", "accuracy", "of 360",
                 "words/step");

  /* Steps 3 to 7 are those of each path. */
  for (list = algorithms; *list && code == EXIT_VERIFIED;) {
    next_path(&path, &list, me->nranks, error);
    for (long s = 1; s <= seeds && code == EXIT_VERIFIED; s++) code = train(&job, &path, s);
    if (code == EXIT_VERIFIED)
      launcher_print(me, "%-27s %8.4f %8.2f%% %9.4g %12.0f\n", path.name, path.loss / (double)seeds,
                     100.0 * path.right / (double)seeds / DIGITS_HELD_OUT,
                     path.right / (double)seeds, path.mean_words);
  }
  rows_finish(&job.rows);
  const int published = output_files_publish(me, &(struct output_file *){&job.rows.output},
                                             job.rows.output.stream && code == EXIT_VERIFIED);
  output_file_close(&job.rows.output);
  if (code == EXIT_VERIFIED) code = published;
  if (opt->digest) launcher_print(me, "Digest: %016llx\n", (unsigned long long)job.digest);

  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaFree(job.device_weights));
  CUDACHECK(cudaFree(job.device_gradient));
  CUDACHECK(cudaStreamDestroy(job.stream));
  NCCLCHECK(ncclCommFinalize(job.comm));
  NCCLCHECK(ncclCommDestroy(job.comm));
  launcher_print(me, code == EXIT_VERIFIED ? "All ranks had the same weights after every epoch\n"
                                           : "Stopped, see standard error\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "sparse_training",
      .summary = "Trains a small network with sparse and dense allreduces of its gradients",
      .options = option_table,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
