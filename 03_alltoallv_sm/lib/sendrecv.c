/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV by grouped ncclSend and ncclRecv, where the kernel cannot run. */
#include "alltoallv_internal.h"

/* Device counts become h->pairs, by the rule of the kernel. *moves: has to be exchanged. */
static ncclResult_t share_counts(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                 cudaStream_t stream, bool *moves)
{
  const size_t n = (size_t)h->n, words = 1 + n, array = n * sizeof(uint64_t);
  uint64_t *room = h->words, *counts = room + 1; /* a rank's message: room, counts[n] */
  uint64_t *sdispls = counts + n, at = 0;
  ALLTOALLV_CUDATRY(cudaMemcpyAsync(counts, x->sendcounts, array, cudaMemcpyDeviceToHost, stream));
  if (x->sdispls != NULL)
    ALLTOALLV_CUDATRY(cudaMemcpyAsync(sdispls, x->sdispls, array, cudaMemcpyDeviceToHost, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream));
  *room = x->room;
  for (size_t p = 0; p < n; p++) {
    counts[p] = alltoallv_least(counts[p], x->most);
    h->pairs[p].sends = counts[p];
    h->pairs[p].sends_at = x->sdispls != NULL ? sdispls[p] : at;
    at += counts[p];
  }
  ALLTOALLV_TRY(alltoallv_agree(h, words));

  /* Every rank comes to the same verdict: does everything fit? */
  const struct alltoallv_matrix matrix = {.counts = counts,
                                          .rooms = room,
                                          .stride = words,
                                          .n = h->n,
                                          .slots = alltoallv_in_slots(x->kind)};
  struct alltoallv_error found = {.kind = ALLTOALLV_ERROR_CAPACITY, .element = 1};
  struct alltoallv_error *record = &h->errors->counts;
  int *p = &found.destination;
  while (*p < h->n && alltoallv_fits(&matrix, *p, &found.source, &found.sent)) ++*p;
  *moves = *p == h->n;
  if (!*moves) {
    found.expected = room[(size_t)*p * words];
    if (record->kind == ALLTOALLV_ERROR_NONE) *record = found; /* the first one is reported */
  }
  uint64_t *needed = h->words + n * words, *recvcounts = needed + n, *rdispls = recvcounts + n;
  for (size_t source = 0; source < n; source++) {
    struct alltoallv_pair *pair = &h->pairs[source];
    pair->gets = needed[source] = counts[source * words + (size_t)h->rank];
    pair->gets_at = alltoallv_part_at(&matrix, (int)source, h->rank);
    recvcounts[source] = *moves ? pair->gets : 0;
    rdispls[source] = *moves ? pair->gets_at : 0;
  }
  size_t *const to[] = {x->needed, x->recvcounts, x->rdispls};
  for (size_t i = 0; i < 3; i++)
    if (to[i] != NULL)
      ALLTOALLV_CUDATRY(
          cudaMemcpyAsync(to[i], needed + i * n, array, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream)); /* h->words will be used again */
  return ncclSuccess;
}

ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                cudaStream_t stream)
{
  bool moves = true;
  if (x->kind != ALLTOALLV_KIND_HOST) ALLTOALLV_TRY(share_counts(h, x, stream, &moves));
  if (!moves) return ncclSuccess;
  ncclResult_t result = ncclGroupStart();
  for (uint32_t k = 0; k < x->payloads; k++)
    for (int p = 0; p < h->n; p++) {
      const struct alltoallv_payload *l = &x->payload[k];
      const struct alltoallv_pair *pair = &h->pairs[p];
      /* Zero counts are skipped on both sides; if only one did so, the other would wait forever. */
      if (pair->sends > 0 && result == ncclSuccess)
        result = ncclSend(l->send + pair->sends_at * l->unit, pair->sends * l->unit, ncclUint8, p,
                          h->comm, stream);
      if (pair->gets > 0 && result == ncclSuccess)
        result = ncclRecv(l->recv + pair->gets_at * l->unit, pair->gets * l->unit, ncclUint8, p,
                          h->comm, stream);
    }
  /* A group that has begun must end, or all that the thread asks of NCCL would only be queued. */
  const ncclResult_t ended = ncclGroupEnd();
  ALLTOALLV_CHECK(ncclResult_t, result != ncclSuccess ? result : ended, "ncclSend, ncclRecv", code,
                  alltoallv_nccl_reason(code));
  return ncclSuccess;
}
