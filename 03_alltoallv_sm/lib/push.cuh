/* SPDX-License-Identifier: Apache-2.0 */
/* Large pairs: they go straight into the receive buffer of the peer, in tiles, at any alignment.
 *
 * Nobody knows where data may go at a peer before its header has come, a good microsecond after the
 * kernel has begun. Lines need not wait. So a large pair begins with eager bytes, in lines, and all
 * that comes after them is pushed.
 *
 * Two rules. Loads never touch a byte outside the segment. Stores never touch a byte outside the
 * segment either, not even to write back what was there: the byte beside it belongs to another
 * source, which may be writing it at this moment. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "lines.cuh"

/* ---- one tile ----------------------------------------------------------------------------- */

/* A warp moves a tile of 1 KiB at a time: 2 loads of 16 bytes in flight per lane before the first
 * store, and 1 KiB that lies side by side for the link. (With tiles of 2 KiB all warps together
 * write to 4 MiB at a time, which is 1 % slower.) */
#define ALLTOALLV_TILE_BYTES 1024
#define TILE_WORDS (ALLTOALLV_TILE_BYTES / 16)
#define TILE_DEPTH (TILE_WORDS / 32)

/* Read once: do not keep it in the first-level cache. */
static __device__ __forceinline__ uint4 load_stream(const uint4 *from)
{
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/* The 16 bytes that start `shift` bytes into the 32 bytes (low, high); 0 < shift < 16. */
static __device__ __forceinline__ uint4 funnel(uint4 low, uint4 high, int shift)
{
  uint64_t a = (uint64_t)low.y << 32 | low.x, b = (uint64_t)low.w << 32 | low.z;
  uint64_t c = (uint64_t)high.y << 32 | high.x, d = (uint64_t)high.w << 32 | high.z;
  if (shift >= 8) {
    a = b;
    b = c;
    c = d;
  }
  int bits = shift % 8 * 8;
  /* << 1 << (63 - bits): a shift by 64 is undefined */
  uint64_t x = a >> bits | b << 1 << (63 - bits), y = b >> bits | c << 1 << (63 - bits);
  return make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32));
}

/* The 16-byte word that follows each lane's one, for a warp: that of the next lane; for the last
 * lane the first one of the next 32 words. */
static __device__ __forceinline__ uint4 next_word(uint4 words, uint4 next_words, int lane)
{
  uint4 mine = lane == 0 ? next_words : words;
  int from = (lane + 1) % 32;
  return make_uint4(__shfl_sync(~0u, mine.x, from), __shfl_sync(~0u, mine.y, from),
                    __shfl_sync(~0u, mine.z, from), __shfl_sync(~0u, mine.w, from));
}

/* One warp copies `count` words of a tile. All loads come before the first store: the compiler,
 * which has to assume that `in` and `out` overlap, would do one after the other. FULL: the whole
 * tile, so that there is nothing to decide. SHIFTED: `in` is the aligned word that holds the first
 * byte, and one word more is read than written. */
template <bool FULL, bool SHIFTED>
static __device__ __forceinline__ void copy_words(uint4 *out, const uint4 *in, int count, int shift,
                                                  int lane)
{
  static_assert(!(FULL && SHIFTED), "the word after the tile is the last lane's only");
  uint4 words[TILE_DEPTH + SHIFTED];
#pragma unroll
  for (int u = 0; u < TILE_DEPTH + SHIFTED; u++)
    if (FULL || lane + 32 * u < count + SHIFTED) words[u] = load_stream(in + lane + 32 * u);
#pragma unroll
  for (int u = 0; u < TILE_DEPTH; u++) {
    uint4 word = words[u];
    if (SHIFTED) word = funnel(word, next_word(words[u], words[u + SHIFTED], lane), shift);
    if (FULL || lane + 32 * u < count) out[lane + 32 * u] = word;
  }
}

/* One warp copies tile number `tile` of the segment of `bytes` > 0 bytes; ceil(bytes / 1024) tiles
 * make up the segment, whatever its alignment.
 *
 *   to:   |..head..|====16====|====16====| ... |====16====|..tail..|
 *
 * The words in the middle are aligned at the destination, to 128 bytes where they begin: stores
 * that fill whole cache lines make the largest packets. The first tile also copies the bytes
 * before them, the last tile those after them. Where the source is aligned differently, a word is
 * put together from two aligned words; then the middle begins and ends a little further inside, so
 * that both lie in the segment. */
static __device__ __forceinline__ void copy_tile(char *to, const char *from, uint64_t bytes,
                                                 uint64_t tile, int lane)
{
  uint64_t head = (0 - reinterpret_cast<uintptr_t>(to)) & 127;
  int shift = (int)((reinterpret_cast<uintptr_t>(from) + head) & 15);
  if (head < (uint64_t)shift) head += 16; /* the aligned word before it would begin too early */
  uint64_t words = bytes > head ? (bytes - head) / 16 : 0;
  if (shift > 0 && words > 0 && head + words * 16 + 16 - shift > bytes) words--;
  if (words == 0) head = bytes;

  uint64_t first = tile * TILE_WORDS;
  uint4 *out = reinterpret_cast<uint4 *>(to + head) + first;
  const uint4 *in = reinterpret_cast<const uint4 *>(from + head - shift) + first;
  if (shift == 0 && first + TILE_WORDS <= words)
    copy_words<true, false>(out, in, TILE_WORDS, 0, lane);
  else if (shift == 0 && first < words)
    copy_words<false, false>(out, in, (int)(words - first), 0, lane);
  else if (first < words)
    copy_words<false, true>(out, in, words - first < TILE_WORDS ? (int)(words - first) : TILE_WORDS,
                            shift, lane);

  if (tile == 0)
    for (uint64_t i = lane; i < head; i += 32) to[i] = from[i];
  if (tile == (bytes - 1) / ALLTOALLV_TILE_BYTES)
    for (uint64_t i = head + words * 16 + lane; i < bytes; i += 32) to[i] = from[i];
}

/* ---- which warp moves which tile ---------------------------------------------------------- */

/* Tiles are dealt in chunks of two. 32 bits can count the chunks of 8 TiB, and numbers of 32 bits
 * divide faster. */
#define CHUNK_BYTES (2 * ALLTOALLV_TILE_BYTES)
static __device__ __forceinline__ uint32_t chunks_of(uint64_t bytes)
{
  return (uint32_t)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
}

/* Tiles are dealt in 2^shift rounds, in each of which most warps take one. A round holds tiles of
 * all pairs in proportion to their bytes: so all pairs end together, every link is busy all the
 * time, one large pair is moved by all blocks, and neighbouring tiles are written at the same time.
 * (One pair after the other loses 5 to 10 %, one contiguous range per block as much.) A power of
 * two, because a division coming longer than anything else here before the first store.
 *
 * Every thread for itself; b.chunks is given. */
template <int N>
static __device__ __forceinline__ struct schedule
make_schedule(const kernel_args<N> &a, const block_state<N> &b, uint32_t warps)
{
  struct schedule d = {0, 0, 0};
  uint32_t all = 0;
  for (int p = 0; p < a.n; p++) all += b.chunks[p];
  while (all >> d.shift > warps / 2) d.shift++;
  d.width = (all >> d.shift) + a.n; /* n: every pair may round up */
  if (all > 0) d.slots = 2 * ((uint64_t)d.width << d.shift);
  return d;
}

/* The tile of a slot, if it has one. */
template <int N>
static __device__ __forceinline__ struct tile
find_tile(const kernel_args<N> &a, const block_state<N> &b, const struct schedule &d, uint64_t slot)
{
  struct tile at = {-1, 0};
  if (slot >= d.slots) return at;
  uint32_t chunk = (uint32_t)(slot >> 1), round = chunk / d.width;
  uint32_t left = chunk - round * d.width;
  int p = a.rank;
  for (int i = 0; i < a.n; i++) { /* rank + 1 first, myself last */
    if (++p == a.n) p = 0;
    uint64_t chunks = b.chunks[p];
    uint32_t begin = (uint32_t)(chunks * round >> d.shift);
    uint32_t end = (uint32_t)(chunks * (round + 1) >> d.shift);
    if (left < end - begin) {
      at.number = 2 * (uint64_t)(begin + left) + (slot & 1);
      if (at.number * ALLTOALLV_TILE_BYTES < b.pairs[p].send_bytes) at.peer = p;
      break;
    }
    left -= end - begin;
  }
  return at;
}

/* Fetches a tile into the second-level cache. */
template <int N>
static __device__ __forceinline__ void
prefetch_tile(const kernel_args<N> &a, const block_state<N> &b, struct tile at, int lane)
{
  if (at.peer < 0) return;
  const struct alltoallv_pair &pair = b.pairs[at.peer];
  uint64_t offset = at.number * ALLTOALLV_TILE_BYTES + lane * (ALLTOALLV_TILE_BYTES / 32);
  if (offset < pair.send_bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.send + pair.send_offset + offset));
}

/* A warp's first slot is that of its own number (and `at` is the tile). If it has few, the others
 * follow at equal distances. Else they come from a counter: multiprocessors are not equally fast,
 * and with equal shares the slow ones would leave the links idle at the end. The next number is on
 * its way while a tile is copied; but when all warps ask for their second number at the same time,
 * the last one waits a microsecond for it, which is too long for few slots. To be called by all
 * threads. */
#define FEW_SLOTS 4
template <int N>
static __device__ __forceinline__ void push_tiles(const kernel_args<N> &a, block_state<N> &b,
                                                  const struct schedule &d, struct tile at,
                                                  uint32_t warp, uint32_t warps, int lane)
{
  const bool few = d.slots <= FEW_SLOTS * (uint64_t)warps;
  for (uint64_t slot = warp, next = 0; slot < d.slots; slot = __shfl_sync(~0u, next, 0)) {
    next = slot + warps;
    if (lane == 0 && !few) next = warps + atomicAdd(&a.state->taken, 1ull);
    if (slot != warp) at = find_tile(a, b, d, slot);
    if (at.peer < 0 || b.to[at.peer] == NULL) continue;
    const struct alltoallv_pair &pair = b.pairs[at.peer];
    uint64_t bytes = pair.send_bytes, rest = bytes - at.number * ALLTOALLV_TILE_BYTES;
    copy_tile(b.to[at.peer], a.send + pair.send_offset, bytes, at.number, lane);
    if (lane == 0)
      atomicAdd(&b.pushed[at.peer], rest < ALLTOALLV_TILE_BYTES ? rest : ALLTOALLV_TILE_BYTES);
  }
  __syncthreads(); /* all warps have pushed */
  if (few) return;
  /* The last block to come here sets the counter back. */
  uint32_t blocks = warps / (blockDim.x / 32);
  if (threadIdx.x == blockDim.x - 1 && atomicInc(&a.state->blocks_done, blocks - 1) == blocks - 1)
    *(volatile unsigned long long *)&a.state->taken = 0;
}

/* ---- from the header of the peer to the arrival of the data there ------------------------- */

/* What all blocks want to know few of them ask for. A place in memory answers about two requests in
 * a nanosecond: when every warp of a hundred blocks asks for the same word, the last one waits a
 * microsecond, and so does whatever comes over the link to that place. So one warp of a block reads
 * the epoch, and blocks share out the copies of a header among them. */

/* By all threads of the control block: headers to all peers, and their copies. */
template <int N>
static __device__ __forceinline__ void send_headers(const kernel_args<N> &a, uint32_t epoch)
{
  const uint32_t each = 1 + ALLTOALLV_HEADER_COPIES;
  for (uint32_t i = threadIdx.x; i < a.n * each; i += blockDim.x) {
    const int p = (int)(i / each);
    const struct alltoallv_pair &pair = a.pairs[p];
    if (p != a.rank)
      send_header(a, epoch, p, i % each,
                  {pair.send_bytes, pair.recv_bytes, a.window_offset + pair.recv_offset, a.kind,
                   a.window, a.element});
  }
}

/* What I have to push, from the arguments into b.pairs and b.chunks, a thread t for each rank:
 * large pairs after their eager bytes, and my own part. */
template <int N>
static __device__ __forceinline__ void copy_counts(const kernel_args<N> &a, block_state<N> &b,
                                                   int t)
{
  if (t >= a.n) return;
  struct alltoallv_pair pair = a.pairs[t];
  const bool push = t == a.rank ? alltoallv_counts_agree(pair.send_bytes, pair.recv_bytes)
                                : pair.send_bytes > a.ll_threshold;
  if (push && t != a.rank) pair.send_offset += a.eager, pair.send_bytes -= a.eager;
  b.pairs[t] = pair;
  b.chunks[t] = push ? chunks_of(pair.send_bytes) : 0;
  b.pushed[t] = 0;
}

/* By the thread that waits for rank p: where my large pair goes there, and whether its large pair
 * is coming here, as the copy of its header for this block says. */
template <int N>
static __device__ __forceinline__ void await_header(const kernel_args<N> &a, block_state<N> &b,
                                                    uint32_t epoch, int p, uint32_t block,
                                                    char *likely)
{
  const struct alltoallv_pair &pair = a.pairs[p];
  const bool push = pair.send_bytes > a.ll_threshold, take = pair.recv_bytes > a.ll_threshold;
  struct alltoallv_header h;
  if (p == a.rank) b.to[p] = a.recv + pair.recv_offset;
  if (p == a.rank || !(push || take)) return;
  if (!read_header(a, epoch, p, 1 + block % ALLTOALLV_HEADER_COPIES, &h) || h.kind != a.kind)
    return;
  if (push && alltoallv_counts_agree(pair.send_bytes, h.expect))
    b.to[p] = (h.window == a.window ? likely : window_of(a, p, h.window)) + h.offset + a.eager;
  b.coming[p] = take && alltoallv_counts_agree(h.sent, pair.recv_bytes);
}

/* Pushes all pairs with chunks to b.to, and says so to the peers: one addition for each peer,
 * after the barrier at the end of push_tiles. To be called by all threads, after a barrier. */
template <int N>
static __device__ __forceinline__ void push_pairs(const kernel_args<N> &a, block_state<N> &b,
                                                  const struct schedule &d, struct tile first,
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
 * before. Returns the epoch. */
template <int N>
static __device__ __forceinline__ uint32_t move_host_counts(const kernel_args<N> &a,
                                                            block_state<N> &b)
{
  const uint32_t blocks = gridDim.x * gridDim.y - 1;
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x - 1;
  const uint32_t warp = threadIdx.x / 32 * blocks + block, warps = blocks * (blockDim.x / 32);
  const int p = threadIdx.x, waiters = (a.n + 31) / 32 * 32;
  uint32_t last = 0, broken = 0;
  char *likely = NULL;
  struct schedule d;
  struct tile first;
  if (p < waiters) last = last_epoch(a), broken = *(volatile uint32_t *)&a.state->broken;
  if (p < a.n) likely = window_of(a, p, a.window);
  if (p < waiters) {
    const uint32_t epoch = alltoallv_next_epoch(last);
    if (p == 0) b.epoch = epoch, b.broken = broken;
    /* `broken` may change while we look. Only thread 0's value decides for the block, because
     * barriers follow; a thread that has seen more pushes and expects nothing. */
    if (p < a.n) b.to[p] = NULL, b.coming[p] = false;
    if (p < a.n && !broken) await_header(a, b, epoch, p, block, likely);
  } else {
    copy_counts(a, b, p - waiters);
    asm volatile("bar.sync 1, %0;" ::"r"(blockDim.x - waiters) : "memory"); /* of these warps */
    send_lines(a, a.pairs, p % 32, group_range(waiters / 32));
    d = make_schedule(a, b, warps);
    first = find_tile(a, b, d, warp);
    prefetch_tile(a, b, first, p % 32);
  }
  __syncthreads();
  const uint32_t epoch = b.epoch;
  if (b.broken) return epoch;
  if (p < waiters) {
    d = make_schedule(a, b, warps);
    first = find_tile(a, b, d, warp);
  }
  push_pairs(a, b, d, first, warp, warps);
  /* not by the warps that wait for the stores of push_pairs */
  if (p >= waiters) receive_lines(a, a.pairs, epoch, p % 32, b.coming, group_range(waiters / 32));
  return epoch;
}

#endif
