/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV: push, with two protocols.
 *
 *   lines   small pairs, and the heads of large ones: into the scratch memory of the peer, waiting
 *           for nothing; the receiver copies them to its receive buffer
 *   tiles   the rest of large pairs: straight into the receive buffer of the peer, once its header
 *           has said where; at the end each block tells the peer that it is done
 *
 * Sender and receiver choose by the size of the pair; if counts disagree, `contradicts` ends the
 * wait. Before it pushes, a block waits for headers only. These come first, so no cycle can form.
 *
 *   the first push_blocks   headers, or rows of counts (block 0); tiles; "done"; help with the own
 *                           part. The last one to begin waits for "done" of all ranks. Without
 *                           large pairs there is one such block, for headers.
 *   the others              send lines; copy the own part; receive lines
 *
 * Lines have blocks of their own, because stores and loads of a multiprocessor queue up together: a
 * block that sends lines would see the header late.
 *
 * Progress. All blocks of an exchange are on the GPU at the same time: the header asks for that.
 * What any of them waits for has been sent without waiting, or after headers alone: no cycle.
 * (Where all ranks have the same grid, blocks that come late keep nobody from going on: a block
 * waits for what the block of its number has sent before it waits, and the last one that pushes
 * waits when all others have begun. Grids differ where only some ranks have large pairs, or with
 * device counts.) */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "alltoallv_counts.cuh"

/* Where the counts are known, and whether there are bodies. An exchange of lines alone leaves out
 * what it does not need: it spends most of its time on fetching instructions. */
enum { MODE_LINES, MODE_HOST, MODE_DEVICE };

/* ---- counts from the host: what two ranks say of a pair ------------------------------------ */

/* By thread p: tells rank p what this one expects of the pair, waits for what that says, compares,
 * and reports what differs. Both ranks compare the same two numbers. */
template <int MODE>
static __device__ __forceinline__ void meet(const kernel_args &a, block_state &b, uint32_t epoch,
                                            int p)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  struct alltoallv_header h;
  send_header(a, epoch, p, this_block(),
              {pair.sends, pair.gets, a.x.payload[0].place + pair.gets_at, a.x.kind, a.x.element});
  if (!read_header(a, epoch, p, &h)) return;
  if (h.kind != a.x.kind)
    return report_counts(a, epoch, {ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.x.kind});
  if (h.sent != pair.gets)
    report_counts(a, epoch, {ALLTOALLV_ERROR_MISMATCH, p, a.rank, h.sent, pair.gets});
  else if (MODE != MODE_LINES && p != a.rank && has_body(a, pair.gets))
    b.blocks[p] = a.push_blocks;
  if (h.expect != pair.sends)
    report_counts(a, epoch, {ALLTOALLV_ERROR_MISMATCH, a.rank, p, pair.sends, h.expect});
  else if (MODE != MODE_LINES)
    b.place[0][p] = h.place;
}

/* Completes b. Few threads read the epoch, because a hundred reads of one address queue up. The
 * handle may break while they read, so what thread 0 has read decides for the block: barriers
 * follow. */
template <int MODE>
static __device__ __forceinline__ void meet_all(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  bool meets = p < a.n;
  struct beginning now = {0, false};
  if (MODE != MODE_LINES && p < a.n) { /* what takes no more than arguments */
    b.pairs[p] = a.pairs[p];
    b.place[0][p] = 0, b.blocks[p] = 0;
    number_tiles(a, b, a.pairs, 0, p);
    meets = p != a.rank && (has_body(a, a.pairs[p].sends) || has_body(a, a.pairs[p].gets));
  }
  GRIDDEPCONTROL("wait");
  if (p < a.n || this_block() == 0) now = begin_exchange(a);
  if (this_block() == 0) clear_stale_lines(a, now.epoch);
  if (p == 0) b.epoch = now.epoch, b.stop = now.broken;
  /* block 0 meets every rank, also where no bytes go: see read_header */
  if (p < a.n && !now.broken && (meets || this_block() == 0)) meet<MODE>(a, b, now.epoch, p);
  __syncthreads();
}

/* ---- both kinds of exchange; each returns the epoch ---------------------------------------- */

template <int MODE>
static __device__ __forceinline__ uint32_t exchange_host(const kernel_args &a, block_state &b)
{
  if (this_block() < a.push_blocks) {
    meet_all<MODE>(a, b);
    if (MODE != MODE_LINES && !b.stop) push_bodies(a, b);
    return b.epoch;
  }
  const line_warp w = this_line_warp(a, MODE == MODE_HOST);
  GRIDDEPCONTROL("wait");
  send_lines(a, w, a.pairs); /* no barrier on the way to the first store */
  const struct beginning now = begin_exchange(a);
  if (now.broken) return now.epoch;
  copy_own_by(a, w, a.pairs, now.epoch, MODE == MODE_HOST);
  receive_lines(a, w, a.pairs, now.epoch);
  return now.epoch;
}

/* Where no pair has a body, all blocks but the first deal with lines. */
static __device__ __forceinline__ uint32_t exchange_device(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  GRIDDEPCONTROL("wait");
  if (this_block() == 0) send_rows(a);
  const bool sends = load_counts(a, b);
  if (this_block() >= first_line_block(a, sends))
    send_lines(a, this_line_warp(a, sends), b.pairs);
  else if (sends && p < a.n)
    number_tiles(a, b, b.pairs, 0, p);
  bool gets;
  if (!share_counts(a, b, gets)) return b.epoch;
  const bool bodies = sends || gets;
  if (this_block() >= first_line_block(a, bodies)) {
    const line_warp w = this_line_warp(a, bodies);
    copy_own_by(a, w, b.pairs, b.epoch, bodies);
    receive_lines(a, w, b.pairs, b.epoch);
  } else if (bodies) {
    push_device(a, b, sends);
  }
  return b.epoch;
}

/* An exchange of rank a.rank, by all threads of all its blocks. */
template <int MODE>
static __device__ __forceinline__ void exchange(const kernel_args &a)
{
  __shared__ block_state b;
  const int p = threadIdx.x;
  uint32_t epoch;
  if constexpr (MODE == MODE_DEVICE)
    epoch = exchange_device(a, b);
  else
    epoch = exchange_host<MODE>(a, b);

  GRIDDEPCONTROL("launch_dependents");
  __syncthreads(); /* no thread needs the old epoch any more */
  if (this_block() == 0) {
    /* grids differ in size, so block 0 also updates the epochs of blocks that did not run */
    for (uint32_t i = gridDim.x + p; i < ALLTOALLV_MAX_BLOCKS; i += blockDim.x)
      a.state->block[i].epoch = epoch;
    auto *next = reinterpret_cast<uint32_t *>(&a.state->taken[~epoch & 1]);
    if (p < sizeof(a.state->taken[0]) / sizeof(*next)) next[p] = 0; /* of the next exchange */
  }
  if (p == 0) a.state->block[this_block()].epoch = epoch;
}

template <int MODE>
__global__ void __launch_bounds__(512, 1) alltoallv_kernel(const __grid_constant__ kernel_args a)
{
  /* the branch, never taken, is there to load the arguments now */
  if (a.state == NULL || a.x.kind == 0 || a.pairs[0].sends == UINT64_MAX) __trap();
  exchange<MODE>(a);
}

#endif
