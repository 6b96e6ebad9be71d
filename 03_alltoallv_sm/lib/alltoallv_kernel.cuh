/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV: push, with two protocols.
 *
 *   lines   small pairs, and the heads of large ones: into the scratch memory of the peer, waiting
 *           for nothing; the receiver copies them to its receive buffer
 *   tiles   the rest of large pairs, the body: straight into the receive buffer of the peer, once
 *           its header has said where; at the end each block tells the peer that it is done
 *
 * Sender and receiver choose by the size of the pair; if counts disagree, `contradicts` ends the
 * wait. Before it sends, a block waits for headers only. These come first, so no cycle can form.
 *
 * Without large pairs, and in MODE_DEVICE, the grid has a team of blocks (those with the same
 * blockIdx.y) for every rank, or fewer if blocks are short: see of_team. Which block does
 * what:
 *
 *                           MODE_SMALL               MODE_DEVICE, MODE_MANY
 *   block 0 of team 0       headers: its first       rows of counts, tiles, own part
 *                           warps; own part: others
 *   other blocks of team 0  own part                 tiles, own part
 *   teams from 1 on         lines                    tiles, lines, large own part
 *
 * In MODE_LARGE all ranks that run it have the same grid, and there are no teams. The first
 * a.line_blocks blocks send lines, waiting for nothing, and then copy the own part. The others wait
 * for headers, push tiles, help with the own part, and receive lines. Stores and loads of a
 * multiprocessor queue up together: a block that sends lines would see the header late.
 *
 * Progress. All blocks of an exchange are on the GPU at the same time: alltoallv.h asks for that.
 */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "alltoallv_counts.cuh"

/* A mode leaves out what an exchange does not need: a small one spends most of its time on fetching
 * instructions. */
enum {
  MODE_SMALL,  /* counts from the host, and no pair is above the threshold */
  MODE_LARGE,  /* counts from the host */
  MODE_DEVICE, /* counts on the device */
  MODE_MANY,   /* counts on the device, and several payloads */
};

/* ---- counts from the host: what two ranks say of a pair ------------------------------------ */

/* Tells rank p what I expect of the pair, waits for what that says, compares, and reports what
 * differs; both ranks compare the same two numbers. Does what I expect come? *place: where my part
 * shall go, or 0. */
static __device__ __forceinline__ bool meet(const kernel_args &a, uint32_t epoch, int p,
                                            uint64_t *place)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  const int mismatch = ALLTOALLV_ERROR_MISMATCH;
  struct alltoallv_header h;
  *place = 0;
  send_header(a, epoch, p, tile_block(a),
              {pair.sends, pair.gets, a.x.payload[0].place + pair.gets_at, a.x.kind, a.x.element});
  if (!read_header(a, epoch, p, &h)) return false;
  if (h.kind != a.x.kind) {
    report_counts(a, {ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.x.kind, 1, epoch});
    return false;
  }
  if (h.sent != pair.gets)
    report_counts(a, {mismatch, p, a.rank, h.sent, pair.gets, a.x.element, epoch});
  if (h.expect != pair.sends)
    report_counts(a, {mismatch, a.rank, p, pair.sends, h.expect, a.x.element, epoch});
  else
    *place = h.place;
  return h.sent == pair.gets;
}

/* ---- the modes; each returns the epoch ------------------------------------------------------ */

static __device__ __forceinline__ uint32_t exchange_small(const kernel_args &a)
{
  const int p = threadIdx.x;
  const bool lines = blockIdx.y != 0;
  if (lines)
    move_lines<true>(a, a.pairs, 0, 0, of_team()); /* no barrier on the way to the first store */
  GRIDDEPCONTROL("wait");
  launch_next_kernel(a);
  const struct beginning now = this_block() == 0 ? begin_and_clear(a) : begin_exchange(a);
  if (lines) {
    if (!now.broken) move_lines<false>(a, a.pairs, 0, now.epoch, of_team());
    return now.epoch;
  }
  const uint32_t most = (uint32_t)(a.n + 31) / 32, warps = blockDim.x / 32;
  const uint32_t waiters = this_block() == 0 ? most : 0;
  uint64_t place;
  if ((uint32_t)p / 32 >= waiters)
    copy_own(a, a.pairs[a.rank], this_block() * warps + p / 32 - most, gridDim.x * warps - most);
  else if (!now.broken && p < a.n) /* every rank, also where no bytes go: see read_header */
    meet(a, now.epoch, p, &place);
  return now.epoch;
}

/* MODE_LARGE, the blocks that send lines. */
static __device__ __forceinline__ uint32_t exchange_lines(const kernel_args &a)
{
  const uint32_t warp = threadIdx.x / 32 * a.line_blocks + this_block();
  const uint32_t warps = blockDim.x / 32 * a.line_blocks;
  move_lines<true>(a, a.pairs, 0, 0, {1, 1, warp, warps});
  GRIDDEPCONTROL("wait");
  const struct beginning now = begin_exchange(a);
  if (!now.broken)
    copy_own_tiles(a, a.pairs[a.rank], &a.state->taken[now.epoch & 1].own[0], warp, warps);
  return now.epoch;
}

/* The others. Few threads read the epoch, because a hundred reads of one address queue up. The
 * handle may break while they read, so what thread 0 has read decides for the block: barriers
 * follow. */
static __device__ __forceinline__ uint32_t exchange_large(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  const bool thread_of_rank = p < a.n, first = tile_block(a) == 0;
  struct alltoallv_pair pair = {};
  struct beginning now = {0, false};
  uint64_t head = 0;
  if (thread_of_rank) { /* what takes no more than arguments */
    pair = a.pairs[p];
    head = in_lines(a, pair.sends);
    number_tiles(a, b, a.pairs, p);
    b.pairs[p] = {pair.sends - head, pair.sends_at + head, 0, 0};
    b.to[p] = NULL;
  }
  GRIDDEPCONTROL("wait");
  if (first)
    now = begin_and_clear(a);
  else if (thread_of_rank)
    now = begin_exchange(a);
  if (p == 0) b.epoch = now.epoch, b.stop = now.broken;
  const bool large = pair.sends > a.ll_threshold || pair.gets > a.ll_threshold;
  bool comes = false, gave_up = false;
  if (thread_of_rank && !now.broken && (first || (large && p != a.rank))) {
    uint64_t place;
    comes = meet(a, now.epoch, p, &place) && p != a.rank && pair.gets > a.ll_threshold;
    if (place != 0) b.to[p] = at_place(a, p, place) + head;
    gave_up = place == 0 && begin_exchange(a).broken;
  }
  /* Whoever has given up does not know where all bodies go, and must not say that they are there.
   * So its peers give up, too. */
  if (__syncthreads_or(gave_up) || b.stop) return b.epoch;
  push_tiles(a, b, 0, count_tiles(a, b));
  __syncthreads();
  if (p == 0) b.last = tell_done(a, b);
  launch_next_kernel(a);
  const uint32_t waiters = (uint32_t)(a.n + 31) / 32; /* warps that wait for fences */
  const uint32_t warps = blockDim.x / 32 - waiters;
  if ((uint32_t)p / 32 >= waiters) {
    copy_own_tiles(a, a.pairs[a.rank], &a.state->taken[b.epoch & 1].own[0], ~0u,
                   blockDim.x / 32 * a.line_blocks);
    const uint32_t warp = ((uint32_t)p / 32 - waiters) * tile_blocks(a) + tile_block(a);
    move_lines<false>(a, a.pairs, 0, b.epoch, {1, 1, warp, warps * tile_blocks(a)});
  }
  __syncthreads();
  if (comes && b.last) await_done(a, b.epoch, p);
  return b.epoch;
}

template <bool MANY>
static __device__ __forceinline__ uint32_t exchange_device(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  struct alltoallv_pair elements = {};
  if (this_block() == 0) send_rows<MANY>(a);
  const bool push = load_counts(a, b, elements);
  for (int k = 0; k < payloads<MANY>(a); k++) {
    use_payload<MANY>(a, b, elements, k);
    move_lines<true>(a, b.pairs, groups_before(a, k), 0, of_team());
  }
  launch_next_kernel(a);
  if (push && p < a.n) number_tiles(a, b, b.pairs, p);
  if (!share_counts<MANY>(a, b, elements)) return b.epoch;
  if (push) push_device<MANY>(a, b, elements);
  for (int k = 0; k < payloads<MANY>(a); k++) {
    use_payload<MANY>(a, b, elements, k);
    if (!push && blockIdx.y == 0)
      copy_own(a, b.pairs[a.rank], p / 32 * gridDim.x + blockIdx.x, blockDim.x / 32 * gridDim.x);
    move_lines<false>(a, b.pairs, groups_before(a, k), b.epoch, of_team());
  }
  if (push) __syncthreads(); /* for b.last */
  if (b.last && p < a.n && p != a.rank && is_large(a, elements.gets)) await_done(a, b.epoch, p);
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
    epoch = this_block() < a.line_blocks ? exchange_lines(a) : exchange_large(a, b);
  else
    epoch = exchange_device<MODE == MODE_MANY>(a, b);

  __syncthreads(); /* no thread needs the old epoch any more */
  if (tile_block(a) == 0) {
    /* grids differ in size, so one block also updates the epochs of blocks that did not run */
    for (uint32_t i = all_blocks() + p; i < ALLTOALLV_MAX_BLOCKS; i += blockDim.x)
      a.state->block[i].epoch = epoch;
    auto *next = reinterpret_cast<uint32_t *>(&a.state->taken[~epoch & 1]);
    if (p < sizeof(a.state->taken[0]) / sizeof(*next)) next[p] = 0; /* of the next exchange */
  }
  if (p == 0) a.state->block[this_block()].epoch = epoch;
}

template <int MODE>
__global__ void __launch_bounds__(512, 1) alltoallv_kernel(const __grid_constant__ kernel_args a)
{
  /* the branch, never taken, is there to load the arguments now: four times 64 bytes */
  if (a.state == NULL || a.x.most == 1 || a.x.payload[0].unit == 0 ||
      a.pairs[0].sends == UINT64_MAX)
    __trap();
  if (MODE >= MODE_DEVICE) GRIDDEPCONTROL("wait"); /* else it comes later */
  exchange<MODE>(a);
}

#endif
