/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV by grouped ncclSend and ncclRecv, where the kernel cannot run. */
#include "internal.h"

#include <string.h>

/* A rank's message: kind and bytes of its elements, bytes that fit, counts[n]. */
enum { ROW_KIND, ROW_ROOM, ROW_COUNTS };

/* Device counts become h->pairs. *fits: has to be exchanged. */
static ncclResult_t share_counts(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                 cudaStream_t stream, bool *fits)
{
  const size_t n = (size_t)h->n, words = ROW_COUNTS + n, array = n * sizeof(uint64_t);
  uint64_t *row = h->words, *sdispls = row + words; /* after the message */
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(row + ROW_COUNTS, x->sendcounts, array, cudaMemcpyDeviceToHost, stream));
  if (x->sdispls != NULL)
    ALLTOALLV_CUDATRY(cudaMemcpyAsync(sdispls, x->sdispls, array, cudaMemcpyDeviceToHost, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream));
  row[ROW_KIND] = (uint64_t)x->element << 8 | (uint64_t)x->kind;
  row[ROW_ROOM] = x->capacity * x->element;
  alltoallv_own_counts(h, x, row + ROW_COUNTS, sdispls, h->pairs);
  ALLTOALLV_TRY(alltoallv_agree(h, words));

  uint64_t *outcome = h->words + n * words; /* after all messages */
  bool same = true;
  memset(outcome, 0, 3 * array);
  for (size_t p = 0; p < n; p++) {
    if (h->words[p * words + ROW_KIND] == h->words[ROW_KIND]) continue;
    alltoallv_report(&h->errors->counts, ALLTOALLV_ERROR_KIND, 0, (int)p, 0, 0, x->element);
    same = false;
  }
  *fits = same && alltoallv_share_counts(h, x, h->words + ROW_ROOM, h->words + ROW_COUNTS, words,
                                         h->pairs, outcome);
  size_t *const to[] = {x->recvcounts, x->rdispls, x->needed};
  for (size_t i = 0; i < 3; i++)
    if (to[i] != NULL)
      ALLTOALLV_CUDATRY(
          cudaMemcpyAsync(to[i], outcome + i * n, array, cudaMemcpyHostToDevice, stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(stream)); /* h->words will be used again */
  return ncclSuccess;
}

ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                cudaStream_t stream)
{
  bool fits = true;
  if (x->kind != ALLTOALLV_KIND_HOST) ALLTOALLV_TRY(share_counts(h, x, stream, &fits));
  if (!fits) return ncclSuccess;
  ncclResult_t result = ncclGroupStart();
  for (int p = 0; p < h->n && result == ncclSuccess; p++) {
    const struct alltoallv_pair *pair = &h->pairs[p];
    /* Zero counts are skipped on both sides; if only one did so, the other would wait forever. */
    if (pair->send_bytes > 0)
      result =
          ncclSend(x->send + pair->send_offset, pair->send_bytes, ncclUint8, p, h->comm, stream);
    if (pair->recv_bytes > 0 && result == ncclSuccess)
      result =
          ncclRecv(x->recv + pair->recv_offset, pair->recv_bytes, ncclUint8, p, h->comm, stream);
  }
  /* A group that has begun must end, or all that the thread asks of NCCL would only be queued. */
  const ncclResult_t ended = ncclGroupEnd();
  ALLTOALLV_CHECK(ncclResult_t, result != ncclSuccess ? result : ended, "ncclSend, ncclRecv", code,
                  alltoallv_nccl_reason(code));
  return ncclSuccess;
}
