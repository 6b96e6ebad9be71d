/* SPDX-License-Identifier: Apache-2.0 */
/* The exchanges: each is checked, turned into bytes, and handed to the kernel or to send/recv. */
#include "internal.h"

#include <string.h>

ncclResult_t alltoallv_counts(const size_t sendcounts[], size_t recvcounts[], alltoallv_t handle)
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

/* Finds the place of x->recv: for the kernel it has to be registered, with room for `end` bytes. */
static ncclResult_t locate_recvbuff(const struct alltoallv_handle *h, uint64_t end,
                                    struct alltoallv_request *x)
{
  if (end == 0 || h->state == NULL) return ncclSuccess;
  for (const struct alltoallv_window *w = h->windows; w < h->windows + ALLTOALLV_MAX_WINDOWS; w++) {
    if (w->base == NULL || x->recv < w->base || x->recv >= w->base + w->bytes) continue;
    const uint64_t at = (uint64_t)(x->recv - w->base), room = w->bytes - at;
    x->place = w->place + at;
    if (end <= room) return ncclSuccess;
    return alltoallv_fail(ncclInvalidArgument,
                          "recvbuff has to hold %zu elements, but the registered buffer ends "
                          "after %zu",
                          (size_t)end / x->element, (size_t)room / x->element);
  }
  return alltoallv_fail(ncclInvalidUsage,
                        "recvbuff is not registered; call alltoallv_register first");
}

/* The parts of a buffer, in bytes: what one call after the other has seen of them. */
struct side {
  const size_t *counts, *displs; /* displs NULL: each right after the one before */
  uint64_t packed;               /* the end of the one before */
  uint64_t begin, end;           /* of all that are not empty */
};

/* The one for rank p. False if it overflows. */
static bool next_part(struct side *s, int p, size_t element, uint64_t *bytes, uint64_t *offset)
{
  *offset = s->packed;
  if (__builtin_mul_overflow(s->counts[p], element, bytes) ||
      (s->displs != NULL && __builtin_mul_overflow(s->displs[p], element, offset)) ||
      __builtin_add_overflow(*offset, *bytes, &s->packed))
    return false;
  if (*bytes > 0 && *offset < s->begin) s->begin = *offset;
  if (*bytes > 0 && s->packed > s->end) s->end = s->packed;
  return true;
}

/* The arguments of alltoallv() in bytes, in h->pairs. */
static ncclResult_t make_pairs(struct alltoallv_handle *h, struct side send, struct side recv,
                               struct alltoallv_request *x)
{
  send.begin = recv.begin = UINT64_MAX;
  for (int p = 0; p < h->n; p++) {
    struct alltoallv_pair *a = &h->pairs[p];
    const uint64_t end = recv.end;
    if (!next_part(&send, p, x->element, &a->send_bytes, &a->send_offset) ||
        !next_part(&recv, p, x->element, &a->recv_bytes, &a->recv_offset))
      return alltoallv_fail(ncclInvalidArgument, "what rank %d gets or sends overflows", p);
    for (int q = 0; q < p && a->recv_offset < end; q++) { /* mostly in order: nothing to compare */
      const struct alltoallv_pair *b = &h->pairs[q];
      if (a->recv_bytes > 0 && b->recv_bytes > 0 &&
          a->recv_offset < b->recv_offset + b->recv_bytes &&
          b->recv_offset < a->recv_offset + a->recv_bytes)
        return alltoallv_fail(ncclInvalidUsage,
                              "what comes from ranks %d and %d overlaps in recvbuff", q, p);
    }
  }
  if ((send.end > 0 && x->send == NULL) || (recv.end > 0 && x->recv == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ALLTOALLV_TRY(locate_recvbuff(h, recv.end, x));
  const uintptr_t from = (uintptr_t)x->send, to = (uintptr_t)x->recv;
  if (send.end > 0 && recv.end > 0 && from + send.begin < to + recv.end &&
      to + recv.begin < from + send.end)
    return alltoallv_fail(ncclInvalidUsage, "send and receive ranges overlap");
  return ncclSuccess;
}

void alltoallv_own_counts(const struct alltoallv_handle *h, const struct alltoallv_request *x,
                          uint64_t *counts, const uint64_t *sdispls, struct alltoallv_pair *pairs)
{
  uint64_t at = 0;
  for (int p = 0; p < h->n; p++) {
    counts[p] = alltoallv_clamp_count(counts[p], x->element);
    pairs[p].send_bytes = counts[p] * x->element;
    pairs[p].send_offset = x->sdispls != NULL ? sdispls[p] * x->element : at;
    at += pairs[p].send_bytes;
  }
}

bool alltoallv_share_counts(const struct alltoallv_handle *h, const struct alltoallv_request *x,
                            const uint64_t *rooms, const uint64_t *counts, size_t stride,
                            struct alltoallv_pair *pairs, uint64_t *outcome)
{
  const size_t n = (size_t)h->n;
  bool fits = true;
  for (int d = 0; d < h->n && fits; d++) {
    const uint64_t room = rooms[(size_t)d * stride];
    uint64_t needs;
    int source;
    fits = alltoallv_fits(counts, stride, h->n, d, x->kind, x->element, room, &source, &needs);
    if (!fits)
      alltoallv_report(&h->errors->counts, ALLTOALLV_ERROR_CAPACITY, source, d, needs, room,
                       x->element);
  }
  uint64_t at = 0;
  for (size_t s = 0; s < n; s++) {
    const uint64_t count = counts[s * stride + (size_t)h->rank];
    if (x->kind == ALLTOALLV_KIND_SLOTS) at = s * x->capacity;
    pairs[s].recv_bytes = count * x->element;
    pairs[s].recv_offset = at * x->element;
    outcome[s] = fits ? count : 0;
    outcome[n + s] = fits ? at : 0;
    outcome[2 * n + s] = count;
    at += count;
  }
  return fits;
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

ncclResult_t alltoallv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                       void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                       size_t element_bytes, alltoallv_t handle, cudaStream_t stream)
{
  struct alltoallv_request x = {.kind = ALLTOALLV_KIND_HOST,
                                .send = sendbuff,
                                .recv = recvbuff,
                                .element = (uint32_t)element_bytes};
  const struct side send = {.counts = sendcounts, .displs = sdispls};
  const struct side recv = {.counts = recvcounts, .displs = rdispls};
  ALLTOALLV_TRY(check_arguments(handle, sendcounts, recvcounts, element_bytes));
  ALLTOALLV_TRY(make_pairs(handle, send, recv, &x));
  return enqueue(handle, &x, stream);
}

ncclResult_t alltoallv_device_counts(const void *sendbuff, const size_t *sendcounts,
                                     const size_t *sdispls, void *recvbuff, size_t room,
                                     alltoallv_layout_t layout, size_t *recvcounts, size_t *rdispls,
                                     size_t *needed, size_t element_bytes, alltoallv_t handle,
                                     cudaStream_t stream)
{
  const bool slots = layout == ALLTOALLV_SLOTS;
  struct alltoallv_request x = {.kind = slots ? ALLTOALLV_KIND_SLOTS : ALLTOALLV_KIND_PACKED,
                                .send = sendbuff,
                                .recv = recvbuff,
                                .element = (uint32_t)element_bytes,
                                .capacity = room,
                                .sendcounts = sendcounts,
                                .sdispls = sdispls,
                                .recvcounts = recvcounts,
                                .rdispls = rdispls,
                                .needed = needed};
  uint64_t bytes;
  ALLTOALLV_TRY(check_arguments(handle, sendcounts, recvcounts, element_bytes));
  if (!slots && layout != ALLTOALLV_PACKED)
    return alltoallv_fail(ncclInvalidArgument, "unknown layout");
  if (__builtin_mul_overflow(room, element_bytes, &bytes) ||
      (slots && __builtin_mul_overflow(bytes, (uint64_t)handle->n, &bytes)))
    return alltoallv_fail(ncclInvalidArgument, "room overflows");
  if (sendbuff == NULL || (bytes > 0 && recvbuff == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ALLTOALLV_TRY(locate_recvbuff(handle, bytes, &x));
  return enqueue(handle, &x, stream);
}
