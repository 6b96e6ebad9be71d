/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of stream_flags.cu: ranks exchange flags through NCCL. */
#include "simple.h"

void signal_and_wait(const struct exchange *x, int which, const size_t *notify, const size_t *await,
                     cudaStream_t stream)
{
  unsigned *flags = x->simple.scratch->flags[which];
  const int me = x->me->rank;
  NCCLCHECK(ncclGroupStart());
  for (int p = 0; p < x->me->nranks; p++) {
    if (p == me) continue;
    if (notify[p] > 0) NCCLCHECK(ncclSend(&flags[me], 1, ncclUint32, p, x->comm, stream));
    if (await[p] > 0) NCCLCHECK(ncclRecv(&flags[p], 1, ncclUint32, p, x->comm, stream));
  }
  NCCLCHECK(ncclGroupEnd());
}
