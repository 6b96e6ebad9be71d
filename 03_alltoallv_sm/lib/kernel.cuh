/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV: push, with two protocols.
 *
 * The control block sends the headers, receives those of the peers, compares counts, and stays
 * until all data for this rank have arrived. Data blocks move bytes:
 *
 *   send_lines     small pairs, and the eager bytes of large ones: as lines into the scratch memory
 *                  of the peer, waiting for nothing
 *   push_tiles     the rest of large pairs: straight into the receive buffer of the peer, once its
 *                  header has said where; at the end the bytes are added to a counter at the peer
 *   receive_lines  lines: from the scratch memory to the receive buffer
 *
 * The sender chooses by the bytes of the pair; counts agree, so the receiver knows. Nobody waits
 * for anything but headers before it sends, and headers come from block 0, so there is no cycle of
 * waiting among the blocks of an exchange. There are never more blocks than multiprocessors, and
 * users leave room for what else waits for peers (alltoallv.h). All waiting loops end after the
 * timeout.
 *
 * The grid has a team of blocks (those with the same blockIdx.y) for every rank, or fewer if blocks
 * are short: team i sends lines to rank + i and receives those of rank - i. Which block does what:
 *
 *                           MODE_SMALL                     MODE_LARGE, MODE_DEVICE
 *   block 0 of team 0       control: its first warps;      control
 *                           own part: the others
 *   other blocks of team 0  own part                       tiles; small own part with device counts
 *   teams from 1 on         lines                          lines and tiles
 *
 * For tiles the blocks are numbered through.
 *
 * N is an upper bound for the number of ranks, so that the arguments of small jobs stay small. MODE
 * leaves out what an exchange does not need: the time of a small one is mostly that of fetching its
 * instructions and arguments. */
#ifndef ALLTOALLV_KERNEL_CUH
#define ALLTOALLV_KERNEL_CUH

#include "counts.cuh"

enum {
  MODE_SMALL,  /* counts from the host, and no pair is above the threshold */
  MODE_LARGE,  /* counts from the host */
  MODE_DEVICE, /* counts on the device */
};

/* `p` is the rank that this thread talks to; threads from a.n on have none. */
template <int N, int MODE>
static __device__ __forceinline__ void control_host_counts(const kernel_args<N> &a, uint32_t epoch,
                                                           int p)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  bool peer = p < a.n && p != a.rank;
  uint64_t base = MODE == MODE_LARGE && peer ? a.state->received_before[p] : 0;
  if (MODE == MODE_LARGE)
    send_headers(a, epoch);
  else if (peer)
    send_header(a, epoch, p, 0,
                {pair.send_bytes, pair.recv_bytes, a.window_offset + pair.recv_offset, a.kind,
                 a.window, a.element});

  if (p == a.rank && !alltoallv_counts_agree(pair.send_bytes, pair.recv_bytes))
    report_counts(a, epoch, ALLTOALLV_ERROR_MISMATCH, p, p, pair.send_bytes, pair.recv_bytes);
  struct alltoallv_header h;
  /* of every peer, also where no bytes go: see read_header */
  if (!peer || !read_header(a, epoch, p, 0, &h)) return;
  if (h.kind != a.kind) {
    report_counts(a, epoch, ALLTOALLV_ERROR_KIND, p, a.rank, h.kind, a.kind);
    return;
  }
  bool comes = alltoallv_counts_agree(h.sent, pair.recv_bytes);
  if (!comes) report_counts(a, epoch, ALLTOALLV_ERROR_MISMATCH, p, a.rank, h.sent, pair.recv_bytes);
  if (!alltoallv_counts_agree(pair.send_bytes, h.expect))
    report_counts(a, epoch, ALLTOALLV_ERROR_MISMATCH, a.rank, p, pair.send_bytes, h.expect);
  if (MODE == MODE_LARGE && comes && h.sent > a.ll_threshold) /* last: nothing to do after it */
    wait_for_data(a, epoch, p, base, h.sent - a.eager);
}

/* Counts from the host, no large pair. Blocks of other teams than 0 move lines; the first warps of
 * block 0 are the control block, and all other warps of team 0 copy my own part. */
template <int N>
static __device__ __forceinline__ uint32_t exchange_small(const kernel_args<N> &a, uint32_t block)
{
  const int p = threadIdx.x;
  const bool lines = blockIdx.y != 0;
  if (lines) send_lines(a, a.pairs, p % 32); /* no barrier on the way to the first store */
  const uint32_t last = last_epoch(a), broken = *(volatile uint32_t *)&a.state->broken;
  const uint32_t epoch = alltoallv_next_epoch(last);
  if (block == 0) clear_stale_lines(a, epoch);
  if (lines) {
    if (!broken) receive_lines(a, a.pairs, epoch, p % 32);
    return epoch;
  }
  uint32_t waiters = block == 0 ? (uint32_t)(a.n + 31) / 32 : 0, warps = blockDim.x / 32;
  if ((uint32_t)p / 32 >= waiters)
    copy_own(a, a.pairs[a.rank], block * warps + p / 32 - (a.n + 31) / 32,
             gridDim.x * warps - (a.n + 31) / 32, p % 32);
  else if (!broken)
    control_host_counts<N, MODE_SMALL>(a, epoch, p);
  return epoch;
}

/* Counts from the host, the control block. */
template <int N>
static __device__ __forceinline__ uint32_t control_large(const kernel_args<N> &a)
{
  const uint32_t last = last_epoch(a), broken = *(volatile uint32_t *)&a.state->broken;
  const uint32_t epoch = alltoallv_next_epoch(last);
  clear_stale_lines(a, epoch);
  if (!broken) control_host_counts<N, MODE_LARGE>(a, epoch, threadIdx.x);
  return epoch;
}

/* An exchange of rank a.rank, by all threads of all its blocks. */
template <int N, int MODE>
static __device__ __forceinline__ void exchange(const kernel_args<N> &a)
{
  __shared__ block_state<N> b;
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  const int p = threadIdx.x;
  uint32_t epoch;
  if constexpr (MODE == MODE_SMALL)
    epoch = exchange_small(a, block);
  else if constexpr (MODE == MODE_LARGE)
    epoch = block == 0 ? control_large(a) : move_host_counts(a, b);
  else
    epoch = block == 0 ? control_device(a, b) : move_device_counts(a, b);

  __syncthreads(); /* nobody needs the old number any more */
  if (block == 0)  /* grids of different size: the other blocks count along */
    for (uint32_t i = gridDim.x * gridDim.y + p; i < ALLTOALLV_MAX_BLOCKS; i += blockDim.x)
      a.state->epoch[i] = epoch;
  if (p == 0) a.state->epoch[block] = epoch;
}

template <int N, int MODE>
__global__ void __launch_bounds__(512, 1) alltoallv_kernel(const __grid_constant__ kernel_args<N> a)
{
  exchange<N, MODE>(a);
}

#endif
