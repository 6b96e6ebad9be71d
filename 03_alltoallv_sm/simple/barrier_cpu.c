/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twin of barrier.cu, for the CPU stand-in: the same two barriers, memcpy for the
 * stores. */
#include "barrier.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu.h"

/* In a window, so that peers can write it: how many barriers each rank has come to. */
struct meeting {
  _Atomic uint64_t came[BARRIER_MAX_RANKS];
};

struct barrier_push {
  ncclComm_t comm;
  ncclWindow_t window, meeting_window;
  struct meeting *meeting;
  uint64_t barriers; /* that this rank has come to */
  int rank, nranks;
};

struct part {
  size_t from, to, bytes;
};

struct push_args {
  struct barrier_push *push;
  const char *sendbuff;
  struct part parts[BARRIER_MAX_RANKS];
};

static bool all_came(const void *arg)
{
  const struct barrier_push *push = arg;
  for (int p = 0; p < push->nranks; p++)
    if (atomic_load(&push->meeting->came[p]) < push->barriers) return false;
  return true;
}

static void barrier(struct barrier_push *push)
{
  push->barriers++;
  for (int p = 0; p < push->nranks; p++) {
    struct meeting *theirs = cpu_window_pointer(push->meeting_window, 0, p);
    atomic_store(&theirs->came[push->rank], push->barriers);
    cpu_notify(push->comm, p);
  }
  while (!cpu_wait(push->comm, all_came, push, 3600)) {
  }
}

static void push_between_barriers(const void *arg)
{
  const struct push_args *a = arg;
  struct barrier_push *push = a->push;
  barrier(push);
  for (int i = 0; i < push->nranks; i++) {
    const int p = (push->rank + i) % push->nranks;
    if (a->parts[p].bytes > 0)
      memcpy(cpu_window_pointer(push->window, a->parts[p].to, p), a->sendbuff + a->parts[p].from,
             a->parts[p].bytes);
  }
  barrier(push);
}

void barrier_alltoallv(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       struct barrier_parts parts, cudaStream_t stream)
{
  struct push_args a = {.push = push, .sendbuff = sendbuff};
  for (int p = 0; p < push->nranks; p++)
    a.parts[p] = (struct part){parts.from[p] * parts.size, recv_at + parts.to[p] * parts.size,
                               parts.counts[p] * parts.size};
  CUDACHECK(cpu_launch(stream, push_between_barriers, &a, sizeof a));
}

struct barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  struct barrier_push *push = calloc(1, sizeof *push);
  if (!push) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  push->comm = comm;
  NCCLCHECK(ncclCommUserRank(comm, &push->rank));
  NCCLCHECK(ncclCommCount(comm, &push->nranks));
  const bool apart = push->nranks > BARRIER_MAX_RANKS || (ranks && atoi(ranks) < push->nranks);
  *why = apart ? "not all ranks share memory" : "";
  if (**why) {
    free(push);
    return NULL;
  }
  NCCLCHECK(ncclCommWindowRegister(comm, window, bytes, &push->window, NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(ncclMemAlloc((void **)&push->meeting, sizeof *push->meeting));
  memset((void *)push->meeting, 0, sizeof *push->meeting);
  NCCLCHECK(ncclCommWindowRegister(comm, push->meeting, sizeof *push->meeting,
                                   &push->meeting_window, NCCL_WIN_COLL_SYMMETRIC));
  return push;
}

void barrier_destroy(struct barrier_push *push)
{
  NCCLCHECK(ncclCommWindowDeregister(push->comm, push->meeting_window));
  NCCLCHECK(ncclCommWindowDeregister(push->comm, push->window));
  NCCLCHECK(ncclMemFree(push->meeting));
  free(push);
}
