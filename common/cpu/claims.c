/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what the ranks of a collective must agree on. NCCL does not: if ranks differ, it hangs
 * or the data are wrong. */
#include "internal.h"

#include <string.h>

bool cpu_claims_agree(ncclComm_t comm, const struct claim *claims)
{
  static const char *const aspects[ASPECTS] = {"",
                                               "the count",
                                               "the type",
                                               "the operation",
                                               "the root",
                                               "sendbuff",
                                               "recvbuff",
                                               "sendbuff's window offset",
                                               "recvbuff's window offset"};
  const struct claim *first = &claims[0];
  for (int r = 1; r < comm->nranks; r++)
    for (enum aspect a = CALL; a < ASPECTS; a++) {
      const char *there = first->is[a], *here = claims[r].is[a];
      if (*here == '\0' || *there == '\0' || strcmp(here, there) == 0) continue;
      if (a == CALL)
        cpu_control_fail(comm->control, ncclInvalidUsage,
                         "rank %d calls %s and rank 0 calls %s; all ranks must make the same calls "
                         "in the same order",
                         r, here, there);
      else
        cpu_control_fail(comm->control, ncclInvalidUsage,
                         "%s: %s is %s on rank %d and %s on rank 0; all ranks must agree",
                         first->is[CALL], aspects[a], here, r, there);
      return false;
    }
  return true;
}
