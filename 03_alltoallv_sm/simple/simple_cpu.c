/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU versions of barrier.cu, lines.cu and stream_flags.cu: the same steps, memcpy for the
 * stores. A line is a whole part here, and the epochs of all parts that a rank sends are one flag,
 * so barriers and lines wait in the same way. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "simple.h"

enum { ROOM = 64 << 10 }; /* bytes of a part that go in one round of lines */

struct scratch {
  _Atomic uint64_t epoch[SIMPLE_MAX_RANKS]; /* [p]: that rank p has come to */
  uint64_t mine;
  char mail[]; /* lines: [epoch & 1][source][ROOM] */
};

/* An exchange, as it is when it is enqueued. */
struct job {
  struct way *way;
  int rank, n;
  bool barriers;
  size_t largest;
  struct {
    const char *from;
    char *into;
    size_t to, bytes, recv_bytes; /* to: in the peer's window */
  } parts[SIMPLE_MAX_RANKS];
};

static void launch(struct way *w, void (*run)(const void *), bool barriers, const char *send,
                   size_t recv_at, cudaStream_t stream)
{
  const struct exchange *x = w->x;
  const size_t size = x->type->size;
  struct job job = {w, x->me->rank, x->me->nranks, barriers, x->largest * size, {{0}}};
  for (int p = 0; p < job.n; p++) {
    job.parts[p].from = send + x->sdispls[p] * size;
    job.parts[p].into = w->window + recv_at + x->rdispls[p] * size;
    job.parts[p].to = recv_at + x->places[p] * size;
    job.parts[p].bytes = x->sendcounts[p] * size;
    job.parts[p].recv_bytes = x->recvcounts[p] * size;
  }
  CUDACHECK(cpu_launch(stream, run, &job, sizeof job));
}

static bool all_came(const void *arg)
{
  const struct job *job = arg;
  struct scratch *mine = (struct scratch *)job->way->scratch;
  for (int p = 0; p < job->n; p++)
    if (atomic_load(&mine->epoch[p]) < mine->mine) return false;
  return true;
}

/* Tells all ranks that this one has come to its next epoch, and waits for them. */
static void meet(const struct job *job)
{
  const struct way *w = job->way;
  const uint64_t epoch = ++((struct scratch *)w->scratch)->mine;
  for (int p = 0; p < job->n; p++) {
    struct scratch *theirs = cpu_window_pointer(w->scratch_window, 0, p);
    atomic_store(&theirs->epoch[job->rank], epoch);
    cpu_notify(w->comm, p);
  }
  while (!cpu_wait(w->comm, all_came, job, 3600)) continue;
}

static void push_between_barriers(const void *arg)
{
  const struct job *job = arg;
  if (job->barriers) meet(job);
  for (int p = 0; p < job->n; p++)
    if (job->parts[p].bytes > 0)
      memcpy(cpu_window_pointer(job->way->registered, job->parts[p].to, p), job->parts[p].from,
             job->parts[p].bytes);
  if (job->barriers) meet(job);
}

static size_t piece(size_t bytes, size_t at)
{
  return bytes <= at ? 0 : bytes - at < ROOM ? bytes - at : ROOM;
}

static void exchange_lines(const void *arg)
{
  const struct job *job = arg;
  struct scratch *mine = (struct scratch *)job->way->scratch;
  for (size_t at = 0; at == 0 || at < job->largest; at += ROOM) {
    const size_t half = ((mine->mine + 1) & 1) * (size_t)job->n;
    for (int p = 0; p < job->n; p++) {
      struct scratch *theirs = cpu_window_pointer(job->way->scratch_window, 0, p);
      memcpy(theirs->mail + (half + (size_t)job->rank) * ROOM, job->parts[p].from + at,
             piece(job->parts[p].bytes, at));
    }
    meet(job);
    for (int p = 0; p < job->n; p++)
      memcpy(job->parts[p].into + at, mine->mail + (half + (size_t)p) * ROOM,
             piece(job->parts[p].recv_bytes, at));
  }
}

void barrier_call(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  launch(w, push_between_barriers, true, send, recv_at, stream);
}

void bare_push_call(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  launch(w, push_between_barriers, false, send, recv_at, stream);
}

void lines_call(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  launch(w, exchange_lines, true, send, recv_at, stream);
}

/* ---- set up -------------------------------------------------------------------------------- */

const char *simple_why_not(const struct way *w)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  const int n = w->x->me->nranks;
  return n > SIMPLE_MAX_RANKS || (ranks && atoi(ranks) < n) ? "not all ranks share memory" : NULL;
}

const char *lines_open(struct way *w)
{
  const char *why = simple_why_not(w);
  if (!why) simple_open_scratch(w, sizeof(struct scratch) + 2 * (size_t)w->x->me->nranks * ROOM);
  return why;
}

void lines_close(struct way *w)
{
  simple_close_scratch(w);
}

const char *barrier_open(struct way *w)
{
  const char *why = lines_open(w);
  if (!why)
    NCCLCHECK(ncclCommWindowRegister(w->comm, w->window, w->bytes, &w->registered,
                                     NCCL_WIN_COLL_SYMMETRIC));
  return why;
}

void barrier_close(struct way *w)
{
  NCCLCHECK(ncclCommWindowDeregister(w->comm, w->registered));
  lines_close(w);
}

/* ---- flags --------------------------------------------------------------------------------- */

struct flags {
  const struct way *way;
  int rank, count;
  struct stream_flag flags[2 * SIMPLE_MAX_RANKS];
};

static bool is_set(const void *arg)
{
  return atomic_load((const _Atomic unsigned *)arg) == 1;
}

static void run_flags(const void *arg)
{
  const struct flags *f = arg;
  for (int i = 0; i < f->count; i++) {
    _Atomic unsigned *at = (_Atomic unsigned *)f->flags[i].address;
    const bool wait = f->flags[i].peer == f->rank;
    while (wait && !cpu_wait(f->way->comm, is_set, at, 3600)) continue;
    atomic_store(at, wait ? 0 : 1);
    if (!wait) cpu_notify(f->way->comm, f->flags[i].peer);
  }
}

void stream_flags(const struct stream_flag *flags, int count, const struct way *w,
                  cudaStream_t stream)
{
  struct flags f = {.way = w, .rank = w->x->me->rank, .count = count};
  memcpy(f.flags, flags, (size_t)count * sizeof *flags);
  CUDACHECK(cpu_launch(stream, run_flags, &f, sizeof f));
}
