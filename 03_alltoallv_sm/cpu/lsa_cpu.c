/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of lib/lsa.cu, for `make CPU=1`: the same protocol as the kernel (headers,
 * parities, counters, verdicts, timeout), with memcpy for the tiles and no lines, since nothing is
 * gained by them here. It is also the shortest way to understand the kernel, all but its lines.
 *
 * A rank's exchange runs on the worker thread of its stream; ranks meet in windows that the
 * stand-in maps into all of them, and wait by cpu_wait, which sleeps.
 *
 * CPU_STANDIN_LSA_RANKS says how many consecutive ranks share memory (default: all), to try out
 * several hosts on one; 0 means no symmetric memory. CPU_STANDIN_PCIE=N and
 * CPU_STANDIN_UNKNOWN_LINK=N: device N says that it reaches the others over PCIe, or cannot say
 * how.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/internal.h"
#include "cpu.h"

/* A header, and the row of counts with it. `epoch` is written last. */
struct message {
  struct alltoallv_header header;
  uint64_t counts[ALLTOALLV_MAX_LSA_RANKS];
  _Atomic uint32_t epoch;
};

/* The scratch memory of a rank, in a window: [source] is written by that source. */
struct scratch {
  _Atomic uint64_t received[ALLTOALLV_MAX_LSA_RANKS];
  struct message message[2][ALLTOALLV_MAX_LSA_RANKS]; /* [parity] */
};

struct alltoallv_lsa {
  ncclComm_t comm;
  int rank, n;
  struct alltoallv_lsa_config config;
  struct scratch *mine;
  ncclWindow_t scratch_window;
  ncclWindow_t window[ALLTOALLV_MAX_WINDOWS];
  struct alltoallv_errors errors;
  /* what a rank remembers from one exchange to the next */
  uint32_t epoch;
  bool broken;
  uint64_t received_before[ALLTOALLV_MAX_LSA_RANKS]; /* mine->received after the last one */
};

/* ---- set up ------------------------------------------------------------------------------- */

int alltoallv_lsa_ranks(ncclComm_t comm, const char **why)
{
  const char *setting = getenv("CPU_STANDIN_LSA_RANKS");
  int n = 0;
  if (ncclCommCount(comm, &n) != ncclSuccess) n = 0;
  int ranks = setting != NULL ? atoi(setting) : n;
  *why = "";
  if (ranks >= 1 && ranks <= n && n % ranks == 0) return ranks;
  *why = "CPU_STANDIN_LSA_RANKS rules it out";
  return 0;
}

enum alltoallv_link alltoallv_lsa_link(int device, const char *id)
{
  const char *pcie = getenv("CPU_STANDIN_PCIE"), *unknown = getenv("CPU_STANDIN_UNKNOWN_LINK");
  (void)id;
  if (pcie != NULL && atoi(pcie) == device) return ALLTOALLV_LINK_PCIE;
  return unknown != NULL && atoi(unknown) == device ? ALLTOALLV_LINK_UNKNOWN
                                                    : ALLTOALLV_LINK_NVLINK;
}

ncclResult_t alltoallv_lsa_create(ncclComm_t comm, const struct alltoallv_lsa_config *config,
                                  struct alltoallv_lsa **lsa)
{
  struct alltoallv_lsa *l = calloc(1, sizeof(*l));
  *lsa = l;
  if (l == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  l->comm = comm;
  l->config = *config;
  l->epoch = config->first_epoch - 1;
  ALLTOALLV_NCCLTRY(ncclCommUserRank(comm, &l->rank));
  ALLTOALLV_NCCLTRY(ncclCommCount(comm, &l->n));
  ALLTOALLV_NCCLTRY(ncclMemAlloc((void **)&l->mine, sizeof(*l->mine)));
  memset((void *)l->mine, 0, sizeof(*l->mine));
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_connect(struct alltoallv_lsa *lsa)
{
  ALLTOALLV_NCCLTRY(ncclCommWindowRegister(lsa->comm, lsa->mine, sizeof(*lsa->mine),
                                           &lsa->scratch_window, NCCL_WIN_COLL_SYMMETRIC));
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_destroy(struct alltoallv_lsa *lsa)
{
  ncclResult_t window = ncclSuccess, memory = ncclSuccess;
  if (lsa->scratch_window != NULL)
    window = ncclCommWindowDeregister(lsa->comm, lsa->scratch_window);
  if (lsa->mine != NULL) memory = ncclMemFree(lsa->mine);
  free(lsa);
  const ncclResult_t first = window != ncclSuccess ? window : memory;
  return first == ncclSuccess ? first : alltoallv_fail(first, "%s", alltoallv_nccl_reason(first));
}

struct alltoallv_errors *alltoallv_lsa_errors(struct alltoallv_lsa *lsa)
{
  return &lsa->errors;
}

ncclResult_t alltoallv_lsa_register(struct alltoallv_lsa *lsa, int id, void *buff, size_t bytes,
                                    void **peers)
{
  ALLTOALLV_NCCLTRY(
      ncclCommWindowRegister(lsa->comm, buff, bytes, &lsa->window[id], NCCL_WIN_COLL_SYMMETRIC));
  for (int p = 0; p < lsa->n; p++) peers[p] = cpu_window_pointer(lsa->window[id], 0, p);
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_unregister(struct alltoallv_lsa *lsa, int id)
{
  ALLTOALLV_NCCLTRY(ncclCommWindowDeregister(lsa->comm, lsa->window[id]));
  return ncclSuccess;
}

/* ---- waiting and reporting ---------------------------------------------------------------- */

static struct scratch *scratch_of(const struct alltoallv_lsa *lsa, int peer)
{
  return cpu_window_pointer(lsa->scratch_window, 0, peer);
}

static struct message *message_from(const struct alltoallv_lsa *lsa, int source)
{
  return &lsa->mine->message[lsa->epoch & 1][source];
}

/* Something in our own scratch memory to wait for: the header of a source, or its data. */
struct awaited {
  const struct alltoallv_lsa *lsa;
  int source;
  uint64_t received; /* 0: the header */
};

static bool has_come(const void *arg)
{
  const struct awaited *a = arg;
  if (a->received == 0)
    return atomic_load(&message_from(a->lsa, a->source)->epoch) == a->lsa->epoch;
  return atomic_load(&a->lsa->mine->received[a->source]) == a->received;
}

static bool wait_for(struct alltoallv_lsa *lsa, int source, uint64_t received)
{
  const struct awaited awaited = {lsa, source, received};
  double seconds = lsa->config.timeout_seconds;
  do {
    if (cpu_wait(lsa->comm, has_come, &awaited, seconds > 0 ? seconds : 3600)) return true;
  } while (seconds == 0); /* for ever */
  lsa->broken = true;
  alltoallv_report(&lsa->errors.timeout, ALLTOALLV_ERROR_TIMEOUT, source, lsa->rank, 0, 0, 1);
  return false;
}

/* ---- the exchange ------------------------------------------------------------------------- */

struct job {
  struct alltoallv_lsa *lsa;
  struct alltoallv_request request;
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS];
};

/* Headers, and with device counts the row of counts, to all ranks, this one included. */
static void send_headers(struct job *job)
{
  struct alltoallv_lsa *lsa = job->lsa;
  const struct alltoallv_request *x = &job->request;
  const bool device = x->kind != ALLTOALLV_KIND_HOST, slots = x->kind == ALLTOALLV_KIND_SLOTS;
  uint64_t counts[ALLTOALLV_MAX_LSA_RANKS], packed = 0;
  for (int p = 0; p < lsa->n && device; p++) {
    counts[p] = alltoallv_clamp_count(x->sendcounts[p], x->element);
    job->pairs[p] = (struct alltoallv_pair){
        .send_bytes = counts[p] * x->element,
        .send_offset = x->sdispls != NULL ? x->sdispls[p] * x->element : packed,
        .recv_offset = slots ? (uint64_t)p * x->capacity * x->element : 0};
    packed += job->pairs[p].send_bytes;
  }
  for (int p = 0; p < lsa->n; p++) {
    const struct alltoallv_pair *pair = &job->pairs[p];
    struct message *m = &scratch_of(lsa, p)->message[lsa->epoch & 1][lsa->rank];
    m->header = (struct alltoallv_header){
        .sent = pair->send_bytes,
        .expect = device ? x->capacity * x->element : pair->recv_bytes,
        .offset = x->window_offset + pair->recv_offset,
        .kind = x->kind,
        .window = x->window,
        .element = x->element,
    };
    if (device) memcpy(m->counts, counts, (size_t)lsa->n * sizeof(*counts));
    atomic_store(&m->epoch, lsa->epoch);
    cpu_notify(lsa->comm, p);
  }
}

/* What the caller wants to know: how much was received, or would have been. */
static void publish(const struct job *job, bool known, bool moves)
{
  const struct alltoallv_request *x = &job->request;
  for (int p = 0; p < job->lsa->n; p++) {
    const size_t count = known ? job->pairs[p].recv_bytes / x->element : 0;
    x->recvcounts[p] = moves ? count : 0;
    if (x->needed != NULL) x->needed[p] = count;
    if (x->rdispls != NULL) x->rdispls[p] = moves ? job->pairs[p].recv_offset / x->element : 0;
  }
}

/* Device counts, when all rows are there: where my data go, what comes to me, and whether
 * everything fits everywhere. */
static bool share_counts(struct job *job, uint64_t *to)
{
  struct alltoallv_lsa *lsa = job->lsa;
  const struct alltoallv_request *x = &job->request;
  const bool slots = x->kind == ALLTOALLV_KIND_SLOTS;
  const struct message *m = message_from(lsa, 0);
  const bool fits = alltoallv_everything_fits(&lsa->errors.counts, x, lsa->n, &m->header.expect,
                                              m->counts, sizeof(*m) / sizeof(uint64_t));
  uint64_t packed = 0;
  for (int d = 0; d < lsa->n && !slots; d++)
    for (int s = 0; s < lsa->rank; s++) to[d] += m[s].counts[d] * x->element;
  for (int s = 0; s < lsa->n; s++) {
    struct alltoallv_pair *pair = &job->pairs[s];
    pair->recv_bytes = message_from(lsa, s)->counts[lsa->rank] * x->element;
    if (!slots) pair->recv_offset = packed;
    packed += pair->recv_bytes;
  }
  publish(job, true, fits);
  return fits;
}

/* Host counts: does what p and I say of each other agree? */
static void compare_counts(struct job *job, int p, bool *sends, bool *receives)
{
  struct alltoallv_lsa *lsa = job->lsa;
  const struct alltoallv_pair *pair = &job->pairs[p];
  const struct alltoallv_header *h = &message_from(lsa, p)->header;
  const uint32_t element = job->request.element;
  *receives = alltoallv_counts_agree(h->sent, pair->recv_bytes);
  *sends = alltoallv_counts_agree(pair->send_bytes, h->expect);
  if (!*receives)
    alltoallv_report(&lsa->errors.counts, ALLTOALLV_ERROR_MISMATCH, p, lsa->rank, h->sent,
                     pair->recv_bytes, element);
  if (!*sends)
    alltoallv_report(&lsa->errors.counts, ALLTOALLV_ERROR_MISMATCH, lsa->rank, p, pair->send_bytes,
                     h->expect, element);
}

/* The CPU version of alltoallv_kernel. */
static void run(const void *args)
{
  struct job job = *(const struct job *)args;
  struct alltoallv_lsa *lsa = job.lsa;
  const struct alltoallv_request *x = &job.request;
  const bool device = x->kind != ALLTOALLV_KIND_HOST;
  const int me = lsa->rank, n = lsa->n;
  uint64_t to[ALLTOALLV_MAX_LSA_RANKS];
  bool sends[ALLTOALLV_MAX_LSA_RANKS], receives[ALLTOALLV_MAX_LSA_RANKS], same = true;

  lsa->epoch = alltoallv_next_epoch(lsa->epoch);
  if (device) publish(&job, false, false); /* so far */
  if (lsa->broken) return;
  const int stale = alltoallv_stale_parity(lsa->epoch);
  for (int p = 0; stale >= 0 && p < n; p++) atomic_store(&lsa->mine->message[stale][p].epoch, 0);
  send_headers(&job);
  for (int p = 0; p < n; p++)
    if (!wait_for(lsa, p, 0)) return;

  for (int p = 0; p < n; p++) {
    const struct alltoallv_header *h = &message_from(lsa, p)->header;
    to[p] = h->offset;
    sends[p] = receives[p] = h->kind == x->kind && (!device || h->element == x->element);
    if (!sends[p])
      alltoallv_report(&lsa->errors.counts, ALLTOALLV_ERROR_KIND, p, me, h->kind, x->kind,
                       x->element);
    else if (!device)
      compare_counts(&job, p, &sends[p], &receives[p]);
    same = same && h->kind == x->kind && (!device || h->element == x->element);
  }
  if (device && (!same || !share_counts(&job, to))) return;

  for (int i = 1; i <= n; i++) { /* the data, my own part last */
    const int p = (me + i) % n;
    const struct alltoallv_pair *pair = &job.pairs[p];
    if (!sends[p] || pair->send_bytes == 0) continue;
    memcpy(cpu_window_pointer(lsa->window[message_from(lsa, p)->header.window], to[p], p),
           x->send + pair->send_offset, pair->send_bytes);
    atomic_fetch_add(&scratch_of(lsa, p)->received[me], pair->send_bytes);
    cpu_notify(lsa->comm, p);
  }
  for (int p = 0; p < n; p++) {
    if (!receives[p] || job.pairs[p].recv_bytes == 0) continue;
    const uint64_t received = lsa->received_before[p] + job.pairs[p].recv_bytes;
    if (!wait_for(lsa, p, received)) return;
    lsa->received_before[p] = received;
  }
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *lsa,
                                  const struct alltoallv_request *request, cudaStream_t stream)
{
  struct job job = {.lsa = lsa, .request = *request};
  if (request->kind == ALLTOALLV_KIND_HOST)
    memcpy(job.pairs, request->pairs, (size_t)lsa->n * sizeof(*job.pairs));
  ALLTOALLV_CUDATRY(cpu_launch(stream, run, &job, sizeof(job)));
  return ncclSuccess;
}
