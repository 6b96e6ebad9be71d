/* SPDX-License-Identifier: Apache-2.0 */
/* Device counts: every rank tells every other its whole row of counts, and what fits at its own. */
#ifndef ALLTOALLV_COUNTS_CUH
#define ALLTOALLV_COUNTS_CUH

#include "push.cuh"

/* My own counts and displacements, from device memory into b.pairs and b.chunks. Is a pair with
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
      bytes = alltoallv_clamp_count(a.sendcounts[q], a.element) * a.element;
    }
    if (before >= ALLTOALLV_TOO_MANY) bytes = ALLTOALLV_TOO_MANY;
    b.pairs[p].send_bytes = bytes;
    b.pairs[p].send_offset = a.sdispls != NULL ? a.sdispls[p] * a.element : before;
    large = p != a.rank && bytes > a.ll_threshold;
    b.chunks[p] = large || p == a.rank ? chunks_of(bytes) : 0;
  }
  return __syncthreads_or(large);
}

/* Sends every rank, myself included, my whole row of counts and the header. A broken rank sends no
 * rows: a peer that sees a row may rely on the data. */
template <int N>
static __device__ void send_rows(const kernel_args<N> &a)
{
  const int entries = a.n * a.n, last = (int)(blockDim.x - 1 - threadIdx.x);
  int t = threadIdx.x;
  uint64_t count = 0;
  if (t < entries) count = a.sendcounts[t % a.n]; /* on its way with the epoch */
  const uint32_t before = last_epoch(a), broken = is_broken(a);
  const uint32_t epoch = alltoallv_next_epoch(before);
  clear_stale_lines(a, epoch);
  if (broken) return;

  if (last < a.n) { /* the first threads have rows to send */
    const uint64_t slot = a.kind == ALLTOALLV_KIND_SLOTS ? last * a.capacity * a.element : 0;
    send_header(a, epoch, last, 0,
                {0, a.capacity * a.element, a.window_offset + slot, a.kind, a.window, a.element});
  }
  for (; t < entries; t += blockDim.x) {
    int to = t / a.n, entry = t % a.n;
    if (t >= blockDim.x) count = a.sendcounts[entry]; /* with more than 22 ranks */
    store_number(mailbox(a, to, a.rank, epoch), ALLTOALLV_LINE_COUNTS + entry,
                 alltoallv_clamp_count(count, a.element), a.kind, epoch);
  }
}

/* Receives the rows of all ranks. Then everybody knows the matrix and what fits where, and comes to
 * the same verdict by itself: if anything does not fit anywhere, nobody moves anything. Completes
 * b.pairs, and tells thread p how many elements come from rank p, and where they begin. False: do
 * not move anything; b.stop: because something has not come.
 *
 * A thread waits for one entry of the matrix, another one for what a rank says of its receive
 * buffer: all lines are loaded at the same time, by few instructions. (A column per thread took
 * 0.4 us longer, most of it to fetch the instructions.) The last threads do it, because the first
 * ones are still sending lines. */
template <int N>
static __device__ bool share_counts(const kernel_args<N> &a, block_state<N> &b, uint32_t epoch,
                                    uint64_t &recvcount, uint64_t &rdispl)
{
  __shared__ uint64_t sent[N * N]; /* [source * n + destination] */
  const bool slots = a.kind == ALLTOALLV_KIND_SLOTS;
  const int n = a.n, entries = n * n;
  for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < entries + n; i += blockDim.x) {
    const bool entry = i < entries;
    const int source = entry ? i / n : i - entries, destination = i % n;
    const char *lines = mailbox(a, a.rank, source, epoch);
    const char *first = lines + ALLTOALLV_LINE_BYTES * (entry ? ALLTOALLV_LINE_COUNTS + destination
                                                              : ALLTOALLV_LINE_EXPECT);
    const char *second = entry ? first : lines + ALLTOALLV_LINE_BYTES * ALLTOALLV_LINE_OFFSET;
    poll_clock w;
    line l, m;
    bool come;
    for (;;) {
      l = load_line(first);
      m = load_line(second);
      come = l.epoch == epoch && m.epoch == epoch;
      if (come) break;
      /* a rank that made another call may send no row */
      if (w.long_wait() && (contradicts(a, epoch, source, 0) || give_up(a, epoch, w, source)))
        break;
    }
    /* counts mean the same only where the elements have the same size */
    if (!come || (entry ? l.word[2] != a.kind : m.word[2] != a.element)) {
      *(volatile int *)&b.stop = 1;
    } else if (entry) {
      sent[i] = pack(l.word[0], l.word[1]);
    } else {
      b.capacity[source] = pack(l.word[0], l.word[1]);
      b.window[source] = l.word[2];
      b.offset[source] = pack(m.word[0], m.word[1]);
    }
  }
  __syncthreads();

  int p = threadIdx.x;
  if (p < n && !b.stop) {
    uint64_t total = 0, at = 0;
    for (int q = 0; q < n; q++) {
      const uint64_t count = sent[q * n + p];
      if (q == a.rank) b.before[p] = slots ? 0 : total * a.element;
      if (q == p) recvcount = sent[q * n + a.rank], rdispl = slots ? p * a.capacity : at;
      total += count;
      at += sent[q * n + a.rank];
      if (slots && count * a.element > b.capacity[p]) atomicMin(&b.bad, q * n + p);
    }
    b.pairs[p].recv_bytes = recvcount * a.element;
    b.pairs[p].recv_offset = rdispl * a.element;
    b.total[p] = total * a.element;
    if (!slots && b.total[p] > b.capacity[p]) atomicMin(&b.bad, p);
  }
  __syncthreads();
  return !b.stop && b.bad == NOT_BAD;
}

/* The control block's part: what the caller wants to know, and the error. Where nothing moves,
 * nothing is received, so that what comes next on the stream takes nothing for data. */
template <int N>
static __device__ void publish_counts(const kernel_args<N> &a, const block_state<N> &b,
                                      uint32_t epoch, bool moves, uint64_t recvcount,
                                      uint64_t rdispl)
{
  int p = threadIdx.x;
  if (p < a.n) {
    const uint64_t count = b.stop ? 0 : recvcount;
    a.recvcounts[p] = moves ? count : 0;
    if (a.needed != NULL) a.needed[p] = count;
    if (a.rdispls != NULL) a.rdispls[p] = moves ? rdispl : 0;
  }
  if (p > 0 || b.stop || b.bad == NOT_BAD) return;
  const bool slots = a.kind == ALLTOALLV_KIND_SLOTS;
  const int source = slots ? b.bad / a.n : -1, destination = slots ? b.bad % a.n : b.bad;
  uint64_t bytes = b.total[destination];
  if (slots) { /* the line has been seen */
    line sent = header_line(a, epoch, source, ALLTOALLV_LINE_COUNTS + destination);
    bytes = pack(sent.word[0], sent.word[1]) * a.element;
  }
  report_counts(a, epoch, ALLTOALLV_ERROR_CAPACITY, source, destination, bytes,
                b.capacity[destination]);
}

/* The control block. When all rows have come and everything fits, the headers hold nothing new.
 * Returns the epoch. */
template <int N>
static __device__ __forceinline__ uint32_t control_device(const kernel_args<N> &a,
                                                          block_state<N> &b)
{
  const int p = threadIdx.x;
  if (p == 0) b.bad = NOT_BAD;
  send_rows(a);
  if (p == 0) b.stop = b.broken = is_broken(a); /* one look: see move_host_counts */
  const uint32_t epoch = alltoallv_next_epoch(last_epoch(a));
  __syncthreads(); /* b.stop, b.bad and b.broken are set */
  bool peer = p < a.n && p != a.rank;
  uint64_t base = peer ? a.state->received_before[p] : 0;
  uint64_t recvcount = 0, rdispl = 0;
  bool moves = !b.broken && share_counts(a, b, epoch, recvcount, rdispl);
  publish_counts(a, b, epoch, moves, recvcount, rdispl);
  if (b.broken) return epoch;
  struct alltoallv_header h;
  if (moves && peer && b.pairs[p].recv_bytes > a.ll_threshold)
    wait_for_data(a, epoch, p, base, b.pairs[p].recv_bytes);
  else if (b.stop && peer && read_header(a, epoch, p, 0, &h) &&
           (h.kind != a.kind || h.element != a.element))
    report_counts(a, epoch, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.kind);
  return epoch;
}

/* Large pairs: what can be done before the rows have come, and the rest. Out of line, so
 * that without large pairs the code that a block runs through is short. (No prefetching: counts may
 * still turn out to be nonsense.) */
template <int N>
static __device__ __noinline__ void prepare_push_device(const kernel_args<N> &a, block_state<N> &b,
                                                        uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  struct schedule d = make_schedule(a, b, warps);
  struct tile first = find_tile(a, b, d, warp);
  if (p % 32 == 0) b.first[p / 32] = first;
  if (p == 0) b.schedule = d;
  if (p < a.n) b.to[p] = window_of(a, p, a.window);
}

template <int N>
static __device__ __noinline__ void push_device(const kernel_args<N> &a, block_state<N> &b,
                                                uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  if (p < a.n && b.chunks[p] > 0) { /* share_counts has seen the headers */
    if (p == a.rank)
      b.to[p] = a.recv + b.pairs[p].recv_offset;
    else
      b.to[p] = (b.window[p] == a.window ? b.to[p] : window_of(a, p, b.window[p])) + b.offset[p] +
                b.before[p];
  }
  __syncthreads();
  if (b.broken) return; /* not each thread's own answer: there are barriers ahead */
  push_pairs(a, b, b.schedule, b.first[p / 32], warp, warps);
}

/* A data block. Returns the epoch. */
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
  uint32_t epoch = this_epoch(a);
  bool push = any_large || b.pairs[a.rank].send_bytes > a.ll_threshold;

  if (p < a.n) b.pushed[p] = 0;
  if (p == 0) b.broken = is_broken(a); /* one look: see move_host_counts */
  if (push) prepare_push_device(a, b, warp, warps);
  uint64_t recvcount, rdispl;
  if (!share_counts(a, b, epoch, recvcount, rdispl)) return epoch;
  if (push) push_device(a, b, warp, warps);
  if (b.broken) return epoch;

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
  receive_lines(a, b.pairs, epoch, p % 32);
  return epoch;
}

#endif
