/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse allreduce of gradients: every rank offers the large entries of its gradient, all ranks get
 * the sums of what was offered, and what was not sent is kept and added to the next gradient.
 *
 * The Ok-Topk paper (PPoPP'22) and its code have nine ways to do that, and a dense AllReduce. This
 * program runs all ten as in a training job. After each step it compares all that each rank holds
 * with a plain C reference, bit for bit. It prints what the paper says next to what was measured.
 *
 * Build:  make                  (one thread per GPU)      or   make MPI=1
 * Run:    ./sparse_allreduce    ([NTHREADS=N])            or   mpirun -np N ./sparse_allreduce
 *
 * The last line of a good run is: All paths verified correctly
 */
#include <stdlib.h>

#include "check.h"
#include "launcher.h"
#include "program/program.h"
#include "sparse_allreduce.h"

/* One step on all ranks, timed: from the gradient in device memory to the averaged result there. */
static double timed_step(struct runner *runner)
{
  const struct job *job = runner->job;
  launcher_barrier(job->me); /* start together: waiting for a late rank does not count */
  CUDACHECK(cudaEventRecord(job->start, job->stream));
  SPARSECHECK(runner_step(runner, job->gradient)); /* sparse_allreduce_run() */
  CUDACHECK(cudaEventRecord(job->stop, job->stream));
  CUDACHECK(cudaEventSynchronize(job->stop));
  return elapsed_us(job->start, job->stop);
}

static int run_path(struct job *job, int path)
{
  struct runner runner;
  struct verification verification;
  int code = EXIT_VERIFIED;

  /* It holds what a step leaves to the next: residual, thresholds, regions. */
  launcher_step("STEP 3: a handle");
  sparse_allreduce_config_t config = job->config;
  config.algorithm = (sparse_allreduce_algorithm_t)path;
  struct path_steps steps = {.us = simple_host_memory(job->steps * sizeof(double))};
  runner_create(&runner, job, job->count, &config, program_options.simple, true);
  verification_init(&verification, &runner, true);

  for (uint64_t step = 0; step < job->steps && code == EXIT_VERIFIED; step++) {
    /* Here it is generated or read; in a training job the backward pass writes it. */
    launcher_step("STEP 4: the gradient");
    steps.begun = step + 1;
    code = job_gradient(job, job->count, step, job->gradient);
    if (code != EXIT_VERIFIED) break;

    launcher_step("STEP 5: the sparse allreduce");
    steps.us[step] = timed_step(&runner);

    launcher_step("STEP 6: every element on every rank");
    code = runner_finish(&runner, step);
    if (runner.last.dense == (path == SPARSE_DENSE)) { /* no warm-up step */
      steps.counted++;
      steps.local += (double)runner.last.local;
      steps.global += (double)runner.last.global;
      steps.words += (double)runner.last.words_sent;
    }
    if (job->opt->digest && path != SPARSE_DENSE)
      verifier_digest(&job->digest, runner.result, job->count);
    if (code != EXIT_VERIFIED) break;
    code = verification_step(&verification, job->gradient); /* and writes the files */
  }

  launcher_step("STEP 7: what came out");
  report_path(job, &steps, &verification, code);
  verification_free(&verification);
  runner_destroy(&runner);
  free(steps.us);
  return code;
}

static int run_paths(struct job *job)
{
  const struct rank *me = job->me;
  int code = EXIT_VERIFIED;
  CUDACHECK(cudaEventCreate(&job->start));
  CUDACHECK(cudaEventCreate(&job->stop));
  CUDACHECK(cudaMalloc(&job->gradient, job->count * job->opt->type->size));
  verifier_init(&job->digest, me, datatype_find("float"), job->stream);
  report_heading(job);
  for (int path = 0; path < simple_path_count; path++) {
    if (!job_wants(job, path)) continue;
    const int result = run_path(job, path);
    if (result != EXIT_VERIFIED && code != EXIT_WRONG_DATA) code = result;
    if (result != EXIT_VERIFIED && result != EXIT_WRONG_DATA) break;
  }
  if (job->opt->digest) verifier_print_digest(&job->digest);

  /* Ranks may be threads of one process: none frees before all are done (sparse_allreduce.h). */
  CUDACHECK(cudaStreamSynchronize(job->stream));
  launcher_barrier(me);
  verifier_free(&job->digest);
  CUDACHECK(cudaFree(job->gradient));
  CUDACHECK(cudaEventDestroy(job->start));
  CUDACHECK(cudaEventDestroy(job->stop));
  return code;
}

static int run_job(struct job *job)
{
  const struct rank *me = job->me;
  const bool bench = job->opt->bench;
  const double density = job->config.density;

  launcher_step("STEP 1: a device for this rank");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me,
                           bench ? bench_bytes(job, 0) : job_bytes(job, job->count, density, 1)))
    return EXIT_USAGE;
  if (!bench)
    launcher_print(me, "Starting sparse AllReduce example with %d rank%s\n", me->nranks,
                   me->nranks == 1 ? "" : "s");

  launcher_step("STEP 2: the communicator");
  ncclUniqueId id;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&job->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&job->stream));
  if (!bench)
    launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                       me->device);

  /* Steps 3 to 7 are those of each path. */
  const bool failed = me->rank == 0 && rows_open(&job->rows, program_options.output) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code == EXIT_VERIFIED) code = bench ? bench_paths(job) : run_paths(job);
  code = job_publish(job, code);

  launcher_step("STEP 8: cleanup");
  CUDACHECK(cudaStreamDestroy(job->stream));
  NCCLCHECK(ncclCommFinalize(job->comm));
  NCCLCHECK(ncclCommDestroy(job->comm));
  if (bench) return code;
  launcher_print(me, code == EXIT_WRONG_DATA ? "Results are WRONG, see standard error\n"
                     : code != EXIT_VERIFIED ? "Stopped, see standard error\n"
                                             : "All paths verified correctly\n");
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  struct job job;
  int code = job_open(&job, me, opt);
  if (code == EXIT_VERIFIED) code = run_job(&job);
  job_close(&job);
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "sparse_allreduce",
      .summary = "Sparse gradient allreduce: the paths of Ok-Topk with NCCL",
      .options = program_option_table,
      .types = "float half bfloat16", /* those of gradients; sums are made in float */
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
