/* SPDX-License-Identifier: Apache-2.0 */
/* How entries get from rank to rank, in two ways. (oktopk has a third one without messages, which
 * does not come here: onesided/.)
 *
 * Device counts, where all ranks share symmetric memory: the AlltoAllV of example 03 takes its
 * counts from device memory, so that nothing here waits for anything.
 *
 * Send/recv, everywhere: NCCL wants to know every size on the host, so the counts are gathered and
 * the host waits for them; then grouped ncclSend and ncclRecv. */
#include "handle.h"

static size_t list_room(const struct sparse_memory *m)
{
  return (size_t)m->nranks * m->list_room;
}

/* NCCL moves bits: elements have 4 bytes, or 8. */
static ncclDataType_t type_of(size_t size)
{
  return size == 8 ? ncclUint64 : ncclUint32;
}

ncclResult_t sparse_allreduce_mode(sparse_allreduce_t handle, sparse_mode_t *mode)
{
  if (handle == NULL || mode == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  *mode = handle->onesided            ? SPARSE_MODE_ONESIDED
          : handle->alltoallv == NULL ? SPARSE_MODE_NCCL
                                      : SPARSE_MODE_DEVICE_COUNTS;
  return ncclSuccess;
}

const char *sparse_allreduce_mode_reason(sparse_allreduce_t handle)
{
  return handle != NULL ? handle->why : "";
}

/* ---- counts on the host ---------------------------------------------------------------------- */

ncclResult_t exchange_counts(struct sparse_allreduce_handle *h, const uint64_t *mine, size_t words,
                             cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  /* MPI: Allgather(count) -> NCCL: ncclAllGather */
  SPARSE_NCCL(ncclAllGather(mine, m->matrix, words, ncclUint64, h->comm, stream));
  SPARSE_CUDA(cudaMemcpyAsync(h->counts, m->matrix, (size_t)m->nranks * words * sizeof(uint64_t),
                              cudaMemcpyDeviceToHost, stream));
  SPARSE_CUDA(cudaStreamSynchronize(stream));
  return ncclSuccess;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct part {
  char *at;
  uint64_t count;
};

/* out[p] goes to rank p, and what comes from it to in[p], for all p; elements of `size` bytes. It
 * goes in rounds: in round i a rank sends to the one i places on and receives from the one i places
 * back, so that nobody is sent to by all at once. `throttle` rounds form a group.
 * MPI: Isend, Irecv, Waitall -> NCCL: ncclSend and ncclRecv in a group; no requests, no tags: the
 * order in the stream takes their place. An empty message is skipped on both sides. */
static ncclResult_t sendrecv(struct sparse_allreduce_handle *h, const struct part *out,
                             const struct part *in, size_t size, int throttle, cudaStream_t stream)
{
  const int rank = h->m.rank, nranks = h->m.nranks;
  const ncclDataType_t type = type_of(size);
  if (out[rank].at != in[rank].at && out[rank].count > 0)
    SPARSE_CUDA(cudaMemcpyAsync(in[rank].at, out[rank].at, out[rank].count * size,
                                cudaMemcpyDeviceToDevice, stream));
  for (int first = 1; first < nranks; first += throttle < nranks ? throttle : nranks) {
    SPARSE_NCCL(ncclGroupStart());
    for (int i = first; i < nranks && i - first < throttle; i++) {
      const int to = (rank + i) % nranks, from = (rank - i + nranks) % nranks;
      if (out[to].count > 0)
        SPARSE_P2P(ncclSend(out[to].at, out[to].count, type, to, h->comm, stream));
      if (in[from].count > 0)
        SPARSE_P2P(ncclRecv(in[from].at, in[from].count, type, from, h->comm, stream));
    }
    SPARSE_NCCL(ncclGroupEnd());
  }
  return ncclSuccess;
}

/* ---- split ----------------------------------------------------------------------------------- */

static ncclResult_t split_sendrecv(struct sparse_allreduce_handle *h, int throttle,
                                   cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int nranks = m->nranks;
  struct part out[SPARSE_MAX_RANKS], in[SPARSE_MAX_RANKS];
  /* MPI: Alltoall(counts) -> NCCL: ncclAllGather of the rows; every rank knows the whole matrix */
  SPARSE_TRY(exchange_counts(h, m->state->region_counts, (size_t)nranks, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SPLIT_COUNTS, stream));
  struct sparse_pair *next = m->offered;
  for (int p = 0; p < nranks; p++) {
    out[p] = (struct part){(char *)next, h->counts[m->rank * nranks + p]};
    in[p] = (struct part){(char *)(m->received + (size_t)p * m->list_room),
                          h->counts[p * nranks + m->rank]};
    next += out[p].count;
  }
  return sendrecv(h, out, in, sizeof(*next), throttle, stream);
}

ncclResult_t exchange_split(struct sparse_allreduce_handle *h, int throttle, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  if (h->alltoallv == NULL) return split_sendrecv(h, throttle, stream);
  SPARSE_ALLTOALLV(alltoallv_device_counts(
      m->offered, s->region_counts, s->region_displs, m->received, m->list_room, ALLTOALLV_SLOTS,
      s->received_counts, NULL, NULL, sizeof(struct sparse_pair), h->alltoallv, stream));
  return ncclSuccess;
}

/* ---- gather ---------------------------------------------------------------------------------- */

ncclResult_t exchange_blocks(struct sparse_allreduce_handle *h, const void *block, void *vector,
                             const uint64_t *counts, const uint64_t *displs, size_t size,
                             cudaStream_t stream)
{
  struct part out[SPARSE_MAX_RANKS] = {{0}}, in[SPARSE_MAX_RANKS] = {{0}};
  /* MPI: Allgatherv -> NCCL: has none; every block is sent to everybody, all at once */
  for (int p = 0; p < h->m.nranks; p++) {
    out[p] = (struct part){(char *)block, counts[h->m.rank]};
    in[p] = (struct part){(char *)vector + displs[p] * size, counts[p]};
  }
  return sendrecv(h, out, in, size, h->m.nranks, stream);
}

bool exchange_balances(const struct sparse_allreduce_handle *h, const uint64_t *counts,
                       uint64_t total)
{
  const struct sparse_memory *m = &h->m;
  if (!h->path->balances || m->config.balance == SPARSE_BALANCE_NEVER) return false;
  if (m->config.balance == SPARSE_BALANCE_ALWAYS) return true;
  uint64_t most = 0;
  for (int r = 0; r < m->nranks; r++)
    if (counts[r] > most) most = counts[r];
  return most * (uint64_t)m->nranks > 4 * total;
}

/* Even shares differ by one at most, the first ranks have the larger ones. */
void exchange_shares(const struct sparse_memory *m, const uint64_t *counts, uint64_t total, int r,
                     struct sparse_share *from, struct sparse_share *to)
{
  const uint64_t nranks = (uint64_t)m->nranks, each = total / nranks, more = total % nranks;
  const uint64_t before = (uint64_t)r;
  *from = (struct sparse_share){0, counts[r]};
  for (int p = 0; p < r; p++) from->first += counts[p];
  *to = (struct sparse_share){each * before + (before < more ? before : more),
                              each + (before < more)};
}

struct sparse_share exchange_overlap(struct sparse_share a, struct sparse_share b)
{
  const uint64_t begin = a.first > b.first ? a.first : b.first;
  const uint64_t a_end = a.first + a.count, b_end = b.first + b.count;
  const uint64_t end = a_end < b_end ? a_end : b_end;
  return (struct sparse_share){begin, end > begin ? end - begin : 0};
}

/* Who has elements of another rank's share sends them, straight to their final place; then shares
 * go from all to all. */
static ncclResult_t gather_balanced(struct sparse_allreduce_handle *h, const char *send, char *recv,
                                    uint64_t total, size_t size, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int nranks = m->nranks;
  struct sparse_share from[SPARSE_MAX_RANKS], to[SPARSE_MAX_RANKS];
  struct part out[SPARSE_MAX_RANKS] = {{0}}, in[SPARSE_MAX_RANKS] = {{0}};
  uint64_t even[SPARSE_MAX_RANKS], displs[SPARSE_MAX_RANKS];
  for (int p = 0; p < nranks; p++) {
    exchange_shares(m, h->counts, total, p, &from[p], &to[p]);
    even[p] = to[p].count;
    displs[p] = to[p].first;
  }
  for (int p = 0; p < nranks; p++) {
    const struct sparse_share given = exchange_overlap(from[m->rank], to[p]);
    const struct sparse_share taken = exchange_overlap(from[p], to[m->rank]);
    const uint64_t skipped = given.count > 0 ? given.first - from[m->rank].first : 0;
    out[p] = (struct part){(char *)send + skipped * size, given.count};
    in[p] = (struct part){recv + taken.first * size, taken.count};
  }
  SPARSE_TRY(sendrecv(h, out, in, size, nranks, stream));
  return exchange_blocks(h, recv + displs[m->rank] * size, recv, even, displs, size, stream);
}

/* All ranks' counts and, after them, displacements: to h->counts and to the device. */
static ncclResult_t gather_counts(struct sparse_allreduce_handle *h, uint64_t *counts,
                                  uint64_t *displs, cudaStream_t stream)
{
  const int nranks = h->m.nranks;
  const size_t row = (size_t)nranks * sizeof(uint64_t);
  SPARSE_TRY(exchange_counts(h, &h->m.state->send_counts[0], 1, stream));
  uint64_t *places = h->counts + nranks;
  places[0] = 0;
  for (int r = 1; r < nranks; r++) places[r] = places[r - 1] + h->counts[r - 1];
  SPARSE_CUDA(cudaMemcpyAsync(counts, h->counts, row, cudaMemcpyHostToDevice, stream));
  SPARSE_CUDA(cudaMemcpyAsync(displs, places, row, cudaMemcpyHostToDevice, stream));
  return ncclSuccess;
}

/* What h->counts says, from all to all. */
static ncclResult_t gather_elements(struct sparse_allreduce_handle *h, const void *send, void *recv,
                                    size_t size, cudaStream_t stream)
{
  const uint64_t *all = h->counts, *places = h->counts + h->m.nranks;
  const uint64_t total = places[h->m.nranks - 1] + all[h->m.nranks - 1];
  if (exchange_balances(h, all, total)) return gather_balanced(h, send, recv, total, size, stream);
  return exchange_blocks(h, send, recv, all, places, size, stream);
}

ncclResult_t exchange_gather(struct sparse_allreduce_handle *h, const void *send, void *recv,
                             size_t size, enum sparse_counts known, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  const bool sums = recv == m->gathered;
  uint64_t *counts = sums ? s->gathered_counts : s->received_counts;
  uint64_t *displs = sums ? s->gathered_displs : s->received_displs;
  if (h->alltoallv != NULL) {
    /* Everybody gets the same list: all displacements are 0. Balancing would gain nothing. */
    SPARSE_ALLTOALLV(alltoallv_device_counts(send, s->send_counts, s->send_displs, recv,
                                             list_room(m), ALLTOALLV_PACKED, counts, displs, NULL,
                                             size, h->alltoallv, stream));
    return ncclSuccess;
  }
  if (known == SPARSE_COUNTS_ARE_K) { /* MPI: Allgather -> NCCL: ncclAllGather */
    SPARSE_NCCL(ncclAllGather(send, recv, m->k, type_of(size), h->comm, stream));
    return ncclSuccess;
  }
  if (known == SPARSE_COUNTS_UNKNOWN) SPARSE_TRY(gather_counts(h, counts, displs, stream));
  return gather_elements(h, send, recv, size, stream);
}

/* ---- gradients that are not finite ----------------------------------------------------------- */

/* In memory of its own where NCCL gathers it: see own_messages. */
static uint32_t *nonfinite_place(const struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  return h->alltoallv != NULL ? m->flags->nonfinite
                              : (uint32_t *)(m->matrix + (size_t)m->nranks * (size_t)m->nranks);
}

const uint32_t *nonfinite_of(const struct sparse_allreduce_handle *h)
{
  return nonfinite_place(h);
}

ncclResult_t exchange_nonfinite(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  struct sparse_state *s = h->m.state;
  uint32_t *all = nonfinite_place(h);
  if (h->alltoallv != NULL) /* not by NCCL, whose calls have no timeout */
    SPARSE_ALLTOALLV(alltoallv_device_counts(
        &s->nonfinite, s->ones, s->send_displs, all, (size_t)h->m.nranks, ALLTOALLV_PACKED,
        s->nonfinite_counts, NULL, NULL, sizeof(*all), h->alltoallv, stream));
  else
    SPARSE_NCCL(ncclAllGather(&s->nonfinite, all, 1, ncclUint32, h->comm, stream));
  return ncclSuccess;
}
