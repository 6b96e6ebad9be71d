/* SPDX-License-Identifier: Apache-2.0 */
/* The fourth AlltoAllV: the copy engines of the GPUs move the bytes. They take no multiprocessor
 * from a kernel that computes beside them, and reach the full rate of the link, from some MiB on.
 * Flags, which the streams themselves set and await, take the place of the barriers:
 *
 *   ready    the receiver's stream has reached the exchange: its buffer is free
 *   copy     this rank's part for rank p to where rank p wants it
 *   arrived  after the copy, in the sender's stream
 *
 * The rank that waited for a flag resets it to 0. None is set again too early: the next `ready`
 * comes after `arrived` of this exchange, the next `arrived` after the next `ready`. */
#include "simple.h"

void copy_engine_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  enum { READY, ARRIVED };
  signal_and_wait(x, READY, x->recvcounts, x->sendcounts, stream);
  copy_to_peers(x, send, recv, stream);
  signal_and_wait(x, ARRIVED, x->sendcounts, x->recvcounts, stream);
}

/* One copy after the other, to rank + 1 first: each alone fills the link, and no two ranks send to
 * the same one. (Side by side in streams of their own they collide at the receivers.) */
void copy_to_peers(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  const size_t size = x->type->size, recv_at = (size_t)(recv - (char *)x->simple.scratch);
  for (int i = 1; i <= x->me->nranks; i++) { /* my own part last */
    const int p = (x->me->rank + i) % x->me->nranks;
    if (x->sendcounts[p] > 0)
      CUDACHECK(cudaMemcpyAsync((char *)x->simple.peer[p] + recv_at + x->places[p] * size,
                                send + x->sdispls[p] * size, x->sendcounts[p] * size,
                                cudaMemcpyDeviceToDevice, stream));
  }
}
