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
#include <stdlib.h>

#include "check.h"
#include "simple.h"

struct copy_engine {
  ncclComm_t comm;
  alltoallv_t handle;
  int rank, n;
  unsigned *flags;                        /* ready[n], arrived[n]: [p] is set by rank p */
  char *window[SIMPLE_MAX_RANKS];         /* of each rank */
  unsigned *peer_flags[SIMPLE_MAX_RANKS]; /* likewise */
};

enum { FLAG_BYTES = 4096 }; /* what a registered buffer is at least */

struct copy_engine *copy_engine_create(ncclComm_t comm, alltoallv_t handle, void *window,
                                       const char **why)
{
  struct copy_engine *c = calloc(1, sizeof *c);
  int reach;
  if (!c) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  c->comm = comm;
  c->handle = handle;
  NCCLCHECK(ncclCommCount(comm, &c->n));
  NCCLCHECK(ncclCommUserRank(comm, &c->rank));
  NCCLCHECK(alltoallv_info(handle, &reach, why));
  if (reach < c->n || c->n > SIMPLE_MAX_RANKS) {
    *why = "not all ranks share memory";
    free(c);
    return NULL;
  }
  NCCLCHECK(ncclMemAlloc((void **)&c->flags, FLAG_BYTES));
  CUDACHECK(cudaMemset(c->flags, 0, FLAG_BYTES));
  CUDACHECK(cudaDeviceSynchronize());
  NCCLCHECK(alltoallv_register(handle, c->flags, FLAG_BYTES));
  for (int p = 0; p < c->n; p++) {
    NCCLCHECK(alltoallv_peer(handle, window, p, (void **)&c->window[p]));
    NCCLCHECK(alltoallv_peer(handle, c->flags, p, (void **)&c->peer_flags[p]));
  }
  return c;
}

void copy_engine_destroy(struct copy_engine *c)
{
  NCCLCHECK(alltoallv_unregister(c->handle, c->flags));
  NCCLCHECK(ncclMemFree(c->flags));
  free(c);
}

/* Flag number `which` of this rank is set at all ranks to which `tell` has a count, and awaited
 * from those from which `await` has one. */
static void signal_and_wait(struct copy_engine *c, int which, const size_t *tell,
                            const size_t *await, cudaStream_t stream)
{
  struct stream_flag flags[2 * SIMPLE_MAX_RANKS];
  int count = 0;
  for (int p = 0; p < c->n; p++)
    if (p != c->rank && tell[p] > 0)
      flags[count++] = (struct stream_flag){c->peer_flags[p] + which * c->n + c->rank, 1, p};
  for (int p = 0; p < c->n; p++)
    if (p != c->rank && await[p] > 0)
      flags[count++] = (struct stream_flag){c->flags + which * c->n + p, 1, c->rank};
  if (count > 0) stream_flags(flags, count, c->comm, stream);
}

/* The copies run one after the other, to rank + 1 first: each alone fills the link, and while all
 * ranks are at the same distance no two of them send to the same rank. (Side by side in streams of
 * their own they collide at the receivers and reach 60 % of the rate.) */
void copy_engine_alltoallv(struct copy_engine *c, const void *sendbuff, size_t recv_at,
                           const struct parts *x, cudaStream_t stream)
{
  enum { READY, ARRIVED };
  signal_and_wait(c, READY, x->recvcounts, x->counts, stream);
  for (int i = 1; i <= c->n; i++) { /* my own part last */
    const int p = (c->rank + i) % c->n;
    if (x->counts[p] > 0)
      CUDACHECK(cudaMemcpyAsync(c->window[p] + recv_at + x->to[p] * x->size,
                                (const char *)sendbuff + x->from[p] * x->size,
                                x->counts[p] * x->size, cudaMemcpyDeviceToDevice, stream));
  }
  signal_and_wait(c, ARRIVED, x->counts, x->recvcounts, stream);
}
