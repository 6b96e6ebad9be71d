/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include "check.h"
#include "own/allreduce.h"
#include "symmetric_support.h"

bool program_require_symmetric;
int program_method = METHOD_NCCL;

const struct option_spec program_options[] = {
    {"require-symmetric", 0, OPTION_FLAG, &program_require_symmetric, NULL,
     "exit with 77 unless symmetric kernels are certain to be used", 0, 0},
    {"method", 0, OPTION_CHOICE, &program_method, "nccl|own",
     "whose AllReduce (nccl): own is that of the folder own/", 0, 0},
    {0},
};

void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                             ncclWindow_t window)
{
  /* named for the watchdog: a rank that forgot to register waits here, the others still there */
  launcher_step("STEP 4: are the windows symmetric?");
  static const char *const answers[] = {"no", "yes", "unknown"};
  const char *why = "";
  int runtime = 0, driver = 0, major = 0;
  const enum symmetric_support support = symmetric_support(me, comm, type, window, &why);
  launcher_note(me, "symmetric kernels: %s (%s)", answers[support], why);
  const int missing = program_require_symmetric && support != SYMMETRIC_YES;
  if (launcher_agree(me, missing ? EXIT_CANNOT_RUN : EXIT_VERIFIED) == EXIT_CANNOT_RUN) {
    launcher_note(me, "--require-symmetric: leaving with exit code %d", EXIT_CANNOT_RUN);
    launcher_barrier(me); /* rank 0 has said so */
    launcher_abort(EXIT_CANNOT_RUN);
  }
  NCCLCHECK(ncclGetVersion(&runtime));
  CUDACHECK(cudaDriverGetVersion(&driver));
  CUDACHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, me->device));
  if (support != SYMMETRIC_NO && runtime >= NCCL_VERSION(2, 28, 3) &&
      runtime < NCCL_VERSION(2, 30, 7) && major >= 9 && driver >= 12030)
    launcher_note(me,
                  "NCCL %d.%d.%d may start a symmetric kernel before the kernel in front of it "
                  "has finished; see 'The launch hazard' in docs/symmetric_memory.md",
                  runtime / 10000, runtime / 100 % 100, runtime % 100);
}

/* ---- --method own ---------------------------------------------------------------------------- */

#define OWNCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

static _Thread_local allreduce_t own; /* ranks may be threads */

void program_own_begin(const struct rank *me, const struct options *opt, ncclComm_t comm,
                       void *sendbuff, ncclWindow_t send_window, void *recvbuff,
                       ncclWindow_t recv_window, size_t bytes)
{
  if (program_method != METHOD_OWN && !opt->bench) return;
  /* The watchdog comes first: it knows the step of every rank. */
  const allreduce_config_t config = {.timeout_seconds = (double)opt->timeout + 10};
  const ncclResult_t result = allreduce_create(comm, &config, &own);
  if (result == ncclInvalidUsage) { /* on all ranks */
    launcher_note(me, "own: NCCL's AllReduce is taken: %s", allreduce_last_error());
    return;
  }
  CHECK_NCCL_RESULT(result, "allreduce_create(comm, &config, &own)", allreduce_last_error());
  OWNCHECK(allreduce_add_window(own, send_window, sendbuff, bytes));
  OWNCHECK(allreduce_add_window(own, recv_window, recvbuff, bytes));
}

void program_own_end(void)
{
  OWNCHECK(allreduce_destroy(own));
  own = NULL;
}

bool program_own_enqueue(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                         cudaStream_t stream)
{
  if (!own) return false;
  OWNCHECK(allreduce_run(own, sendbuff, recvbuff, count, type, stream));
  return true;
}

void program_own_check(void)
{
  ncclResult_t result = ncclSuccess;
  if (!own) return;
  OWNCHECK(allreduce_get_async_error(own, &result));
  if (result == ncclSuccess) return;
  launcher_error("own: %s", allreduce_last_error());
  launcher_abort(result == ncclRemoteError ? EXIT_TIMEOUT : EXIT_FAILED_CALL);
}

bool program_own(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                 cudaStream_t stream)
{
  if (!program_own_enqueue(sendbuff, recvbuff, count, type, stream)) return false;
  CUDACHECK(cudaStreamSynchronize(stream));
  program_own_check();
  return true;
}
