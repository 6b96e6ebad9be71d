/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that the ranks of an AllReduce share: how calls are numbered, the layout of the scratch
 * memory, and which rank adds which elements. Kernels and host code use this file. C and CUDA
 * C++. */
#ifndef ALLREDUCE_PROTOCOL_H
#define ALLREDUCE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ALLREDUCE_RULE static __host__ __device__ inline
#else
#define ALLREDUCE_RULE static inline
#endif

/* Blocks of one launch, at most: two on each multiprocessor of an H100 or H200. */
#define ALLREDUCE_MAX_BLOCKS 264

/* ---- tags: epoch and check ------------------------------------------------------------------- */

/* The calls of a handle are numbered from 1 on; the number is the epoch. Calls without elements are
 * not counted. LL lines and flags carry a tag; bare lines and pushed chunks do not. It is the epoch
 * in the upper 48 bits, and 16 bits that depend on count and type, and for pushes on the place of
 * the receive buffer. The reader sees whether the tag belongs to this call, and whether both ranks
 * made the same call. The second check misses one pair of counts in 65,536; 1
 * and 2899 floats are such a pair. A 48-bit epoch wraps only after about 18 years of one call every
 * 2 us. */
#define ALLREDUCE_CHECK_BITS 16

/* `place` is the offset of the receive buffer in its window, to which the other ranks push sums.
 * Lines do not depend on it: 0. */
ALLREDUCE_RULE uint32_t allreduce_check(uint64_t count, int type, uint64_t place)
{
  const uint64_t mixed = (count * 16 + (uint64_t)type) * 0x9e3779b97f4a7c15u;
  return (uint32_t)((mixed ^ place * 0x94d049bb133111ebu) >> (64 - ALLREDUCE_CHECK_BITS));
}

ALLREDUCE_RULE uint64_t allreduce_tag(uint64_t epoch, uint32_t check)
{
  return epoch << ALLREDUCE_CHECK_BITS | check;
}

ALLREDUCE_RULE uint64_t allreduce_epoch(uint64_t tag)
{
  return tag >> ALLREDUCE_CHECK_BITS;
}

/* ---- scratch memory -------------------------------------------------------------------------- */

/* How a vector goes, in the order of sizes: as LL lines in one hop, as bare lines in one hop and in
 * two, or by pushes. */
enum allreduce_method { ALLREDUCE_LL, ALLREDUCE_ONEHOP, ALLREDUCE_TWOHOP, ALLREDUCE_PUSH };
enum { ALLREDUCE_METHODS = ALLREDUCE_PUSH + 1 };

#define ALLREDUCE_LINE 16

/* A bare line is 16 bytes of data and nothing else. Where its last 4 bytes are 0, the place is
 * empty. So these are not sent as they are, but XOR this number, which is (the end of) a NaN in
 * every floating type, and rare as an integer. If that is 0 or 1, then 1 is sent, and a byte at
 * the end of the part, the line's escape, says which of them it is: 1 for 0, and 2 for 1. An escape
 * of 0 has not come. */
#define ALLREDUCE_KEY 0xfff5ffc3u

enum allreduce_flag {
  ALLREDUCE_BEGUN, /* this rank is in the call: its tag */
  ALLREDUCE_READY, /* the writer's block has stored so many chunks in the reader's slots */
  ALLREDUCE_FREED, /* it has added so many of the reader's chunks: their slots are free again */
  ALLREDUCE_ENDED, /* it has read all its slots and stored all its sums */
  ALLREDUCE_FLAGS
};

/* The flags that count chunks: a tag without the upper 16 bits of its epoch, and the number. */
ALLREDUCE_RULE uint64_t allreduce_counted(uint64_t tag, uint32_t chunks)
{
  return tag << 16 | (chunks & 0xffff);
}

/* Does the flag show this call, and so many chunks or more? It is never 2^15 chunks ahead. */
ALLREDUCE_RULE int allreduce_counts(uint64_t flag, uint64_t tag, uint32_t chunks)
{
  const uint64_t wanted = allreduce_counted(tag, chunks);
  return flag >> 16 == wanted >> 16 && (uint16_t)(flag - wanted) < 0x8000;
}

/* The most bytes of a vector that goes as LL lines, as bare lines in one hop between two ranks, and
 * in two hops, and of scratch memory for the chunks of pushes. */
#define ALLREDUCE_LL_BYTES ((size_t)16 << 10)
#define ALLREDUCE_ONEHOP_BYTES ((size_t)2 << 20)
#define ALLREDUCE_TWOHOP_BYTES ((size_t)16 << 20)
#define ALLREDUCE_SLOT_BYTES ((size_t)48 << 20)

/* The most bytes of a vector that goes in one hop. A rank then sends n - 1 vectors, with two hops
 * less than two, so with more ranks the second hop pays sooner. Measured with 2 and 4. */
ALLREDUCE_RULE size_t allreduce_onehop_bytes(size_t between_two, int n)
{
  return n <= 2 ? between_two : between_two / 5 / ((size_t)n - 2);
}

/* The offset in a rank's scratch memory of a flag of rank `source`, in bytes. */
ALLREDUCE_RULE size_t allreduce_flag_at(int n, enum allreduce_flag which, int block, int source)
{
  const size_t row = (size_t)which * ALLREDUCE_MAX_BLOCKS + (size_t)block;
  return (row * (size_t)n + (size_t)source) * sizeof(uint64_t);
}

/* With two hops, the lines that each rank adds. A warp has 32; the last ones may have no bytes of
 * the vector. */
ALLREDUCE_RULE uint32_t allreduce_slice_lines(size_t bytes, int n)
{
  const uint32_t warps = (uint32_t)((bytes + 511) / 512);
  return (warps + (uint32_t)n - 1) / (uint32_t)n * 32;
}

/* The lines of one method in a rank's scratch memory. Each source has its own part for odd calls
 * and for even calls. Methods never share memory, because data of one would be lines of another. */
struct allreduce_lines {
  size_t at;           /* the first byte */
  uint32_t part, half; /* bytes of a part; of the parts for even calls. The odd ones come next */
};

ALLREDUCE_RULE struct allreduce_lines allreduce_lines_of(int n, enum allreduce_method method)
{
  const size_t flags = allreduce_flag_at(n, ALLREDUCE_FLAGS, 0, 0);
  const size_t parts[ALLREDUCE_METHODS] = {
      ALLREDUCE_LL_BYTES / 8 * ALLREDUCE_LINE,
      (allreduce_onehop_bytes(ALLREDUCE_ONEHOP_BYTES, n) + ALLREDUCE_LINE - 1) / ALLREDUCE_LINE *
          (ALLREDUCE_LINE + 1),
      2 * (size_t)allreduce_slice_lines(ALLREDUCE_TWOHOP_BYTES, n) * (ALLREDUCE_LINE + 1),
      0 /* pushes have slots, after all lines */
  };
  /* parts begin at multiples of 128 bytes, so that stores of a warp fill lines of memory */
  struct allreduce_lines l = {(flags + 127) / 128 * 128, 0, 0};
  for (int m = 0; m <= (int)method; m++) {
    l.at += 2 * (size_t)l.half;
    l.part = (uint32_t)((parts[m] + 127) / 128 * 128);
    l.half = (uint32_t)n * l.part;
  }
  return l;
}

/* A part for bare lines has them from its beginning on, and their escapes from its end on down.
 * That of the line at offset `at`: */
ALLREDUCE_RULE size_t allreduce_escape_at(struct allreduce_lines l, size_t at)
{
  return l.part - 1 - at / ALLREDUCE_LINE;
}

/* ---- slices, rounds and chunks --------------------------------------------------------------- */

/* How a pushed vector is divided. A word is 16 bytes from a multiple of 16 *of the address* in the
 * receive buffer. Word 0 begins at the multiple of 128 at or before the vector, because stores that
 * fill lines of memory make the largest packets. So the first words and the last one may have bytes
 * that are not the vector's. Rank p adds slice p: words share * p to share * (p + 1). In each round
 * a block takes one chunk of each slice. */
#define ALLREDUCE_WORD 16
#define ALLREDUCE_SLOTS 2 /* of each pair of ranks, for each block: one is filled, one is added */

struct allreduce_chunks {
  size_t skip, bytes;     /* where the vector begins in word 0; its length */
  size_t share;           /* words of a slice: a multiple of 8, 128 bytes */
  uint32_t chunk, rounds; /* words of a chunk, also a multiple of 8; chunks of a block */
  size_t slots;           /* the offset of the first slot in the scratch memory */
};

/* `most`: bytes of a slot, at least 128. */
ALLREDUCE_RULE struct allreduce_chunks allreduce_chunks_of(const void *recv, size_t bytes, int n,
                                                           int blocks, size_t most)
{
  const size_t skip = (uintptr_t)recv % 128;
  const size_t lines = (skip + bytes + 127) / 128, share = (lines + (size_t)n - 1) / (size_t)n;
  const size_t per_block = (share + (size_t)blocks - 1) / (size_t)blocks;
  const size_t rounds = (per_block + most / 128 - 1) / (most / 128);
  const struct allreduce_chunks c = {skip,
                                     bytes,
                                     share * 8,
                                     (uint32_t)((per_block + rounds - 1) / rounds * 8),
                                     (uint32_t)rounds,
                                     allreduce_lines_of(n, ALLREDUCE_PUSH).at};
  return c;
}

/* The first word of chunk number `round` of a block, in slice p; and how many words it has. */
ALLREDUCE_RULE size_t allreduce_chunk_at(struct allreduce_chunks c, int p, uint32_t round,
                                         int block, int blocks, uint32_t *words)
{
  const size_t in_slice = ((size_t)round * (size_t)blocks + (size_t)block) * c.chunk;
  const size_t at = c.share * (size_t)p + in_slice;
  const size_t all = (c.skip + c.bytes + ALLREDUCE_WORD - 1) / ALLREDUCE_WORD;
  const size_t end = c.share * (size_t)(p + 1) < all ? c.share * (size_t)(p + 1) : all;
  *words = at >= end ? 0 : end - at < c.chunk ? (uint32_t)(end - at) : c.chunk;
  return at;
}

/* The offset in a rank's scratch memory of the slot for a chunk of the i-th rank after it. */
ALLREDUCE_RULE size_t allreduce_slot_at(struct allreduce_chunks c, int i, uint32_t round, int block,
                                        int blocks)
{
  const size_t row = ((size_t)(i - 1) * (size_t)blocks + (size_t)block) * ALLREDUCE_SLOTS;
  return c.slots + (row + round % ALLREDUCE_SLOTS) * c.chunk * ALLREDUCE_WORD;
}

#endif
