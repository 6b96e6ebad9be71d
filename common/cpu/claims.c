/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a collective must have in common. NCCL does not compare it: where ranks differ
 * it hangs, or the data are wrong. */
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>

static void say(char *text, size_t size, enum aspect aspect, int64_t value)
{
  static const char *const operations[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
  static const char *const kinds[] = {"registered", "in a window", "not registered"};
  switch (aspect) {
  case COUNT:
    snprintf(text, size, "%" PRId64 " elements", value);
    break;
  case TYPE:
    snprintf(text, size, "%s", cpu_type_name((ncclDataType_t)value));
    break;
  case OPERATION:
    snprintf(text, size, "%s", operations[value]);
    break;
  case SENDBUFF_KIND:
  case RECVBUFF_KIND:
    snprintf(text, size, "%s", kinds[value]);
    break;
  default:
    snprintf(text, size, "%" PRId64, value);
  }
}

bool cpu_claims_agree(ncclComm_t comm, const char *const *names, const struct claim *claims)
{
  static const char *const aspects[ASPECTS] = {"the call",
                                               "the count",
                                               "the type",
                                               "the operation",
                                               "the root",
                                               "sendbuff",
                                               "recvbuff",
                                               "sendbuff's window offset",
                                               "recvbuff's window offset"};
  for (int r = 1; r < comm->nranks; r++) {
    if (claims[r].values[CALL] != claims[0].values[CALL]) {
      cpu_control_fail(comm->control,
                       "rank %d calls %s where rank 0 calls %s; allowed: the same calls in the "
                       "same order on all ranks",
                       r, names[claims[r].values[CALL]], names[claims[0].values[CALL]]);
      return false;
    }
    for (enum aspect a = COUNT; a < ASPECTS; a++) {
      char here[64], there[64];
      int64_t value = claims[r].values[a], first = claims[0].values[a];
      if (value == first || value == NO_CLAIM || first == NO_CLAIM) continue;
      say(here, sizeof(here), a, value);
      say(there, sizeof(there), a, first);
      cpu_control_fail(comm->control,
                       "%s: %s is %s on rank %d and %s on rank 0; allowed: the same on all ranks",
                       names[claims[0].values[CALL]], aspects[a], here, r, there);
      return false;
    }
  }
  return true;
}
