/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of barrier.cu and lines.cu: one thread, which sleeps where the kernels look
 * again. */
#include "simple.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu.h"

enum { MAX_RANKS = 80, ROOM = 1 << 12 };

struct line {
  float data;
  _Atomic uint64_t epoch; /* stored last, loaded first */
};

/* In the window of each rank, for the others to write. */
struct scratch {
  _Atomic uint64_t came[MAX_RANKS]; /* how many barriers each rank has come to */
  struct line line[2][MAX_RANKS][ROOM];
};

struct simple {
  ncclComm_t comm;
  int rank, n;
  ncclWindow_t window, scratch_window;
  const float *base;
  struct scratch *scratch, *peers[MAX_RANKS];
  uint64_t barriers, epoch;
};

struct call {
  struct simple *s;
  const float *sendbuff;
  float *recvbuff;
  size_t count;
};

struct awaited {
  const _Atomic uint64_t *at;
  uint64_t least;
};

static bool has_come(const void *arg)
{
  const struct awaited *a = arg;
  return atomic_load(a->at) >= a->least;
}

static void wait_for(const struct simple *s, const _Atomic uint64_t *at, uint64_t least)
{
  const struct awaited a = {at, least};
  while (!has_come(&a) && !cpu_wait(s->comm, has_come, &a, 3600)) {
  }
}

/* ---- barrier --------------------------------------------------------------------------------- */

static void barrier(struct simple *s)
{
  s->barriers++;
  for (int p = 0; p < s->n; p++) {
    atomic_store(&s->peers[p]->came[s->rank], s->barriers);
    cpu_notify(s->comm, p);
  }
  for (int p = 0; p < s->n; p++) wait_for(s, &s->scratch->came[p], s->barriers);
}

static void add_between_barriers(const void *arg)
{
  const struct call *c = arg;
  const size_t offset = (size_t)(c->sendbuff - c->s->base) * sizeof(float);
  barrier(c->s);
  for (size_t i = 0; i < c->count; i++) {
    float sum = 0;
    for (int p = 0; p < c->s->n; p++)
      sum += ((const float *)cpu_window_pointer(c->s->window, offset, p))[i];
    c->recvbuff[i] = sum;
  }
  barrier(c->s);
}

void barrier_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  const struct call c = {s, sendbuff, recvbuff, count};
  CUDACHECK(cpu_launch(stream, add_between_barriers, &c, sizeof c));
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void add_lines(const void *arg)
{
  const struct call *c = arg;
  struct simple *s = c->s;
  const uint64_t epoch = ++s->epoch;
  for (int p = 0; p < s->n; p++) {
    struct line *to = s->peers[p]->line[epoch & 1][s->rank];
    for (size_t i = 0; i < c->count; i++) {
      to[i].data = c->sendbuff[i];
      atomic_store(&to[i].epoch, epoch);
    }
    cpu_notify(s->comm, p);
  }
  for (size_t i = 0; i < c->count; i++) {
    float sum = 0;
    for (int p = 0; p < s->n; p++) {
      const struct line *line = &s->scratch->line[epoch & 1][p][i];
      wait_for(s, &line->epoch, epoch);
      sum += line->data;
    }
    c->recvbuff[i] = sum;
  }
}

void lines_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                     cudaStream_t stream)
{
  for (size_t first = 0; first < count; first += ROOM) { /* each launch is an epoch */
    const size_t left = count - first;
    const struct call c = {s, sendbuff + first, recvbuff + first, left < ROOM ? left : ROOM};
    CUDACHECK(cpu_launch(stream, add_lines, &c, sizeof c));
  }
}

/* ---- set up ---------------------------------------------------------------------------------- */

struct simple *simple_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                             const char **why)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  struct simple *s = calloc(1, sizeof *s);
  if (!s) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  *s = (struct simple){.comm = comm, .window = window, .base = sendbuffs};
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  NCCLCHECK(ncclCommCount(comm, &s->n));
  if (s->n > MAX_RANKS || (ranks && atoi(ranks) < s->n)) {
    *why = "not all ranks share memory";
    free(s);
    return NULL;
  }
  NCCLCHECK(ncclMemAlloc((void **)&s->scratch, sizeof *s->scratch));
  memset((void *)s->scratch, 0, sizeof *s->scratch);
  NCCLCHECK(ncclCommWindowRegister(comm, s->scratch, sizeof *s->scratch, &s->scratch_window,
                                   NCCL_WIN_COLL_SYMMETRIC));
  for (int p = 0; p < s->n; p++) s->peers[p] = cpu_window_pointer(s->scratch_window, 0, p);
  return s;
}

void simple_destroy(struct simple *s)
{
  NCCLCHECK(ncclCommWindowDeregister(s->comm, s->scratch_window));
  NCCLCHECK(ncclMemFree(s->scratch));
  free(s);
}
