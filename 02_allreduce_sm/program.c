/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include "check.h"
#include "symmetric_support.h"

bool program_require_symmetric;

const struct option_spec program_options[] = {
    {"require-symmetric", 0, OPTION_FLAG, &program_require_symmetric, NULL,
     "exit with 77 unless symmetric kernels are certain to be used", 0, 0},
    {0},
};

void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclWindow_t window)
{
  /* named for the watchdog: a rank that forgot to register waits here, the others still there */
  launcher_step("STEP 4: are the windows symmetric?");
  static const char *const answers[] = {"no", "yes", "unknown"};
  const char *why = "";
  int runtime = 0;
  const enum symmetric_support support = symmetric_support(comm, window, &why);
  launcher_note(me, "symmetric kernels: %s (%s)", answers[support], why);
  const int missing = program_require_symmetric && support != SYMMETRIC_YES;
  if (launcher_agree(me, missing ? EXIT_CANNOT_RUN : EXIT_VERIFIED) == EXIT_CANNOT_RUN) {
    launcher_note(me, "--require-symmetric: leaving with exit code %d", EXIT_CANNOT_RUN);
    launcher_barrier(me); /* rank 0 has said so */
    launcher_abort(EXIT_CANNOT_RUN);
  }
  NCCLCHECK(ncclGetVersion(&runtime));
  if (support != SYMMETRIC_NO && runtime >= NCCL_VERSION(2, 28, 3) &&
      runtime < NCCL_VERSION(2, 30, 7))
    launcher_note(me,
                  "NCCL %d.%d.%d may start a symmetric kernel before the kernel in front of it "
                  "has finished; see 'The launch hazard' in docs/symmetric_memory.md",
                  runtime / 10000, runtime / 100 % 100, runtime % 100);
}
