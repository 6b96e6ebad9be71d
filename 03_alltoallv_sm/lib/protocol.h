/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of an exchange tell each other, and the rules by which both come to the same
 * verdict. The kernel (kernel.cuh), its CPU version and the host code share this file, so that a
 * rule exists once. C and CUDA C++.
 *
 * The exchanges of a handle are numbered; the number is the epoch. In epoch e every rank first
 * sends every peer a header (what I send you, what I expect from you, where it shall go), zero
 * counts included. A header says two more things by being there: "I have finished epoch e - 1" and
 * "my receive buffer is free". Why nothing is ever overwritten too early follows from these two;
 * the argument is at read_header in wait.cuh. */
#ifndef ALLTOALLV_PROTOCOL_H
#define ALLTOALLV_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ALLTOALLV_RULE static __host__ __device__ inline
#else
#define ALLTOALLV_RULE static inline
#endif

/* Ranks that reach each other by load and store; 72 is the largest NVLink domain today. */
#define ALLTOALLV_MAX_LSA_RANKS 72
/* Blocks of one launch, the control block included. */
#define ALLTOALLV_MAX_BLOCKS 264
/* Receive buffers registered at the same time. */
#define ALLTOALLV_MAX_WINDOWS 64

/* The traffic between me and one peer, in bytes. */
struct alltoallv_pair {
  uint64_t send_bytes;  /* what I send to it */
  uint64_t send_offset; /* where that lies in my send buffer */
  uint64_t recv_bytes;  /* what I expect from it */
  uint64_t recv_offset; /* where that shall go in my receive buffer */
};

/* ---- the header --------------------------------------------------------------------------- */

/* What kind of exchange this is. Two ranks that disagree have made different calls. */
enum alltoallv_kind {
  ALLTOALLV_KIND_HOST = 1,   /* both know the counts */
  ALLTOALLV_KIND_PACKED = 2, /* counts on the device, parts one after the other */
  ALLTOALLV_KIND_SLOTS = 3,  /* counts on the device, parts in slots of one size */
};

/* The header travels as three lines of 12 bytes each (one 64-bit, one 32-bit number). With device
 * counts, one more line per rank follows: the sender's whole row of counts. */
enum alltoallv_header_line {
  ALLTOALLV_LINE_SENT = 0,   /* bytes I send you | kind */
  ALLTOALLV_LINE_EXPECT = 1, /* bytes I expect from you; device counts: what fits | window id */
  ALLTOALLV_LINE_OFFSET = 2, /* offset in that window for your data | bytes of my elements */
  ALLTOALLV_LINE_COUNTS = 3, /* + p: elements I send to rank p | kind */
};

/* A header has copies, 128 bytes apart, for the blocks that push large pairs. All of these wait for
 * it, and a hundred loads of one line at the same time queue up, together with the header that
 * comes to that place. They are sent where both counts are on the host and a pair is large. */
#define ALLTOALLV_HEADER_COPIES 16
#define ALLTOALLV_COPY_BYTES 128

struct alltoallv_header {
  uint64_t sent, expect, offset;
  uint32_t kind, window, element;
};

/* After 0xffffffff comes 2: the 32 bits run out after about 3 hours of exchanges of 2.5 us. 0 is
 * left out because it marks a line that was never written; 1 because odd and even numbers have to
 * alternate, and 0xffffffff is odd. Lines of the round before are then cleared, first the even
 * ones, then the odd ones, and both once more: see alltoallv_stale_parity. */
ALLTOALLV_RULE uint32_t alltoallv_next_epoch(uint32_t epoch)
{
  return epoch == 0xffffffffu ? 2 : epoch + 1;
}

/* The parity (0: even, 1: odd epochs) whose lines have to be cleared at the beginning of `epoch`,
 * before its headers go out, or -1. By then we have read what we wait for of that parity, and
 * nobody sends more of it before our header of `epoch`. What nobody waits for, copies of a header
 * and lines of a pair whose counts disagree, may land after that: two epochs later it has landed,
 * because its sender's kernel has ended, and is cleared, too. */
ALLTOALLV_RULE int alltoallv_stale_parity(uint32_t epoch)
{
  if (epoch == 0xffffffffu || epoch == 3) return 0;
  return epoch == 2 || epoch == 4 ? 1 : -1;
}

/* ---- verdicts ----------------------------------------------------------------------------- */

/* Do sender and receiver agree on a pair? Both ask this, with the same two numbers. */
ALLTOALLV_RULE int alltoallv_counts_agree(uint64_t sent, uint64_t expected)
{
  return sent == expected;
}

/* Counts >= 2^55 bytes are clamped to [2^55, 2^56): too large for any buffer, small enough to be
 * multiplied and added up without overflow. */
#define ALLTOALLV_TOO_MANY ((uint64_t)1 << 55)

ALLTOALLV_RULE uint64_t alltoallv_clamp_count(uint64_t count, uint32_t element)
{
#ifdef __CUDA_ARCH__
  const uint64_t most = (uint64_t)1 << (24 + __clz((int)element));
#else
  const uint64_t most = (uint64_t)1 << (24 + __builtin_clz(element));
#endif
  return count < most ? count : most;
}

/* ---- errors that the device finds --------------------------------------------------------- */

enum alltoallv_error_kind {
  ALLTOALLV_ERROR_NONE = 0,
  ALLTOALLV_ERROR_MISMATCH, /* sent != expected */
  ALLTOALLV_ERROR_KIND,     /* different calls; sent and expected are the kinds */
  ALLTOALLV_ERROR_CAPACITY, /* sent: bytes needed, expected: bytes that fit */
  ALLTOALLV_ERROR_TIMEOUT,  /* nothing came from source */
};

/* In host memory that the device can write. `kind` is written last and cleared by the host; while
 * it is set the device leaves the record alone, so the first error is the one reported. */
struct alltoallv_error {
  int kind;
  int source, destination;
  uint64_t sent, expected;
  uint32_t element; /* bytes of what the rank that reports it counts */
};

/* One record for what the handle survives, one for the timeout, which it does not. */
struct alltoallv_errors {
  struct alltoallv_error counts, timeout;
};

/* ---- scratch memory of a rank, written by its peers --------------------------------------- */

/* A line is 16 bytes: 12 of data and the epoch, stored and loaded as one piece, so that whoever
 * sees the epoch sees the data; no fence, no flag, no waiting between data and flag. Small pairs
 * travel in such lines (the low-latency protocol, "LL"), in groups of up to 32 x 4 lines: a warp
 * moves 32 x 48 bytes at a time. */
#define ALLTOALLV_LINE_BYTES 16
#define ALLTOALLV_LANE_BYTES 48 /* data that one lane moves at a time, as 4 lines */
#define ALLTOALLV_GROUP_BYTES (32 * ALLTOALLV_LANE_BYTES)
#define ALLTOALLV_GROUP_LINES (32 * 4)

/* The first bytes of a large pair are eager: they travel in lines too, with counts from the host,
 * while the header of the peer is on its way, so that the link does not idle. This is about what a
 * rank can send in that time; its peers share it. Sender and receiver come to the same number. */
#define ALLTOALLV_EAGER_BYTES ((size_t)256 << 10)
ALLTOALLV_RULE uint32_t alltoallv_eager_bytes(int n, size_t ll_threshold)
{
  size_t eager = n > 1 ? ALLTOALLV_EAGER_BYTES / (size_t)(n - 1) : 0;
  if (eager > ll_threshold) eager = ll_threshold; /* for which there is room in a mailbox */
  return (uint32_t)(eager / ALLTOALLV_GROUP_BYTES * ALLTOALLV_GROUP_BYTES);
}

/* The scratch memory:
 *   received[source]          bytes that source has pushed into my receive buffers since init
 *   mailbox[parity][source]   header lines, copies of the header, LL lines */
struct alltoallv_scratch {
  uint32_t mailboxes_at;                       /* byte offset */
  uint32_t mailbox_bytes, copies_at, lines_at; /* of a mailbox; in it */
  uint64_t bytes;                              /* all */
};

ALLTOALLV_RULE struct alltoallv_scratch alltoallv_scratch_layout(int n, size_t ll_threshold)
{
  struct alltoallv_scratch s;
  uint64_t groups = (ll_threshold + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
  uint32_t header = (ALLTOALLV_LINE_COUNTS + (uint32_t)n) * ALLTOALLV_LINE_BYTES;
  s.mailboxes_at = 2048;
  s.copies_at = (header + 127) / 128 * 128;
  s.lines_at = s.copies_at + ALLTOALLV_HEADER_COPIES * ALLTOALLV_COPY_BYTES;
  s.mailbox_bytes = s.lines_at + (uint32_t)(groups * ALLTOALLV_GROUP_LINES * ALLTOALLV_LINE_BYTES);
  s.bytes = s.mailboxes_at + (uint64_t)2 * (uint64_t)n * s.mailbox_bytes;
  return s;
}

/* Byte offset in a mailbox: of the header, or of copy number `copy` > 0. */
ALLTOALLV_RULE uint32_t alltoallv_header_at(const struct alltoallv_scratch *s, uint32_t copy)
{
  return copy == 0 ? 0 : s->copies_at + (copy - 1) * ALLTOALLV_COPY_BYTES;
}

/* Byte offset of the mailbox in which `source` writes in epochs of that parity. */
ALLTOALLV_RULE uint64_t alltoallv_mailbox_at(const struct alltoallv_scratch *s, int n,
                                             uint32_t epoch, int source)
{
  return s->mailboxes_at +
         ((uint64_t)(epoch & 1) * (uint64_t)n + (uint64_t)source) * s->mailbox_bytes;
}

#endif
