/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what the ranks of a collective must agree on. NCCL does not: if ranks differ, it hangs
 * or the data are wrong. */
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>

static void say(char *text, size_t size, enum aspect aspect, int64_t value)
{
  static const char *const operations[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
  static const char *const kinds[] = {"registered", "in a window", "not registered"};
  switch (aspect) {
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
  case COUNT:
    snprintf(text, size, "%" PRId64 " elements", value);
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
  const int64_t *first = claims[0].values;
  for (int r = 1; r < comm->nranks; r++)
    for (enum aspect a = CALL; a < ASPECTS; a++) {
      char here[64], there[64];
      int64_t value = claims[r].values[a];
      if (value == first[a] || value == NO_CLAIM || first[a] == NO_CLAIM) continue;
      say(here, sizeof(here), a, value);
      say(there, sizeof(there), a, first[a]);
      if (a == CALL)
        cpu_control_fail(comm->control,
                         "rank %d calls %s and rank 0 calls %s; all ranks must make the same calls "
                         "in the same order",
                         r, names[value], names[first[a]]);
      else
        cpu_control_fail(comm->control,
                         "%s: %s is %s on rank %d and %s on rank 0; all ranks must agree",
                         names[first[CALL]], aspects[a], here, r, there);
      return false;
    }
  return true;
}
