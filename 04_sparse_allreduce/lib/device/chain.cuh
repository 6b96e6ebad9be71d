/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of tiles, by which compactions write their output in the order of their input in a
 * single pass. A block counts what it keeps of its tile, publishes the count, and adds up what the
 * tiles before it have published. It remembers the sum up to its own last tile, so it waits for
 * counts only, never for another block's sum.
 *
 * Blocks draw tiles from a counter. So the blocks that work on earlier tiles are running, and
 * waiting for them ends, in whatever order blocks are started.
 *
 * A word is {launch, two counts of 16 bits}. The number of the launch says whether the word is of
 * this one. */
#ifndef OPS_CHAIN_CUH
#define OPS_CHAIN_CUH

#include "device/device.cuh"

struct ops_chain {
  ops_scratch *scratch;
  unsigned long long *words;
  uint32_t launch; /* the number of this one */
  uint32_t next;   /* the first tile that is not in `sum` */
  uint64_t sum;    /* of the tiles before `next`: the second count in the upper half */
};

static __device__ inline ops_chain ops_chain_begin(const sparse_memory &m)
{
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  return {scratch, ops_chain_words(m), scratch->launches + 1, 0, 0};
}

static __device__ inline uint64_t ops_both(uint32_t first, uint32_t second)
{
  return first | (uint64_t)second << 32;
}

/* By one thread, as is publishing. */
static __device__ inline uint32_t ops_chain_draw(const ops_chain &chain)
{
  return atomicAdd(&chain.scratch->ticket, 1u);
}

static __device__ inline void ops_chain_publish(const ops_chain &chain, uint32_t tile,
                                                uint32_t first, uint32_t second)
{
  const unsigned long long word = (uint64_t)chain.launch << 32 | second << 16 | first;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(chain.words + tile), "l"(word)
               : "memory");
}

static __device__ inline unsigned long long ops_chain_word(const ops_chain &chain, uint32_t tile)
{
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
               : "=l"(word)
               : "l"(chain.words + tile)
               : "memory");
  return word;
}

/* The sum of the tiles before `tile` comes in three parts, so that other work can be between them:
 * asking for words; waiting for them, which gives a sum for each thread; and adding up what warps
 * have. Count is uint64_t if both counts are used, uint32_t for the first one alone. */
struct ops_chain_asked {
  unsigned long long words[2];
};

static __device__ inline ops_chain_asked ops_chain_ask(const ops_chain &chain, uint32_t tile)
{
  ops_chain_asked asked;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    const uint32_t t = chain.next + threadIdx.x + j * blockDim.x;
    asked.words[j] = t < tile ? ops_chain_word(chain, t) : 0;
  }
  return asked;
}

template <typename Count>
static __device__ inline Count ops_chain_sum(const ops_chain &chain, uint32_t tile,
                                             const ops_chain_asked &asked)
{
  Count sum = 0;
  uint32_t t = chain.next + threadIdx.x;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++, t += blockDim.x) {
    unsigned long long word = asked.words[j];
    if (t >= tile) continue;
    while (word >> 32 != chain.launch) word = ops_chain_word(chain, t);
    sum += (Count)ops_both(word & 0xffff, word >> 16 & 0xffff);
  }
  for (; t < tile; t += blockDim.x) {
    unsigned long long word;
    do word = ops_chain_word(chain, t);
    while (word >> 32 != chain.launch);
    sum += (Count)ops_both(word & 0xffff, word >> 16 & 0xffff);
  }
  return sum;
}

/* The sum in all threads of the block, from that of each warp in shared memory. */
template <typename Count>
static __device__ inline uint64_t ops_chain_sum(ops_chain &chain, uint32_t tile,
                                                const Count *partial)
{
  const uint32_t lane = threadIdx.x % 32;
  chain.sum += ops_warp_sum(lane < blockDim.x / 32 ? partial[lane] : 0);
  chain.next = tile;
  return chain.sum;
}

/* All of it. `partial` is shared memory for a number per warp, and there is one barrier between
 * writing and reading it. */
template <typename Count>
static __device__ inline uint64_t ops_chain_before(ops_chain &chain, uint32_t tile, Count *partial)
{
  const Count sum = ops_warp_sum(ops_chain_sum<Count>(chain, tile, ops_chain_ask(chain, tile)));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  return ops_chain_sum(chain, tile, partial);
}

/* What `tile` itself adds; the block that has the last tile leaves the totals. */
static __device__ inline void ops_chain_advance(ops_chain &chain, uint32_t tile, uint32_t tiles,
                                                uint32_t first, uint32_t second)
{
  chain.sum += ops_both(first, second);
  chain.next = tile + 1;
  if (tile == tiles - 1 && threadIdx.x == 0) chain.scratch->totals = chain.sum;
}

/* By one thread of the last block: the totals, and the chain is ready for the next launch. */
static __device__ inline uint64_t ops_chain_end(const ops_chain &chain, uint32_t tiles,
                                                size_t words)
{
  ops_scratch *scratch = chain.scratch;
  const uint64_t totals = tiles > 0 ? __ldcg((unsigned long long *)&scratch->totals) : 0;
  scratch->ticket = 0;
  scratch->launches = chain.launch;
  if (chain.launch == 0xffffffffu) { /* once in weeks: words of old launches must not look new */
    for (size_t w = 0; w < words; w++) chain.words[w] = 0;
    scratch->launches = 0;
  }
  return totals;
}

#endif
