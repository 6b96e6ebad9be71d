/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV by grouped ncclSend and ncclRecv: for ranks on other hosts, and for everybody where the
 * kernel cannot run. This is the textbook form plus the checks that send/recv does not make: two
 * ranks that disagree about a count would hang or lose data. */
#include "alltoallv_internal.h"

#include <string.h>

/* The first error stays until the caller asks. */
static void report(struct alltoallv_handle *h, int kind, int source, int destination, uint64_t sent,
                   uint64_t expected, struct alltoallv_unit unit)
{
  struct alltoallv_error *e = &h->counts_error;
  if (e->kind != ALLTOALLV_ERROR_NONE) return;
  e->source = source;
  e->destination = destination;
  e->sent = sent;
  e->expected = expected;
  e->unit = unit;
  e->kind = kind;
}

/* Sends each peer {what I send you, what I expect from you} and receives the same. A pair that
 * disagrees is left out, by both sides alike: its bytes become 0. */
static ncclResult_t compare_counts(struct alltoallv_handle *h, struct alltoallv_pair *pairs,
                                   struct alltoallv_unit unit, cudaStream_t stream)
{
  size_t bytes = 2 * sizeof(uint64_t);
  uint64_t *mine = h->stage_device, *theirs = h->stage_device + 2 * h->n;
  for (int p = 0; p < h->n; p++) {
    h->stage[2 * p] = pairs[p].send_bytes;
    h->stage[2 * p + 1] = pairs[p].recv_bytes;
  }
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(mine, h->stage, bytes * (size_t)h->n, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(theirs, h->stage, bytes * (size_t)h->n, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_NCCLTRY(ncclGroupStart());
  for (int p = 0; p < h->n; p++) {
    if (p == h->rank || alltoallv_is_local(h, p)) continue;
    ALLTOALLV_P2PTRY(ncclSend(mine + 2 * p, bytes, ncclUint8, p, h->comm, stream));
    ALLTOALLV_P2PTRY(ncclRecv(theirs + 2 * p, bytes, ncclUint8, p, h->comm, stream));
  }
  ALLTOALLV_NCCLTRY(ncclGroupEnd());
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(h->stage, theirs, bytes * (size_t)h->n, cudaMemcpyDeviceToHost, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream));
  for (int p = 0; p < h->n; p++) {
    if (alltoallv_is_local(h, p)) continue;
    uint64_t sent = h->stage[2 * p], expected = h->stage[2 * p + 1];
    bool out = alltoallv_counts_agree(pairs[p].send_bytes, expected);
    bool in = alltoallv_counts_agree(sent, pairs[p].recv_bytes);
    if (p == h->rank) out = in = alltoallv_counts_agree(pairs[p].send_bytes, pairs[p].recv_bytes);
    if (!in)
      report(h, ALLTOALLV_ERROR_MISMATCH, p, h->rank, p == h->rank ? pairs[p].send_bytes : sent,
             pairs[p].recv_bytes, unit);
    if (!out)
      report(h, ALLTOALLV_ERROR_MISMATCH, h->rank, p, pairs[p].send_bytes,
             p == h->rank ? pairs[p].recv_bytes : expected, unit);
    if (!in) pairs[p].recv_bytes = 0;
    if (!out) pairs[p].send_bytes = 0;
  }
  return ncclSuccess;
}

ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                                bool capturing, cudaStream_t stream)
{
  struct alltoallv_pair *pairs = ex->pairs;
  if (h->config.check_counts) {
    if (capturing)
      return alltoallv_fail(ncclInvalidUsage,
                            "check_counts cannot be captured on the send/recv path");
    if (pairs != h->pairs) { /* a plan's: not to be changed */
      memcpy(h->pairs, pairs, (size_t)h->n * sizeof(*pairs));
      pairs = h->pairs;
    }
    ALLTOALLV_TRY(compare_counts(h, pairs, ex->unit, stream));
  }

  ALLTOALLV_NCCLTRY(ncclGroupStart());
  for (int p = 0; p < h->n; p++) {
    if (p == h->rank || alltoallv_is_local(h, p)) continue;
    /* Zero counts are skipped on both sides; if only one did so, the other would wait for ever. */
    if (pairs[p].send_bytes > 0)
      ALLTOALLV_P2PTRY(ncclSend(ex->send + pairs[p].send_offset, pairs[p].send_bytes, ncclUint8, p,
                                h->comm, stream));
    if (pairs[p].recv_bytes > 0)
      ALLTOALLV_P2PTRY(ncclRecv(ex->recv + pairs[p].recv_offset, pairs[p].recv_bytes, ncclUint8, p,
                                h->comm, stream));
  }
  ALLTOALLV_NCCLTRY(ncclGroupEnd());
  const struct alltoallv_pair *own = &pairs[h->rank];
  if (h->lsa != NULL) return ncclSuccess; /* the kernel copies it */
  if (!alltoallv_counts_agree(own->send_bytes, own->recv_bytes))
    report(h, ALLTOALLV_ERROR_MISMATCH, h->rank, h->rank, own->send_bytes, own->recv_bytes,
           ex->unit);
  else if (own->send_bytes > 0)
    ALLTOALLV_CUDATRY(cudaMemcpyAsync(ex->recv + own->recv_offset, ex->send + own->send_offset,
                                      own->send_bytes, cudaMemcpyDeviceToDevice, stream));
  return ncclSuccess;
}

/* ---- counts on the device ----------------------------------------------------------------- */

/* A rank's message: kind and bytes of the unit, capacity, counts[n], displacements[n] (slots). */
enum { ROW_KIND, ROW_CAPACITY, ROW_COUNTS };

/* The same verdict on every rank, from the same rows: does everything fit everywhere? */
static bool everything_fits(struct alltoallv_handle *h, const uint64_t *rows, size_t words,
                            const struct alltoallv_request *request)
{
  const uint32_t unit = request->unit.bytes;
  int n = h->n;
  for (int d = 0; d < n; d++) {
    const uint64_t *row = rows + (size_t)d * words;
    if (row[ROW_KIND] != rows[ROW_KIND]) {
      report(h, ALLTOALLV_ERROR_KIND, 0, d, 0, 0, request->unit);
      return false;
    }
    uint64_t capacity = row[ROW_CAPACITY] * unit, total = 0;
    for (int s = 0; s < n; s++) {
      uint64_t bytes =
          alltoallv_device_bytes(rows[(size_t)s * words + ROW_COUNTS + (size_t)d], unit);
      total += bytes;
      if (request->kind != ALLTOALLV_KIND_SLOTS) continue;
      const uint64_t *slots = row + ROW_COUNTS + n;
      uint64_t room = unit * alltoallv_room(slots, n, s, row[ROW_CAPACITY]);
      if (bytes > room) {
        report(h, ALLTOALLV_ERROR_CAPACITY, s, d, bytes, room, request->unit);
        return false;
      }
    }
    if (request->kind == ALLTOALLV_KIND_PACKED && total > capacity) {
      report(h, ALLTOALLV_ERROR_CAPACITY, -1, d, total, capacity, request->unit);
      return false;
    }
  }
  return true;
}

ncclResult_t alltoallv_sendrecv_device_counts(struct alltoallv_handle *h,
                                              const struct alltoallv_exchange *ex,
                                              const struct alltoallv_request *request,
                                              cudaStream_t stream)
{
  size_t n = (size_t)h->n, words = ROW_COUNTS + 2 * n, array = n * sizeof(uint64_t);
  const uint32_t unit = request->unit.bytes;
  uint64_t *row = h->stage;
  memset(row, 0, words * sizeof(*row));
  ALLTOALLV_CUDATRY(cudaMemcpyAsync(row + ROW_COUNTS, request->sendcounts, array,
                                    cudaMemcpyDeviceToHost, stream));
  if (request->kind == ALLTOALLV_KIND_SLOTS)
    ALLTOALLV_CUDATRY(cudaMemcpyAsync(row + ROW_COUNTS + n, request->rdispls, array,
                                      cudaMemcpyDeviceToHost, stream));
  uint64_t *sdispls = row + words; /* after the message */
  if (request->sdispls != NULL)
    ALLTOALLV_CUDATRY(
        cudaMemcpyAsync(sdispls, request->sdispls, array, cudaMemcpyDeviceToHost, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream));
  uint64_t packed = 0;
  for (size_t p = 0; p < n; p++) {
    h->pairs[p].send_bytes = alltoallv_device_bytes(row[ROW_COUNTS + p], unit);
    h->pairs[p].send_offset = request->sdispls != NULL ? sdispls[p] * unit : packed;
    packed += h->pairs[p].send_bytes;
  }
  row[ROW_KIND] = (uint64_t)unit << 8 | (uint64_t)request->kind;
  row[ROW_CAPACITY] = request->capacity;
  ALLTOALLV_TRY(alltoallv_agree(h, words));

  const uint64_t *slots = h->stage + (size_t)h->rank * words + ROW_COUNTS + n;
  packed = 0;
  for (size_t p = 0; p < n; p++) {
    uint64_t count = h->stage[p * words + ROW_COUNTS + (size_t)h->rank];
    h->pairs[p].recv_bytes = alltoallv_device_bytes(count, unit);
    h->pairs[p].recv_offset = request->kind == ALLTOALLV_KIND_SLOTS ? slots[p] * unit : packed;
    packed += h->pairs[p].recv_bytes;
  }
  bool fits = everything_fits(h, h->stage, words, request);

  /* What the caller wants to know. Where nothing moves, nothing is received. */
  for (size_t p = 0; p < n; p++) {
    const uint64_t needed = h->pairs[p].recv_bytes / unit;
    h->stage[p] = fits ? needed : 0;
    h->stage[n + p] = fits ? h->pairs[p].recv_offset / unit : 0;
    h->stage[2 * n + p] = h->counts_error.kind == ALLTOALLV_ERROR_KIND ? 0 : needed;
  }
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(request->recvcounts, h->stage, array, cudaMemcpyHostToDevice, stream));
  if (request->needed != NULL)
    ALLTOALLV_CUDATRY(
        cudaMemcpyAsync(request->needed, h->stage + 2 * n, array, cudaMemcpyHostToDevice, stream));
  if (request->kind == ALLTOALLV_KIND_PACKED && request->rdispls != NULL)
    ALLTOALLV_CUDATRY(
        cudaMemcpyAsync(request->rdispls, h->stage + n, array, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream)); /* h->stage will be used again */
  return fits ? alltoallv_run_exchange(h, ex, false, stream) : ncclSuccess;
}
