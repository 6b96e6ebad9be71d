/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV: push, with two protocols.
 *
 * Block 0, the control block, talks: it sends the headers, receives those of the peers, compares
 * counts, and stays until all data for this rank have arrived. The other blocks, the data blocks,
 * move bytes:
 *
 *   send_lines     small pairs: as lines into the scratch memory of the peer, waiting for nothing
 *   push_tiles     large pairs: straight into the receive buffer of the peer, once its header has
 *                  said where; at the end the bytes are added to a counter at the peer
 *   receive_lines  small pairs: from the scratch memory to the receive buffer
 *
 * The sender chooses by the bytes of the pair; counts agree, so the receiver knows. Nobody waits
 * for anything but headers before it sends, so there is no cycle of waiting. All waiting loops end
 * after the timeout.
 *
 * The grid has a team of blocks for every rank (or less, if blocks are short), blockIdx.y: team i
 * moves the lines to and from rank + i. Team 0 has no peer. In small exchanges (MODE_SMALL) its
 * blocks copy this rank's part for itself, and the first warps of block 0 are the control block; in
 * all others block 0 is that with all its threads. For tiles the blocks are numbered through.
 *
 * This file puts the parts together: alltoallv_wait.cuh (headers, waiting), alltoallv_ll.cuh
 * (lines), alltoallv_push.cuh (tiles), alltoallv_counts.cuh (device counts). N is an upper bound
 * for the number of ranks, so that the arguments of small jobs stay small. MODE leaves out what an
 * exchange does not need: the time of a small one is mostly that of fetching its instructions and
 * arguments. */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "lsa/alltoallv_counts.cuh"
#include "lsa/alltoallv_ll.cuh"
#include "lsa/alltoallv_push.cuh"

enum {
  MODE_SMALL,  /* counts from the host, and no pair is above the threshold */
  MODE_LARGE,  /* counts from the host */
  MODE_DEVICE, /* counts on the device */
};

/* `p` is the rank that this thread talks to; threads from a.n on have none. */
template <int N, int MODE>
static __device__ __forceinline__ void control_host_counts(const kernel_args<N> &a, uint32_t call,
                                                           int p)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  bool peer = p < a.n && p != a.rank;
  uint64_t base = MODE == MODE_LARGE && peer ? a.state->received[p] : 0;
  if (peer)
    send_header(a, call, p,
                {pair.send_bytes, pair.recv_bytes, a.window_offset + pair.recv_offset, a.kind,
                 a.window, a.unit});

  if (p == a.rank && !alltoallv_counts_agree(pair.send_bytes, pair.recv_bytes))
    report_counts(a, call, ALLTOALLV_ERROR_MISMATCH, p, p, pair.send_bytes, pair.recv_bytes);
  struct alltoallv_header h;
  /* of every peer, also where no bytes go: see read_header */
  if (!peer || !read_header(a, call, p, &h)) return;
  if (h.kind != a.kind) {
    report_counts(a, call, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.kind);
    return;
  }
  bool comes = alltoallv_counts_agree(h.sent, pair.recv_bytes);
  if (!comes) report_counts(a, call, ALLTOALLV_ERROR_MISMATCH, p, a.rank, h.sent, pair.recv_bytes);
  if (!alltoallv_counts_agree(pair.send_bytes, h.expect))
    report_counts(a, call, ALLTOALLV_ERROR_MISMATCH, a.rank, p, pair.send_bytes, h.expect);
  if (MODE == MODE_LARGE && comes && h.sent > a.ll_threshold) /* last: nothing to do after it */
    wait_for_data(a, call, p, base, h.sent);
}

/* The same with device counts. When all rows have come and everything fits, the headers hold
 * nothing new. */
template <int N>
static __device__ __forceinline__ void control_device(const kernel_args<N> &a, block_state<N> &b,
                                                      uint32_t call, int p)
{
  bool peer = p < a.n && p != a.rank;
  uint64_t base = peer ? a.state->received[p] : 0;
  bool moves = share_counts(a, b, call);
  if (!b.stop) publish_counts(a, b, call);
  struct alltoallv_header h;
  if (moves && peer && b.pairs[p].recv_bytes > a.ll_threshold)
    wait_for_data(a, call, p, base, b.pairs[p].recv_bytes);
  else if (b.stop && peer && read_header(a, call, p, &h) && (h.kind != a.kind || h.unit != a.unit))
    report_counts(a, call, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.kind);
}

/* What need not wait for anything. Of a control block: with device counts the rows; of the others
 * the lines. Returns whether this rank has large pairs, as far as the block knows by now. */
template <int N, int MODE>
static __device__ __forceinline__ bool send_first(const kernel_args<N> &a, block_state<N> &b,
                                                  bool control, int p)
{
  bool any_large = false;
  if (control) {
    if constexpr (MODE == MODE_DEVICE) send_rows(a);
  } else if constexpr (MODE == MODE_DEVICE) {
    any_large = load_counts(a, b);
    send_lines(a, b.pairs, p % 32);
  } else {
    send_lines(a, a.pairs, p % 32); /* no barrier on the way to the first store */
  }
  return any_large;
}

/* My counts, from the arguments into b.pairs and b.couples. Is a pair with another rank large? */
template <int N>
static __device__ __forceinline__ bool copy_counts(const kernel_args<N> &a, block_state<N> &b)
{
  int p = threadIdx.x;
  bool large = false;
  if (p < a.n) {
    const struct alltoallv_pair pair = a.pairs[p];
    bool copy = p == a.rank && alltoallv_counts_agree(pair.send_bytes, pair.recv_bytes);
    large = p != a.rank && pair.send_bytes > a.ll_threshold;
    b.pairs[p] = pair;
    b.couples[p] = copy || large ? couples_of(pair.send_bytes) : 0;
  }
  return __syncthreads_or(large);
}

/* Where the data of this thread's pair go, if it has a large one. */
template <int N, int MODE>
static __device__ __forceinline__ char *find_destination(const kernel_args<N> &a,
                                                         const block_state<N> &b, uint32_t call,
                                                         int p, char *likely)
{
  struct alltoallv_header h;
  if (p == a.rank) return a.recv + b.pairs[p].recv_offset;
  if (b.couples[p] == 0) return NULL;
  if constexpr (MODE == MODE_DEVICE) { /* share_counts has seen the headers */
    h.window = b.window[p];
    h.offset = b.offset[p] + b.before[p];
  } else if (!read_header(a, call, p, &h) || h.kind != a.kind ||
             !alltoallv_counts_agree(b.pairs[p].send_bytes, h.expect)) {
    return NULL;
  }
  return (h.window == a.window ? likely : window_of(a, p, h.window)) + h.offset;
}

/* The large pairs, and my own part with them, to b.to. To be called by all threads. */
template <int N>
static __device__ __forceinline__ void push_pairs(const kernel_args<N> &a, block_state<N> &b,
                                                  const struct deal &d, struct place first,
                                                  uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  __syncthreads();
  if (b.broken) return; /* not each thread's own answer: there are barriers ahead */
  push_tiles(a, b, d, first, warp, warps, p % 32);
  if (p < a.n && p != a.rank && b.pushed[p] > 0)
    add_release(reinterpret_cast<uint64_t *>(scratch_of(a, p)) + a.rank, b.pushed[p]);
}

/* Counts from the host. The first warp waits for the headers of the peers; meanwhile the others
 * fetch their first tiles. Peers mostly use the window that I use: that is looked up before. */
template <int N>
static __device__ __forceinline__ void push_host_counts(const kernel_args<N> &a, block_state<N> &b,
                                                        uint32_t call, bool broken, uint32_t warp,
                                                        uint32_t warps)
{
  int p = threadIdx.x;
  char *likely = p < a.n ? window_of(a, p, a.window) : NULL;
  if (p < a.n && !broken) b.to[p] = find_destination<N, MODE_LARGE>(a, b, call, p, likely);
  struct deal d = deal_tiles(a, b, warps);
  struct place first = find_tile(a, b, d, warp);
  prefetch_tile(a, b, first, p % 32);
  push_pairs(a, b, d, first, warp, warps);
}

/* Counts from the device: what can be done before the rows have come, and the rest. Out of line, so
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
                                                uint32_t call, uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  if (p < a.n) b.to[p] = find_destination<N, MODE_DEVICE>(a, b, call, p, b.to[p]);
  push_pairs(a, b, b.deal, b.first[p / 32], warp, warps);
}

/* A data block of an exchange that may have large pairs. */
template <int N, int MODE>
static __device__ __forceinline__ void move_data(const kernel_args<N> &a, block_state<N> &b,
                                                 uint32_t call, bool broken, bool any_large)
{
  uint32_t blocks = gridDim.x * gridDim.y - 1, block = blockIdx.y * gridDim.x + blockIdx.x - 1;
  uint32_t warp = threadIdx.x / 32 * blocks + block, warps = blocks * (blockDim.x / 32);
  int p = threadIdx.x;
  bool push = any_large || b.pairs[a.rank].send_bytes > a.ll_threshold;

  if (p < a.n) b.pushed[p] = 0;
  if (p == 0) b.broken = broken;
  if constexpr (MODE == MODE_DEVICE) {
    if (push) prepare_push_device(a, b, warp, warps);
    if (!share_counts(a, b, call)) return;
    if (push) push_device(a, b, call, warp, warps);
  } else if (push) {
    push_host_counts(a, b, call, broken, warp, warps);
  }
  if (broken) return;

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
}

template <int N, int MODE>
__global__ void __launch_bounds__(512, 1) alltoallv_kernel(const __grid_constant__ kernel_args<N> a)
{
  __shared__ block_state<N> b;
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  int p = threadIdx.x;
  bool control = MODE == MODE_SMALL ? blockIdx.y == 0 : block == 0;
  if (MODE == MODE_DEVICE && p == 0) b.stop = 0, b.bad = NOT_BAD;
  bool any_large = send_first<N, MODE>(a, b, control, p);

  uint32_t last = last_call(a), broken = *(volatile uint32_t *)&a.state->broken;
  if (MODE == MODE_LARGE && !control)
    any_large = copy_counts(a, b); /* while those two are on their way */
  uint32_t call = alltoallv_next_call(last);
  if (MODE != MODE_DEVICE && block == 0) clear_stale_lines(a, call); /* else in send_rows */
  if (MODE != MODE_SMALL && !control) {
    move_data<N, MODE>(a, b, call, broken, any_large);
  } else if (MODE == MODE_DEVICE) {
    __syncthreads(); /* b.stop and b.bad are set */
    if (!broken) control_device(a, b, call, p);
  } else if (MODE == MODE_LARGE) {
    if (!broken) control_host_counts<N, MODE>(a, call, p);
  } else if (!control) {
    if (!broken) receive_lines(a, a.pairs, call, p % 32);
  } else { /* team 0: the first warps of block 0 talk, the others copy my own part */
    uint32_t talkers = block == 0 ? (uint32_t)(a.n + 31) / 32 : 0, warps = blockDim.x / 32;
    if ((uint32_t)p / 32 >= talkers)
      copy_own(a, a.pairs[a.rank], block * warps + p / 32 - (a.n + 31) / 32,
               gridDim.x * warps - (a.n + 31) / 32, p % 32);
    else if (!broken)
      control_host_counts<N, MODE>(a, call, p);
  }

  __syncthreads(); /* nobody needs the old number any more */
  if (block == 0)  /* grids of different size: the other blocks count along */
    for (uint32_t i = gridDim.x * gridDim.y + p; i < ALLTOALLV_MAX_BLOCKS; i += blockDim.x)
      a.state->call[i] = call;
  if (p == 0) a.state->call[block] = call;
}

/* The bytes without the protocol, to measure what the protocol costs. b.to is the host's. */
template <int N>
struct bare_args {
  char *to[N];
};

template <int N>
__global__ void __launch_bounds__(512, 1) bare_push_kernel(const __grid_constant__ kernel_args<N> a,
                                                           const __grid_constant__ bare_args<N> to)
{
  __shared__ block_state<N> b;
  uint32_t blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
  uint32_t warp = threadIdx.x / 32 * blocks + block, warps = blocks * (blockDim.x / 32);
  if (threadIdx.x < a.n) {
    b.pairs[threadIdx.x] = a.pairs[threadIdx.x];
    b.to[threadIdx.x] = to.to[threadIdx.x];
    b.couples[threadIdx.x] = couples_of(a.pairs[threadIdx.x].send_bytes);
    b.pushed[threadIdx.x] = 0;
  }
  __syncthreads();
  struct deal d = deal_tiles(a, b, warps);
  push_tiles(a, b, d, find_tile(a, b, d, warp), warp, warps, threadIdx.x % 32);
}

#endif
