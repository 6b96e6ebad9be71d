/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of an exchange send each other, and the rules by which both come to the same
 * verdict, once for the kernel and the host. C and CUDA C++.
 *
 * The exchanges of a handle are numbered; the number is the epoch. In each every rank first sends
 * every rank a header (what I send you, what I expect from you, where it shall go), zero counts
 * included. By being there it says two more things: "I have finished the epoch before" and "my
 * receive buffer is free". So nothing is overwritten too early: see read_header in
 * alltoallv_wait.cuh. */
#ifndef ALLTOALLV_PROTOCOL_H
#define ALLTOALLV_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ALLTOALLV_RULE static __host__ __device__ inline
#else
#define ALLTOALLV_RULE static inline
#endif

#define ALLTOALLV_MAX_LSA_RANKS 72 /* the largest NVLink domain today */
#define ALLTOALLV_MAX_BLOCKS 264   /* of one launch */
#define ALLTOALLV_MAX_WINDOWS 64   /* receive buffers registered at the same time */
#define ALLTOALLV_MAX_PAYLOADS 4   /* buffers with the same counts */

/* The traffic between me and one peer, in units: bytes where the host knows the counts, else
 * elements. */
struct alltoallv_pair {
  uint64_t sends;    /* what I send to it */
  uint64_t sends_at; /* where that lies in my send buffer */
  uint64_t gets;     /* what I expect from it */
  uint64_t gets_at;  /* where that shall go in my receive buffer */
};

/* Buffers that are exchanged by the same counts. */
struct alltoallv_payload {
  const char *send;
  char *recv;
  uint64_t place; /* of recv, as peers find it: see struct alltoallv_window */
  uint64_t unit;  /* bytes */
};

/* An exchange: what the host hands to the kernel, beside the pairs. */
struct alltoallv_request {
  uint32_t kind;    /* see enum alltoallv_kind */
  uint32_t element; /* what the caller counts in, in bytes; device counts: of the first payload */
  uint32_t payloads;
  uint32_t widest; /* the largest unit of them */
  /* device counts: what fits, the largest count, in elements; and device arrays */
  uint64_t room, most;
  const size_t *sendcounts, *sdispls;
  size_t *recvcounts, *rdispls, *needed;
  struct alltoallv_payload payload[ALLTOALLV_MAX_PAYLOADS];
};

/* ---- the header --------------------------------------------------------------------------- */

/* What kind of exchange this is, plus 4 for each payload after the first. Two ranks that disagree
 * have made different calls. */
enum alltoallv_kind {
  ALLTOALLV_KIND_HOST = 1,   /* both know the counts */
  ALLTOALLV_KIND_PACKED = 2, /* counts on the device, parts one after the other */
  ALLTOALLV_KIND_SLOTS = 3,  /* counts on the device, parts in slots of one size */
};

ALLTOALLV_RULE int alltoallv_in_slots(uint32_t kind)
{
  return kind % 4 == ALLTOALLV_KIND_SLOTS;
}

/* A mailbox, what a rank writes at a peer, begins with slots of four lines; the first three are a
 * header, each one 64-bit and one 32-bit number. With host counts the first block that pushes
 * (tile_block 0) sends one to every peer. For a large pair the other blocks that push do so, too,
 * each to the peer's block of its number, so that no block waits for another. With device counts
 * block 0 sends one for each payload, in slot after slot. After the slots comes the row of counts:
 * a line for each rank, with the elements that it is sent | kind. */
enum alltoallv_slot_line {
  ALLTOALLV_LINE_SENT = 0,   /* bytes I send you | kind */
  ALLTOALLV_LINE_EXPECT = 1, /* bytes I expect from you; device counts: elements that fit */
  ALLTOALLV_LINE_PLACE = 2,  /* where your data shall go | bytes of my elements */
  ALLTOALLV_LINE_DONE = 3,   /* in slot 0: all blocks have stored large pairs */
  ALLTOALLV_SLOT_LINES = 4,
};

struct alltoallv_header {
  uint64_t sent, expect, place;
  uint32_t kind, element;
};

/* The first epoch of a handle, after those that clear memory, which is clear. */
#define ALLTOALLV_FIRST_EPOCH 6

/* After 0xffffffff, which takes some 3 hours of exchanges, comes 4: 0 marks a line that was never
 * written, and modulo 2 and 3 epochs go on as before. */
ALLTOALLV_RULE uint32_t alltoallv_next_epoch(uint32_t epoch)
{
  return epoch == 0xffffffffu ? 4 : epoch + 1;
}

/* ---- verdicts ----------------------------------------------------------------------------- */

/* Counts of 2^55 bytes or more become request.most: too large for any buffer, small enough to be
 * multiplied and added up without overflow. */
#define ALLTOALLV_TOO_MANY ((uint64_t)1 << 55)

ALLTOALLV_RULE uint64_t alltoallv_least(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* Device counts, when the rows of all ranks are there: every rank knows the same matrix, in
 * elements, and comes to the same verdict. counts[s * stride + d] go from s to d, and at d there is
 * room for rooms[d * stride], in a slot or in all. */
struct alltoallv_matrix {
  const uint64_t *counts, *rooms;
  size_t stride;
  int n, slots;
};

/* Where the part from s begins in the receive buffer of d. */
ALLTOALLV_RULE uint64_t alltoallv_part_at(const struct alltoallv_matrix *m, int s, int d)
{
  uint64_t at = 0;
  if (m->slots) return (uint64_t)s * m->rooms[(size_t)d * m->stride];
#ifdef __CUDA_ARCH__
#pragma unroll 1 /* instructions have to be fetched, too */
#endif
  for (int q = 0; q < s; q++) at += m->counts[(size_t)q * m->stride + (size_t)d];
  return at;
}

/* Does what rank d shall receive fit there? If not, *source and *needs say what does not, and how
 * many elements that is; source -1: the sum. */
ALLTOALLV_RULE int alltoallv_fits(const struct alltoallv_matrix *m, int d, int *source,
                                  uint64_t *needs)
{
  const uint64_t room = m->rooms[(size_t)d * m->stride];
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (*source = 0; m->slots && *source < m->n; ++*source) {
    *needs = m->counts[(size_t)*source * m->stride + (size_t)d];
    if (*needs > room) return 0;
  }
  *source = -1;
  *needs = m->slots ? 0 : alltoallv_part_at(m, m->n, d);
  return *needs <= room;
}

/* ---- what a rank remembers from one exchange to the next ---------------------------------- */

/* In device memory, because numbers that the host passed would freeze in a graph. Each block of the
 * kernel has a copy of the first two, which it reads by one load: a hundred blocks that read one
 * word would queue up. */
struct alltoallv_state {
  struct {
    uint32_t epoch;  /* the last one */
    uint32_t broken; /* a wait was given up: forever */
  } __attribute__((aligned(8))) block[ALLTOALLV_MAX_BLOCKS];
  /* [epoch % 3]: the last one that has reported an error, and may have left lines unread */
  uint32_t reported[4] __attribute__((aligned(16)));
  struct {
    uint32_t pushed[ALLTOALLV_MAX_PAYLOADS]; /* tiles handed out: see push_tiles */
    uint32_t own[ALLTOALLV_MAX_PAYLOADS]; /* the same of the rank's own part: see copy_own_tiles */
    uint32_t done;                        /* blocks that have stored their tiles */
  } taken[2];                             /* [parity of the epoch] */
};

/* ---- errors that the device finds --------------------------------------------------------- */

enum alltoallv_error_kind {
  ALLTOALLV_ERROR_NONE = 0,
  ALLTOALLV_ERROR_MISMATCH, /* sent != expected */
  ALLTOALLV_ERROR_KIND,     /* different calls; sent and expected are the kinds */
  ALLTOALLV_ERROR_CAPACITY, /* sent: elements needed, expected: elements that fit */
  ALLTOALLV_ERROR_TIMEOUT,  /* nothing came from source */
};

/* In host memory that the device can write. `kind` is written last and cleared by the host; while
 * it is set the device leaves the record alone, so the first error is the one reported. */
struct alltoallv_error {
  int kind;
  int source, destination;
  uint64_t sent, expected;
  uint32_t element; /* bytes of what the rank that reports it counts; 1: these are elements */
  uint32_t epoch;   /* which exchange of the handle */
};

/* One record for what the handle survives, one for the timeout, which it does not. */
struct alltoallv_errors {
  struct alltoallv_error counts, timeout;
};

/* ---- scratch memory of a rank, written by its peers --------------------------------------- */

/* A line is 16 bytes. In slots and in the row of counts it is 12 bytes and the epoch. Small pairs
 * travel in bare lines, which are data only. They come in groups: each lane of a warp moves 2 at a
 * time.
 *
 * The place of a bare line is empty while its last 4 bytes are 0. So these are not sent as they
 * are, but XOR the key, which is (the end of) a NaN in every floating type, and rare as an integer.
 * If that is 0 or 1, then 1 is sent, and a byte at the end of the mailbox, the line's escape, says
 * which of them it is: 1 for 0, and 2 for 1. An escape of 0 has not come. */
#define ALLTOALLV_KEY 0xfff5ffc3u
#define ALLTOALLV_LINE_BYTES 16
#define ALLTOALLV_LANE_LINES 2
#define ALLTOALLV_GROUP_LINES (32 * ALLTOALLV_LANE_LINES)
#define ALLTOALLV_GROUP_BYTES (ALLTOALLV_GROUP_LINES * ALLTOALLV_LINE_BYTES)

/* The scratch memory is mailbox[epoch % 3][source]; a mailbox has slots, the row of counts, as many
 * groups of lines as ll_bytes takes, an equal part for each payload, and their escapes:
 *
 *   0          slot of block 0:   sent | expect | place | done     lines of 16 bytes
 *              slot of block 1:   sent | expect | place | -
 *              ... 264 slots
 *   COUNTS_AT  with device counts, what the source sends:  to rank 0 | to rank 1 | ... | to rank 71
 *   LL_AT      group 0: 64 bare lines | group 1 | ...
 *   end        ... | escape of line 1 | escape of line 0     a byte for each bare line
 */
#define ALLTOALLV_SLOT_BYTES (ALLTOALLV_SLOT_LINES * ALLTOALLV_LINE_BYTES)
#define ALLTOALLV_COUNTS_AT (ALLTOALLV_MAX_BLOCKS * ALLTOALLV_SLOT_BYTES)
#define ALLTOALLV_LL_AT (ALLTOALLV_COUNTS_AT + ALLTOALLV_MAX_LSA_RANKS * ALLTOALLV_LINE_BYTES)

ALLTOALLV_RULE uint32_t alltoallv_mailbox_bytes(size_t ll_bytes)
{
  return (uint32_t)(ALLTOALLV_LL_AT + ll_bytes + ll_bytes / ALLTOALLV_LINE_BYTES);
}

#endif
