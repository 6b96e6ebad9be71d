/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of an exchange tell each other, and the rules by which both come to the same
 * verdict. The kernel (lsa/alltoallv_kernel.cuh), its plain C twin (alltoallv_lsa_cpu.c) and the
 * host code share this file, so that a rule exists once. C and CUDA C++.
 *
 * The exchanges of a handle are numbered, and `call` in the code is that number: "exchange", "call"
 * and "number of the exchange" mean the same thing. In exchange `call` every rank first sends every
 * peer a header (what I send you, what I expect from you, where it shall go), zero counts included.
 * A header says two more things by being there: "I have finished exchange call - 1" and "my receive
 * buffer is free". Why nothing is ever overwritten too early follows from these two; the argument
 * stands at read_header in lsa/alltoallv_wait.cuh. */
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

/* ---- what is counted ---------------------------------------------------------------------- */

/* What a count of one means: an element, or a row of several of them. Inside of the library
 * everything is in bytes; units are for reading device counts and for naming numbers to users. */
struct alltoallv_unit {
  uint32_t bytes;
  uint32_t rows; /* 1: counts are in rows, 0: in elements */
};

/* ---- the traffic between me and one peer, in bytes ---------------------------------------- */

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
  ALLTOALLV_KIND_SLOTS = 3,  /* counts on the device, parts in slots */
};

/* The header travels as three lines of 12 bytes each (one 64-bit, one 32-bit number). With device
 * counts, more lines follow: one per rank with the sender's whole row of counts, and for slots one
 * per rank with the room in the sender's receive buffer. */
enum alltoallv_header_line {
  ALLTOALLV_LINE_SENT = 0,   /* bytes I send you | kind */
  ALLTOALLV_LINE_EXPECT = 1, /* bytes I expect from you, or the capacity in bytes | window id */
  ALLTOALLV_LINE_OFFSET = 2, /* offset in that window for your data | bytes of my unit */
  ALLTOALLV_LINE_COUNTS = 3, /* + p: bytes I send to rank p | 0 */
};

/* A header has copies, 128 bytes apart, for the blocks that push large pairs. All of these wait for
 * it, and a hundred loads of one line at the same time queue up, together with the header that
 * comes to that place. They are sent where both counts are on the host and a pair is large. */
#define ALLTOALLV_HEADER_COPIES 16
#define ALLTOALLV_COPY_BYTES 128

struct alltoallv_header {
  uint64_t sent, expect, offset;
  uint32_t kind, window, unit;
};

/* After 0xffffffff comes 2: the 32 bits run out after about 3 hours of calls of 2.5 us. 0 is left
 * out because it marks a line that was never written; 1 because odd and even numbers have to go on
 * taking turns, and 0xffffffff is odd. Lines of the round before are then cleared, first the even
 * ones, then the odd ones, and both once more: see alltoallv_stale_parity. */
ALLTOALLV_RULE uint32_t alltoallv_next_call(uint32_t call)
{
  return call == 0xffffffffu ? 2 : call + 1;
}

/* The parity (0: even, 1: odd numbers) whose lines have to be cleared at the beginning of `call`,
 * before its headers go out, or -1. By then we have read what we wait for of that parity, and
 * nobody sends more of it before our header of `call`. What nobody waits for, copies of a header
 * and lines of a pair whose counts disagree, may land after that: two calls later it has landed,
 * because its sender's kernel has ended, and is cleared, too. */
ALLTOALLV_RULE int alltoallv_stale_parity(uint32_t call)
{
  if (call == 0xffffffffu || call == 3) return 0;
  return call == 2 || call == 4 ? 1 : -1;
}

/* ---- verdicts ----------------------------------------------------------------------------- */

/* Do sender and receiver agree on a pair? Both ask this, with the same two numbers. */
ALLTOALLV_RULE int alltoallv_counts_agree(uint64_t sent, uint64_t expected)
{
  return sent == expected;
}

/* Device counts that cannot be meant (a negative number, say) become at least this many bytes, and
 * less than twice as many: that fits nowhere, and can be multiplied and added up without overflow.
 */
#define ALLTOALLV_TOO_MANY ((uint64_t)1 << 55)

ALLTOALLV_RULE uint64_t alltoallv_device_bytes(uint64_t count, uint32_t unit)
{
#ifdef __CUDA_ARCH__
  const uint64_t most = (uint64_t)1 << (24 + __clz((int)unit));
#else
  const uint64_t most = (uint64_t)1 << (24 + __builtin_clz(unit));
#endif
  return (count < most ? count : most) * unit;
}

/* How much slot p may take: up to the next higher displacement, or the capacity. Of slots that
 * begin at the same place the last one has the room and the others are empty, as among prefix
 * sums. */
ALLTOALLV_RULE uint64_t alltoallv_room(const uint64_t *displacements, int n, int p,
                                       uint64_t capacity)
{
  const uint64_t mine = displacements[p];
  uint64_t end = capacity;
  for (int q = 0; q < n; q++)
    if ((q > p ? displacements[q] >= mine : displacements[q] > mine) && displacements[q] < end)
      end = displacements[q];
  return mine < end ? end - mine : 0;
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
  struct alltoallv_unit unit; /* in which the rank that reports it counts */
};

/* One record for what the handle survives, one for the timeout, which it does not. */
struct alltoallv_errors {
  struct alltoallv_error counts, timeout;
};

/* ---- scratch memory of a rank, written by its peers --------------------------------------- */

/* A line is 16 bytes: 12 of data and the number of the call, stored and loaded as one piece, so
 * that whoever sees the number sees the data; no fence, no flag, no waiting between data and flag.
 * Small pairs travel in such lines (the low-latency protocol, "LL"), in groups of up to 32 x 4
 * lines: a warp moves 32 x 48 bytes at a time. */
#define ALLTOALLV_LINE_BYTES 16
#define ALLTOALLV_LANE_BYTES 48 /* data that one lane moves at a time, as 4 lines */
#define ALLTOALLV_GROUP_BYTES (32 * ALLTOALLV_LANE_BYTES)
#define ALLTOALLV_GROUP_LINES (32 * 4)

/* The first bytes of a large pair travel in lines too, with counts from the host: for as long as
 * the header of the peer is on its way, so that the link does not idle. This is about what a rank
 * can send in that time; its peers share it. Sender and receiver come to the same number. */
#define ALLTOALLV_LEAD_BYTES ((size_t)256 << 10)
ALLTOALLV_RULE uint32_t alltoallv_lead(int n, size_t ll_threshold)
{
  size_t lead = n > 1 ? ALLTOALLV_LEAD_BYTES / (size_t)(n - 1) : 0;
  if (lead > ll_threshold) lead = ll_threshold; /* for which there is room in a mailbox */
  return (uint32_t)(lead / ALLTOALLV_GROUP_BYTES * ALLTOALLV_GROUP_BYTES);
}

/* The scratch memory:
 *   received[source]      bytes that source has pushed into my receive buffers since init
 *   ready[peer]       copy engine: start number for which the peer's receive buffer is free
 *   arrived[source]   copy engine: start number whose data have arrived
 *   mailbox[parity][source]   header lines, copies of the header, LL lines */
struct alltoallv_scratch {
  uint32_t ready_at, arrived_at, mailboxes_at; /* byte offsets */
  uint32_t mailbox_bytes, copies_at, lines_at; /* of a mailbox; in it */
  uint64_t bytes;                              /* all */
};

ALLTOALLV_RULE struct alltoallv_scratch alltoallv_scratch_layout(int n, size_t ll_threshold)
{
  struct alltoallv_scratch s;
  uint64_t groups = (ll_threshold + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
  uint32_t header = (ALLTOALLV_LINE_COUNTS + 2 * (uint32_t)n) * ALLTOALLV_LINE_BYTES;
  s.ready_at = ALLTOALLV_MAX_LSA_RANKS * 8;
  s.arrived_at = s.ready_at + ALLTOALLV_MAX_LSA_RANKS * 4;
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

/* Byte offset of the mailbox in which `source` writes in calls of that parity. */
ALLTOALLV_RULE uint64_t alltoallv_mailbox_at(const struct alltoallv_scratch *s, int n,
                                             uint32_t call, int source)
{
  return s->mailboxes_at +
         ((uint64_t)(call & 1) * (uint64_t)n + (uint64_t)source) * s->mailbox_bytes;
}

#endif
