/* SPDX-License-Identifier: Apache-2.0 */
/* Device counts: every rank tells every other its whole row of counts, and what fits at its own. */
#ifndef ALLTOALLV_COUNTS_CUH
#define ALLTOALLV_COUNTS_CUH

#include "lsa/alltoallv_large.cuh"

/* My own counts and displacements, from device memory into b.pairs and b.couples. Is a pair with
 * another rank large? Where a count cannot be meant, no later one can: all such pairs count as
 * large, so that nothing of them is sent before it is clear that they fit nowhere. */
template <int N>
static __device__ bool load_counts(const kernel_args<N> &a, block_state<N> &b)
{
  int p = threadIdx.x;
  bool large = false;
  if (p < a.n) {
    uint64_t bytes = 0, before = 0;
    for (int q = 0; q <= p; q++) { /* by every thread for itself: one trip to memory for all */
      before += bytes;
      bytes = alltoallv_device_bytes(a.sendcounts[q], a.unit);
    }
    if (before >= ALLTOALLV_TOO_MANY) bytes = ALLTOALLV_TOO_MANY;
    b.pairs[p].send_bytes = bytes;
    b.pairs[p].send_offset = a.sdispls != NULL ? a.sdispls[p] * a.unit : before;
    b.pairs[p].recv_offset = a.kind == ALLTOALLV_KIND_SLOTS ? a.rdispls[p] * a.unit : 0;
    large = p != a.rank && bytes > a.ll_threshold;
    b.couples[p] = large || p == a.rank ? couples_of(bytes) : 0;
  }
  return __syncthreads_or(large);
}

/* Tells every rank, myself included, my whole row of counts, for slots also my rooms, and the
 * header. A rank that has given up tells nothing any more: who is late has to hear of that, too,
 * and a row that has come says that the data are coming. */
template <int N>
static __device__ void send_rows(const kernel_args<N> &a)
{
  const bool slots = a.kind == ALLTOALLV_KIND_SLOTS;
  const int entries = a.n * a.n, last = (int)(blockDim.x - 1 - threadIdx.x);
  int t = threadIdx.x;
  uint64_t count = 0, at = 0;
  if (t < entries) count = a.sendcounts[t % a.n]; /* on its way with the number of the call */
  if (slots && last < a.n) at = a.rdispls[last] * a.unit;
  const uint32_t last_number = last_call(a), broken = *(volatile uint32_t *)&a.state->broken;
  const uint32_t call = alltoallv_next_call(last_number);
  clear_stale_lines(a, call);
  if (broken) return;

  if (last < a.n) /* the first threads have rows to send */
    send_header(a, call, last, 0,
                {0, a.capacity * a.unit, a.window_offset + at, a.kind, a.window, a.unit});
  for (; t < entries; t += blockDim.x) {
    int to = t / a.n, entry = t % a.n;
    if (t >= blockDim.x) count = a.sendcounts[entry]; /* with more than 22 ranks */
    char *lines = mailbox(a, to, a.rank, call);
    store_number(lines, ALLTOALLV_LINE_COUNTS + entry, alltoallv_device_bytes(count, a.unit),
                 a.kind, call);
    if (slots)
      store_number(lines, ALLTOALLV_LINE_COUNTS + a.n + entry,
                   a.unit * alltoallv_room(a.rdispls, a.n, entry, a.capacity), a.kind, call);
  }
}

/* Receives the rows of all ranks. Then everybody knows the matrix and what fits where, and comes to
 * the same verdict by itself: if anything does not fit anywhere, nobody moves anything. Completes
 * b.pairs. False: do not move anything; b.stop: because something has not come.
 *
 * A thread waits for one entry of the matrix, another one for what a rank says of its receive
 * buffer: all lines are loaded at the same time, by few instructions. (A column per thread took
 * 0.4 us longer, most of it to fetch the instructions.) The last threads do it, because the first
 * ones are still sending lines. */
template <int N>
static __device__ bool share_counts(const kernel_args<N> &a, block_state<N> &b, uint32_t call)
{
  __shared__ uint64_t sent[N * N]; /* [source * n + destination] */
  const bool slots = a.kind == ALLTOALLV_KIND_SLOTS;
  const int n = a.n, entries = n * n;
  for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < entries + n; i += blockDim.x) {
    const bool entry = i < entries;
    int source = entry ? i / n : i - entries, p = entry ? i % n : source;
    const char *first = mailbox(a, a.rank, source, call), *second = mailbox(a, a.rank, p, call);
    first += ALLTOALLV_LINE_BYTES * (entry ? ALLTOALLV_LINE_COUNTS + p : ALLTOALLV_LINE_EXPECT);
    second +=
        ALLTOALLV_LINE_BYTES * (entry ? ALLTOALLV_LINE_COUNTS + n + source : ALLTOALLV_LINE_OFFSET);
    if (entry && !slots) second = first; /* there are no rooms */
    patience w;
    line l, m;
    bool come;
    for (;;) {
      l = load_line(first);
      m = load_line(second);
      come = l.call == call && m.call == call;
      if (come) break;
      if (!w.long_wait()) continue;
      /* a rank that made another call may send no row, or another one */
      int missing = l.call != call ? source : p;
      if (contradicts(a, call, missing, 0) || give_up(a, call, w, missing)) break;
    }
    uint64_t value = pack(l.word[0], l.word[1]), other = pack(m.word[0], m.word[1]);
    /* bytes mean the same counts only where the units are the same */
    if (!come || (entry ? l.word[2] != a.kind : m.word[2] != a.unit)) {
      *(volatile int *)&b.stop = 1;
    } else if (entry) {
      sent[i] = value;
      if (slots && value > other) atomicMin(&b.bad, i);
    } else {
      b.capacity[p] = value;
      b.window[p] = l.word[2];
      b.offset[p] = other;
    }
  }
  __syncthreads();

  int p = threadIdx.x;
  if (p < n && !b.stop) {
    uint64_t total = 0, at = 0;
    for (int q = 0; q < n; q++) {
      if (q == a.rank) b.before[p] = slots ? 0 : total;
      if (q == p) b.pairs[p].recv_bytes = sent[q * n + a.rank];
      if (q == p && !slots) b.pairs[p].recv_offset = at;
      total += sent[q * n + p];
      at += sent[q * n + a.rank];
    }
    b.total[p] = total;
    if (!slots && total > b.capacity[p]) atomicMin(&b.bad, p);
  }
  __syncthreads();
  return !b.stop && b.bad == NOT_BAD;
}

/* The control block's part: what the caller wants to know, and the error. Where nothing moves,
 * nothing is received, so that what comes next on the stream takes nothing for data.
 *
 * Bytes become counts without a division, which takes longer than all the rest here: a multiple of
 * an odd number is divided by it by multiplying with its inverse modulo 2^64. */
template <int N>
static __device__ void publish_counts(const kernel_args<N> &a, const block_state<N> &b,
                                      uint32_t call, bool moves)
{
  int p = threadIdx.x;
  if (p < a.n) {
    int shift = __ffs(a.unit) - 1;
    uint64_t count = b.stop ? 0 : (b.pairs[p].recv_bytes >> shift) * a.unit_inverse;
    uint64_t at = moves ? (b.pairs[p].recv_offset >> shift) * a.unit_inverse : 0;
    a.recvcounts[p] = moves ? count : 0;
    if (a.needed != NULL) a.needed[p] = count;
    if (a.kind == ALLTOALLV_KIND_PACKED && a.rdispls != NULL) a.rdispls[p] = at;
  }
  if (p > 0 || b.stop || b.bad == NOT_BAD) return;
  if (a.kind == ALLTOALLV_KIND_PACKED) {
    report_counts(a, call, ALLTOALLV_ERROR_CAPACITY, -1, b.bad, b.total[b.bad], b.capacity[b.bad]);
  } else { /* both lines have been seen */
    int source = b.bad / a.n, destination = b.bad % a.n;
    line sent = header_line(a, call, source, ALLTOALLV_LINE_COUNTS + destination);
    line room = header_line(a, call, destination, ALLTOALLV_LINE_COUNTS + a.n + source);
    report_counts(a, call, ALLTOALLV_ERROR_CAPACITY, source, destination,
                  pack(sent.word[0], sent.word[1]), pack(room.word[0], room.word[1]));
  }
}

/* The control block. When all rows have come and everything fits, the headers hold nothing new.
 * Returns the number of the exchange. */
template <int N>
static __device__ __forceinline__ uint32_t control_device(const kernel_args<N> &a,
                                                          block_state<N> &b)
{
  const int p = threadIdx.x;
  if (p == 0) b.bad = NOT_BAD;
  send_rows(a);
  if (p == 0) b.stop = b.broken = is_broken(a); /* one look: see alltoallv_large.cuh */
  const uint32_t call = alltoallv_next_call(last_call(a));
  __syncthreads(); /* b.stop, b.bad and b.broken are set */
  bool peer = p < a.n && p != a.rank;
  uint64_t base = peer ? a.state->received_before[p] : 0;
  bool moves = !b.broken && share_counts(a, b, call);
  publish_counts(a, b, call, moves);
  if (b.broken) return call;
  struct alltoallv_header h;
  if (moves && peer && b.pairs[p].recv_bytes > a.ll_threshold)
    wait_for_data(a, call, p, base, b.pairs[p].recv_bytes);
  else if (b.stop && peer && read_header(a, call, p, 0, &h) &&
           (h.kind != a.kind || h.unit != a.unit))
    report_counts(a, call, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.kind);
  return call;
}

/* Large pairs: what can be done before the rows have come, and the rest. Out of line, so
 * that without large pairs the code that a block runs through is short. (No prefetching: counts may
 * still turn out to be nonsense.) */
template <int N>
static __device__ __noinline__ void prepare_push_device(const kernel_args<N> &a, block_state<N> &b,
                                                        uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  struct deal d = deal_tiles(a, b, warps);
  struct place first = find_tile(a, b, d, warp);
  if (p % 32 == 0) b.first[p / 32] = first;
  if (p == 0) b.deal = d;
  if (p < a.n) b.to[p] = window_of(a, p, a.window);
}

template <int N>
static __device__ __noinline__ void push_device(const kernel_args<N> &a, block_state<N> &b,
                                                uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  if (p < a.n && b.couples[p] > 0) { /* share_counts has seen the headers */
    if (p == a.rank)
      b.to[p] = a.recv + b.pairs[p].recv_offset;
    else
      b.to[p] = (b.window[p] == a.window ? b.to[p] : window_of(a, p, b.window[p])) + b.offset[p] +
                b.before[p];
  }
  __syncthreads();
  if (b.broken) return; /* not each thread's own answer: there are barriers ahead */
  push_pairs(a, b, b.deal, b.first[p / 32], warp, warps);
}

/* A data block. Returns the number of the exchange. */
template <int N>
static __device__ __forceinline__ uint32_t move_device_counts(const kernel_args<N> &a,
                                                              block_state<N> &b)
{
  uint32_t blocks = gridDim.x * gridDim.y - 1, block = blockIdx.y * gridDim.x + blockIdx.x - 1;
  uint32_t warp = threadIdx.x / 32 * blocks + block, warps = blocks * (blockDim.x / 32);
  int p = threadIdx.x;
  if (p == 0) b.stop = 0, b.bad = NOT_BAD;
  bool any_large = load_counts(a, b);
  send_lines(a, b.pairs, p % 32);
  uint32_t call = this_call(a);
  bool push = any_large || b.pairs[a.rank].send_bytes > a.ll_threshold;

  if (p < a.n) b.pushed[p] = 0;
  if (p == 0) b.broken = is_broken(a); /* one look: see alltoallv_large.cuh */
  if (push) prepare_push_device(a, b, warp, warps);
  if (!share_counts(a, b, call)) return call;
  if (push) push_device(a, b, warp, warps);
  if (b.broken) return call;

  if (!push) {
    /* the blocks of team 0 have no peers; if the control block is alone there, all blocks help */
    const struct alltoallv_pair own = b.pairs[a.rank];
    uint32_t columns = gridDim.x - 1;
    if (columns == 0)
      copy_own(a, own, warp, warps, p % 32);
    else if (blockIdx.y == 0)
      copy_own(a, own, threadIdx.x / 32 * columns + blockIdx.x - 1, columns * (blockDim.x / 32),
               p % 32);
  }
  receive_lines(a, b.pairs, call, p % 32);
  return call;
}

#endif
