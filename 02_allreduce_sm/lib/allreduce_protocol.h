/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that the ranks of an AllReduce share: how calls are numbered, the layout of the scratch
 * memory, and which rank adds which elements. The kernels, their CPU version and the host code all
 * use this file. C and CUDA C++. */
#ifndef ALLREDUCE_PROTOCOL_H
#define ALLREDUCE_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ALLREDUCE_RULE static __host__ __device__ inline
#else
#define ALLREDUCE_RULE static inline
#endif

/* 72 is the largest NVLink domain today. */
#define ALLREDUCE_MAX_RANKS 72
/* Blocks of one launch, at most: two on each multiprocessor of an H100 or H200. */
#define ALLREDUCE_MAX_BLOCKS 264

/* ---- tags: epoch and check ------------------------------------------------------------------- */

/* The calls of a handle are numbered from 1 on; the number is the epoch. Calls without elements are
 * not counted. Everything that a rank writes into another rank's scratch memory carries a tag: the
 * epoch in the upper 48 bits, and 16 bits that depend on count and type, and with two hops and
 * two-shot on the place. The reader sees whether the tag belongs to this call, and whether both
 * ranks made the same call. The second check misses one pair of counts in 65,536; 1 and 2899 floats
 * are such a pair. A 48-bit epoch wraps only after about 18 years of one call every 2 us. */
#define ALLREDUCE_CHECK_BITS 16

/* Two-shot loads and stores at this rank's offsets in the windows of the others. */
ALLREDUCE_RULE uint64_t allreduce_place(uint64_t send_offset, uint64_t recv_offset, int in_place)
{
  return (send_offset * 0xbf58476d1ce4e5b9u + recv_offset) * 2 + (uint64_t)(in_place != 0);
}

/* `place` is 0 for one hop of lines, which does not depend on it. */
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

/* An LL line (LL: "low latency", as NCCL calls it): 8 bytes of data and the tag, written by one
 * store of 16 bytes and read by one load: a rank that sees the tag has the data as well. */
struct allreduce_line {
  uint64_t data, tag;
};

/* A wide line has 120 bytes of data in 128, as eight pieces of 16 bytes. The last byte of each
 * piece is its mark. The data that had its place are in the last piece, which has only one word of
 * its own. Each piece is stored and loaded by one instruction, so whoever sees its mark has its
 * data. */
#define ALLREDUCE_WIDE_LINE 128
#define ALLREDUCE_WIDE_PIECES 8
#define ALLREDUCE_WIDE_WORDS 15 /* of 8 bytes */

/* A mark is not 0, and the reader of a piece sets it to 0. So one bit shows that the piece has
 * arrived. The other seven are for the check: each piece has some of its bits, and a line all of
 * them. If the counts differ and the checks do not, by chance, some pieces are never read. As the
 * epoch is added, only a call 256, 512, ... epochs later could take them. */
ALLREDUCE_RULE uint32_t allreduce_mark(uint64_t tag, int piece)
{
  const uint32_t check = (uint32_t)tag & ((1 << ALLREDUCE_CHECK_BITS) - 1);
  return 0x80 | (((check >> (2 * piece)) + (uint32_t)(allreduce_epoch(tag) >> 1)) & 0x7f);
}

enum allreduce_flag {
  ALLREDUCE_BEGUN, /* this rank is in the call: earlier work of its stream is done */
  ALLREDUCE_ENDED, /* this block has read and stored all its data */
  ALLREDUCE_FLAGS
};

/* The most bytes of a vector that goes as LL lines: above, wide lines are faster. And the most
 * bytes that a rank sends as wide lines. */
#define ALLREDUCE_LL_BYTES ((size_t)16 << 10)
#define ALLREDUCE_WIDE_BYTES ((size_t)4 << 20)

/* The offset in a rank's scratch memory of a flag of rank `source`, in bytes. */
ALLREDUCE_RULE size_t allreduce_flag_at(int n, enum allreduce_flag which, int block, int source)
{
  const size_t row = (size_t)which * ALLREDUCE_MAX_BLOCKS + (size_t)block;
  return (row * (size_t)n + (size_t)source) * sizeof(uint64_t);
}

/* The lines of one kind in a rank's scratch memory. Each source has its own part for odd calls and
 * for even calls. The two kinds never share memory, because data of one would be marks of the
 * other. */
struct allreduce_lines {
  size_t at, part; /* the first byte; bytes of a part */
};

ALLREDUCE_RULE struct allreduce_lines allreduce_lines_of(int n, int wide)
{
  const size_t flags = allreduce_flag_at(n, ALLREDUCE_FLAGS, 0, 0);
  const size_t others = n > 1 ? (size_t)n - 1 : 1;
  struct allreduce_lines l;
  /* parts begin at multiples of 128 bytes, so that a wide line is one cache line */
  l.at = (flags + 127) / 128 * 128;
  l.part = ALLREDUCE_LL_BYTES / 8 * sizeof(struct allreduce_line);
  if (wide) {
    l.at += 2 * (size_t)n * l.part;
    l.part = (ALLREDUCE_WIDE_BYTES / 8 / others / ALLREDUCE_WIDE_WORDS + 16) * ALLREDUCE_WIDE_LINE;
  }
  return l;
}

/* The offset of the first line of rank `source` in an epoch. */
ALLREDUCE_RULE size_t allreduce_lines_at(struct allreduce_lines l, int n, uint64_t epoch,
                                         int source)
{
  /* only the choice of the half needs the epoch; the rest is computed before it is known */
  return l.at + (size_t)source * l.part + (epoch & 1 ? (size_t)n * l.part : 0);
}

ALLREDUCE_RULE size_t allreduce_scratch_bytes(int n)
{
  return allreduce_lines_at(allreduce_lines_of(n, 1), n, 1, n);
}

/* With two hops, the wide lines that each rank adds, of all lines of the vector. Both are multiples
 * of 4, the lines of a warp. The last ranks may have empty lines. */
ALLREDUCE_RULE uint32_t allreduce_hop_lines(size_t lines, int n)
{
  return ((uint32_t)lines / 4 + (uint32_t)n - 1) / (uint32_t)n * 4;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* How the two-shot method divides a vector. A word is 16 bytes from a multiple of 16 *of the
 * address*, not of the vector; each word belongs to one rank. Slices begin at multiples of 128 in
 * the receive buffer, because stores that fill lines of memory make the largest packets. The few
 * elements before the first slice and after the last word belong to the last rank. */
#define ALLREDUCE_WORD 16

struct allreduce_slice {
  int misaligned;    /* the buffers begin at different places in a word: a word is an element */
  size_t head;       /* elements before the first slice */
  size_t first, end; /* words of this rank */
  size_t tail;       /* the first element after the last word */
  int has_edges;     /* does this rank also have head and tail? */
};

ALLREDUCE_RULE struct allreduce_slice allreduce_slice_of(const void *send, const void *recv,
                                                         size_t count, size_t size, int rank, int n)
{
  const size_t from = (uintptr_t)send % ALLREDUCE_WORD, to = (uintptr_t)recv % ALLREDUCE_WORD;
  struct allreduce_slice s = {from != to, 0, 0, 0, count, rank == n - 1};
  size_t words = count;
  if (!s.misaligned) {
    s.head = (128 - (uintptr_t)recv % 128) % 128 / size;
    if (s.head > count) s.head = count;
    words = (count - s.head) * size / ALLREDUCE_WORD;
    s.tail = s.head + words * (ALLREDUCE_WORD / size);
  }
  const size_t share = (words + 8 * (size_t)n - 1) / (8 * (size_t)n) * 8; /* 128 bytes */
  s.first = share * (size_t)rank < words ? share * (size_t)rank : words;
  s.end = words - s.first < share ? words : s.first + share;
  return s;
}

#endif
