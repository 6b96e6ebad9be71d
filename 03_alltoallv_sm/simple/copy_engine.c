/* SPDX-License-Identifier: Apache-2.0 */
/* The fourth AlltoAllV: the copy engines of the GPUs move the bytes. They take no multiprocessor
 * from a kernel that computes beside them, and reach the full rate of the link, from some MiB on.
 * Messages of NCCL, one word each, take the place of the barriers:
 *
 *   ready    the receiver's stream has reached the exchange: its buffer is free
 *   copy     this rank's part for rank p to where rank p wants it
 *   arrived  after the copy, in the sender's stream */
#include "alltoallv_simple.h"

/* Tells all ranks to which `notify` has a count that this stream has come so far, and waits for
 * those from which `await` has one. */
static void signal_and_wait(const struct exchange *x, const size_t *notify, const size_t *await,
                            cudaStream_t stream)
{
  unsigned *words = x->words; /* what they hold means nothing */
  const int me = x->me->rank;
  NCCLCHECK(ncclGroupStart());
  for (int p = 0; p < x->me->nranks; p++) {
    if (p == me) continue;
    if (notify[p] > 0) NCCLCHECK(ncclSend(&words[me], 1, ncclUint32, p, x->comm, stream));
    if (await[p] > 0) NCCLCHECK(ncclRecv(&words[p], 1, ncclUint32, p, x->comm, stream));
  }
  NCCLCHECK(ncclGroupEnd());
}

void copy_engine_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  signal_and_wait(x, x->recvcounts, x->sendcounts, stream);
  copy_to_peers(x, send, recv, stream);
  signal_and_wait(x, x->sendcounts, x->recvcounts, stream);
}

/* One copy after the other, to rank + 1 first: each alone fills the link, and no two ranks send to
 * the same one. (Side by side in streams of their own they collide at the receivers.) */
void copy_to_peers(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  const size_t size = x->type->size, recv_at = (size_t)(recv - x->guarded);
  for (int i = 1; i <= x->me->nranks; i++) { /* my own part last */
    const int p = (x->me->rank + i) % x->me->nranks;
    void *theirs; /* of rank p, as this rank sees it */
    ALLTOALLVCHECK(alltoallv_peer(x->handle, x->guarded, p, &theirs));
    if (x->sendcounts[p] > 0)
      CUDACHECK(cudaMemcpyAsync((char *)theirs + recv_at + x->places[p] * size,
                                send + x->sdispls[p] * size, x->sendcounts[p] * size,
                                cudaMemcpyDeviceToDevice, stream));
  }
}
