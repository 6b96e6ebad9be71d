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
 * Progress. Where all ranks have the same grid, a block waits for headers and lines of the block of
 * its number at a peer, which has sent them before it waits, and for rows of block 0. The last
 * block to push waits for blocks that wait for headers only. So blocks that are not resident yet
 * keep nobody from going on. Grids differ where only some ranks have large pairs, or where room
 * differs (device counts): then all blocks have to be resident. */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "alltoallv_counts.cuh"

enum { MODE_HOST, MODE_DEVICE }; /* where the counts are known */

/* ---- counts from the host: what two ranks say of a pair ------------------------------------ */

/* By thread p: tells rank p what this one expects of the pair, waits for what that says, compares,
 * and reports what differs. Both ranks compare the same two numbers. */
static __device__ __forceinline__ void meet(const kernel_args &a, block_state &b, uint32_t epoch,
                                            int p)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  struct alltoallv_header h;
  send_header(
      a, epoch, p, this_block(),
      {pair.sends, pair.gets, a.x.payload[0].place + pair.gets_at, a.x.kind, a.x.element});
  if (!read_header(a, epoch, p, &h)) return;
  if (h.kind != a.x.kind)
    return report_counts(a, epoch, {ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.x.kind});
  if (h.sent != pair.gets)
    report_counts(a, epoch, {ALLTOALLV_ERROR_MISMATCH, p, a.rank, h.sent, pair.gets});
  else if (p != a.rank && has_body(a, pair.gets))
    b.blocks[p] = a.push_blocks;
  if (h.expect != pair.sends)
    report_counts(a, epoch, {ALLTOALLV_ERROR_MISMATCH, a.rank, p, pair.sends, h.expect});
  else
    b.place[0][p] = h.place;
}

/* Completes b. Is there a large pair? Few threads read the epoch, because a hundred reads of one
 * address queue up. The handle may break while they read, so what thread 0 has read decides for the
 * block: barriers follow. */
static __device__ __forceinline__ bool meet_all(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  bool large = false;
  struct beginning now = {0, false};
  if (p < a.n) { /* what takes no more than arguments */
    b.pairs[p] = a.pairs[p];
    b.place[0][p] = 0, b.blocks[p] = 0;
    large = has_body(a, a.pairs[p].sends) || has_body(a, a.pairs[p].gets);
    number_tiles(a, b, a.pairs, 0, p);
  }
  GRIDDEPCONTROL("wait");
  if (p < a.n || this_block() == 0) now = begin_exchange(a);
  if (this_block() == 0) clear_stale_lines(a, now.epoch);
  if (p == 0) b.epoch = now.epoch, b.stop = now.broken;
  /* block 0 of every rank, also where no bytes go: see read_header */
  if (p < a.n && !now.broken && (this_block() == 0 || (large && p != a.rank)))
    meet(a, b, now.epoch, p);
  return __syncthreads_or(large) && !b.stop;
}

/* ---- both kinds of exchange; each returns the epoch ---------------------------------------- */

static __device__ __forceinline__ uint32_t exchange_host(const kernel_args &a, block_state &b)
{
  if (this_block() < a.push_blocks) {
    if (meet_all(a, b)) push_bodies(a, b);
    return b.epoch;
  }
  GRIDDEPCONTROL("wait");
  send_lines(a, a.pairs); /* no barrier on the way to the first store */
  const struct beginning now = begin_exchange(a);
  if (now.broken) return now.epoch;
  copy_own(a, a.pairs[a.rank], now.epoch, line_warp(a));
  receive_lines(a, a.pairs, now.epoch);
  return now.epoch;
}

static __device__ __forceinline__ uint32_t exchange_device(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  const bool pushes = this_block() < a.push_blocks;
  GRIDDEPCONTROL("wait");
  if (this_block() == 0) send_rows(a);
  load_counts(a, b);
  if (pushes && p < a.n)
    number_tiles(a, b, b.pairs, 0, p);
  else if (!pushes)
    send_lines(a, b.pairs);
  if (!share_counts(a, b)) return b.epoch;
  if (pushes) {
    const bool large = p < a.n && (has_body(a, b.pairs[p].sends) || has_body(a, b.pairs[p].gets));
    if (__syncthreads_or(large)) push_device(a, b);
    return b.epoch;
  }
  copy_own(a, b.pairs[a.rank], b.epoch, line_warp(a));
  receive_lines(a, b.pairs, b.epoch);
  return b.epoch;
}

/* An exchange of rank a.rank, by all threads of all its blocks. */
template <int MODE>
static __device__ __forceinline__ void exchange(const kernel_args &a)
{
  __shared__ block_state b;
  const int p = threadIdx.x;
  const uint32_t epoch = MODE == MODE_HOST ? exchange_host(a, b) : exchange_device(a, b);

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
  if (a.state == NULL || a.x.kind == 0 || a.pairs[0].sends == UINT64_MAX) __trap();
  exchange<MODE>(a);
}

#endif
