/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU versions of barrier.cu, lines.cu and stream_flags.cu: the same steps, memcpy for the
 * stores. Without lines of 8 bytes, lines are one message for each part, with the epoch in it. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cpu.h"
#include "simple.h"

const char *simple_why_not(ncclComm_t comm, int nranks)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  (void)comm;
  return nranks > SIMPLE_MAX_RANKS || (ranks && atoi(ranks) < nranks) ? "not all ranks share memory"
                                                                      : "";
}

/* What both kernels have: memory in a window that peers write. */
struct shared {
  ncclComm_t comm;
  ncclWindow_t window;
  void *memory;
  int rank, n;
};

static bool share(struct shared *s, ncclComm_t comm, size_t bytes_of_a_rank, const char **why)
{
  s->comm = comm;
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  NCCLCHECK(ncclCommCount(comm, &s->n));
  *why = simple_why_not(comm, s->n);
  if (**why) return false;
  const size_t bytes = (size_t)s->n * bytes_of_a_rank;
  NCCLCHECK(ncclMemAlloc(&s->memory, bytes));
  memset(s->memory, 0, bytes);
  NCCLCHECK(ncclCommWindowRegister(comm, s->memory, bytes, &s->window, NCCL_WIN_COLL_SYMMETRIC));
  return true;
}

static void unshare(struct shared *s)
{
  NCCLCHECK(ncclCommWindowDeregister(s->comm, s->window));
  NCCLCHECK(ncclMemFree(s->memory));
}

/* What all that runs on a stream gets. */
struct arguments {
  void *state;
  const char *send;
  char *recv;
  struct {
    size_t from, to, bytes, into, recv_bytes;
  } parts[SIMPLE_MAX_RANKS];
};

static struct arguments arguments_of(void *state, const void *send, void *recv, size_t recv_at,
                                     const struct parts *x, int n)
{
  struct arguments a = {.state = state, .send = send, .recv = recv};
  for (int p = 0; p < n; p++) {
    a.parts[p].from = x->from[p] * x->size, a.parts[p].bytes = x->counts[p] * x->size;
    a.parts[p].to = recv_at + x->to[p] * x->size;
    a.parts[p].into = x->into[p] * x->size, a.parts[p].recv_bytes = x->recvcounts[p] * x->size;
  }
  return a;
}

/* ---- barrier ------------------------------------------------------------------------------- */

struct barrier_push {
  struct shared shared; /* _Atomic uint64_t came[n]: barriers that each rank has come to */
  ncclWindow_t window;
  uint64_t barriers; /* that this rank has come to */
};

static bool all_came(const void *arg)
{
  const struct barrier_push *push = arg;
  _Atomic uint64_t *came = push->shared.memory;
  for (int p = 0; p < push->shared.n; p++)
    if (atomic_load(&came[p]) < push->barriers) return false;
  return true;
}

static void barrier(struct barrier_push *push)
{
  push->barriers++;
  for (int p = 0; p < push->shared.n; p++) {
    _Atomic uint64_t *theirs = cpu_window_pointer(push->shared.window, 0, p);
    atomic_store(&theirs[push->shared.rank], push->barriers);
    cpu_notify(push->shared.comm, p);
  }
  while (!cpu_wait(push->shared.comm, all_came, push, 3600)) continue;
}

static void bare_push(const void *arg)
{
  const struct arguments *a = arg;
  struct barrier_push *push = a->state;
  for (int i = 0; i < push->shared.n; i++) {
    const int p = (push->shared.rank + i) % push->shared.n;
    if (a->parts[p].bytes > 0)
      memcpy(cpu_window_pointer(push->window, a->parts[p].to, p), a->send + a->parts[p].from,
             a->parts[p].bytes);
  }
}

static void push_between_barriers(const void *arg)
{
  const struct arguments *a = arg;
  barrier(a->state);
  bare_push(a);
  barrier(a->state);
}

void barrier_alltoallv(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       const struct parts *x, cudaStream_t stream)
{
  struct arguments a = arguments_of(push, sendbuff, NULL, recv_at, x, push->shared.n);
  CUDACHECK(cpu_launch(stream, push_between_barriers, &a, sizeof a));
}

void barrier_bare_push(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       const struct parts *x, cudaStream_t stream)
{
  struct arguments a = arguments_of(push, sendbuff, NULL, recv_at, x, push->shared.n);
  CUDACHECK(cpu_launch(stream, bare_push, &a, sizeof a));
}

struct barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why)
{
  struct barrier_push *push = calloc(1, sizeof *push);
  if (!push) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  if (!share(&push->shared, comm, sizeof(_Atomic uint64_t), why)) {
    free(push);
    return NULL;
  }
  NCCLCHECK(ncclCommWindowRegister(comm, window, bytes, &push->window, NCCL_WIN_COLL_SYMMETRIC));
  return push;
}

void barrier_destroy(struct barrier_push *push)
{
  NCCLCHECK(ncclCommWindowDeregister(push->shared.comm, push->window));
  unshare(&push->shared);
  free(push);
}

/* ---- lines --------------------------------------------------------------------------------- */

enum { ROOM = 64 << 10 }; /* bytes of a part in one exchange */

struct mail {
  _Atomic uint32_t epoch; /* written last */
  size_t bytes;
  char data[ROOM];
};

struct lines {
  struct shared shared; /* struct mail [epoch & 1][source] */
  uint32_t epoch;
};

static struct mail *mail_of(const struct lines *l, int owner, int source)
{
  struct mail *mails = cpu_window_pointer(l->shared.window, 0, owner);
  return mails + (l->epoch & 1) * (uint32_t)l->shared.n + source;
}

struct awaited {
  _Atomic uint32_t *at;
  uint32_t value;
};

static bool has_come(const void *arg)
{
  const struct awaited *a = arg;
  return atomic_load(a->at) == a->value;
}

static void exchange_lines(const void *arg)
{
  const struct arguments *a = arg;
  struct lines *l = a->state;
  const int rank = l->shared.rank, n = l->shared.n;
  l->epoch++;
  for (int i = 0; i < n; i++) {
    const int p = (rank + i) % n;
    struct mail *mail = mail_of(l, p, rank);
    mail->bytes = a->parts[p].bytes;
    memcpy(mail->data, a->send + a->parts[p].from, mail->bytes);
    atomic_store(&mail->epoch, l->epoch);
    cpu_notify(l->shared.comm, p);
  }
  for (int p = 0; p < n; p++) {
    struct mail *mail = mail_of(l, rank, p);
    const struct awaited awaited = {&mail->epoch, l->epoch};
    while (!cpu_wait(l->shared.comm, has_come, &awaited, 3600)) continue;
    const size_t most = a->parts[p].recv_bytes;
    memcpy(a->recv + a->parts[p].into, mail->data, mail->bytes < most ? mail->bytes : most);
  }
}

static size_t piece(size_t bytes, size_t at)
{
  return bytes <= at ? 0 : bytes - at < ROOM ? bytes - at : ROOM;
}

void lines_alltoallv(struct lines *l, const void *sendbuff, void *recvbuff, const struct parts *x,
                     cudaStream_t stream)
{
  for (size_t at = 0; at == 0 || at < x->largest * x->size; at += ROOM) {
    struct arguments a = arguments_of(l, sendbuff, recvbuff, 0, x, l->shared.n);
    for (int p = 0; p < l->shared.n; p++) {
      a.parts[p].from += at, a.parts[p].into += at;
      a.parts[p].bytes = piece(a.parts[p].bytes, at);
      a.parts[p].recv_bytes = piece(a.parts[p].recv_bytes, at);
    }
    CUDACHECK(cpu_launch(stream, exchange_lines, &a, sizeof a));
  }
}

struct lines *lines_create(ncclComm_t comm, const char **why)
{
  struct lines *l = calloc(1, sizeof *l);
  if (!l) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  if (share(&l->shared, comm, 2 * sizeof(struct mail), why)) return l;
  free(l);
  return NULL;
}

void lines_destroy(struct lines *l)
{
  unshare(&l->shared);
  free(l);
}

/* ---- flags --------------------------------------------------------------------------------- */

struct flags {
  ncclComm_t comm;
  int rank, count;
  struct stream_flag flags[2 * SIMPLE_MAX_RANKS];
};

static void run_flags(const void *arg)
{
  const struct flags *f = arg;
  for (int i = 0; i < f->count; i++) {
    _Atomic uint32_t *at = (_Atomic uint32_t *)f->flags[i].address;
    const struct awaited awaited = {at, f->flags[i].value};
    const bool wait = f->flags[i].peer == f->rank;
    while (wait && !cpu_wait(f->comm, has_come, &awaited, 3600)) continue;
    atomic_store(at, wait ? 0 : f->flags[i].value);
    if (!wait) cpu_notify(f->comm, f->flags[i].peer);
  }
}

void stream_flags(const struct stream_flag *flags, int count, ncclComm_t comm, cudaStream_t stream)
{
  struct flags f = {.comm = comm, .count = count};
  NCCLCHECK(ncclCommUserRank(comm, &f.rank));
  memcpy(f.flags, flags, (size_t)count * sizeof *flags);
  CUDACHECK(cpu_launch(stream, run_flags, &f, sizeof f));
}
