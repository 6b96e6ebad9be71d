/* SPDX-License-Identifier: Apache-2.0 */
/* Device counts: every rank tells every other its whole row of counts, and what fits at its own. */
#ifndef ALLTOALLV_COUNTS_CUH
#define ALLTOALLV_COUNTS_CUH

#include "alltoallv_wait.cuh"

/* My own counts and displacements, from device memory into b.pairs. False if a count cannot be
 * meant: then nothing will fit, and displacements may be anywhere. */
template <int N>
static __device__ bool load_counts(const kernel_args<N> &a, block_state<N> &b)
{
  int p = threadIdx.x;
  if (p < a.n) {
    b.pairs[p].send_bytes = alltoallv_device_bytes(a.sendcounts[p], a.element);
    b.pairs[p].send_offset = a.sdispls != NULL ? a.sdispls[p] * a.element : 0;
    b.pairs[p].recv_offset = a.kind == ALLTOALLV_KIND_SLOTS ? a.rdispls[p] * a.element : 0;
  }
  if (p == 0) b.bad = NOT_BAD;
  bool meant = !__syncthreads_or(p < a.n && b.pairs[p].send_bytes == ALLTOALLV_TOO_MANY);
  if (a.sdispls != NULL) return meant;
  if (p < a.n)
    for (int q = 0; q < p; q++) b.pairs[p].send_offset += b.pairs[q].send_bytes;
  __syncthreads();
  return meant;
}

/* Tells every rank, myself included, my whole row of counts; for slots also my rooms. */
template <int N>
static __device__ void send_rows(const kernel_args<N> &a, uint32_t call)
{
  for (int t = threadIdx.x; t < a.n * a.n; t += blockDim.x) {
    int to = t / a.n, entry = t % a.n;
    char *lines = slot(a, to, a.rank, call);
    store_number(lines, ALLTOALLV_LINE_COUNTS + entry,
                 alltoallv_device_bytes(a.sendcounts[entry], a.element), 0, call);
    if (a.kind == ALLTOALLV_KIND_SLOTS)
      store_number(lines, ALLTOALLV_LINE_COUNTS + a.n + entry,
                   a.element * alltoallv_room(a.rdispls, a.n, a.rdispls[entry], a.capacity), 0,
                   call);
  }
}

/* Waits for the lines at line_of(first), line_of(first + 1) and so on, COLUMN of them or up to n,
 * all at once: one after the other each would cost a trip to memory. */
#define COLUMN 8
template <int N, class LineOf>
static __device__ __forceinline__ bool read_numbers(const kernel_args<N> &a,
                                                    const block_state<N> &b, uint32_t call,
                                                    int first, uint64_t *values, LineOf line_of)
{
  patience w;
  for (;;) {
    int missing = -1;
#pragma unroll
    for (int i = 0; i < COLUMN; i++) {
      int which = first + i < a.n ? first + i : a.n - 1;
      line l = load_line(line_of(which));
      values[i] = pack(l.word[0], l.word[1]);
      if (l.call != call) missing = which;
    }
    if (missing < 0) return true;
    /* a rank that made another call sends no row; then b.stop is set */
    if (w.long_wait() && (*(const volatile int *)&b.stop || give_up(a, w, missing))) return false;
  }
}

/* Receives the rows of all ranks. Then everybody knows the matrix and what fits where, and comes to
 * the same verdict by itself: if anything does not fit anywhere, nobody moves anything. Completes
 * b.pairs; b.header[p].offset becomes the place of my data at rank p. False: do not move anything.
 */
template <int N>
static __device__ bool share_counts(const kernel_args<N> &a, block_state<N> &b, uint32_t call)
{
  int n = a.n;
  bool failed = false;
  int p = (int)(blockDim.x - 1 - threadIdx.x); /* the last threads read headers */
  if (p < n && (!read_header(a, call, p, &b.header[p]) || b.header[p].kind != a.kind))
    failed = *(volatile int *)&b.stop = true;

  p = threadIdx.x; /* the first ones a column each: what everybody sends to rank p */
  uint64_t total = 0, before = 0, bytes[COLUMN], room[COLUMN];
  for (int first = 0; p < n && first < n && !failed; first += COLUMN) {
    failed = !read_numbers(a, b, call, first, bytes, [&](int source) {
      return slot(a, a.rank, source, call) + (ALLTOALLV_LINE_COUNTS + p) * ALLTOALLV_LINE_BYTES;
    });
    if (a.kind == ALLTOALLV_KIND_SLOTS && !failed)
      failed = !read_numbers(a, b, call, first, room, [&](int source) {
        return slot(a, a.rank, p, call) +
               (ALLTOALLV_LINE_COUNTS + n + source) * ALLTOALLV_LINE_BYTES;
      });
#pragma unroll
    for (int i = 0; i < COLUMN; i++) {
      if (first + i >= n) break;
      total += bytes[i];
      if (first + i < a.rank) before += bytes[i];
      if (p == a.rank) b.pairs[first + i].recv_bytes = bytes[i];
      if (a.kind == ALLTOALLV_KIND_SLOTS && bytes[i] > room[i])
        atomicMin(&b.bad, (first + i) * n + p);
    }
  }
  if (__syncthreads_or(failed)) {
    b.stop = 1;
    return false;
  }

  if (p < n && a.kind == ALLTOALLV_KIND_PACKED) {
    b.total[p] = total;
    if (total > b.header[p].expect) atomicMin(&b.bad, p);
    b.header[p].offset += before;
    uint64_t offset = 0;
    for (int q = 0; q < p; q++) offset += b.pairs[q].recv_bytes;
    b.pairs[p].recv_offset = offset;
  }
  __syncthreads();
  return b.bad == NOT_BAD;
}

/* The control block's part: what the caller wants to know, and the error. */
template <int N>
static __device__ void publish_counts(const kernel_args<N> &a, const block_state<N> &b,
                                      uint32_t call)
{
  int p = threadIdx.x;
  if (p < a.n) {
    a.recvcounts[p] = b.pairs[p].recv_bytes / a.element;
    if (a.kind == ALLTOALLV_KIND_PACKED) a.rdispls[p] = b.pairs[p].recv_offset / a.element;
  }
  if (p > 0 || b.bad == NOT_BAD) return;
  if (a.kind == ALLTOALLV_KIND_PACKED) {
    report_counts(a, call, ALLTOALLV_ERROR_CAPACITY, -1, b.bad, b.total[b.bad],
                  b.header[b.bad].expect);
  } else {
    int source = b.bad / a.n, destination = b.bad % a.n;
    uint64_t sent = 0, room = 0;
    uint32_t none; /* both lines have been seen */
    read_number(a, call, source, ALLTOALLV_LINE_COUNTS + destination, &sent, &none);
    read_number(a, call, destination, ALLTOALLV_LINE_COUNTS + a.n + source, &room, &none);
    report_counts(a, call, ALLTOALLV_ERROR_CAPACITY, source, destination, sent, room);
  }
}

#endif
