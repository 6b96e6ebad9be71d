/* SPDX-License-Identifier: Apache-2.0 */
/* The exchanges: each is handed to the kernel (alltoallv_lsa.h) and to send/recv
 * (alltoallv_sendrecv.c). */
#include "alltoallv_internal.h"

#include <string.h>

/* ---- counts ------------------------------------------------------------------------------- */

ncclResult_t alltoallv_counts(const size_t sendcounts[], size_t recvcounts[], alltoallv_t handle)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  const size_t n = (size_t)handle->n, words = 1 + n; /* are my arguments right?; my counts */
  const bool wrong = sendcounts == NULL || recvcounts == NULL;
  handle->stage[0] = wrong;
  if (!wrong) memcpy(handle->stage + 1, sendcounts, n * sizeof(*sendcounts));
  ALLTOALLV_TRY(alltoallv_agree(handle, words)); /* also if mine are wrong: the others wait */
  for (size_t r = 0; r < n; r++)
    if (handle->stage[r * words] != 0)
      return alltoallv_fail(ncclInvalidArgument, "rank %zu passes NULL", r);
  for (size_t r = 0; r < n; r++)
    recvcounts[r] = handle->stage[r * words + 1 + (size_t)handle->rank];
  return ncclSuccess;
}

/* ---- exchanges ---------------------------------------------------------------------------- */

/* No two captures of a process have the same id. */
static ncclResult_t is_capturing(cudaStream_t stream, bool *capturing, unsigned long long *id)
{
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
  ALLTOALLV_CUDATRY(cudaStreamGetCaptureInfo(stream, &status, id, NULL, NULL, NULL, NULL));
#else
  ALLTOALLV_CUDATRY(cudaStreamGetCaptureInfo(stream, &status, id, NULL, NULL, NULL));
#endif
  *capturing = status != cudaStreamCaptureStatusNone;
  return ncclSuccess;
}

ncclResult_t alltoallv_order(struct alltoallv_handle *h, cudaStream_t stream, bool *capturing)
{
  if (alltoallv_has_timed_out(h))
    return alltoallv_fail(ncclRemoteError, "the handle has timed out before");
  unsigned long long capture = 0;
  ALLTOALLV_TRY(is_capturing(stream, capturing, &capture));
  if (*capturing) { /* the caller orders the launches of the graph, but not its branches */
    if (h->captured_exists && capture == h->capture && stream != h->captured_stream)
      return alltoallv_fail(ncclInvalidUsage,
                            "two streams of one capture have exchanges of one handle");
    h->captured_exists = true;
    h->capture = capture;
    h->captured_stream = stream;
    return ncclSuccess;
  }
  if (h->last_exists && stream != h->last_stream) {
    bool busy = false;
    ALLTOALLV_TRY(is_capturing(h->last_stream, &busy, &capture));
    if (busy)
      return alltoallv_fail(ncclInvalidUsage,
                            "the stream of the exchange before is being captured: "
                            "this one cannot wait for it");
    ALLTOALLV_CUDATRY(cudaEventRecord(h->last_done, h->last_stream));
    ALLTOALLV_CUDATRY(cudaStreamWaitEvent(stream, h->last_done, 0));
  }
  h->last_exists = true;
  h->last_stream = stream;
  return ncclSuccess;
}

void alltoallv_fill_request(const struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                            struct alltoallv_request *request)
{
  request->kind = ALLTOALLV_KIND_HOST;
  request->send = ex->send;
  request->recv = ex->recv;
  request->window = ex->window;
  request->window_offset = ex->window_offset;
  request->unit = ex->unit;
  memcpy(request->pairs, ex->pairs + h->lsa_first, (size_t)h->lsa_n * sizeof(*ex->pairs));
}

ncclResult_t alltoallv_fork(struct alltoallv_handle *h, cudaStream_t stream)
{
  ALLTOALLV_CUDATRY(cudaEventRecord(h->fork, stream));
  ALLTOALLV_CUDATRY(cudaStreamWaitEvent(h->side_stream, h->fork, 0));
  return ncclSuccess;
}

ncclResult_t alltoallv_join(struct alltoallv_handle *h, cudaStream_t stream)
{
  ALLTOALLV_CUDATRY(cudaEventRecord(h->join, h->side_stream));
  ALLTOALLV_CUDATRY(cudaStreamWaitEvent(stream, h->join, 0));
  return ncclSuccess;
}

ncclResult_t alltoallv_run_exchange(struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                                    bool capturing, cudaStream_t stream)
{
  if (h->lsa == NULL) return alltoallv_sendrecv(h, ex, capturing, stream);

  bool remote = h->lsa_n < h->n;
  ncclResult_t result = ncclSuccess;
  if (remote) { /* the slower part first, beside the kernel */
    ALLTOALLV_TRY(alltoallv_fork(h, stream));
    result = alltoallv_sendrecv(h, ex, capturing, h->side_stream);
  }
  struct alltoallv_request request;
  alltoallv_fill_request(h, ex, &request);
  ncclResult_t launched = alltoallv_lsa_launch(h->lsa, &request, stream);
  if (remote) ALLTOALLV_TRY(alltoallv_join(h, stream));
  ALLTOALLV_TRY(launched);
  return result;
}

ncclResult_t alltoallv_rows(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                            void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                            size_t row_elements, ncclDataType_t datatype, alltoallv_t handle,
                            cudaStream_t stream)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_exchange ex = {.pairs = handle->pairs};
  bool capturing;
  ALLTOALLV_TRY(alltoallv_make_exchange(handle, sendbuff, sendcounts, sdispls, recvbuff, recvcounts,
                                        rdispls, row_elements, datatype, &ex));
  ALLTOALLV_TRY(alltoallv_order(handle, stream, &capturing));
  return alltoallv_run_exchange(handle, &ex, capturing, stream);
}

ncclResult_t alltoallv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                       void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                       ncclDataType_t datatype, alltoallv_t handle, cudaStream_t stream)
{
  return alltoallv_rows(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, 1, datatype,
                        handle, stream);
}

ncclResult_t alltoallv_device_counts_rows(const void *sendbuff, const size_t *sendcounts,
                                          const size_t *sdispls, void *recvbuff,
                                          size_t recvcapacity, size_t *recvcounts, size_t *rdispls,
                                          size_t *needed, alltoallv_layout_t layout,
                                          size_t row_elements, ncclDataType_t datatype,
                                          alltoallv_t handle, cudaStream_t stream)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_exchange ex = {.send = sendbuff, .pairs = handle->pairs};
  struct alltoallv_request request;
  uint64_t bytes;
  bool capturing;
  ALLTOALLV_TRY(alltoallv_make_unit(datatype, row_elements, &ex.unit));
  if (sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL array of counts");
  if (layout != ALLTOALLV_PACKED && layout != ALLTOALLV_SLOTS)
    return alltoallv_fail(ncclInvalidArgument, "unknown layout");
  if (layout == ALLTOALLV_SLOTS && rdispls == NULL)
    return alltoallv_fail(ncclInvalidArgument, "rdispls NULL; allowed: with ALLTOALLV_PACKED only");
  if (__builtin_mul_overflow(recvcapacity, (size_t)ex.unit.bytes, &bytes))
    return alltoallv_fail(ncclInvalidArgument, "recvcapacity overflows");
  if (sendbuff == NULL || (bytes > 0 && recvbuff == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ALLTOALLV_TRY(alltoallv_locate_recvbuff(handle, recvbuff, bytes, -1, &ex));
  ALLTOALLV_TRY(alltoallv_order(handle, stream, &capturing));

  request.kind = layout == ALLTOALLV_SLOTS ? ALLTOALLV_KIND_SLOTS : ALLTOALLV_KIND_PACKED;
  request.send = ex.send;
  request.recv = ex.recv;
  request.window = ex.window;
  request.window_offset = ex.window_offset;
  request.unit = ex.unit;
  request.capacity = recvcapacity;
  request.sendcounts = sendcounts;
  request.sdispls = sdispls;
  request.recvcounts = recvcounts;
  request.rdispls = rdispls;
  request.needed = needed;
  if (handle->lsa != NULL && handle->lsa_n == handle->n)
    return alltoallv_lsa_launch(handle->lsa, &request, stream);
  if (capturing)
    return alltoallv_fail(ncclInvalidUsage,
                          "device counts cannot be captured on the send/recv path");
  return alltoallv_sendrecv_device_counts(handle, &ex, &request, stream);
}

ncclResult_t alltoallv_device_counts(const void *sendbuff, const size_t *sendcounts,
                                     const size_t *sdispls, void *recvbuff, size_t recvcapacity,
                                     size_t *recvcounts, size_t *rdispls, size_t *needed,
                                     alltoallv_layout_t layout, ncclDataType_t datatype,
                                     alltoallv_t handle, cudaStream_t stream)
{
  return alltoallv_device_counts_rows(sendbuff, sendcounts, sdispls, recvbuff, recvcapacity,
                                      recvcounts, rdispls, needed, layout, 1, datatype, handle,
                                      stream);
}
