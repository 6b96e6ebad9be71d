/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of device.cu and the kernels, for `make CPU=1`: the same lines, flags, slices and
 * tags in scratch memory of the same layout. One thread does the work of many, and sleeps where the
 * kernels poll. It is also the shortest way to understand them. lines.cuh and twoshot.cuh explain
 * why nothing is overwritten too early.
 *
 * CPU_STANDIN_LSA_RANKS sets how many consecutive ranks share memory (default: all), to simulate
 * several hosts; 0: no symmetric memory. CPU_STANDIN_PCIE=N: device N is not on NVLink. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "internal.h"

struct job {
  struct allreduce_handle *h;
  struct allreduce_call call;
  uint64_t tag;
};

/* ---- scratch memory -------------------------------------------------------------------------- */

static _Atomic uint64_t *flag_of(const struct allreduce_handle *h, int owner,
                                 enum allreduce_flag which, int source)
{
  return (_Atomic uint64_t *)(void *)(h->peers[owner] + allreduce_flag_at(h->n, which, 0, source));
}

/* Line i of rank `source` in the memory of rank `owner`: the data, then the tag. (A wide line has
 * marks only on GPUs, where eight threads store it.) */
static char *line_at(const struct job *j, int owner, int source, size_t i)
{
  const int wide = j->call.launch.method == ALLREDUCE_WIDE, n = j->h->n;
  return j->h->peers[owner] +
         allreduce_lines_at(allreduce_lines_of(n, wide), n, allreduce_epoch(j->tag), source) +
         i * (wide ? ALLREDUCE_WIDE_LINE : sizeof(struct allreduce_line));
}

/* ---- waiting --------------------------------------------------------------------------------- */

struct awaited {
  _Atomic uint64_t *at, *begun;
  uint64_t tag;
};

static bool contradicts(const struct awaited *a)
{
  const uint64_t theirs = atomic_load(a->begun);
  return allreduce_epoch(theirs) == allreduce_epoch(a->tag) && theirs != a->tag;
}

static bool has_come(const void *arg)
{
  const struct awaited *a = arg;
  return atomic_load(a->at) == a->tag || contradicts(a);
}

/* Waits until `peer` has written the tag of this call to `at`. */
static bool wait_for(const struct job *j, _Atomic uint64_t *at, int peer)
{
  struct allreduce_handle *h = j->h;
  const struct awaited a = {at, flag_of(h, h->rank, ALLREDUCE_BEGUN, peer), j->tag};
  if (has_come(&a) && !contradicts(&a)) return true;
  if (h->state->reported) return false; /* the first error stays */
  const bool came = cpu_wait(h->comm, has_come, &a, h->timeout > 0 ? h->timeout : 1e9);
  if (came && !contradicts(&a)) return true;
  h->state->reported = 1;
  h->error->peer = peer;
  __atomic_store_n(&h->error->kind, came ? ALLREDUCE_ERROR_COUNT : ALLREDUCE_ERROR_TIMEOUT,
                   __ATOMIC_RELEASE);
  return false;
}

static void set_flags(const struct job *j, enum allreduce_flag which)
{
  for (int p = 0; p < j->h->n; p++) {
    if (p == j->h->rank) continue;
    atomic_store(flag_of(j->h, p, which, j->h->rank), j->tag);
    cpu_notify(j->h->comm, p);
  }
}

static bool meet(const struct job *j, enum allreduce_flag which)
{
  set_flags(j, which);
  for (int p = 0; p < j->h->n; p++)
    if (p != j->h->rank && !wait_for(j, flag_of(j->h, j->h->rank, which, p), p)) return false;
  return true;
}

/* ---- the methods ----------------------------------------------------------------------------- */

static void oneshot_allreduce(const struct job *j, size_t size)
{
  const int n = j->h->n, rank = j->h->rank;
  const char *send = j->call.send[rank];
  const size_t bytes = j->call.count * size;
  const size_t step = j->call.launch.method == ALLREDUCE_WIDE ? ALLREDUCE_WIDE_WORDS * 8 : 8;
  for (int p = 0; p < n; p++)
    for (size_t at = 0; p != rank && at < bytes; at += step) {
      char *line = line_at(j, p, rank, at / step);
      memcpy(line, send + at, allreduce_least(step, bytes - at));
      atomic_store((_Atomic uint64_t *)(void *)(line + step), j->tag);
    }
  set_flags(j, ALLREDUCE_BEGUN); /* wakes the peers, and shows them this rank's count */
  for (size_t at = 0; at < bytes; at += step) {
    const void *from[ALLREDUCE_MAX_RANKS];
    for (int p = 0; p < n; p++) {
      char *line = line_at(j, rank, p, at / step);
      from[p] = p == rank ? send + at : line;
      if (p != rank && !wait_for(j, (_Atomic uint64_t *)(void *)(line + step), p)) return;
    }
    allreduce_plain_sum(j->call.type, from, n, allreduce_least(step, bytes - at) / size,
                        j->call.recv[rank] + at);
  }
}

/* Adds `count` elements from element `first` on, from all ranks, and stores the sums to all. */
static void add_elements(const struct job *j, size_t first, size_t count, size_t size)
{
  const struct allreduce_call *c = &j->call;
  const void *from[ALLREDUCE_MAX_RANKS];
  char *mine = c->recv[j->h->rank] + first * size;
  for (int p = 0; p < j->h->n; p++) from[p] = c->send[p] + first * size;
  allreduce_plain_sum(c->type, from, j->h->n, count, mine);
  for (int p = 0; p < j->h->n; p++)
    if (p != j->h->rank) memcpy(c->recv[p] + first * size, mine, count * size);
}

static void twoshot_allreduce(const struct job *j, size_t size)
{
  const struct allreduce_slice s = j->call.slice;
  const size_t word = s.misaligned ? 1 : ALLREDUCE_WORD / size;
  if (!meet(j, ALLREDUCE_BEGUN)) return;
  add_elements(j, s.head + s.first * word, (s.end - s.first) * word, size);
  if (s.has_edges) {
    add_elements(j, 0, s.head, size);
    add_elements(j, s.tail, j->call.count - s.tail, size);
  }
  meet(j, ALLREDUCE_ENDED);
}

static void run(const void *args)
{
  struct job j = *(const struct job *)args;
  const size_t size = allreduce_size_of(j.call.type);
  if (j.h->state->reported) return; /* then it sends nothing: see begin_call */
  j.tag = allreduce_tag(++j.h->state->block[0].epoch, j.call.check);
  if (j.call.launch.method >= ALLREDUCE_TWOHOP) /* which only moves fewer bytes than one hop */
    twoshot_allreduce(&j, size);
  else
    oneshot_allreduce(&j, size);
}

ncclResult_t allreduce_device_launch(struct allreduce_handle *h, const struct allreduce_call *call,
                                     cudaStream_t stream)
{
  const struct job j = {h, *call, 0};
  ALLREDUCE_CUDATRY(cpu_launch(stream, run, &j, sizeof(j)));
  return ncclSuccess;
}

/* ---- set up ---------------------------------------------------------------------------------- */

ncclResult_t allreduce_device_ask(struct allreduce_handle *h, const char *ids,
                                  struct allreduce_limits *limits, const char **why)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"), *pcie = getenv("CPU_STANDIN_PCIE");
  (void)ids;
  *why = ranks != NULL && atoi(ranks) < h->n ? "not all ranks share memory" : "";
  if (pcie != NULL && atoi(pcie) == h->device) *why = "a GPU is not reached over NVLink";
  for (int m = 0; m < ALLREDUCE_METHODS; m++) limits->blocks[m] = ALLREDUCE_MAX_BLOCKS;
  return ncclSuccess;
}

ncclResult_t allreduce_device_probe(ncclComm_t comm)
{
  (void)comm;
  return ncclSuccess;
}

ncclResult_t allreduce_device_peers(const struct allreduce_handle *h, ncclWindow_t window,
                                    char **peers)
{
  for (int p = 0; p < h->n; p++) peers[p] = cpu_window_pointer(window, 0, p);
  return ncclSuccess;
}
