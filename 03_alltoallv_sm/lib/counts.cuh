/* SPDX-License-Identifier: Apache-2.0 */
/* Device counts: every rank tells every other its whole row of counts, and what fits at its own. */
#ifndef ALLTOALLV_COUNTS_CUH
#define ALLTOALLV_COUNTS_CUH

#include "push.cuh"

/* Block 0 sends every rank, this one included, the whole row of counts and the header. A broken
 * rank sends no rows: a peer that sees a row may rely on the data. */
static __device__ void send_rows(const kernel_args &a)
{
  const int entries = a.n * a.n, last = (int)(blockDim.x - 1 - threadIdx.x);
  int t = threadIdx.x;
  uint64_t count = 0;
  if (t < entries) count = a.x.sendcounts[t % a.n]; /* on its way with the epoch */
  const struct beginning now = begin_exchange(a);
  clear_stale_lines(a, now.epoch);
  if (now.broken) return;

  if (last < a.n) { /* the first threads have rows to send */
    const uint64_t at = a.x.kind == ALLTOALLV_KIND_SLOTS ? last * a.x.capacity * a.x.element : 0;
    send_header(a, now.epoch, last,
                {0, a.x.capacity * a.x.element, a.x.place + at, a.x.kind, a.x.element});
  }
  for (; t < entries; t += blockDim.x) {
    int to = t / a.n, entry = t % a.n;
    if (t >= blockDim.x) count = a.x.sendcounts[entry]; /* with more than 22 ranks */
    store_number(mailbox(a, to, a.rank, now.epoch) + ALLTOALLV_COUNTS_AT, entry,
                 alltoallv_clamp_count(count, a.x.element), a.x.kind + 256 * all_blocks(),
                 now.epoch);
  }
}

/* My own counts and displacements, from device memory into b.pairs. Is a pair large, be it my own?
 * If the counts so far exceed 2^55 bytes, all later pairs are treated as large. So none of their
 * data are sent before the check finds that they do not fit. */
static __device__ bool load_counts(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  bool large = false;
  if (threadIdx.x == blockDim.x - 1) { /* not the warp of the counts: no load waits for another */
    const struct beginning now = begin_exchange(a);
    b.epoch = now.epoch, b.stop = now.broken, b.misfit = a.n;
  }
  if (p < a.n) {
    uint64_t bytes = alltoallv_clamp_count(a.x.sendcounts[p], a.x.element) * a.x.element;
    uint64_t before = 0;
#pragma unroll 1
    for (int first = 0; first < p; first += 8) { /* 8 loads at once, in little code */
      uint64_t counts[8];
#pragma unroll
      for (int u = 0; u < 8; u++) counts[u] = first + u < p ? a.x.sendcounts[first + u] : 0;
#pragma unroll
      for (int u = 0; u < 8; u++)
        before += alltoallv_clamp_count(counts[u], a.x.element) * a.x.element;
    }
    if (before >= ALLTOALLV_TOO_MANY) bytes = ALLTOALLV_TOO_MANY;
    b.pairs[p].send_bytes = bytes;
    b.pairs[p].send_offset = a.x.sdispls != NULL ? a.x.sdispls[p] * a.x.element : before;
    large = bytes > a.ll_threshold;
  }
  return __syncthreads_or(large);
}

/* Receives the rows of all ranks. Then every rank knows the matrix and what fits where, and comes
 * to the same verdict: if anything does not fit anywhere, no rank moves anything. Completes
 * b.pairs; block 0 tells the caller what comes, and reports what is wrong. False: do not move
 * anything; b.stop: because something has not come.
 *
 * A thread has one entry of the matrix, or what a rank says of its receive buffer. (A column per
 * thread took 0.4 us longer.) The last threads begin: the first ones are still sending lines. */
static __device__ bool share_counts(const kernel_args &a, block_state &b)
{
  extern __shared__ uint64_t sent[]; /* [source * n + destination] */
  const bool slots = a.x.kind == ALLTOALLV_KIND_SLOTS;
  const int n = a.n, entries = n * n;
  const uint32_t epoch = b.epoch, element = a.x.element;
  for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < entries + n; i += blockDim.x) {
    const bool entry = i < entries;
    const int source = entry ? i / n : i - entries, destination = i % n;
    const char *lines = mailbox(a, a.rank, source, epoch) +
                        (entry ? ALLTOALLV_COUNTS_AT + destination * ALLTOALLV_LINE_BYTES
                               : ALLTOALLV_LINE_EXPECT * ALLTOALLV_LINE_BYTES);
    /* a rank that made another call may send no row */
    auto in_vain = [&] { return contradicts(a, epoch, source, 0); };
    line l[2]; /* of an entry one, twice */
    const bool come =
        await_lines(a, epoch, source, lines, entry ? 0 : ALLTOALLV_LINE_BYTES, l, in_vain);
    /* counts mean the same only where the elements have the same size */
    if (!come || (entry ? l[0].word[2] % 256 != a.x.kind : l[1].word[2] != element)) {
      *(volatile int *)&b.stop = 1;
    } else if (entry) {
      sent[i] = number(l[0]);
      b.blocks[source] = l[0].word[2] / 256;
    } else {
      b.room[source] = number(l[0]);
      b.place[source] = number(l[1]);
    }
  }
  __syncthreads();

  const int p = threadIdx.x;
  const bool comes = p < n && !b.stop;
  uint64_t count = 0, at = 0, needs;
  int source;
  if (comes) {
#pragma unroll 1
    for (int q = 0; q < p; q++) at += sent[q * n + a.rank];
    count = sent[p * n + a.rank];
    if (slots) at = p * a.x.capacity;
    b.pairs[p].recv_bytes = count * element;
    b.pairs[p].recv_offset = at * element;
#pragma unroll 1
    for (int q = 0; q < a.rank && !slots; q++) b.place[p] += sent[q * n + p] * element;
    if (!alltoallv_fits(sent, n, n, p, a.x.kind, element, b.room[p], &source, &needs))
      atomicMin(&b.misfit, p);
  }
  __syncthreads();
  const bool moves = !b.stop && b.misfit == n;
  if (this_block() != 0) return moves;

  if (p < n) { /* where nothing moves, what comes next on the stream takes nothing for data */
    a.x.recvcounts[p] = moves ? count : 0;
    if (a.x.needed != NULL) a.x.needed[p] = count;
    if (a.x.rdispls != NULL) a.x.rdispls[p] = moves ? at : 0;
  }
  struct alltoallv_header h;
  if (b.stop && p < n && p != a.rank && read_header(a, epoch, p, &h) &&
      (h.kind != a.x.kind || h.element != element))
    report_counts(a, epoch, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.x.kind);
  if (comes && p == b.misfit)
    report_counts(a, epoch, ALLTOALLV_ERROR_CAPACITY, source, p, needs, b.room[p]);
  return moves;
}

/* Large pairs, when the rows have come. Out of line, so that without large pairs the code that a
 * block runs through is short. */
static __device__ __noinline__ void push_device(const kernel_args &a, block_state &b)
{
  if (threadIdx.x < a.n) b.to[threadIdx.x] = at_place(a, threadIdx.x, b.place[threadIdx.x]);
  push_pairs(a, b);
}

#endif
