/* SPDX-License-Identifier: Apache-2.0 */
/* Checking what a call was given, and turning it into bytes. */
#include "alltoallv_internal.h"

#include <stdlib.h>

/* ---- units -------------------------------------------------------------------------------- */

/* Bytes of an element; 0 if the type is unknown. */
static size_t type_size(ncclDataType_t datatype)
{
  switch (datatype) {
  case ncclInt8:
  case ncclUint8:
    return 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  case ncclFloat8e4m3:
  case ncclFloat8e5m2:
    return 1;
#endif
  case ncclFloat16:
  case ncclBfloat16:
    return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32:
    return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64:
    return 8;
  default:
    return 0;
  }
}

ncclResult_t alltoallv_make_unit(ncclDataType_t datatype, size_t row_elements,
                                 struct alltoallv_unit *unit)
{
  const size_t element = type_size(datatype);
  if (element == 0) return alltoallv_fail(ncclInvalidArgument, "unknown data type");
  if (row_elements == 0)
    return alltoallv_fail(ncclInvalidArgument, "row_elements is 0; allowed: at least 1");
  if (row_elements > UINT32_MAX / element)
    return alltoallv_fail(ncclInvalidArgument,
                          "a row of %zu elements of %zu bytes; allowed: less than 4 GiB",
                          row_elements, element);
  unit->bytes = (uint32_t)(row_elements * element);
  unit->rows = row_elements > 1;
  return ncclSuccess;
}

/* ---- where parts lie ---------------------------------------------------------------------- */

ncclResult_t alltoallv_locate_recvbuff(const struct alltoallv_handle *h, void *recvbuff,
                                       uint64_t end, int last, struct alltoallv_exchange *ex)
{
  const int id = end > 0 ? alltoallv_find_window(h, recvbuff) : -1;
  ex->recv = recvbuff;
  ex->registered = id >= 0;
  ex->window = id >= 0 ? (uint32_t)id : 0;
  ex->window_offset = id >= 0 ? (uint64_t)(ex->recv - h->windows[id].base) : 0;
  if (end == 0 || (h->lsa == NULL && id < 0)) return ncclSuccess;
  if (id < 0) return alltoallv_fail(ncclInvalidUsage, "recvbuff is not registered");
  const uint64_t room = h->windows[id].bytes - ex->window_offset, unit = ex->unit.bytes;
  if (end <= room) return ncclSuccess;
  if (last < 0)
    return alltoallv_fail(ncclInvalidArgument,
                          "recvcapacity is %llu %s, but the registered buffer ends after %llu",
                          (unsigned long long)(end / unit), alltoallv_unit_name(ex->unit),
                          (unsigned long long)(room / unit));
  return alltoallv_fail(ncclInvalidArgument,
                        "what comes from rank %d ends after %llu %s of recvbuff, but the "
                        "registered buffer ends after %llu",
                        last, (unsigned long long)(end / unit), alltoallv_unit_name(ex->unit),
                        (unsigned long long)(room / unit));
}

static int by_begin(const void *a, const void *b)
{
  const struct alltoallv_span *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Segments of the receive buffer in any order; empty ones do not matter. */
static ncclResult_t refuse_overlap(struct alltoallv_handle *h, const struct alltoallv_exchange *ex)
{
  int spans = 0;
  for (int p = 0; p < h->n; p++) {
    const struct alltoallv_pair *pair = &ex->pairs[p];
    if (pair->recv_bytes > 0)
      h->spans[spans++] =
          (struct alltoallv_span){pair->recv_offset, pair->recv_offset + pair->recv_bytes, p};
  }
  qsort(h->spans, (size_t)spans, sizeof(*h->spans), by_begin);
  for (int i = 1; i < spans; i++)
    if (h->spans[i].begin < h->spans[i - 1].end)
      return alltoallv_fail(ncclInvalidUsage,
                            "what comes from ranks %d and %d overlaps in recvbuff",
                            h->spans[i - 1].rank, h->spans[i].rank);
  return ncclSuccess;
}

/* A segment in bytes: displacement NULL means right after the one before, which ends at *packed.
 * False if it overflows. */
static bool segment(size_t count, const size_t *displacement, uint32_t unit, uint64_t *packed,
                    uint64_t *bytes, uint64_t *offset, uint64_t *end)
{
  *offset = *packed;
  if (__builtin_mul_overflow(count, (size_t)unit, bytes) ||
      (displacement != NULL && __builtin_mul_overflow(*displacement, (size_t)unit, offset)) ||
      __builtin_add_overflow(*offset, *bytes, end))
    return false;
  *packed = *end;
  return true;
}

ncclResult_t alltoallv_make_exchange(struct alltoallv_handle *h, const void *sendbuff,
                                     const size_t sendcounts[], const size_t sdispls[],
                                     void *recvbuff, const size_t recvcounts[],
                                     const size_t rdispls[], size_t row_elements,
                                     ncclDataType_t datatype, struct alltoallv_exchange *ex)
{
  ALLTOALLV_TRY(alltoallv_make_unit(datatype, row_elements, &ex->unit));
  if (sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL array of counts");

  uint64_t send_begin = UINT64_MAX, send_end = 0, recv_begin = UINT64_MAX, recv_end = 0;
  uint64_t send_packed = 0, recv_packed = 0;
  const uint32_t unit = ex->unit.bytes;
  int last = -1;
  bool ascending = true;
  for (int p = 0; p < h->n; p++) {
    struct alltoallv_pair *pair = &ex->pairs[p];
    uint64_t end;
    if (!segment(sendcounts[p], sdispls != NULL ? &sdispls[p] : NULL, unit, &send_packed,
                 &pair->send_bytes, &pair->send_offset, &end))
      return alltoallv_fail(ncclInvalidArgument, "what goes to rank %d overflows", p);
    if (pair->send_bytes > 0) {
      if (pair->send_offset < send_begin) send_begin = pair->send_offset;
      if (end > send_end) send_end = end;
    }
    if (!segment(recvcounts[p], rdispls != NULL ? &rdispls[p] : NULL, unit, &recv_packed,
                 &pair->recv_bytes, &pair->recv_offset, &end))
      return alltoallv_fail(ncclInvalidArgument, "what comes from rank %d overflows", p);
    if (pair->recv_bytes > 0) {
      if (pair->recv_offset < recv_end) ascending = false;
      if (pair->recv_offset < recv_begin) recv_begin = pair->recv_offset;
      if (end > recv_end) recv_end = end, last = p;
    }
  }
  if ((send_end > 0 && sendbuff == NULL) || (recv_end > 0 && recvbuff == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ex->send = sendbuff;
  ALLTOALLV_TRY(alltoallv_locate_recvbuff(h, recvbuff, recv_end, last, ex));
  const uintptr_t send = (uintptr_t)sendbuff, recv = (uintptr_t)recvbuff;
  if (send_end > 0 && recv_end > 0 && send + send_begin < recv + recv_end &&
      recv + recv_begin < send + send_end)
    return alltoallv_fail(ncclInvalidUsage, "send and receive ranges overlap");
  return ascending ? ncclSuccess : refuse_overlap(h, ex);
}
