/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV by grouped ncclSend and ncclRecv, where the kernel cannot run. */
#include "alltoallv_internal.h"

#include <string.h>

/* A rank's message: kind and bytes of its elements, room, counts[n]. */
enum { ROW_KIND, ROW_ELEMENTS, ROW_ROOM = ROW_ELEMENTS + ALLTOALLV_MAX_PAYLOADS, ROW_COUNTS };

/* Device counts become h->pairs, by the rule of the kernel. *moves: has to be exchanged. */
static ncclResult_t share_counts(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                 cudaStream_t stream, bool *moves)
{
  const size_t n = (size_t)h->n, words = ROW_COUNTS + n, array = n * sizeof(uint64_t);
  uint64_t *row = h->words, *sdispls = row + words, at = 0; /* after the message */
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(row + ROW_COUNTS, x->sendcounts, array, cudaMemcpyDeviceToHost, stream));
  if (x->sdispls != NULL)
    ALLTOALLV_CUDATRY(cudaMemcpyAsync(sdispls, x->sdispls, array, cudaMemcpyDeviceToHost, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream));
  row[ROW_KIND] = x->kind;
  for (int k = 0; k < ALLTOALLV_MAX_PAYLOADS; k++) row[ROW_ELEMENTS + k] = x->payload[k].unit;
  row[ROW_ROOM] = x->room;
  for (size_t p = 0; p < n; p++) {
    uint64_t *count = &row[ROW_COUNTS + p];
    *count = alltoallv_least(*count, x->most);
    h->pairs[p] =
        (struct alltoallv_pair){.sends = *count, .sends_at = x->sdispls != NULL ? sdispls[p] : at};
    at += *count;
  }
  ALLTOALLV_TRY(alltoallv_agree(h, words));

  const struct alltoallv_matrix matrix = {.counts = h->words + ROW_COUNTS,
                                          .rooms = h->words + ROW_ROOM,
                                          .stride = words,
                                          .n = h->n,
                                          .slots = alltoallv_in_slots(x->kind)};
  /* Every rank comes to the same verdict: have all made the same call, and does everything fit? */
  struct alltoallv_error found = {.element = 1};
  const size_t same = (ROW_ROOM - ROW_KIND) * sizeof(uint64_t);
  for (int p = 0; p < h->n && found.kind == ALLTOALLV_ERROR_NONE; p++) {
    found.destination = p;
    if (memcmp(h->words + (size_t)p * words, h->words, same) != 0)
      found.kind = ALLTOALLV_ERROR_KIND;
  }
  for (int p = 0; p < h->n && found.kind == ALLTOALLV_ERROR_NONE; p++) {
    found.destination = p;
    found.expected = matrix.rooms[(size_t)p * words];
    if (!alltoallv_fits(&matrix, p, &found.source, &found.sent))
      found.kind = ALLTOALLV_ERROR_CAPACITY;
  }
  *moves = found.kind == ALLTOALLV_ERROR_NONE;
  if (!*moves) alltoallv_report(&h->errors->counts, &found);
  uint64_t *outcome = h->words + n * words; /* after all messages: recvcounts, rdispls, needed */
  for (int p = 0; p < h->n; p++) {
    struct alltoallv_pair *pair = &h->pairs[p];
    pair->gets = matrix.counts[(size_t)p * words + (size_t)h->rank];
    pair->gets_at = alltoallv_part_at(&matrix, p, h->rank);
    outcome[p] = *moves ? pair->gets : 0;
    outcome[(int)n + p] = *moves ? pair->gets_at : 0;
    outcome[2 * (int)n + p] = pair->gets;
  }
  size_t *const to[] = {x->recvcounts, x->rdispls, x->needed};
  for (size_t i = 0; i < 3; i++)
    if (to[i] != NULL)
      ALLTOALLV_CUDATRY(
          cudaMemcpyAsync(to[i], outcome + i * n, array, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream)); /* h->words will be used again */
  return ncclSuccess;
}

/* Zero counts are skipped on both sides; if only one did so, the other would wait forever. */
static ncclResult_t send_and_receive(struct alltoallv_handle *h, const struct alltoallv_payload *l,
                                     int p, cudaStream_t stream)
{
  const struct alltoallv_pair *pair = &h->pairs[p];
  ncclResult_t result = ncclSuccess;
  if (pair->sends > 0)
    result = ncclSend(l->send + pair->sends_at * l->unit, pair->sends * l->unit, ncclUint8, p,
                      h->comm, stream);
  if (pair->gets > 0 && result == ncclSuccess)
    result = ncclRecv(l->recv + pair->gets_at * l->unit, pair->gets * l->unit, ncclUint8, p,
                      h->comm, stream);
  return result;
}

ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                cudaStream_t stream)
{
  bool moves = true;
  if (x->kind != ALLTOALLV_KIND_HOST) ALLTOALLV_TRY(share_counts(h, x, stream, &moves));
  if (!moves) return ncclSuccess;
  ncclResult_t result = ncclGroupStart();
  for (uint32_t k = 0; k < x->payloads; k++)
    for (int p = 0; p < h->n && result == ncclSuccess; p++)
      result = send_and_receive(h, &x->payload[k], p, stream);
  /* A group that has begun must end, or all that the thread asks of NCCL would only be queued. */
  const ncclResult_t ended = ncclGroupEnd();
  ALLTOALLV_CHECK(ncclResult_t, result != ncclSuccess ? result : ended, "ncclSend, ncclRecv", code,
                  alltoallv_nccl_reason(code));
  return ncclSuccess;
}
