/* SPDX-License-Identifier: Apache-2.0 */
/* The fourth AlltoAllV: the copy engines of the GPUs move the bytes. They take no multiprocessor
 * from a kernel that computes beside them, and reach the full rate of the link, from some MiB on.
 * The two things that a rank has to know are flags, which the streams themselves set and await:
 *
 *   ready    "my receive buffer is free": the receiver's stream has reached the exchange
 *   copy     this rank's part for rank p to where rank p wants it
 *   arrived  "your data are there": after the copy, in the sender's stream
 *
 * Who has waited for a flag sets it back to 0. Nobody sets it again too early: the next `ready`
 * comes after `arrived` of this exchange, the next `arrived` after the next `ready`. */
#include "simple.h"

enum { FLAG_BYTES = 4096 }; /* what a registered buffer is at least */

const char *copy_engine_open(struct way *w)
{
  const int n = w->x->me->nranks;
  int reach;
  NCCLCHECK(alltoallv_info(w->handle, &reach, NULL));
  if (reach < n || n > SIMPLE_MAX_RANKS) return "not all ranks share memory";
  NCCLCHECK(ncclMemAlloc((void **)&w->scratch, FLAG_BYTES)); /* ready[n], arrived[n] */
  CUDACHECK(cudaMemset(w->scratch, 0, FLAG_BYTES));
  CUDACHECK(cudaDeviceSynchronize());
  NCCLCHECK(alltoallv_register(w->handle, w->scratch, FLAG_BYTES));
  for (int p = 0; p < n; p++) { /* the handle, which has registered the window, knows where */
    NCCLCHECK(alltoallv_peer(w->handle, w->window, p, (void **)&w->peer[p]));
    NCCLCHECK(alltoallv_peer(w->handle, w->scratch, p, (void **)&w->peer_scratch[p]));
  }
  return NULL;
}

void copy_engine_close(struct way *w)
{
  NCCLCHECK(alltoallv_unregister(w->handle, w->scratch));
  NCCLCHECK(ncclMemFree(w->scratch));
}

/* Flag number `which` of this rank is set at all ranks to which `tell` has a count, and awaited
 * from those from which `await` has one. */
static void signal_and_wait(struct way *w, int which, const size_t *tell, const size_t *await,
                            cudaStream_t stream)
{
  struct stream_flag flags[2 * SIMPLE_MAX_RANKS];
  const int me = w->x->me->rank, n = w->x->me->nranks;
  int count = 0;
  for (int p = 0; p < n; p++)
    if (p != me && tell[p] > 0)
      flags[count++] = (struct stream_flag){(unsigned *)w->peer_scratch[p] + which * n + me, p};
  for (int p = 0; p < n; p++)
    if (p != me && await[p] > 0)
      flags[count++] = (struct stream_flag){(unsigned *)w->scratch + which * n + p, me};
  if (count > 0) stream_flags(flags, count, w, stream);
}

/* The copies run one after the other, to rank + 1 first: each alone fills the link, and while all
 * ranks are at the same distance no two of them send to the same rank. (Side by side in streams of
 * their own they collide at the receivers and reach 60 % of the rate.) */
void copy_engine_call(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  enum { READY, ARRIVED };
  const struct exchange *x = w->x;
  const size_t size = x->type->size;
  signal_and_wait(w, READY, x->recvcounts, x->sendcounts, stream);
  for (int i = 1; i <= x->me->nranks; i++) { /* my own part last */
    const int p = (x->me->rank + i) % x->me->nranks;
    if (x->sendcounts[p] > 0)
      CUDACHECK(cudaMemcpyAsync(w->peer[p] + recv_at + x->places[p] * size,
                                send + x->sdispls[p] * size, x->sendcounts[p] * size,
                                cudaMemcpyDeviceToDevice, stream));
  }
  signal_and_wait(w, ARRIVED, x->sendcounts, x->recvcounts, stream);
}
