/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of lib/lsa.cu: the protocol of the kernel (headers, parities, verdicts, timeout),
 * with memcpy for the tiles and without lines, so the shortest way to understand it. It runs on the
 * worker thread of the stream, and waits by cpu_wait, which sleeps.
 *
 * CPU_STANDIN_LSA_RANKS: so many ranks share memory (all). CPU_STANDIN_PCIE=N: device N reaches the
 * others over PCIe. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/internal.h"
#include "cpu.h"

/* What one rank tells another one in an epoch: a header, with device counts the row of counts, and
 * that its data have been stored. The epochs are written last. */
struct message {
  struct alltoallv_header header;
  uint64_t counts[ALLTOALLV_MAX_LSA_RANKS];
  _Atomic uint32_t epoch, done;
};

const size_t alltoallv_lsa_threshold = 0; /* there are no lines */

/* ---- set up ------------------------------------------------------------------------------- */

const char *alltoallv_lsa_why_not(struct alltoallv_handle *h, int device,
                                  const struct alltoallv_answer *gpus, int *blocks)
{
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"), *pcie = getenv("CPU_STANDIN_PCIE");
  (void)gpus;
  *blocks = 1;
  if (ranks != NULL && atoi(ranks) != h->n) return "not all ranks share memory";
  if (h->n > ALLTOALLV_MAX_LSA_RANKS) return "more ranks share memory than the kernel is made for";
  if (pcie != NULL && atoi(pcie) == device) return "a GPU may be on PCIe; the kernel needs NVLink";
  return "";
}

ncclResult_t alltoallv_lsa_probe(struct alltoallv_handle *h)
{
  (void)h;
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_peers(struct alltoallv_handle *h, int id)
{
  struct alltoallv_window *w = &h->windows[id];
  for (int p = 0; p < h->n; p++) w->peers[p] = cpu_window_pointer(w->window, 0, p);
  w->place = (uint64_t)id << 48;
  return ncclSuccess;
}

/* ---- telling each other, and waiting ------------------------------------------------------- */

/* What `source` writes at `owner` in this epoch, or in the one before or after. */
static struct message *message(const struct alltoallv_handle *h, int owner, int source,
                               uint32_t epoch)
{
  struct message *all = h->windows[ALLTOALLV_MAX_WINDOWS].peers[owner];
  return &all[(epoch & 1) * (uint32_t)h->n + (uint32_t)source];
}

static void notify(const struct alltoallv_handle *h, int peer, _Atomic uint32_t *that)
{
  atomic_store(that, h->state->block[0].epoch);
  cpu_notify(h->lsa_comm, peer);
}

/* What is waited for, and the epoch. */
struct awaited {
  const _Atomic uint32_t *that;
  uint32_t epoch;
};

static bool has_come(const void *arg)
{
  const struct awaited *a = arg;
  return atomic_load(a->that) == a->epoch;
}

static bool wait_for(const struct alltoallv_handle *h, int source, const _Atomic uint32_t *that)
{
  const struct awaited awaited = {that, h->state->block[0].epoch};
  const double seconds = h->config.timeout_seconds;
  if (cpu_wait(h->lsa_comm, has_come, &awaited, seconds > 0 ? seconds : 1e9)) return true;
  h->state->block[0].broken = true;
  alltoallv_report(&h->errors->timeout, ALLTOALLV_ERROR_TIMEOUT, source, h->rank, 0, 0, 1);
  return false;
}

/* ---- the exchange ------------------------------------------------------------------------- */

struct job {
  const struct alltoallv_handle *h;
  struct alltoallv_request x;
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS];
};

/* Headers, and with device counts the row of counts, to all ranks, this one included. */
static void send_headers(struct job *job)
{
  const struct alltoallv_handle *h = job->h;
  const struct alltoallv_request *x = &job->x;
  const bool device = x->kind != ALLTOALLV_KIND_HOST;
  const uint64_t room = x->capacity * x->element, slot = x->kind == ALLTOALLV_KIND_SLOTS ? room : 0;
  uint64_t counts[ALLTOALLV_MAX_LSA_RANKS];
  if (device) memcpy(counts, x->sendcounts, (size_t)h->n * sizeof(*counts));
  if (device) alltoallv_own_counts(h, x, counts, x->sdispls, job->pairs);
  for (int p = 0; p < h->n; p++) {
    const struct alltoallv_pair *pair = &job->pairs[p];
    struct message *m = message(h, p, h->rank, h->state->block[0].epoch);
    m->header = (struct alltoallv_header){
        pair->send_bytes, device ? room : pair->recv_bytes,
        x->place + (device ? (uint64_t)p * slot : pair->recv_offset), x->kind, x->element};
    if (device) memcpy(m->counts, counts, sizeof(counts));
    notify(h, p, &m->epoch);
  }
}

/* Device counts: what the caller wants to know. */
static void publish(const struct job *job, const uint64_t *outcome)
{
  size_t *const to[] = {job->x.recvcounts, job->x.rdispls, job->x.needed};
  const size_t n = (size_t)job->h->n;
  for (size_t i = 0; i < 3; i++)
    if (to[i] != NULL) memcpy(to[i], outcome + i * n, n * sizeof(*outcome));
}

/* The CPU version of alltoallv_kernel. */
static void run(const void *args)
{
  struct job job = *(const struct job *)args;
  const struct alltoallv_handle *h = job.h;
  const struct alltoallv_request *x = &job.x;
  const bool device = x->kind != ALLTOALLV_KIND_HOST;
  const int me = h->rank, n = h->n;
  uint64_t to[ALLTOALLV_MAX_LSA_RANKS], outcome[3 * ALLTOALLV_MAX_LSA_RANKS] = {0};
  bool sends[ALLTOALLV_MAX_LSA_RANKS], receives[ALLTOALLV_MAX_LSA_RANKS], moves = true;

  const uint32_t epoch = h->state->block[0].epoch = alltoallv_next_epoch(h->state->block[0].epoch);
  if (device) publish(&job, outcome); /* nothing so far */
  if (h->state->block[0].broken) return;
  const int stale = alltoallv_stale_parity(epoch);
  for (int p = 0; stale >= 0 && p < n; p++) {
    struct message *m = message(h, me, p, (uint32_t)stale);
    m->epoch = m->done = 0;
  }
  send_headers(&job);
  struct message *from = message(h, me, 0, epoch); /* [source] */
  for (int p = 0; p < n; p++)
    if (!wait_for(h, p, &from[p].epoch)) return;

  for (int p = 0; p < n; p++) {
    const struct alltoallv_header *it = &from[p].header;
    const struct alltoallv_pair *pair = &job.pairs[p];
    const bool same = it->kind == x->kind && (!device || it->element == x->element);
    receives[p] = same && (device || it->sent == pair->recv_bytes);
    sends[p] = same && (device || it->expect == pair->send_bytes);
    moves = moves && (same || !device);
    if (!receives[p])
      alltoallv_report(&h->errors->counts, same ? ALLTOALLV_ERROR_MISMATCH : ALLTOALLV_ERROR_KIND,
                       p, me, it->sent, pair->recv_bytes, x->element);
    else if (!sends[p])
      alltoallv_report(&h->errors->counts, ALLTOALLV_ERROR_MISMATCH, me, p, pair->send_bytes,
                       it->expect, x->element);
    to[p] = it->place;
    for (int s = 0; s < me && x->kind == ALLTOALLV_KIND_PACKED; s++)
      to[p] += from[s].counts[p] * x->element;
  }
  if (device && moves) {
    moves = alltoallv_share_counts(h, x, &from->header.expect, from->counts,
                                   sizeof(*from) / sizeof(uint64_t), job.pairs, outcome);
    publish(&job, outcome);
  }
  if (!moves) return;

  for (int i = 1; i <= n; i++) { /* the data, my own part last */
    const int p = (me + i) % n;
    if (!sends[p] || job.pairs[p].send_bytes == 0) continue;
    memcpy((char *)h->windows[to[p] >> 48].peers[p] + (to[p] & ~(~0ULL << 48)),
           x->send + job.pairs[p].send_offset, job.pairs[p].send_bytes);
    notify(h, p, &message(h, p, me, epoch)->done);
  }
  for (int p = 0; p < n; p++)
    if (receives[p] && job.pairs[p].recv_bytes > 0 && !wait_for(h, p, &from[p].done)) return;
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                  cudaStream_t stream)
{
  struct job job = {.h = h, .x = *x};
  memcpy(job.pairs, h->pairs, (size_t)h->n * sizeof(*h->pairs));
  ALLTOALLV_CUDATRY(cpu_launch(stream, run, &job, sizeof(job)));
  return ncclSuccess;
}
