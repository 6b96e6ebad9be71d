/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse allreduce of gradients: every rank offers the large entries of its gradient, the sums of
 * what was offered come back to all, and what was not sent is kept and added to the next gradient.
 *
 * Ok-Topk (PPoPP'22) compares nine ways to do that with a dense allreduce. This program runs all
 * ten, step by step as in a training job, compares everything that each rank holds after each step
 * with a plain C reference, bit for bit, and prints what the paper says beside what was measured.
 *
 * Build:  make                  (one thread per GPU)      or   make MPI=1
 * Run:    ./sparse_allreduce    ([NTHREADS=N])            or   mpirun -np N ./sparse_allreduce
 *
 * The last line of a good run is: All paths verified correctly
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"
#include "launcher.h"
#include "program/program.h"
#include "program/report.h"
#include "sparse_allreduce.h"
#include "program/verification.h"
#include "verify.h"
#include "program/version.h"

/* What all paths use in turn. */
struct story {
  struct job *job;
  ncclComm_t comm;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  void *gradient;         /* in device memory */
  struct verifier digest; /* of --digest */
  struct report report;
};

/* ---- a step ---------------------------------------------------------------------------------- */

/* One step on all ranks, timed: from the gradient in device memory to the averaged result there. */
static double timed_step(struct story *s, const struct version *version, const float **result)
{
  float ms;
  launcher_barrier(s->job->me); /* start together: waiting for a late rank is not part of it */
  CUDACHECK(cudaEventRecord(s->start, s->stream));
  version_run(version, s->gradient, result, s->stream); /* sparse_allreduce_run(), or simple/ */
  CUDACHECK(cudaEventRecord(s->stop, s->stream));
  CUDACHECK(cudaEventSynchronize(s->stop));
  CUDACHECK(cudaEventElapsedTime(&ms, s->start, s->stop));
  return ms * 1e3;
}

/* ---- all steps of one path ------------------------------------------------------------------- */

static int run_path(struct story *s, sparse_allreduce_algorithm_t algorithm)
{
  struct job *job = s->job;
  const struct rank *me = job->me;
  const char *name = sparse_allreduce_name(algorithm);
  const float *result = NULL;
  struct version version;
  struct verification verification;

  /* ======================= STEP 3: a handle ================================================== */
  /* It holds what a step leaves to the next: residual, thresholds, regions. */
  launcher_step("STEP 3: handle");
  sparse_allreduce_config_t config = job->config;
  config.algorithm = algorithm;
  int code = verification_init(&verification, me, &config, job->count, program_options.verify);
  if (code != EXIT_VERIFIED) {
    verification_free(&verification);
    return code;
  }
  struct path_steps steps = {.us = calloc(job->steps, sizeof(double))};
  if (!steps.us) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  version_create(&version, job, s->comm, job->count, &config, program_options.simple);

  for (uint64_t step = 0; step < job->steps && code == EXIT_VERIFIED; step++) {
    /* ======================= STEP 4: the gradient ============================================ */
    /* Here it is generated or read; in a training job the backward pass writes it. */
    launcher_step("STEP 4: gradient");
    steps.last = step;
    code = job_gradient(job, step, s->gradient, s->stream);
    if (code != EXIT_VERIFIED) break;

    /* ======================= STEP 5: the sparse allreduce ==================================== */
    launcher_step("STEP 5: sparse allreduce");
    if ((long)step == program_options.restart_after && step > 0)
      version_restart(&version, job, s->comm, &config);
    steps.us[steps.timed++] = timed_step(s, &version, &result);

    /* ======================= STEP 6: every element on every rank ============================= */
    launcher_step("STEP 6: verification");
    code = version_check_async(&version, job, name, step);
    const struct step_left left =
        version_left(&version, result, verification_residual(&verification));
    if (code == EXIT_VERIFIED)
      code = launcher_agree(me, verification_step(&verification, &left, s->gradient, s->stream));
    path_steps_add(&steps, &left.statistics);
    if (job->opt->digest && algorithm != SPARSE_DENSE)
      verifier_digest(&s->digest, left.result, job->count);
    if (code == EXIT_VERIFIED) code = job_write_result(job, &verification, left.result, s->stream);
  }
  if (code == EXIT_VERIFIED) code = job_write_residual(job, &verification, &version);

  /* ======================= STEP 7: what came out ============================================= */
  launcher_step("STEP 7: report");
  steps.verified = verification.compared;
  steps.xi = verification.xi;
  steps.xi_steps = verification.xi_steps;
  report_path(&s->report, algorithm, &version, &steps, code);
  verification_free(&verification);
  version_destroy(&version);
  launcher_barrier(job->me); /* several GPUs in one process: see sparse_allreduce_destroy */
  free(steps.us);
  return code;
}

/* ---- the story ------------------------------------------------------------------------------- */

/* From a device to all paths, with the job's files open. */
static int tell(struct job *job)
{
  const struct rank *me = job->me;
  struct story s = {.job = job};

  /* ======================= STEP 1: a device for this rank =================================== */
  launcher_step("STEP 1: device");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, job_bytes(job, job->count, job->config.density, 1)))
    return EXIT_USAGE;
  launcher_print(me, "Starting sparse AllReduce example with %d ranks\n", me->nranks);

  /* ======================= STEP 2: the communicator ========================================== */
  launcher_step("STEP 2: communicator");
  ncclUniqueId id;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&s.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&s.stream));
  CUDACHECK(cudaEventCreate(&s.start));
  CUDACHECK(cudaEventCreate(&s.stop));
  CUDACHECK(cudaMalloc(&s.gradient, job->count * job->opt->type->size));
  verifier_init(&s.digest, me, datatype_find("float"), s.stream);
  launcher_print_all(me, "  Rank %d communicator initialized using device %d\n", me->rank,
                     me->device);

  /* STEP 3 to 7 are those of each path. */
  int code = report_open(&s.report, job);
  const int opened = code;
  for (int a = 0; a < SPARSE_ALGORITHMS && opened == EXIT_VERIFIED; a++) {
    if (!job->wanted[a]) continue;
    const int path = run_path(&s, (sparse_allreduce_algorithm_t)a);
    if (path != EXIT_VERIFIED && code != EXIT_WRONG_DATA) code = path;
    if (path != EXIT_VERIFIED && path != EXIT_WRONG_DATA) break;
  }
  rows_finish(&s.report.rows);
  code = job_publish(job, &s.report.rows.output, code);
  if (job->opt->digest) verifier_print_digest(&s.digest);

  /* ======================= STEP 8: cleanup =================================================== */
  launcher_step("STEP 8: cleanup");
  verifier_free(&s.digest);
  CUDACHECK(cudaFree(s.gradient));
  CUDACHECK(cudaEventDestroy(s.start));
  CUDACHECK(cudaEventDestroy(s.stop));
  CUDACHECK(cudaStreamDestroy(s.stream));
  NCCLCHECK(ncclCommFinalize(s.comm));
  NCCLCHECK(ncclCommDestroy(s.comm));
  const bool compared = program_options.verify != VERIFY_OFF;
  launcher_print(me, code == EXIT_WRONG_DATA ? "Results are WRONG, see standard error\n"
                     : code != EXIT_VERIFIED ? "Stopped, see standard error\n"
                     : compared              ? "All paths verified correctly\n"
                                             : "All paths ran, nothing was verified\n");
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  if (opt->bench) return bench_example(me, opt);
  struct job job;
  int code = job_open(&job, me, opt);
  if (code == EXIT_VERIFIED) code = tell(&job);
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
