/* SPDX-License-Identifier: Apache-2.0 */
/* Does the model still learn? Data-parallel training with a sparse allreduce of the gradients.
 *
 * All ranks have the same weights. In each step every rank computes the gradient for its share of a
 * batch of images, the gradients are averaged over the ranks by sparse_allreduce.h, and every rank
 * changes its weights by the average. Dense, the average is exact. Sparse, each rank sends its
 * largest entries only, and keeps the others for later steps. This program trains the same small
 * network in several of these ways and prints what each has learnt, and how much was sent for it.
 *
 * Build:  make                  (one thread per GPU)      or   make MPI=1
 * Run:    ./sparse_training     ([NTHREADS=N])            or   mpirun -np N ./sparse_training
 *
 * The last line of a good run is: All ranks had the same weights after every epoch
 */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "digits.h"
#include "launcher.h"
#include "mlp.h"
#include "sparse_allreduce.h"
#include "training.h"
#include "verify.h"
#include "way.h"

struct story {
  const struct rank *me;
  const struct training *training;
  ncclComm_t comm;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  struct mlp_images images;
  struct mlp mlp;
  struct way entries; /* the result as entries, added to mlp.weights: what a training job does */
  struct way dense;   /* the result as a vector, for a second copy of the weights: to verify */
  int *order; /* device memory: images to learn from as they come in this epoch, then the others */
  struct verifier digest; /* of --digest */
  struct table table;
};

/* ---- what a rank has to do ------------------------------------------------------------------- */

/* Of n images this rank takes `n` from `first` on: as many as the others or one less, perhaps none.
 */
struct share {
  int first, n;
};
static struct share share_of(const struct rank *me, int n)
{
  const int first = (int)((long long)n * me->rank / me->nranks);
  return (struct share){first, (int)((long long)n * (me->rank + 1) / me->nranks) - first};
}

/* An order of the images to learn from that depends on seed and epoch only: the same on all ranks.
 */
static void shuffle(struct story *s, uint64_t seed, uint64_t epoch)
{
  int order[DIGITS_IMAGES];
  uint64_t state = seed << 32 ^ epoch;
  for (int i = 0; i < DIGITS_IMAGES; i++) order[i] = i;
  for (int i = DIGITS_TRAINING - 1; i > 0; i--) { /* Fisher and Yates */
    const int j = (int)(mlp_random(&state) % (uint64_t)(i + 1)), image = order[i];
    order[i] = order[j];
    order[j] = image;
  }
  CUDACHECK(cudaMemcpyAsync(s->order, order, sizeof order, cudaMemcpyHostToDevice, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Images order[first .. first + images) of this epoch change the weights of all ranks. */
static int step(struct story *s, int first, int images, struct course *course)
{
  float ms;
  const float rate = (float)s->training->rate, *average;
  const sparse_allreduce_t handle = s->entries.handle;
  ncclResult_t error;
  sparse_allreduce_statistics_t statistics;
  const struct share mine = share_of(s->me, images);

  /* ======================= STEP 4: this rank's gradient ====================================== */
  /* The library divides the sum over the ranks by their number. What is wanted is the sum over the
   * images by theirs. With this scale it is the same, also where ranks have one image less; a rank
   * that has none takes part with a gradient of zeros. */
  launcher_step("STEP 4: gradient");
  mlp_forward(&s->mlp, &s->images, s->order + first + mine.first, mine.n);
  mlp_backward(&s->mlp, mine.n, (float)s->me->nranks / (float)images);

  /* ======================= STEP 5: the average over all ranks ================================ */
  /* One call for the gradients of all layers, on the stream in which they were made. */
  launcher_step("STEP 5: sparse allreduce");
  way_forget(&s->entries, s->stream);
  CUDACHECK(cudaEventRecord(s->start, s->stream));
  SPARSECHECK(sparse_allreduce_run(handle, s->mlp.gradient, NULL, s->stream));
  CUDACHECK(cudaEventRecord(s->stop, s->stream));

  /* ======================= STEP 6: the weights =============================================== */
  /* The residual is made of gradients, not of changes of weights. Where the learning rate changes
   * from step to step, an entry that arrives late gets the rate of the step in which it arrives. */
  launcher_step("STEP 6: update");
  SPARSECHECK(sparse_allreduce_add(handle, -rate, s->entries.weights, s->stream));

  /* The same with the average as a vector of all elements, and a loop over them. A training job has
   * one of the two. Here their weights are compared after every epoch. */
  way_forget(&s->dense, s->stream);
  SPARSECHECK(sparse_allreduce_run(s->dense.handle, s->mlp.gradient, &average, s->stream));
  mlp_update(&s->mlp, s->dense.weights, average, rate);

  SPARSECHECK(sparse_allreduce_get_async_error(handle, &error)); /* waits for the allreduce */
  if (error == ncclInvalidArgument) {
    if (s->me->rank == 0) /* the same sentence on all */
      launcher_error("%s: %s; allowed: a smaller --rate", course->path->name,
                     sparse_allreduce_last_error());
    return EXIT_WRONG_DATA;
  }
  SPARSECHECK(error);
  SPARSECHECK(sparse_allreduce_statistics(handle, &statistics));
  CUDACHECK(cudaEventSynchronize(s->stop));
  CUDACHECK(cudaEventElapsedTime(&ms, s->start, s->stop));
  course->words += (double)statistics.words_sent;
  course->us[course->steps++] = ms * 1e3;
  return EXIT_VERIFIED;
}

/* ---- after an epoch -------------------------------------------------------------------------- */

/* The loss and the right ones of n images from `first` on, each rank its share of them. Collective.
 */
static double evaluate(struct story *s, int first, int n, int *right)
{
  const struct share mine = share_of(s->me, n);
  float loss[mine.n + 1];
  int is_right[mine.n + 1];
  struct sums {
    double loss;
    int right;
  } own = {0, 0}, all[s->me->nranks];

  mlp_forward(&s->mlp, &s->images, s->order + first + mine.first, mine.n);
  CUDACHECK(cudaMemcpyAsync(loss, s->mlp.loss, (size_t)mine.n * sizeof *loss,
                            cudaMemcpyDeviceToHost, s->stream));
  CUDACHECK(cudaMemcpyAsync(is_right, s->mlp.right, (size_t)mine.n * sizeof *is_right,
                            cudaMemcpyDeviceToHost, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
  for (int i = 0; i < mine.n; i++) own.loss += (double)loss[i];
  for (int i = 0; i < mine.n; i++) own.right += is_right[i];
  launcher_allgather(s->me, &own, all, sizeof own);
  double sum = *right = 0;
  for (int rank = 0; rank < s->me->nranks; rank++) {
    sum += all[rank].loss;
    *right += all[rank].right;
  }
  return sum / n;
}

/* ---- one path, one seed ---------------------------------------------------------------------- */

static int train(struct story *s, struct course *course, long seed)
{
  const struct training *t = s->training;
  const struct path *path = course->path;
  struct epoch epoch = {.seed = seed};
  int code = EXIT_VERIFIED, right;

  /* ======================= STEP 3: equal weights and a handle ================================ */
  launcher_step("STEP 3: handle");
  sparse_allreduce_config_t config = training_config(t, path);
  config.result = SPARSE_RESULT_ENTRIES;
  way_begin(&s->entries, s->comm, path, &config, seed);
  config.result = SPARSE_RESULT_DENSE;
  way_begin(&s->dense, s->comm, path, &config, seed);
  course->mode = training_mode(path, s->entries.handle);

  while (epoch.number < t->epochs && code == EXIT_VERIFIED) {
    epoch.number++;
    shuffle(s, (uint64_t)seed, (uint64_t)epoch.number);
    for (int first = 0; first < DIGITS_TRAINING && code == EXIT_VERIFIED; first += (int)t->batch) {
      const int left = DIGITS_TRAINING - first;
      code = step(s, first, t->batch < left ? (int)t->batch : left, course);
    }
    if (code != EXIT_VERIFIED) break;

    /* ======================= STEP 7: the same everywhere? What was learnt? =================== */
    launcher_step("STEP 7: weights");
    code = ways_agree(s->me, path, &epoch, &s->entries, &s->dense);
    if (s->digest.me && path->algorithm != SPARSE_DENSE)
      verifier_digest(&s->digest, s->mlp.weights, MLP_WEIGHTS);
    epoch.loss = evaluate(s, 0, DIGITS_TRAINING, &right);
    evaluate(s, DIGITS_TRAINING, DIGITS_HELD_OUT, &epoch.right);
    if (code == EXIT_VERIFIED && !isfinite(epoch.loss)) {
      if (s->me->rank == 0)
        launcher_error("%s: the loss after epoch %ld is %g; allowed: a smaller --rate", path->name,
                       epoch.number, epoch.loss);
      code = EXIT_WRONG_DATA;
    }
    if (code == EXIT_VERIFIED) table_epoch(&s->table, course, &epoch);
  }
  course->loss += epoch.loss;
  course->right += epoch.right;
  if (!course->seeds || epoch.right < course->lowest) course->lowest = epoch.right;
  if (!course->seeds || epoch.right > course->highest) course->highest = epoch.right;
  course->seeds++;
  way_end(&s->entries, s->me);
  way_end(&s->dense, s->me);
  return code;
}

/* ---- the story ------------------------------------------------------------------------------- */

static int run(const struct rank *me, const struct options *opt)
{
  struct training training;
  struct story s = {.me = me, .training = &training};
  int code = training_open(&training, me);
  if (code != EXIT_VERIFIED) return code;

  /* ======================= STEP 1: a device and a communicator =============================== */
  launcher_step("STEP 1: communicator");
  ncclUniqueId id;
  CUDACHECK(cudaSetDevice(me->device));
  const size_t entries = (size_t)24 * (size_t)me->nranks * MLP_WEIGHTS; /* see sparse_allreduce.h */
  if (!launcher_has_memory(me, ((size_t)160 << 20) + 2 * entries)) return EXIT_USAGE;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&s.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  CUDACHECK(cudaEventCreate(&s.start));
  CUDACHECK(cudaEventCreate(&s.stop));

  /* ======================= STEP 2: images and a network ====================================== */
  launcher_step("STEP 2: images");
  float pixels[DIGITS_IMAGES * DIGITS_PIXELS];
  int labels[DIGITS_IMAGES];
  digits_load(pixels, labels);
  mlp_images_create(&s.images, pixels, labels, DIGITS_IMAGES);    /* all of them on every rank */
  mlp_create(&s.mlp, DIGITS_TRAINING / me->nranks + 1, s.stream); /* a rank's largest share */
  s.entries.weights = s.mlp.weights;
  CUDACHECK(cudaMalloc((void **)&s.dense.weights, MLP_WEIGHTS * sizeof *s.dense.weights));
  CUDACHECK(cudaMalloc((void **)&s.order, DIGITS_IMAGES * sizeof *s.order));
  if (opt->digest) verifier_init(&s.digest, me, datatype_find("float"), s.stream);
  code = table_open(&s.table, &training, me);
  const long steps = (DIGITS_TRAINING + training.batch - 1) / training.batch * training.epochs;

  /* STEP 3 to 7 are those of each path. */
  for (int p = 0; p < training.npaths && code == EXIT_VERIFIED; p++) {
    struct course course = {.path = &training.paths[p]};
    course.us = calloc((size_t)(steps * training.seeds), sizeof *course.us);
    if (!course.us) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
    for (long i = 0; i < training.seeds && code == EXIT_VERIFIED; i++)
      code = train(&s, &course, training.seed + i);
    table_path(&s.table, &course, code);
    free(course.us);
  }
  code = table_close(&s.table, code);
  if (opt->digest) verifier_print_digest(&s.digest);

  /* ======================= STEP 8: cleanup =================================================== */
  launcher_step("STEP 8: cleanup");
  if (opt->digest) verifier_free(&s.digest);
  mlp_destroy(&s.mlp);
  mlp_images_destroy(&s.images);
  CUDACHECK(cudaFree(s.dense.weights));
  CUDACHECK(cudaFree(s.order));
  CUDACHECK(cudaEventDestroy(s.start));
  CUDACHECK(cudaEventDestroy(s.stop));
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(s.comm));
  NCCLCHECK(ncclCommDestroy(s.comm));
  launcher_print(me, code == EXIT_VERIFIED ? "All ranks had the same weights after every epoch\n"
                                           : "Stopped, see standard error\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "sparse_training",
      .summary = "Trains a small network with sparse and dense allreduces of its gradients",
      .options = training_option_table,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
