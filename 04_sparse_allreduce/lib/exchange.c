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

/* ---- split ----------------------------------------------------------------------------------- */

/* The exchange goes in rounds: in round i a rank sends to the one i places on and receives from the
 * one i places back, so that nobody is sent to by all at once. `throttle` rounds form a group. */
static ncclResult_t split_sendrecv(struct sparse_allreduce_handle *h, int throttle,
                                   cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int rank = m->rank, nranks = m->nranks;
  /* MPI: Alltoall(counts) -> NCCL: ncclAllGather of the rows; every rank knows the whole matrix */
  SPARSE_TRY(exchange_counts(h, m->state->region_counts, (size_t)nranks, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SPLIT_COUNTS, stream));
  const uint64_t *row = h->counts + rank * nranks;
  size_t displs[SPARSE_MAX_RANKS + 1] = {0};
  for (int j = 0; j < nranks; j++) displs[j + 1] = displs[j] + row[j];

  /* MPI: Isend, Irecv, Waitall -> NCCL: ncclSend and ncclRecv in a group; no requests, no tags: the
   * order in the stream takes their place. An empty message is skipped on both sides. */
  SPARSE_CUDA(cudaMemcpyAsync(m->received + (size_t)rank * m->list_room, m->offered + displs[rank],
                              row[rank] * sizeof(struct sparse_pair), cudaMemcpyDeviceToDevice,
                              stream));
  for (int first = 1; first < nranks; first += throttle < nranks ? throttle : nranks) {
    SPARSE_NCCL(ncclGroupStart());
    for (int i = first; i < nranks && i - first < throttle; i++) {
      const int to = (rank + i) % nranks, from = (rank - i + nranks) % nranks;
      const uint64_t receive = h->counts[from * nranks + rank];
      if (row[to] > 0)
        SPARSE_P2P(ncclSend(m->offered + displs[to], row[to], ncclUint64, to, h->comm, stream));
      if (receive > 0)
        SPARSE_P2P(ncclRecv(m->received + (size_t)from * m->list_room, receive, ncclUint64, from,
                            h->comm, stream));
    }
    SPARSE_NCCL(ncclGroupEnd());
  }
  return ncclSuccess;
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

ncclResult_t exchange_blocks(struct sparse_allreduce_handle *h, void *vector,
                             const uint64_t *counts, const uint64_t *displs, size_t size,
                             cudaStream_t stream)
{
  const int rank = h->m.rank, nranks = h->m.nranks;
  char *base = vector;
  const ncclDataType_t type = type_of(size);
  /* MPI: Allgatherv -> NCCL: has none; every block is sent to everybody, all at once */
  SPARSE_NCCL(ncclGroupStart());
  for (int i = 1; i < nranks; i++) {
    const int to = (rank + i) % nranks, from = (rank - i + nranks) % nranks;
    if (counts[rank] > 0)
      SPARSE_P2P(ncclSend(base + displs[rank] * size, counts[rank], type, to, h->comm, stream));
    if (counts[from] > 0)
      SPARSE_P2P(ncclRecv(base + displs[from] * size, counts[from], type, from, h->comm, stream));
  }
  SPARSE_NCCL(ncclGroupEnd());
  return ncclSuccess;
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

/* Who has elements of another rank's share sends them, straight to their final place. */
static ncclResult_t balance(struct sparse_allreduce_handle *h, const char *send, char *recv,
                            const struct sparse_share *from, const struct sparse_share *to,
                            size_t size, cudaStream_t stream)
{
  const int rank = h->m.rank, nranks = h->m.nranks;
  const ncclDataType_t type = type_of(size);
  const uint64_t own = from[rank].first;
  const struct sparse_share stays = exchange_overlap(from[rank], to[rank]);
  if (stays.count > 0)
    SPARSE_CUDA(cudaMemcpyAsync(recv + stays.first * size, send + (stays.first - own) * size,
                                stays.count * size, cudaMemcpyDeviceToDevice, stream));
  SPARSE_NCCL(ncclGroupStart());
  for (int p = 0; p < nranks; p++) {
    if (p == rank) continue;
    const struct sparse_share out = exchange_overlap(from[rank], to[p]);
    const struct sparse_share in = exchange_overlap(from[p], to[rank]);
    if (out.count > 0)
      SPARSE_P2P(ncclSend(send + (out.first - own) * size, out.count, type, p, h->comm, stream));
    if (in.count > 0)
      SPARSE_P2P(ncclRecv(recv + in.first * size, in.count, type, p, h->comm, stream));
  }
  SPARSE_NCCL(ncclGroupEnd());
  return ncclSuccess;
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
static ncclResult_t gather_elements(struct sparse_allreduce_handle *h, const char *send, char *recv,
                                    size_t size, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int rank = m->rank, nranks = m->nranks;
  const uint64_t *all = h->counts, *places = h->counts + nranks;
  const uint64_t total = places[nranks - 1] + all[nranks - 1];
  if (exchange_balances(h, all, total)) {
    struct sparse_share from[SPARSE_MAX_RANKS] = {{0, 0}}, to[SPARSE_MAX_RANKS] = {{0, 0}};
    uint64_t even[SPARSE_MAX_RANKS], even_displs[SPARSE_MAX_RANKS];
    for (int r = 0; r < nranks; r++) {
      exchange_shares(m, all, total, r, &from[r], &to[r]);
      even[r] = to[r].count;
      even_displs[r] = to[r].first;
    }
    SPARSE_TRY(balance(h, send, recv, from, to, size, stream));
    return exchange_blocks(h, recv, even, even_displs, size, stream);
  }
  SPARSE_CUDA(cudaMemcpyAsync(recv + places[rank] * size, send, all[rank] * size,
                              cudaMemcpyDeviceToDevice, stream));
  return exchange_blocks(h, recv, all, places, size, stream);
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
