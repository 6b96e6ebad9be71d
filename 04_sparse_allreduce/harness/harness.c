/* SPDX-License-Identifier: Apache-2.0 */
/* All that options ask for: --bench, or chosen paths with any gradient, files and types, each step
 * of which is compared in all that it leaves. main.c shows how the library is called. */
#include "program.h"

static int run_path(struct job *job, int path)
{
  struct runner runner;
  struct verification verification;
  struct path_steps steps = {0};
  sparse_allreduce_config_t config = job->config;
  config.algorithm = (sparse_allreduce_algorithm_t)path;
  runner_create(&runner, job, job->count, &config, program_options.simple,
                config.result == SPARSE_RESULT_ENTRIES);
  verification_init(&verification, &runner, path != SPARSE_DENSE);

  int code = EXIT_VERIFIED;
  for (uint64_t step = 0; step < job->steps && code == EXIT_VERIFIED; step++) {
    launcher_step(simple_paths[path].name);
    steps.begun = step + 1;
    code = job_gradient(job, job->count, step, job->gradient);
    if (code != EXIT_VERIFIED) break;
    launcher_barrier(job->me); /* start together: waiting for a late rank does not count */
    const double start = launcher_microseconds();
    SPARSECHECK(runner_step(&runner, job->gradient));
    CUDACHECK(cudaStreamSynchronize(job->stream));
    if (step > 0) steps.us += launcher_microseconds() - start; /* the first step loads kernels */
    code = runner_finish(&runner);
    if (runner.last.dense == (path == SPARSE_DENSE)) { /* no warm-up step */
      steps.counted++;
      steps.local += (double)runner.last.local;
      steps.global += (double)runner.last.global;
      steps.words += (double)runner.last.words_sent;
    }
    if (job->opt->digest && path != SPARSE_DENSE)
      verifier_digest(&job->digest, runner.result, job->count);
    if (code == EXIT_VERIFIED) code = verification_step(&verification, job->gradient);
  }
  report_path(job, &steps, &verification, code);
  verification_free(&verification);
  runner_destroy(&runner);
  return code;
}

static int run_paths(struct job *job)
{
  const struct rank *me = job->me;
  int code = EXIT_VERIFIED;
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
  CUDACHECK(cudaStreamSynchronize(job->stream));
  launcher_barrier(me); /* see sparse_allreduce_destroy() */
  verifier_free(&job->digest);
  CUDACHECK(cudaFree(job->gradient));
  return code;
}

static int run_job(struct job *job)
{
  const struct rank *me = job->me;
  const bool bench = job->opt->bench;
  launcher_step("communicator");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, bench ? bench_bytes(job, 0)
                                     : job_bytes(job, job->count, job->config.density, 1)))
    return EXIT_USAGE;
  ncclUniqueId id;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&job->comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&job->stream));

  const bool failed = me->rank == 0 && rows_open(&job->rows, program_options.output) != 0;
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code == EXIT_VERIFIED) code = bench ? bench_paths(job) : run_paths(job);
  code = job_publish(job, code);

  launcher_step("cleanup");
  CUDACHECK(cudaStreamDestroy(job->stream));
  NCCLCHECK(ncclCommFinalize(job->comm));
  NCCLCHECK(ncclCommDestroy(job->comm));
  if (!bench)
    launcher_print(me, code == EXIT_WRONG_DATA ? "Results are WRONG, see standard error\n"
                       : code != EXIT_VERIFIED ? "Stopped, see standard error\n"
                                               : "All paths verified correctly\n");
  return code;
}

int harness(const struct rank *me, const struct options *opt)
{
  struct job job;
  int code = job_open(&job, me, opt);
  if (code == EXIT_VERIFIED) code = run_job(&job);
  job_close(&job);
  return code;
}
