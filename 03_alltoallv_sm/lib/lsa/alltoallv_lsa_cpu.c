/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twin of the one-sided part, for `make CPU=1`: the same interface as alltoallv_lsa.cu
 * and the same protocol as the kernel (headers, parities, counters, verdicts, timeout), with memcpy
 * for the tiles and one protocol instead of two: no lines, also none at the beginning of a large
 * pair, since nothing is gained by them here. It is also the shortest way to understand the kernel,
 * all but its lines.
 *
 * A rank's exchange runs on the worker thread of its stream; ranks meet in windows that the
 * stand-in maps into all of them, and wait by cpu_wait, which sleeps.
 *
 * CPU_STANDIN_LSA_RANKS says how many consecutive ranks share memory (default: all), to try out
 * several hosts on one; 0 means no symmetric memory. CPU_STANDIN_PCIE=N and
 * CPU_STANDIN_UNKNOWN_LINK=N: device N says that it reaches the others over PCIe, or cannot say
 * how.
 */
#include "alltoallv_lsa.h"

#ifdef CPU_STANDIN /* elsewhere this file is empty, so that all *.c of this folder may be compiled \
                    */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alltoallv_errors.h"
#include "cpu.h"

/* A header, and the row of counts and rooms with it. `call` is written last. */
struct message {
  struct alltoallv_header header;
  uint64_t counts[ALLTOALLV_MAX_LSA_RANKS], rooms[ALLTOALLV_MAX_LSA_RANKS];
  _Atomic uint32_t call;
};

/* The scratch memory of a rank, in a window: [source] is written by that source. */
struct scratch {
  _Atomic uint64_t received[ALLTOALLV_MAX_LSA_RANKS];
  _Atomic uint32_t ready[ALLTOALLV_MAX_LSA_RANKS], arrived[ALLTOALLV_MAX_LSA_RANKS];
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
  uint32_t call;
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

/* The process on that device says that it reaches the others so. */
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
  l->call = config->first_call - 1;
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

static void report(struct alltoallv_error *record, int kind, int source, int destination,
                   uint64_t sent, uint64_t expected, struct alltoallv_unit unit)
{
  if (__atomic_load_n(&record->kind, __ATOMIC_ACQUIRE) != ALLTOALLV_ERROR_NONE)
    return; /* the first one stays until it is read */
  record->source = source;
  record->destination = destination;
  record->sent = sent;
  record->expected = expected;
  record->unit = unit;
  __atomic_store_n(&record->kind, kind, __ATOMIC_RELEASE);
}

static struct scratch *scratch_of(const struct alltoallv_lsa *lsa, int peer)
{
  return cpu_window_pointer(lsa->scratch_window, 0, peer);
}

/* Something in our own scratch memory to wait for. */
struct awaited32 {
  _Atomic uint32_t *at;
  uint32_t value;
  bool at_least; /* modulo 2^32; else equal */
};

static bool has_come32(const void *arg)
{
  const struct awaited32 *a = arg;
  uint32_t now = atomic_load(a->at);
  return a->at_least ? (int32_t)(now - a->value) >= 0 : now == a->value;
}

struct awaited64 {
  _Atomic uint64_t *at;
  uint64_t value;
};

static bool has_come64(const void *arg)
{
  const struct awaited64 *a = arg;
  return atomic_load(a->at) == a->value;
}

static bool wait_for(struct alltoallv_lsa *lsa, int source, bool (*ready)(const void *arg),
                     const void *arg)
{
  double seconds = lsa->config.timeout_seconds;
  if (lsa->broken) return false;
  do {
    if (cpu_wait(lsa->comm, ready, arg, seconds > 0 ? seconds : 3600)) return true;
  } while (seconds == 0); /* for ever */
  lsa->broken = true;
  report(&lsa->errors.timeout, ALLTOALLV_ERROR_TIMEOUT, source, lsa->rank, 0, 0,
         (struct alltoallv_unit){0});
  return false;
}

/* ---- the exchange ------------------------------------------------------------------------- */

struct job {
  struct alltoallv_lsa *lsa;
  struct alltoallv_request request;
};

static struct message *message_from(const struct alltoallv_lsa *lsa, int source)
{
  return &lsa->mine->message[lsa->call & 1][source];
}

/* Fills the pairs from the device arrays, and this rank's rows in `row`. */
static void load_counts(const struct alltoallv_lsa *lsa, const struct alltoallv_request *c,
                        struct alltoallv_pair *pairs, struct message *row)
{
  const uint32_t unit = c->unit.bytes;
  uint64_t packed = 0;
  for (int p = 0; p < lsa->n; p++) {
    pairs[p].send_bytes = alltoallv_device_bytes(c->sendcounts[p], unit);
    pairs[p].send_offset = c->sdispls != NULL ? c->sdispls[p] * unit : packed;
    packed += pairs[p].send_bytes;
    row->counts[p] = pairs[p].send_bytes;
    if (c->kind != ALLTOALLV_KIND_SLOTS) continue;
    pairs[p].recv_offset = c->rdispls[p] * unit;
    row->rooms[p] = unit * alltoallv_room(c->rdispls, lsa->n, p, c->capacity);
  }
}

/* Nothing has moved, so nothing was received. */
static void publish_nothing(const struct alltoallv_lsa *lsa, const struct alltoallv_request *c)
{
  for (int s = 0; s < lsa->n; s++) {
    c->recvcounts[s] = 0;
    if (c->needed != NULL) c->needed[s] = 0;
    if (c->kind == ALLTOALLV_KIND_PACKED && c->rdispls != NULL) c->rdispls[s] = 0;
  }
}

/* All rows are there: where my data go, what comes to me, and whether everything fits everywhere.
 */
static bool share_counts(struct alltoallv_lsa *lsa, const struct alltoallv_request *c,
                         struct alltoallv_pair *pairs, uint64_t *to)
{
  int n = lsa->n;
  bool fits = true;
  uint64_t packed = 0;
  for (int d = 0; d < n; d++) {
    const struct message *at = message_from(lsa, d);
    uint64_t total = 0;
    to[d] = at->header.offset;
    for (int s = 0; s < n; s++) {
      uint64_t bytes = message_from(lsa, s)->counts[d];
      if (c->kind == ALLTOALLV_KIND_PACKED && s == lsa->rank) to[d] += total;
      total += bytes;
      if (fits && c->kind == ALLTOALLV_KIND_SLOTS && bytes > at->rooms[s]) {
        report(&lsa->errors.counts, ALLTOALLV_ERROR_CAPACITY, s, d, bytes, at->rooms[s], c->unit);
        fits = false;
      }
    }
    if (fits && c->kind == ALLTOALLV_KIND_PACKED && total > at->header.expect) {
      report(&lsa->errors.counts, ALLTOALLV_ERROR_CAPACITY, -1, d, total, at->header.expect,
             c->unit);
      fits = false;
    }
  }
  for (int s = 0; s < n; s++) {
    pairs[s].recv_bytes = message_from(lsa, s)->counts[lsa->rank];
    if (c->kind == ALLTOALLV_KIND_PACKED) {
      pairs[s].recv_offset = packed;
      if (c->rdispls != NULL) c->rdispls[s] = fits ? packed / c->unit.bytes : 0;
      packed += pairs[s].recv_bytes;
    }
    const size_t count = pairs[s].recv_bytes / c->unit.bytes;
    c->recvcounts[s] = fits ? count : 0;
    if (c->needed != NULL) c->needed[s] = count;
  }
  return fits;
}

/* The twin of alltoallv_kernel. */
static void run(const void *args)
{
  const struct job *job = args;
  struct alltoallv_lsa *lsa = job->lsa;
  const struct alltoallv_request *c = &job->request;
  bool device_counts = c->kind != ALLTOALLV_KIND_HOST;
  int me = lsa->rank, n = lsa->n;
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS];
  struct message row;
  uint64_t to[ALLTOALLV_MAX_LSA_RANKS];
  bool sends[ALLTOALLV_MAX_LSA_RANKS], receives[ALLTOALLV_MAX_LSA_RANKS];

  lsa->call = alltoallv_next_call(lsa->call);
  if (device_counts) publish_nothing(lsa, c); /* so far */
  if (lsa->broken) return;
  int stale = alltoallv_stale_parity(lsa->call);
  for (int p = 0; stale >= 0 && p < n; p++) atomic_store(&lsa->mine->message[stale][p].call, 0);

  memcpy(pairs, c->pairs, (size_t)n * sizeof(*pairs));
  if (device_counts) load_counts(lsa, c, pairs, &row);

  for (int p = 0; p < n; p++) { /* headers, to myself too */
    struct message *m = &scratch_of(lsa, p)->message[lsa->call & 1][me];
    m->header.sent = pairs[p].send_bytes;
    m->header.expect = device_counts ? c->capacity * c->unit.bytes : pairs[p].recv_bytes;
    m->header.offset =
        c->window_offset + (c->kind == ALLTOALLV_KIND_PACKED ? 0 : pairs[p].recv_offset);
    m->header.kind = c->kind;
    m->header.window = c->window;
    m->header.unit = c->unit.bytes;
    if (device_counts) {
      memcpy(m->counts, row.counts, (size_t)n * sizeof(*m->counts));
      if (c->kind == ALLTOALLV_KIND_SLOTS)
        memcpy(m->rooms, row.rooms, (size_t)n * sizeof(*m->rooms));
    }
    atomic_store(&m->call, lsa->call);
    cpu_notify(lsa->comm, p);
  }
  for (int p = 0; p < n; p++) {
    struct awaited32 header = {&message_from(lsa, p)->call, lsa->call, false};
    if (!wait_for(lsa, p, has_come32, &header)) return;
  }

  bool same_call = true;
  for (int p = 0; p < n; p++) {
    const struct alltoallv_header *h = &message_from(lsa, p)->header;
    sends[p] = receives[p] =
        h->kind == (uint32_t)c->kind && (!device_counts || h->unit == c->unit.bytes);
    if (!sends[p]) {
      report(&lsa->errors.counts, ALLTOALLV_ERROR_KIND, p, me, h->kind, c->kind, c->unit);
      same_call = false;
    }
  }
  if (device_counts) {
    if (!same_call || !share_counts(lsa, c, pairs, to)) return;
  } else {
    for (int p = 0; p < n; p++) {
      const struct alltoallv_header *h = &message_from(lsa, p)->header;
      to[p] = h->offset;
      if (!sends[p]) continue;
      receives[p] = alltoallv_counts_agree(h->sent, pairs[p].recv_bytes);
      sends[p] = alltoallv_counts_agree(pairs[p].send_bytes, h->expect);
      if (!receives[p])
        report(&lsa->errors.counts, ALLTOALLV_ERROR_MISMATCH, p, me, h->sent, pairs[p].recv_bytes,
               c->unit);
      if (!sends[p])
        report(&lsa->errors.counts, ALLTOALLV_ERROR_MISMATCH, me, p, pairs[p].send_bytes, h->expect,
               c->unit);
    }
  }

  for (int i = 1; i <= n; i++) { /* the data, my own part last */
    int p = (me + i) % n;
    uint64_t bytes = pairs[p].send_bytes;
    if (!sends[p] || bytes == 0) continue;
    uint32_t window = message_from(lsa, p)->header.window;
    memcpy(cpu_window_pointer(lsa->window[window], to[p], p),
           (const char *)c->send + pairs[p].send_offset, bytes);
    atomic_fetch_add(&scratch_of(lsa, p)->received[me], bytes);
    cpu_notify(lsa->comm, p);
  }
  for (int p = 0; p < n; p++) {
    if (!receives[p]) continue;
    struct awaited64 data = {&lsa->mine->received[p],
                             lsa->received_before[p] + pairs[p].recv_bytes};
    if (!wait_for(lsa, p, has_come64, &data)) return;
    lsa->received_before[p] = data.value;
  }
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *lsa,
                                  const struct alltoallv_request *request, cudaStream_t stream)
{
  struct job job = {lsa, *request};
  ALLTOALLV_CUDATRY(cpu_launch(stream, run, &job, sizeof(job)));
  return ncclSuccess;
}

/* ---- the bare push, and flags for the copy engines ---------------------------------------- */

struct bare {
  int rank, n;
  const char *send;
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS];
  void *to[ALLTOALLV_MAX_LSA_RANKS];
};

static void run_bare(const void *args)
{
  const struct bare *b = args;
  for (int i = 1; i <= b->n; i++) {
    int p = (b->rank + i) % b->n;
    if (b->pairs[p].send_bytes > 0)
      memcpy(b->to[p], b->send + b->pairs[p].send_offset, b->pairs[p].send_bytes);
  }
}

ncclResult_t alltoallv_lsa_bare_push(struct alltoallv_lsa *lsa,
                                     const struct alltoallv_request *request, void *const *to,
                                     cudaStream_t stream)
{
  struct bare b = {.rank = lsa->rank, .n = lsa->n, .send = request->send};
  memcpy(b.pairs, request->pairs, (size_t)lsa->n * sizeof(*b.pairs));
  memcpy(b.to, to, (size_t)lsa->n * sizeof(*b.to));
  ALLTOALLV_CUDATRY(cpu_launch(stream, run_bare, &b, sizeof(b)));
  return ncclSuccess;
}

struct flags {
  struct alltoallv_lsa *lsa;
  enum alltoallv_flag flag;
  uint32_t value;
  bool set[ALLTOALLV_MAX_LSA_RANKS], wait[ALLTOALLV_MAX_LSA_RANKS];
};

static void run_flags(const void *args)
{
  const struct flags *f = args;
  struct alltoallv_lsa *lsa = f->lsa;
  bool ready = f->flag == ALLTOALLV_FLAG_READY;
  for (int p = 0; p < lsa->n; p++) {
    if (!f->set[p]) continue;
    struct scratch *theirs = scratch_of(lsa, p);
    atomic_store(ready ? &theirs->ready[lsa->rank] : &theirs->arrived[lsa->rank], f->value);
    cpu_notify(lsa->comm, p);
  }
  for (int p = 0; p < lsa->n; p++) {
    if (!f->wait[p]) continue;
    struct awaited32 flag = {ready ? &lsa->mine->ready[p] : &lsa->mine->arrived[p], f->value, true};
    while (!cpu_wait(lsa->comm, has_come32, &flag, 3600)) continue; /* no timeout here */
  }
}

ncclResult_t alltoallv_lsa_flags(struct alltoallv_lsa *lsa, enum alltoallv_flag flag,
                                 const bool *set, const bool *wait, uint32_t value,
                                 cudaStream_t stream)
{
  struct flags f = {.lsa = lsa, .flag = flag, .value = value};
  memcpy(f.set, set, (size_t)lsa->n * sizeof(*set));
  memcpy(f.wait, wait, (size_t)lsa->n * sizeof(*wait));
  ALLTOALLV_CUDATRY(cpu_launch(stream, run_flags, &f, sizeof(f)));
  return ncclSuccess;
}

#endif
