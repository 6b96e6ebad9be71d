/* SPDX-License-Identifier: Apache-2.0 */
/* How entries get from rank to rank, in two ways. (oktopk has a third one: onesided/.) Where all
 * ranks share symmetric memory, the AlltoAllV of example 03 takes its counts from device memory, so
 * that nothing here waits. Otherwise NCCL needs every size on the host: the counts are gathered,
 * the host waits for them, and grouped ncclSend and ncclRecv follow. */
#include "handle.h"

/* NCCL moves bits: elements have 4 bytes, or 8. */
static ncclDataType_t type_of(size_t size)
{
  return size == 8 ? ncclUint64 : ncclUint32;
}

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

ncclResult_t exchange_barrier(struct sparse_allreduce_handle *h)
{
  return exchange_counts(h, h->m.matrix + h->m.rank, 1, h->own); /* of whatever lies there */
}

/* ---- messages -------------------------------------------------------------------------------- */

struct part {
  char *at;
  uint64_t count;
};

/* out[p] goes to rank p, and what comes from it to in[p]; elements of `size` bytes. In round i a
 * rank sends to the rank i places after it and receives from the rank i places before it, so that
 * never all send to one rank. `throttle` rounds form a group.
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
  for (int first = 1; first < nranks; first += throttle) {
    ncclResult_t queued = ncclSuccess;
    SPARSE_NCCL(ncclGroupStart());
    for (int i = first; i < nranks && i - first < throttle && queued == ncclSuccess; i++) {
      const int to = (rank + i) % nranks, from = (rank - i + nranks) % nranks;
      if (out[to].count > 0)
        queued = ncclSend(out[to].at, out[to].count, type, to, h->comm, stream);
      if (in[from].count > 0 && queued == ncclSuccess)
        queued = ncclRecv(in[from].at, in[from].count, type, from, h->comm, stream);
    }
    if (queued != ncclSuccess) {
      sparse_fail_nccl(queued, "ncclSend or ncclRecv");
      ncclGroupEnd(); /* otherwise later calls of this thread would only be queued */
      return queued;
    }
    SPARSE_NCCL(ncclGroupEnd());
  }
  return ncclSuccess;
}

ncclResult_t exchange_blocks(struct sparse_allreduce_handle *h, void *vector,
                             const uint64_t *places, size_t size, cudaStream_t stream)
{
  struct part out[SPARSE_MAX_RANKS] = {{0}}, in[SPARSE_MAX_RANKS] = {{0}};
  /* MPI: Allgatherv -> NCCL: has none; every block is sent to every rank, all at once */
  for (int p = 0; p < h->m.nranks; p++)
    in[p] = (struct part){(char *)vector + places[p] * size, places[p + 1] - places[p]};
  for (int p = 0; p < h->m.nranks; p++) out[p] = in[h->m.rank];
  return sendrecv(h, out, in, size, h->m.nranks, stream);
}

static ncclResult_t exchange_alltoallv(struct sparse_allreduce_handle *h,
                                       const alltoallv_counts_t *counts, const void *send,
                                       void *recv, size_t size, cudaStream_t stream)
{
  const alltoallv_buffers_t buffers = {send, recv, size};
  return sparse_alltoallv(alltoallv_device_counts(h->alltoallv, counts, &buffers, 1, stream));
}

/* ---- split ----------------------------------------------------------------------------------- */

ncclResult_t exchange_split(struct sparse_allreduce_handle *h, long throttle, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  struct sparse_pair *next = m->offered;
  struct part out[SPARSE_MAX_RANKS] = {{0}}, in[SPARSE_MAX_RANKS] = {{0}};
  SPARSE_TRY(ops_partition(m, stream));
  if (h->alltoallv != NULL) {
    const alltoallv_counts_t counts = {.sendcounts = s->region_counts,
                                       .sdispls = s->region_displs,
                                       .recvcounts = s->received_counts,
                                       .room = m->list_room,
                                       .layout = ALLTOALLV_SLOTS};
    return exchange_alltoallv(h, &counts, m->offered, m->received, sizeof(*next), stream);
  }
  /* MPI: Alltoall(counts) -> NCCL: ncclAllGather of the rows; every rank knows the whole matrix */
  SPARSE_TRY(exchange_counts(h, s->region_counts, (size_t)m->nranks, stream));
  SPARSE_TRY(ops_take_counts(m, stream));
  for (int p = 0; p < m->nranks; p++) {
    out[p] = (struct part){(char *)next, h->counts[m->rank * m->nranks + p]};
    in[p] = (struct part){(char *)(m->received + (size_t)p * m->list_room),
                          h->counts[p * m->nranks + m->rank]};
    next += out[p].count;
  }
  return sendrecv(h, out, in, sizeof(*next), throttle < m->nranks ? (int)throttle : m->nranks,
                  stream);
}

/* ---- gather ---------------------------------------------------------------------------------- */

uint64_t exchange_overlap(const uint64_t *a, const uint64_t *b, uint64_t *first)
{
  const uint64_t end = a[1] < b[1] ? a[1] : b[1];
  *first = a[0] > b[0] ? a[0] : b[0];
  return end > *first ? end - *first : 0;
}

/* Even shares differ by at most one; the first ranks have the larger ones. */
void exchange_shares(const struct sparse_allreduce_handle *h, const uint64_t *counts,
                     uint64_t *from, uint64_t *to)
{
  const uint64_t nranks = (uint64_t)h->m.nranks;
  const bool even = h->m.adapts && h->m.config.balance;
  from[0] = to[0] = 0;
  for (uint64_t r = 0; r < nranks; r++) from[r + 1] = from[r] + counts[r];
  const uint64_t total = from[nranks];
  for (uint64_t r = 0; r < nranks; r++)
    to[r + 1] = even ? to[r] + total / nranks + (r < total % nranks) : from[r + 1];
}

/* Gathers all ranks' counts, and displacements after them, to h->counts and to the device. */
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

/* All ranks send what h->counts says to all. A rank that has entries of another's share sends these
 * first, straight to their final place. */
static ncclResult_t gather_sendrecv(struct sparse_allreduce_handle *h,
                                    const struct sparse_pair *send, struct sparse_pair *recv,
                                    cudaStream_t stream)
{
  const int rank = h->m.rank, nranks = h->m.nranks;
  uint64_t from[SPARSE_MAX_RANKS + 1], to[SPARSE_MAX_RANKS + 1], first, count;
  struct part out[SPARSE_MAX_RANKS] = {{0}}, in[SPARSE_MAX_RANKS] = {{0}};
  exchange_shares(h, h->counts, from, to);
  for (int p = 0; p < nranks; p++) {
    count = exchange_overlap(&from[rank], &to[p], &first);
    out[p] = (struct part){(char *)(send + (first - from[rank])), count};
    count = exchange_overlap(&from[p], &to[rank], &first);
    in[p] = (struct part){(char *)(recv + first), count};
  }
  SPARSE_TRY(sendrecv(h, out, in, sizeof(*recv), nranks, stream));
  return exchange_blocks(h, recv, to, sizeof(*recv), stream);
}

ncclResult_t exchange_gather(struct sparse_allreduce_handle *h, const struct sparse_pair *send,
                             struct sparse_pair *recv, uint64_t *counts, uint64_t *displs,
                             cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = m->state;
  /* All ranks get the same list: all displacements are 0. Balancing would gain nothing. */
  if (h->alltoallv != NULL) {
    const alltoallv_counts_t packed = {.sendcounts = s->send_counts,
                                       .sdispls = s->fixed.zeros,
                                       .recvcounts = counts,
                                       .rdispls = displs,
                                       .room = (size_t)m->nranks * m->list_room};
    return exchange_alltoallv(h, &packed, send, recv, sizeof(*send), stream);
  }
  if (!sparse_varies(h->path)) { /* MPI: Allgather -> NCCL: ncclAllGather */
    SPARSE_NCCL(ncclAllGather(send, recv, m->k, ncclUint64, h->comm, stream));
    return ncclSuccess;
  }
  SPARSE_TRY(gather_counts(h, counts, displs, stream));
  return gather_sendrecv(h, send, recv, stream);
}

ncclResult_t exchange_nonfinite(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  if (h->alltoallv != NULL) { /* not by NCCL, whose calls have no timeout */
    const alltoallv_counts_t counts = {.sendcounts = s->fixed.ones,
                                       .sdispls = s->fixed.zeros,
                                       .recvcounts = s->nonfinite_counts,
                                       .room = (size_t)m->nranks};
    return exchange_alltoallv(h, &counts, &s->nonfinite, m->flags->nonfinite, sizeof(s->nonfinite),
                              stream);
  }
  SPARSE_NCCL(ncclAllGather(&s->nonfinite, s->all_nonfinite, 1, ncclUint32, h->comm, stream));
  return ncclSuccess;
}
