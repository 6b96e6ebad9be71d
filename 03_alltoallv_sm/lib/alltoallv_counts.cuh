/* SPDX-License-Identifier: Apache-2.0 */
/* Device counts: every rank tells every other its whole row of counts, and what fits at its own. */
#ifndef ALLTOALLV_COUNTS_CUH
#define ALLTOALLV_COUNTS_CUH

#include "alltoallv_push.cuh"

/* MANY: as many as there are. Else one: then the compiler leaves out the loops over them. */
template <bool MANY>
static __device__ __forceinline__ int payloads(const kernel_args &a)
{
  return MANY ? (int)a.x.payloads : 1;
}

/* Groups of lines before those of payload k. */
static __device__ __forceinline__ uint32_t groups_before(const kernel_args &a, int k)
{
  return k * (a.ll_threshold / ALLTOALLV_GROUP_BYTES);
}

/* Is any payload of so many elements large? */
static __device__ __forceinline__ bool is_large(const kernel_args &a, uint64_t elements)
{
  return elements * a.x.widest > a.ll_threshold;
}

/* By thread p: what of payload k is exchanged with rank p. In bytes, and from the beginning of the
 * buffers of payload 0, whichever that of k is. */
static __device__ __forceinline__ void set_pair(const kernel_args &a, block_state &b,
                                                const struct alltoallv_pair &elements, int k)
{
  const struct alltoallv_payload &l = a.x.payload[k], &first = a.x.payload[0];
  struct alltoallv_pair &pair = b.pairs[threadIdx.x];
  pair = {elements.sends * l.unit, elements.sends_at * l.unit, elements.gets * l.unit,
          elements.gets_at * l.unit};
  if (k == 0) return;
  pair.sends_at += reinterpret_cast<uintptr_t>(l.send) - reinterpret_cast<uintptr_t>(first.send);
  pair.gets_at += reinterpret_cast<uintptr_t>(l.recv) - reinterpret_cast<uintptr_t>(first.recv);
}

/* By all threads: b.pairs are of payload k from now on. With one payload they always are. */
template <bool MANY>
static __device__ __forceinline__ void use_payload(const kernel_args &a, block_state &b,
                                                   const struct alltoallv_pair &elements, int k)
{
  if (!MANY) return;
  __syncthreads();
  if (threadIdx.x < a.n) set_pair(a, b, elements, k);
  __syncthreads();
}

/* Block 0 sends every rank, this one included, the whole row of counts and a header for each
 * payload. A broken rank sends no rows. (If it breaks later, it says no DONE.) */
template <bool MANY>
static __device__ void send_rows(const kernel_args &a)
{
  const int entries = a.n * a.n, last = (int)(blockDim.x - 1 - threadIdx.x);
  int t = threadIdx.x;
  uint64_t count = 0;
  if (t < entries) count = a.x.sendcounts[t % a.n]; /* on its way with the epoch */
  const struct beginning now = begin_and_clear(a);
  if (now.broken) return;

  /* by the last threads: the first ones have rows to send */
  for (int k = 0; last < a.n && k < payloads<MANY>(a); k++) {
    const struct alltoallv_payload &l = a.x.payload[k];
    send_header(a, now.epoch, last, k, {0, a.x.room, l.place, a.x.kind, (uint32_t)l.unit});
  }
  for (; t < entries; t += blockDim.x) {
    const int to = t / a.n, entry = t % a.n;
    if (t >= blockDim.x) count = a.x.sendcounts[entry]; /* more entries than threads */
    store_number(mailbox(a, to, a.rank, now.epoch) + ALLTOALLV_COUNTS_AT, entry,
                 alltoallv_least(count, a.x.most), a.x.kind, now.epoch);
  }
}

/* My own counts and displacements, from device memory: the pair of rank p for thread p, and in
 * b.pairs. Is any pair large, be it my own? A count of 2^55 bytes counts as none here, and so does
 * one after counts that come to that: they fit nowhere, and nothing is read for them. */
static __device__ bool load_counts(const kernel_args &a, block_state &b,
                                   struct alltoallv_pair &elements)
{
  const int p = threadIdx.x;
  bool large = false;
  if (threadIdx.x == blockDim.x - 1) { /* not the warp of the counts: no load waits for another */
    const struct beginning now = begin_exchange(a);
    b.epoch = now.epoch, b.stop = now.broken, b.misfit = a.n, b.last = this_block() == 0;
  }
  if (p < a.n) {
    uint64_t count = alltoallv_least(a.x.sendcounts[p], a.x.most), before = 0;
#pragma unroll 1
    for (int first = 0; first < p; first += 8) { /* 8 loads at once, in little code */
      uint64_t counts[8];
#pragma unroll
      for (int u = 0; u < 8; u++) counts[u] = first + u < p ? a.x.sendcounts[first + u] : 0;
#pragma unroll
      for (int u = 0; u < 8; u++) before += alltoallv_least(counts[u], a.x.most);
    }
    if (before >= a.x.most || count == a.x.most) count = 0;
    elements = {count, a.x.sdispls != NULL ? a.x.sdispls[p] : before, 0, 0};
    set_pair(a, b, elements, 0);
    large = is_large(a, count);
  }
  return __syncthreads_or(large);
}

/* Receives the rows of all ranks. Then every rank knows the matrix and what fits where, and comes
 * to the same verdict: if anything does not fit anywhere, no rank moves anything. Completes
 * `elements` and b; block 0 tells the caller what comes, and reports what is wrong. False: do not
 * move anything; b.stop: because something has not come.
 *
 * A thread has one entry of the matrix, or what a rank says of a receive buffer. (A column per
 * thread took 0.4 us longer.) The last threads begin: the first ones are still sending lines. */
template <bool MANY>
static __device__ bool share_counts(const kernel_args &a, block_state &b,
                                    struct alltoallv_pair &elements)
{
  extern __shared__ uint64_t sent[]; /* [source * stride + destination], and the room of source */
  const int n = a.n, stride = n + 1, entries = n * n, all = entries + n * payloads<MANY>(a);
  const uint32_t epoch = b.epoch;
  for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < all; i += blockDim.x) {
    const bool entry = i < entries;
    int source = entry ? i / n : i - entries, k = 0;
    for (; MANY && source >= n; source -= n) k++; /* shorter than a division */
    const char *lines =
        mailbox(a, a.rank, source, epoch) +
        (entry ? ALLTOALLV_COUNTS_AT + i % n * ALLTOALLV_LINE_BYTES
               : k * ALLTOALLV_SLOT_BYTES + ALLTOALLV_LINE_EXPECT * ALLTOALLV_LINE_BYTES);
    line l[2]; /* of an entry one, twice */
    const bool come =
        await_lines<AWAIT_TAGGED>(a, epoch, source, lines, entry ? 0 : ALLTOALLV_LINE_BYTES, l, 0);
    /* counts mean the same only where the elements have the same size */
    const bool same = entry ? l[0].z == a.x.kind : l[1].z == a.x.payload[k].unit;
    if (!come || !same) {
      *(volatile int *)&b.stop = 1;
      /* a rank that made another call may send no row */
      if (this_block() == 0 && (come || contradicts(a, epoch, source, 0)))
        report_counts(a, {ALLTOALLV_ERROR_KIND, source, a.rank, 0, 0, 1, epoch});
    } else if (entry) {
      sent[source * stride + i % n] = number(l[0]);
    } else {
      sent[source * stride + n] = number(l[0]);
      b.place[k][source] = number(l[1]);
    }
  }
  __syncthreads();

  const struct alltoallv_matrix matrix = {sent, sent + n, (size_t)stride, n,
                                          alltoallv_in_slots(a.x.kind)};
  const int p = threadIdx.x;
  const bool comes = p < n && !b.stop;
  uint64_t needs;
  int source;
  if (comes) {
    elements.gets = sent[p * stride + a.rank];
    elements.gets_at = alltoallv_part_at(&matrix, p, a.rank);
    set_pair(a, b, elements, 0);
    const uint64_t at = alltoallv_part_at(&matrix, a.rank, p);
    for (int k = 0; k < payloads<MANY>(a); k++) b.place[k][p] += at * a.x.payload[k].unit;
    if (!alltoallv_fits(&matrix, p, &source, &needs)) atomicMin(&b.misfit, p);
  }
  __syncthreads();
  const bool moves = !b.stop && b.misfit == n;
  if (this_block() != 0) return moves;

  if (p < n) { /* where nothing moves, what comes next on the stream takes nothing for data */
    a.x.recvcounts[p] = moves ? elements.gets : 0;
    if (a.x.needed != NULL) a.x.needed[p] = elements.gets;
    if (a.x.rdispls != NULL) a.x.rdispls[p] = moves ? elements.gets_at : 0;
  }
  if (comes && p == b.misfit)
    report_counts(a, {ALLTOALLV_ERROR_CAPACITY, source, p, needs, sent[p * stride + n], 1, epoch});
  return moves;
}

/* If any pair that I send is large, when the rows have come: stores bodies, and my own part. Out of
 * line, so that without large pairs the code that a block runs through is short. */
template <bool MANY>
static __device__ __noinline__ void push_device(const kernel_args &a, block_state &b,
                                                const struct alltoallv_pair elements)
{
  const int p = threadIdx.x;
  for (int k = 0; k < payloads<MANY>(a); k++) {
    use_payload<MANY>(a, b, elements, k);
    if (MANY && p < a.n) number_tiles(a, b, b.pairs, p);
    if (MANY) __syncthreads();
    if (p < a.n) { /* from now on b.pairs has bodies */
      const uint64_t head = p == a.rank ? 0 : in_lines(a, b.pairs[p].sends);
      b.pairs[p].sends -= head, b.pairs[p].sends_at += head;
      b.to[p] = at_place(a, p, b.place[k][p]) + head;
    }
    __syncthreads();
    /* Many tiles: team 0, which has no lines to send, begins with the own part, for which the links
     * are not needed. The others help when they have nothing left to push. */
    const tile_count t = count_tiles(a, b);
    bool pushes = t.few || blockIdx.y != 0;
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++, pushes = !pushes)
      if (pushes)
        push_tiles(a, b, k, t);
      else if (!t.few)
        copy_own_tiles(a, b.pairs[a.rank], &a.state->taken[b.epoch & 1].own[k], ~0u, 0);
  }
  __syncthreads();
  if (p == 0) b.last = tell_done(a, b);
}

#endif
