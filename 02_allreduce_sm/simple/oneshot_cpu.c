/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twin of oneshot.cu, for the CPU stand-in. */
#include "oneshot.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu.h"

enum { MAX_RANKS = 80 };

/* In a window, so that peers can write it: how many barriers each rank has come to. */
struct meeting {
  _Atomic uint64_t came[MAX_RANKS];
};

struct oneshot {
  ncclComm_t comm;
  ncclWindow_t window, meeting_window;
  const float *base;
  struct meeting *meeting;
  uint64_t barriers; /* that this rank has come to */
  int rank, nranks;
};

struct call {
  struct oneshot *o;
  size_t offset, count;
  float *recvbuff;
};

static bool all_came(const void *arg)
{
  const struct oneshot *o = arg;
  for (int p = 0; p < o->nranks; p++)
    if (atomic_load(&o->meeting->came[p]) < o->barriers) return false;
  return true;
}

static void barrier(struct oneshot *o)
{
  o->barriers++;
  for (int p = 0; p < o->nranks; p++) {
    struct meeting *theirs = cpu_window_pointer(o->meeting_window, 0, p);
    atomic_store(&theirs->came[o->rank], o->barriers);
    cpu_notify(o->comm, p);
  }
  while (!cpu_wait(o->comm, all_came, o, 3600)) {
  }
}

static void add_between_barriers(const void *arg)
{
  const struct call *c = arg;
  barrier(c->o);
  for (size_t i = 0; i < c->count; i++) {
    float sum = 0;
    for (int p = 0; p < c->o->nranks; p++)
      sum += ((const float *)cpu_window_pointer(c->o->window, c->offset, p))[i];
    c->recvbuff[i] = sum;
  }
  barrier(c->o);
}

void oneshot_allreduce(struct oneshot *o, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  const struct call c = {o, (size_t)(sendbuff - o->base) * sizeof(float), count, recvbuff};
  CUDACHECK(cpu_launch(stream, add_between_barriers, &c, sizeof c));
}

struct oneshot *oneshot_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                               const char **why)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  struct oneshot *o = calloc(1, sizeof *o);
  if (!o) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  o->comm = comm;
  o->window = window;
  o->base = sendbuffs;
  NCCLCHECK(ncclCommUserRank(comm, &o->rank));
  NCCLCHECK(ncclCommCount(comm, &o->nranks));
  const bool apart = o->nranks > MAX_RANKS || (ranks && atoi(ranks) < o->nranks);
  *why = apart ? "not all ranks share memory" : "";
  if (**why) {
    free(o);
    return NULL;
  }
  NCCLCHECK(ncclMemAlloc((void **)&o->meeting, sizeof *o->meeting));
  memset((void *)o->meeting, 0, sizeof *o->meeting);
  NCCLCHECK(ncclCommWindowRegister(comm, o->meeting, sizeof *o->meeting, &o->meeting_window,
                                   NCCL_WIN_COLL_SYMMETRIC));
  return o;
}

void oneshot_destroy(struct oneshot *o)
{
  NCCLCHECK(ncclCommWindowDeregister(o->comm, o->meeting_window));
  NCCLCHECK(ncclMemFree(o->meeting));
  free(o);
}
