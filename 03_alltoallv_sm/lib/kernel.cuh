/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV: push, with two protocols.
 *
 *   lines   small pairs: into the scratch memory of the peer, waiting for nothing; the receiver
 *           copies them to its receive buffer
 *   tiles   large pairs: straight into the receive buffer of the peer, once its header has said
 *           where; at the end each block tells the block of its number there that it is done
 *
 * Sender and receiver choose by the size of the pair; if counts disagree, `contradicts` ends the
 * wait. Before it sends, a block waits for headers only. These come first, so no cycle can form.
 *
 * The grid has a team of blocks (those with the same blockIdx.y) for every rank, or fewer if blocks
 * are short: see FOR_EACH_OF_TEAM. Which block does what:
 *
 *                           MODE_SMALL               MODE_LARGE           MODE_DEVICE
 *   block 0 of team 0       headers: its first       all headers, tiles   rows of counts, tiles,
 *                           warps; own part: others                       small own part
 *   other blocks of team 0  own part                 headers of large     tiles, small own part
 *   teams from 1 on         lines                    pairs, tiles, lines  tiles, lines
 *
 * In MODE_LARGE all ranks have the same grid. In MODE_DEVICE the own part goes in tiles if any part
 * is large. MODE leaves out what an exchange does not need: a small one spends most of its time on
 * fetching instructions. */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "counts.cuh"

enum {
  MODE_SMALL,  /* counts from the host, and no pair is above the threshold */
  MODE_LARGE,  /* counts from the host */
  MODE_DEVICE, /* counts on the device */
};

/* ---- counts from the host: what two ranks say of a pair ------------------------------------ */

static __device__ __forceinline__ void send_counts(const kernel_args &a, uint32_t epoch, int p)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  send_header(
      a, epoch, p,
      {pair.send_bytes, pair.recv_bytes, a.x.place + pair.recv_offset, a.x.kind, a.x.element});
}

/* Waits for what rank p says, compares, and reports what differs. */
static __device__ __forceinline__ void compare_counts(const kernel_args &a, uint32_t epoch, int p,
                                                      struct alltoallv_header &h, bool &sends,
                                                      bool &receives)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  sends = receives = false;
  if (!read_header(a, epoch, p, &h)) return;
  if (h.kind != a.x.kind) {
    report_counts(a, epoch, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.x.kind);
    return;
  }
  receives = h.sent == pair.recv_bytes; /* both ranks compare the same two numbers */
  sends = pair.send_bytes == h.expect;
  if (!receives)
    report_counts(a, epoch, ALLTOALLV_ERROR_MISMATCH, p, a.rank, h.sent, pair.recv_bytes);
  if (!sends)
    report_counts(a, epoch, ALLTOALLV_ERROR_MISMATCH, a.rank, p, pair.send_bytes, h.expect);
}

/* ---- the three modes; each returns the epoch ----------------------------------------------- */

static __device__ __forceinline__ uint32_t exchange_small(const kernel_args &a)
{
  const int p = threadIdx.x;
  const bool lines = blockIdx.y != 0;
  if (lines) send_lines(a, a.pairs); /* no barrier on the way to the first store */
  const struct beginning now = begin_exchange(a);
  if (this_block() == 0) clear_stale_lines(a, now.epoch);
  if (lines) {
    if (!now.broken) receive_lines(a, a.pairs, now.epoch);
    return now.epoch;
  }
  const uint32_t most = (uint32_t)(a.n + 31) / 32, warps = blockDim.x / 32;
  const uint32_t waiters = this_block() == 0 ? most : 0;
  if ((uint32_t)p / 32 >= waiters) {
    copy_own(a, a.pairs[a.rank], this_block() * warps + p / 32 - most, gridDim.x * warps - most);
  } else if (!now.broken && p < a.n) { /* of every rank, also where no bytes go: see read_header */
    struct alltoallv_header h;
    bool sends, receives;
    send_counts(a, now.epoch, p);
    compare_counts(a, now.epoch, p, h, sends, receives);
  }
  return now.epoch;
}

/* Few threads read the epoch, because a hundred reads of one address queue up. The handle may break
 * while they read, so what thread 0 has read decides for the block: barriers follow. */
static __device__ __forceinline__ uint32_t exchange_large(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  const bool thread_of_rank = p < a.n;
  bool meets = false, sends, receives = false;
  struct beginning now = {0, false};
  if (thread_of_rank || this_block() == 0) now = begin_exchange(a);
  if (this_block() == 0) clear_stale_lines(a, now.epoch);
  if (p == 0) b.epoch = now.epoch, b.stop = now.broken;
  if (thread_of_rank) {
    const struct alltoallv_pair pair = a.pairs[p];
    meets = this_block() == 0 || p == a.rank || pair.send_bytes > a.ll_threshold ||
            pair.recv_bytes > a.ll_threshold;
    meets = meets && !now.broken;
    if (meets) send_counts(a, now.epoch, p);
    b.pairs[p] = pair;
    b.to[p] = NULL;
    number_tiles(a, b, a.pairs, p);
  }
  __syncthreads();
  if (b.stop) return b.epoch;
  send_lines(a, a.pairs);
  if (meets) {
    struct alltoallv_header h;
    compare_counts(a, now.epoch, p, h, sends, receives);
    if (sends) b.to[p] = at_place(a, p, h.place);
  }
  push_pairs(a, b);
  receive_lines(a, a.pairs, b.epoch);
  if (receives && p != a.rank && a.pairs[p].recv_bytes > a.ll_threshold)
    await_data(a, b.epoch, p, all_blocks());
  return b.epoch;
}

static __device__ __forceinline__ uint32_t exchange_device(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  if (this_block() == 0) send_rows(a);
  const bool push = load_counts(a, b);
  send_lines(a, b.pairs);
  if (push && p < a.n) number_tiles(a, b, b.pairs, p);
  if (!share_counts(a, b)) return b.epoch;
  if (push)
    push_device(a, b);
  else if (blockIdx.y == 0)
    copy_own(a, b.pairs[a.rank], threadIdx.x / 32 * gridDim.x + blockIdx.x,
             blockDim.x / 32 * gridDim.x);
  receive_lines(a, b.pairs, b.epoch);
  if (p < a.n && p != a.rank && b.pairs[p].recv_bytes > a.ll_threshold)
    await_data(a, b.epoch, p, b.blocks[p]);
  return b.epoch;
}

/* An exchange of rank a.rank, by all threads of all its blocks. */
template <int MODE>
static __device__ __forceinline__ void exchange(const kernel_args &a)
{
  __shared__ block_state b;
  const int p = threadIdx.x;
  uint32_t epoch;
  if constexpr (MODE == MODE_SMALL)
    epoch = exchange_small(a);
  else if constexpr (MODE == MODE_LARGE)
    epoch = exchange_large(a, b);
  else
    epoch = exchange_device(a, b);

  GRIDDEPCONTROL("launch_dependents");
  __syncthreads(); /* no thread needs the old epoch any more */
  if (this_block() == 0) {
    /* grids differ in size, so block 0 also updates the epochs of blocks that did not run */
    for (uint32_t i = all_blocks() + p; i < ALLTOALLV_MAX_BLOCKS; i += blockDim.x)
      a.state->block[i].epoch = epoch;
    if (p == 0) a.state->taken[~epoch & 1] = 0; /* of the next exchange */
  }
  if (p == 0) a.state->block[this_block()].epoch = epoch;
}

/* The arguments as they are passed, with as many pairs as there are ranks, or a few more. */
template <int N>
struct passed_args {
  alignas(kernel_args) char bytes[offsetof(kernel_args, pairs) + N * sizeof(struct alltoallv_pair)];
};

template <int N, int MODE>
__global__ void __launch_bounds__(512, 1)
    alltoallv_kernel(const __grid_constant__ passed_args<N> passed)
{
  const kernel_args &a = reinterpret_cast<const kernel_args &>(passed);
  /* the branch, never taken, is there to load the arguments now */
  if (a.state == NULL || a.x.kind == 0 || a.pairs[0].send_bytes == UINT64_MAX) __trap();
  GRIDDEPCONTROL("wait");
  exchange<MODE>(a);
}

#endif
