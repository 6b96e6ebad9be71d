/* SPDX-License-Identifier: Apache-2.0 */
/* Large pairs, from the header of the peer to the arrival of the data there.
 *
 * Nobody knows where data may go at a peer before its header has come, a good microsecond after the
 * kernel has begun. Lines need not wait. So a large pair begins with a lead of lines, as a small
 * one would, and all that comes after it is pushed.
 *
 * What all blocks want to know few of them ask for. A place in memory answers about two requests in
 * a nanosecond: when every warp of a hundred blocks asks for the same word, the last one waits a
 * microsecond, and so does whatever comes over the link to that place. So one warp of a block reads
 * the number of the exchange, and blocks share out the copies of a header among them. */
#ifndef ALLTOALLV_LARGE_CUH
#define ALLTOALLV_LARGE_CUH

#include "lsa/alltoallv_ll.cuh"
#include "lsa/alltoallv_push.cuh"

/* By all threads of the control block: headers to all peers, and their copies. */
template <int N>
static __device__ __forceinline__ void send_headers(const kernel_args<N> &a, uint32_t call)
{
  const uint32_t each = 1 + ALLTOALLV_HEADER_COPIES;
  for (uint32_t i = threadIdx.x; i < a.n * each; i += blockDim.x) {
    const int p = (int)(i / each);
    const struct alltoallv_pair &pair = a.pairs[p];
    if (p != a.rank)
      send_header(a, call, p, i % each,
                  {pair.send_bytes, pair.recv_bytes, a.window_offset + pair.recv_offset, a.kind,
                   a.window, a.unit});
  }
}

/* What I have to push, from the arguments into b.pairs and b.couples, a thread t for each rank:
 * large pairs after their lead, and my own part. */
template <int N>
static __device__ __forceinline__ void copy_counts(const kernel_args<N> &a, block_state<N> &b,
                                                   int t)
{
  if (t >= a.n) return;
  struct alltoallv_pair pair = a.pairs[t];
  const bool push = t == a.rank ? alltoallv_counts_agree(pair.send_bytes, pair.recv_bytes)
                                : pair.send_bytes > a.ll_threshold;
  if (push && t != a.rank) pair.send_offset += a.lead, pair.send_bytes -= a.lead;
  b.pairs[t] = pair;
  b.couples[t] = push ? couples_of(pair.send_bytes) : 0;
  b.pushed[t] = 0;
}

/* By the thread that waits for rank p: where my large pair goes there, and whether its large pair
 * is coming here, as the copy of its header for this block says. */
template <int N>
static __device__ __forceinline__ void meet(const kernel_args<N> &a, block_state<N> &b,
                                            uint32_t call, int p, uint32_t block, char *likely)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  const bool push = pair.send_bytes > a.ll_threshold, take = pair.recv_bytes > a.ll_threshold;
  struct alltoallv_header h;
  if (p == a.rank) b.to[p] = a.recv + pair.recv_offset;
  if (p == a.rank || !(push || take)) return;
  if (!read_header(a, call, p, 1 + block % ALLTOALLV_HEADER_COPIES, &h) || h.kind != a.kind) return;
  if (push && alltoallv_counts_agree(pair.send_bytes, h.expect))
    b.to[p] = (h.window == a.window ? likely : window_of(a, p, h.window)) + h.offset + a.lead;
  b.takes[p] = take && alltoallv_counts_agree(h.sent, pair.recv_bytes);
}

/* Pushes all pairs with couples to b.to, and says so to the peers: one addition for each peer,
 * after the barrier at the end of push_tiles. To be called by all threads, after a barrier. */
template <int N>
static __device__ __forceinline__ void push_pairs(const kernel_args<N> &a, block_state<N> &b,
                                                  const struct deal &d, struct place first,
                                                  uint32_t warp, uint32_t warps)
{
  int p = threadIdx.x;
  push_tiles(a, b, d, first, warp, warps, p % 32);
  if (p < a.n && p != a.rank && b.pushed[p] > 0)
    add_release(reinterpret_cast<uint64_t *>(scratch_of(a, p)) + a.rank, b.pushed[p]);
}

/* A data block of an exchange with counts from the host. Its first warps, a thread for each peer,
 * wait for the headers; meanwhile the others send lines, find out what there is to push and fetch
 * their first tiles into the cache. Peers mostly use the window that I use: that is looked up
 * before. Returns the number of the exchange. */
template <int N>
static __device__ __forceinline__ uint32_t move_host_counts(const kernel_args<N> &a,
                                                            block_state<N> &b)
{
  const uint32_t blocks = gridDim.x * gridDim.y - 1;
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x - 1;
  const uint32_t warp = threadIdx.x / 32 * blocks + block, warps = blocks * (blockDim.x / 32);
  const int p = threadIdx.x, talkers = (a.n + 31) / 32 * 32;
  uint32_t last = 0, broken = 0;
  char *likely = NULL;
  struct deal d;
  struct place first;
  if (p < talkers) last = last_call(a), broken = *(volatile uint32_t *)&a.state->broken;
  if (p < a.n) likely = window_of(a, p, a.window);
  if (p < talkers) {
    const uint32_t call = alltoallv_next_call(last);
    if (p == 0) b.call = call, b.broken = broken;
    /* Another block may break the handle just now. Thread 0 speaks for the block; a thread that has
     * seen more than thread 0 pushes and takes nothing. */
    if (p < a.n) b.to[p] = NULL, b.takes[p] = false;
    if (p < a.n && !broken) meet(a, b, call, p, block, likely);
  } else {
    copy_counts(a, b, p - talkers);
    asm volatile("bar.sync 1, %0;" ::"r"(blockDim.x - talkers) : "memory"); /* of these warps */
    send_lines(a, a.pairs, p % 32, group_range(talkers / 32));
    d = deal_tiles(a, b, warps);
    first = find_tile(a, b, d, warp);
    prefetch_tile(a, b, first, p % 32);
  }
  __syncthreads();
  const uint32_t call = b.call;
  if (b.broken) return call;
  if (p < talkers) {
    d = deal_tiles(a, b, warps);
    first = find_tile(a, b, d, warp);
  }
  push_pairs(a, b, d, first, warp, warps);
  /* not by the warps that wait for the stores of push_pairs */
  if (p >= talkers) receive_lines(a, a.pairs, call, p % 32, b.takes, group_range(talkers / 32));
  return call;
}

#endif
