/* SPDX-License-Identifier: Apache-2.0 */
/* The exchanges: each is checked, turned into bytes, and handed to the kernel or to send/recv. */
#include "alltoallv_internal.h"

#include <string.h>

ncclResult_t alltoallv_counts(alltoallv_t handle, const size_t sendcounts[], size_t recvcounts[])
{
  if (handle == NULL || sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  const size_t n = (size_t)handle->n;
  memcpy(handle->words, sendcounts, n * sizeof(*sendcounts));
  ALLTOALLV_TRY(alltoallv_agree(handle, n));
  for (size_t r = 0; r < n; r++) recvcounts[r] = handle->words[r * n + (size_t)handle->rank];
  return ncclSuccess;
}

/* ---- checking what a call was given ------------------------------------------------------- */

/* Of both kinds of exchange. */
static ncclResult_t check_arguments(alltoallv_t handle, const size_t *sendcounts,
                                    const size_t *recvcounts, size_t element_bytes)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  if (element_bytes == 0 || element_bytes > UINT32_MAX)
    return alltoallv_fail(ncclInvalidArgument,
                          "element_bytes is %zu; allowed: at least 1, less than 4 GiB",
                          element_bytes);
  if (sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL array of counts");
  return ncclSuccess;
}

/* Do `bytes` bytes at a and `more` bytes at b overlap? */
static bool overlap(uint64_t a, uint64_t bytes, uint64_t b, uint64_t more)
{
  return bytes > 0 && more > 0 && a < b + more && b < a + bytes;
}

/* Finds the place of the receive buffer: for the kernel it has to be registered, with room for
 * `end` bytes. */
static ncclResult_t locate(alltoallv_t h, uint64_t end, struct alltoallv_payload *l, size_t element)
{
  if (end == 0 || h->state == NULL) return ncclSuccess;
  const struct alltoallv_window *w = alltoallv_find_window(h, l->recv, 1);
  if (w == NULL)
    return alltoallv_fail(ncclInvalidUsage,
                          "recvbuff is not registered; call alltoallv_register first");
  const uint64_t at = (uint64_t)(l->recv - w->base), room = w->bytes - at;
  l->place = w->place + at;
  if (end <= room) return ncclSuccess;
  return alltoallv_fail(ncclInvalidArgument,
                        "recvbuff has to hold %zu elements, but the registered buffer ends after "
                        "%zu",
                        (size_t)end / element, (size_t)room / element);
}

/* The parts of a buffer: what one call after the other has seen of them. */
struct side {
  const size_t *counts, *displs; /* displs NULL: each right after the one before */
  uint64_t packed;               /* the end of the one before, in elements */
  uint64_t begin, end;           /* of all that are not empty, in bytes */
};

/* The one for rank p, in bytes. False if it is larger, or farther away, than any memory. */
static bool next_part(struct side *s, int p, size_t element, uint64_t *bytes, uint64_t *offset)
{
  const uint64_t at = s->displs != NULL ? s->displs[p] : s->packed;
  const uint64_t most = ALLTOALLV_TOO_MANY / element;
  if (s->counts[p] > most || at > most) return false;
  s->packed = at + s->counts[p];
  *bytes = s->counts[p] * element;
  *offset = at * element;
  if (*bytes > 0 && (s->end == 0 || *offset < s->begin)) s->begin = *offset;
  if (*bytes > 0 && *offset + *bytes > s->end) s->end = *offset + *bytes;
  return true;
}

/* The arguments of alltoallv() in bytes, in h->pairs. */
static ncclResult_t make_pairs(struct alltoallv_handle *h, struct side send, struct side recv,
                               struct alltoallv_request *x)
{
  for (int p = 0; p < h->n; p++) {
    struct alltoallv_pair *a = &h->pairs[p];
    const uint64_t end = recv.end;
    if (!next_part(&send, p, x->element, &a->sends, &a->sends_at) ||
        !next_part(&recv, p, x->element, &a->gets, &a->gets_at))
      return alltoallv_fail(ncclInvalidArgument, "what rank %d gets or sends overflows", p);
    for (int q = 0; q < p && a->gets_at < end; q++) { /* mostly in order: nothing to compare */
      const struct alltoallv_pair *b = &h->pairs[q];
      if (overlap(a->gets_at, a->gets, b->gets_at, b->gets))
        return alltoallv_fail(ncclInvalidUsage,
                              "what comes from ranks %d and %d overlaps in recvbuff", q, p);
    }
  }
  struct alltoallv_payload *l = &x->payload[0];
  if ((send.end > 0 && l->send == NULL) || (recv.end > 0 && l->recv == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ALLTOALLV_TRY(locate(h, recv.end, l, x->element));
  if (overlap((uintptr_t)l->send + send.begin, send.end - send.begin,
              (uintptr_t)l->recv + recv.begin, recv.end - recv.begin))
    return alltoallv_fail(ncclInvalidUsage, "send and receive ranges overlap");
  return ncclSuccess;
}

/* ---- enqueueing --------------------------------------------------------------------------- */

/* After the exchange before, on any stream. In a capture the caller orders the launches. */
static ncclResult_t enqueue(struct alltoallv_handle *h, const struct alltoallv_request *x,
                            cudaStream_t stream)
{
  enum cudaStreamCaptureStatus status;
  ALLTOALLV_TRY(alltoallv_check_timeout(h));
  ALLTOALLV_CUDATRY(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusNone) {
    if (h->last_exists && stream != h->last_stream) {
      ALLTOALLV_CUDATRY(cudaEventRecord(h->last_done, h->last_stream));
      ALLTOALLV_CUDATRY(cudaStreamWaitEvent(stream, h->last_done, 0));
    }
    h->last_exists = true;
    h->last_stream = stream;
  }
  return h->state != NULL ? alltoallv_lsa_launch(h, x, stream) : alltoallv_sendrecv(h, x, stream);
}

ncclResult_t alltoallv(alltoallv_t handle, const void *sendbuff, const size_t sendcounts[],
                       const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                       const size_t rdispls[], size_t element_bytes, cudaStream_t stream)
{
  struct alltoallv_request x = {.kind = ALLTOALLV_KIND_HOST,
                                .element = (uint32_t)element_bytes,
                                .payloads = 1,
                                .widest = 1, /* pairs are in bytes */
                                .payload = {{.send = sendbuff, .recv = recvbuff, .unit = 1}}};
  const struct side send = {.counts = sendcounts, .displs = sdispls};
  const struct side recv = {.counts = recvcounts, .displs = rdispls};
  ALLTOALLV_TRY(check_arguments(handle, sendcounts, recvcounts, element_bytes));
  ALLTOALLV_TRY(make_pairs(handle, send, recv, &x));
  return enqueue(handle, &x, stream);
}

/* One of the buffers with the same counts becomes a payload. */
static ncclResult_t add_payload(struct alltoallv_handle *h, const alltoallv_counts_t *counts,
                                const alltoallv_buffers_t *b, struct alltoallv_request *x)
{
  const uint64_t slots = counts->layout == ALLTOALLV_SLOTS ? (uint64_t)h->n : 1;
  const uint64_t bytes = counts->room * slots * b->element_bytes;
  struct alltoallv_payload *l = &x->payload[x->payloads++];
  *l = (struct alltoallv_payload){
      .send = b->sendbuff, .recv = b->recvbuff, .unit = b->element_bytes};
  if (b->element_bytes > x->widest) x->widest = (uint32_t)b->element_bytes;
  if (counts->room > ALLTOALLV_TOO_MANY / slots / b->element_bytes)
    return alltoallv_fail(ncclInvalidArgument, "room overflows");
  if (l->send == NULL || (bytes > 0 && l->recv == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  if (overlap((uintptr_t)l->send, 1, (uintptr_t)l->recv, bytes))
    return alltoallv_fail(ncclInvalidUsage, "send and receive ranges overlap");
  return locate(h, bytes, l, l->unit);
}

ncclResult_t alltoallv_device_counts(alltoallv_t handle, const alltoallv_counts_t *counts,
                                     const alltoallv_buffers_t buffers[], int nbuffers,
                                     cudaStream_t stream)
{
  if (counts == NULL || buffers == NULL || nbuffers < 1 || nbuffers > ALLTOALLV_MAX_PAYLOADS)
    return alltoallv_fail(ncclInvalidArgument, "NULL argument, or %d buffers; allowed: 1 to %d",
                          nbuffers, ALLTOALLV_MAX_PAYLOADS);
  if (counts->layout != ALLTOALLV_PACKED && counts->layout != ALLTOALLV_SLOTS)
    return alltoallv_fail(ncclInvalidArgument, "unknown layout");
  struct alltoallv_request x = {.room = counts->room,
                                .sendcounts = counts->sendcounts,
                                .sdispls = counts->sdispls,
                                .recvcounts = counts->recvcounts,
                                .rdispls = counts->rdispls,
                                .needed = counts->needed};
  for (int k = 0; k < nbuffers; k++) {
    ALLTOALLV_TRY(
        check_arguments(handle, counts->sendcounts, counts->recvcounts, buffers[k].element_bytes));
    ALLTOALLV_TRY(add_payload(handle, counts, &buffers[k], &x));
  }
  x.element = (uint32_t)buffers[0].element_bytes;
  x.most = ALLTOALLV_TOO_MANY / x.widest + 1;
  x.kind = (counts->layout == ALLTOALLV_SLOTS ? ALLTOALLV_KIND_SLOTS : ALLTOALLV_KIND_PACKED) +
           4 * (x.payloads - 1);
  return enqueue(handle, &x, stream);
}
