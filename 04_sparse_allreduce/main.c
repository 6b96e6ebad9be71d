/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse allreduce of gradients: every rank offers the large entries of its gradient, all ranks get
 * the sums of what was offered, and what was not sent is kept and added to the next gradient.
 *
 * The Ok-Topk paper (PPoPP'22) and its code have nine ways to do that, and a dense AllReduce. This
 * program runs all ten as in a training job, by the library in lib/, and compares every element
 * with what the readable version in simple/ makes on the host, bit for bit.
 *
 * Build and run:  make run          one thread per GPU; NTHREADS=N takes N of them
 *                 make run MPI=1    one process per GPU; NP=N takes N of them
 * The last line of a good run is: All paths verified correctly */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include "check.h"
#include "launcher.h"
#include "lib/sparse_allreduce.h"
#include "simple/simple.h"

/* As NCCLCHECK, with the library's sentence about its last error. */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

enum { COUNT = 64 << 10, STEPS = 70 }; /* elements of the gradient; steps of each path */

static uint32_t hash(int i, int step, int key)
{
  uint64_t x = ((uint64_t)i << 32 ^ (uint64_t)step << 16 ^ (uint64_t)key) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ULL;
  return (uint32_t)(x >> 32);
}

/* The gradient of a rank in a step. As in training few elements are large, two thirds of each are
 * the same on all ranks, and every 32 steps an element gets another scale, a power of 2. Before
 * that it is a whole number below 2^13. So sums are exact, whatever the order of additions is. */
static void backward_pass(float *gradient, int rank, int step)
{
  for (int i = 0; i < COUNT; i++) {
    const int bits = (int)(hash(i, (step + i % 32) / 32, -1) >> 8) | 1 << 12;
    const int number = 2 * (int)(hash(i, step, -2) >> 20) + (int)(hash(i, step, rank) >> 20);
    gradient[i] = (float)((number - 3 * 2048) * (bits & -bits)) * 0x1p-20f; /* the lowest bit */
  }
}

/* Compares a vector in device memory with the reference's, bit for bit, so NaN does not pass. */
static int compare(const char *what, int path, int step, const float *vector, const float *expected)
{
  static _Thread_local float got[COUNT];
  CUDACHECK(cudaMemcpy(got, vector, sizeof got, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) {
    if (memcmp(&got[i], &expected[i], sizeof *got) == 0) continue;
    launcher_error("%s, step %d: %s: element %d is %.9g, expected %.9g", simple_paths[path].name,
                   step, what, i, got[i], expected[i]);
    return EXIT_WRONG_DATA;
  }
  return EXIT_VERIFIED;
}

static void print_number(const struct rank *me, int width, int digits, double value)
{
  char text[32] = "-";
  if (isfinite(value)) snprintf(text, sizeof text, "%.*f", digits, value);
  launcher_print(me, " %*s", width, text);
}

static int run_path(const struct rank *me, ncclComm_t comm, cudaStream_t stream,
                    const sparse_allreduce_config_t *config, float *gradient, double *dense_us)
{
  static _Thread_local float host[COUNT];
  const int path = (int)config->algorithm;
  double us = 0, sums[3] = {0}; /* of all steps: entries offered, in the result, words sent */

  launcher_step("STEP 3: a handle, and the reference");
  /* Both hold what a step leaves to the next: the residual, thresholds, regions. Without a
   * communicator the reference runs on the host, and the launcher brings what other ranks send. */
  sparse_allreduce_t handle;
  SPARSECHECK(sparse_allreduce_create(comm, COUNT, config, &handle));
  struct simple *reference = simple_create(NULL, me, COUNT, config);

  int code = EXIT_VERIFIED, step;
  for (step = 0; step < STEPS && code == EXIT_VERIFIED; step++) {
    launcher_step("STEP 4: the gradient");
    backward_pass(host, me->rank, step);
    CUDACHECK(cudaMemcpyAsync(gradient, host, sizeof host, cudaMemcpyHostToDevice, stream));

    launcher_step("STEP 5: the sparse allreduce");
    const float *result; /* COUNT averages in device memory, most of them 0 */
    CUDACHECK(cudaStreamSynchronize(stream));
    launcher_barrier(me); /* start together: waiting for a late rank does not count */
    const double start = launcher_microseconds();
    SPARSECHECK(sparse_allreduce_run(handle, gradient, &result, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
    if (step > 0) us += launcher_microseconds() - start; /* the first step loads kernels */

    launcher_step("STEP 6: every element on every rank");
    sparse_allreduce_statistics_t s;
    ncclResult_t async_error;
    float *residual; /* what was sent leaves it in the call below, or else in the next step */
    SPARSECHECK(sparse_allreduce_get_async_error(handle, &async_error));
    SPARSECHECK(async_error); /* a gradient that is not finite, or a rank that came too late */
    SPARSECHECK(sparse_allreduce_statistics(handle, &s));
    /* its sums have another order, so this threshold may differ in its last bits */
    reference->given_threshold = s.gaussian_threshold;
    simple_step(reference, host, 0);
    code = compare("result", path, step, result, reference->result);
    if (path != SPARSE_DENSE && (step % 2 == 1 || step == STEPS - 1)) {
      SPARSECHECK(sparse_allreduce_residual(handle, &residual));
      if (compare("residual", path, step, residual, reference->acc)) code = EXIT_WRONG_DATA;
    }
    code = launcher_agree(me, code); /* wrong on one rank is wrong on all */
    sums[0] += (double)s.local, sums[1] += (double)s.global, sums[2] += (double)s.words_sent;
  }

  launcher_step("STEP 7: what came out");
  double all[me->nranks][3], mean[3] = {0}, k = (double)reference->k, low, high;
  char range[48];
  launcher_allgather(me, sums, all, sizeof sums);
  for (int rank = 0; rank < me->nranks; rank++)
    for (int i = 0; i < 3; i++) mean[i] += all[rank][i] / step / me->nranks;
  us = code ? (double)NAN : launcher_max(me, us / (step - 1)); /* of the slowest rank */
  simple_paper_words(path, COUNT, k, me->nranks, &low, &high);
  snprintf(range, sizeof range, low == high ? "%.0f" : "%.0f-%.0f", low, high);
  if (path == SPARSE_DENSE) *dense_us = us, k = (double)NAN; /* dense chooses nothing */
  launcher_print(me, "%-15s", simple_paths[path].name);
  print_number(me, 9, 1, us);
  print_number(me, 8, 2, *dense_us / us);
  print_number(me, 8, 3, mean[0] / k);
  print_number(me, 8, 3, mean[1] / k);
  launcher_print(me, " %12.0f %21s %8s", mean[2], range, "-"); /* --algorithm all measures xi */
  launcher_print(me, code ? "  NO: step %d\n" : "  %d steps x %d rank%s\n", code ? step - 1 : step,
                 me->nranks, me->nranks == 1 ? "" : "s");
  simple_destroy(reference);
  SPARSECHECK(sparse_allreduce_destroy(handle));
  launcher_barrier(me); /* several GPUs in one process: see sparse_allreduce_destroy */
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  size_t k, capacity; /* entries that a rank is to offer, and offers at most */
  config.density = 0.01;
  sparse_allreduce_sizes(COUNT, config.density, &k, &capacity);
  (void)opt; /* all options are the harness's */

  launcher_step("STEP 1: a device for this rank");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, 12 * COUNT + 24 * (size_t)me->nranks * capacity + (64 << 20)))
    return EXIT_USAGE;
  launcher_print(me, "Starting sparse AllReduce example with %d rank%s\n", me->nranks,
                 me->nranks == 1 ? "" : "s");

  launcher_step("STEP 2: the communicator");
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launcher_print_ranks(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                       me->device);

  float *gradient;
  double dense_us = (double)NAN;
  int code = EXIT_VERIFIED;
  CUDACHECK(cudaMalloc((void **)&gradient, COUNT * sizeof *gradient));
  launcher_print(me, "Gradient: %d elements of type float, heavy, %d steps; k = %zu (density %g)\n",
                 COUNT, STEPS, k, config.density);
  launcher_print(me,
                 "path              us/step    ratio  local/k global/k   words sent    words in "
                 "the paper       xi  verified\n");
  for (int path = 0; path < SPARSE_ALGORITHMS; path++) {
    config.algorithm = (sparse_allreduce_algorithm_t)path;
    if (run_path(me, comm, stream, &config, gradient, &dense_us)) code = EXIT_WRONG_DATA;
  }

  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaFree(gradient));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  launcher_print(me, code == EXIT_VERIFIED ? "All paths verified correctly\n"
                                           : "Results are WRONG, see standard error\n");
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "sparse_allreduce",
      .summary = "Sparse gradient allreduce: the paths of Ok-Topk with NCCL",
      .run = run,
      .harness = harness, /* --bench, --algorithm, --count, ... */
      .options = harness_options,
      .types = "float half bfloat16", /* those of gradients; sums are made in float */
  };
  return launcher_main(argc, argv, &program);
}
