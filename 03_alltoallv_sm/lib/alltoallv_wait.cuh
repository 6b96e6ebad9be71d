/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the kernel share: arguments, lines, mailboxes, waiting with a timeout. */
#ifndef ALLTOALLV_WAIT_CUH
#define ALLTOALLV_WAIT_CUH

#include <stddef.h>

#include "alltoallv_protocol.h"

/* 128-bit scalar accesses came with PTX 8.3. A vector store is not promised to stay whole. */
#if __CUDACC_VER_MAJOR__ < 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 3)
#error "the AlltoAllV needs nvcc of CUDA 12.3 or newer, for stores of 128 bits"
#endif

/* ---- arguments ---------------------------------------------------------------------------- */

/* What every path reads comes first: each 64 bytes of arguments cost a cache miss per launch. */
struct kernel_args {
  struct alltoallv_state *state;
  char *scratch_base;      /* where I see the scratch memory of rank 0 */
  uint64_t scratch_stride; /* from there to that of the next rank */
  int rank, n;
  uint32_t ll_threshold, mailbox_bytes; /* pairs up to so many bytes take lines: see in_lines */
  uint32_t line_blocks; /* MODE_LARGE: so many blocks send lines and do not push; else 0 */
  bool next_waits;      /* the next kernel, if it is launched before this one has ended */
  struct alltoallv_request x;
  uint64_t limit; /* nanoseconds to wait; 0: forever */
  struct alltoallv_errors *errors;
  alignas(64) struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS]; /* counts from the host */
};

/* What the threads of a block share. */
struct block_state {
  /* In bytes. Device counts: the pairs of the payload at hand; host counts: their bodies. */
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS];
  char *to[ALLTOALLV_MAX_LSA_RANKS]; /* where the body for rank p goes; NULL: nowhere */
  uint32_t tiles[ALLTOALLV_MAX_LSA_RANKS], first[ALLTOALLV_MAX_LSA_RANKS]; /* see number_tiles */
  uint64_t place[ALLTOALLV_MAX_PAYLOADS]
                [ALLTOALLV_MAX_LSA_RANKS]; /* device counts: see share_counts */
  uint32_t epoch;
  int misfit; /* device counts: the first rank where something does not fit, or n */
  int last;   /* this block waits for what large pairs bring: see tell_done */
  int stop;   /* the handle was broken when the block began; device counts: or a wait was in vain */
};

static __device__ __forceinline__ uint32_t this_block(void)
{
  return blockIdx.y * gridDim.x + blockIdx.x;
}

static __device__ __forceinline__ uint32_t all_blocks(void)
{
  return gridDim.x * gridDim.y;
}

/* In MODE_LARGE the first blocks only send lines, and these numbers are of the others. */
static __device__ __forceinline__ uint32_t tile_block(const kernel_args &a)
{
  return this_block() - a.line_blocks;
}

static __device__ __forceinline__ uint32_t tile_blocks(const kernel_args &a)
{
  return all_blocks() - a.line_blocks;
}

/* Early launch (programmatic dependent launch): the blocks are there before the previous kernel has
 * ended, and "wait" for its end before they read more than arguments. If the host does not ask for
 * early launch "wait" has no effect. */
#if __CUDA_ARCH__ >= 900
#define GRIDDEPCONTROL(what) asm volatile("griddepcontrol." what ";" ::: "memory")
#else
#define GRIDDEPCONTROL(what)
#endif

/* The next kernel may be launched when all blocks have called this or ended, if it is sure to wait
 * for the end of this one. Otherwise it is launched at that end. */
static __device__ __forceinline__ void launch_next_kernel(const kernel_args &a)
{
  if (a.next_waits) GRIDDEPCONTROL("launch_dependents");
}

struct beginning {
  uint32_t epoch;
  bool broken; /* a wait has been given up before */
};

/* This is a load: ask after other loads, so that they are on their way together. */
static __device__ __forceinline__ struct beginning begin_exchange(const kernel_args &a)
{
  const uint64_t memory = *(const volatile uint64_t *)&a.state->block[this_block()];
  return {alltoallv_next_epoch((uint32_t)memory), memory >> 32 != 0};
}

/* ---- lines --------------------------------------------------------------------------------- */

/* A line is stored and loaded whole, 128 bits at once. So a reader that finds its last word (the
 * epoch, or of a bare line what is not 0) has the rest too, without a fence, which costs a round
 * trip. PTX's memory model (8.2.4) promises that for 64 bits only. On H100 and H200 over NVLink our
 * tests have never seen a line in pieces, and NCCL's LL128 relies on whole stores of 128 bytes over
 * NVLink. (NCCL's LL does not: it has the epoch in both halves.) */
typedef uint4 line;

static __device__ __forceinline__ uint64_t pack(uint32_t low, uint32_t high)
{
  return (uint64_t)high << 32 | low;
}

static __device__ __forceinline__ void store_line(void *at, const line &l)
{
  uint64_t low = pack(l.x, l.y), high = pack(l.z, l.w);
  asm volatile("{\n\t.reg .b128 line;\n\tmov.b128 line, {%1, %2};\n\t"
               "st.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(at),
               "l"(low), "l"(high)
               : "memory");
}

static __device__ __forceinline__ line load_line(const void *at)
{
  uint64_t low, high;
  asm volatile("{\n\t.reg .b128 line;\n\tld.relaxed.sys.global.b128 line, [%2];\n\t"
               "mov.b128 {%0, %1}, line;\n\t}"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
  return {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
}

/* What store_number has stored. */
static __device__ __forceinline__ uint64_t number(const line &l)
{
  return pack(l.x, l.y);
}

/* ---- mailboxes ----------------------------------------------------------------------------- */

/* So many bytes after the scratch memory of rank `owner`. On each rank NCCL maps all windows of a
 * rank at the same distances from each other. */
static __device__ char *at_place(const kernel_args &a, int owner, uint64_t place)
{
  return a.scratch_base + (uint64_t)owner * a.scratch_stride + place;
}

/* The mailbox at `owner` in which `source` writes: of three that take turns. (What needs the epoch
 * is added last: the rest is computed before it is known.) */
static __device__ __forceinline__ char *mailbox(const kernel_args &a, int owner, int source,
                                                uint32_t epoch)
{
  return at_place(a, owner, (uint32_t)source * a.mailbox_bytes) +
         epoch % 3 * ((uint32_t)a.n * a.mailbox_bytes);
}

/* The slot of a block of the source. With device counts: of a payload. */
static __device__ char *slot(const kernel_args &a, int owner, int source, uint32_t epoch,
                             uint32_t block)
{
  return mailbox(a, owner, source, epoch) + block * ALLTOALLV_SLOT_BYTES;
}

/* By all threads of block 0, before its headers: see read_header. All decide the same, because this
 * exchange writes into `reported` no number but its own. */
static __device__ __forceinline__ struct beginning begin_and_clear(const kernel_args &a)
{
  const uint4 reported = load_line(a.state->reported);
  const struct beginning now = begin_exchange(a);
  const uint32_t last = now.epoch - 2;
  if (reported.x != last && reported.y != last && reported.z != last && now.epoch != 0xffffffffu &&
      now.epoch >= ALLTOALLV_FIRST_EPOCH)
    return now;
  line *lines = reinterpret_cast<line *>(mailbox(a, a.rank, 0, alltoallv_next_epoch(now.epoch)));
  const uint32_t count = (uint32_t)a.n * a.mailbox_bytes / ALLTOALLV_LINE_BYTES;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) lines[i] = {};
  __threadfence_system();
  __syncthreads();
  return now;
}

/* ---- waiting and reporting ---------------------------------------------------------------- */

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

static __device__ void report(struct alltoallv_error *record, struct alltoallv_error found)
{
  volatile int *written = &record->kind;
  const int kind = found.kind;
  if (*written != ALLTOALLV_ERROR_NONE) return; /* the first one stays until it is read */
  found.kind = ALLTOALLV_ERROR_NONE;
  *record = found;
  __threadfence_system();
  *written = kind;
}

/* One error per epoch is enough. */
static __device__ __noinline__ void report_counts(const kernel_args &a,
                                                  const struct alltoallv_error found)
{
  uint32_t *reported = &a.state->reported[found.epoch % 3];
  if (atomicExch(reported, found.epoch) != found.epoch) report(&a.errors->counts, found);
}

/* Has the handle broken, or have I waited too long for `source`? Then no thread waits any more.
 * (Out of line, like all that is rare: the usual code is short.) */
static __device__ __noinline__ bool give_up(const kernel_args &a, uint32_t epoch, uint64_t started,
                                            int source)
{
  if (begin_exchange(a).broken) return true;
  if (a.limit == 0 || nanoseconds() - started < a.limit) return false;
  if (atomicExch(&a.state->block[0].broken, 1) == 0)
    report(&a.errors->timeout, {ALLTOALLV_ERROR_TIMEOUT, source, a.rank, 0, 0, 1, epoch});
#pragma unroll 1
  for (int b = 1; b < ALLTOALLV_MAX_BLOCKS; b++)
    *(volatile uint32_t *)&a.state->block[b].broken = 1;
  return true;
}

/* Does the header that p has sent (if it has) rule out that `bytes` bytes from p are coming? */
static __device__ __noinline__ bool contradicts(const kernel_args &a, uint32_t epoch, int p,
                                                uint64_t bytes)
{
  line l = load_line(slot(a, a.rank, p, epoch, 0)); /* ALLTOALLV_LINE_SENT of block 0 */
  if (l.w != epoch) return false;
  if (l.z != a.x.kind) return true;
  return a.x.kind == ALLTOALLV_KIND_HOST && number(l) != bytes;
}

/* What is awaited: lines with the epoch, of a header or others, or bare lines. */
enum awaited { AWAIT_HEADER, AWAIT_TAGGED, AWAIT_BARE };

/* After many polls: where to look from now on. NULL: wait no longer. */
static __device__ __noinline__ const char *go_on_waiting(const kernel_args &a, uint32_t epoch,
                                                         int p, const char *at, enum awaited what,
                                                         uint64_t bytes, uint64_t started)
{
  if (what == AWAIT_HEADER) /* where counts disagree, the peer may send that of block 0 only */
    at = mailbox(a, a.rank, p, epoch);
  else if (contradicts(a, epoch, p, bytes))
    return NULL;
  return give_up(a, epoch, started, p) ? NULL : at;
}

/* All waiting: for N lines from rank p, at `at` and every `stride` bytes after it, which are loaded
 * in one trip to memory. `bytes` are what this rank expects of p. Many polls later the clock is
 * read, which is slow. False: they do not come. */
template <enum awaited WHAT, int N>
static __device__ __forceinline__ bool await_lines(const kernel_args &a, uint32_t epoch, int p,
                                                   const char *at, int stride, line (&l)[N],
                                                   uint64_t bytes)
{
  uint64_t started = 0;
  for (uint32_t polls = 1;; polls++) {
    bool come = true;
#pragma unroll
    for (int i = 0; i < N; i++) l[i] = load_line(at + i * stride);
#pragma unroll
    for (int i = 0; i < N; i++) come = come && (WHAT == AWAIT_BARE ? l[i].w != 0 : l[i].w == epoch);
    if (come) return true;
    if (polls % 256 != 0) continue;
    if (started == 0) started = nanoseconds();
    at = go_on_waiting(a, epoch, p, at, WHAT, bytes, started);
    if (at == NULL) return false;
  }
}

/* ---- headers ------------------------------------------------------------------------------ */

static __device__ void store_number(char *lines, int which, uint64_t value, uint32_t extra,
                                    uint32_t epoch)
{
  store_line(lines + which * ALLTOALLV_LINE_BYTES,
             {(uint32_t)value, (uint32_t)(value >> 32), extra, epoch});
}

static __device__ void send_header(const kernel_args &a, uint32_t epoch, int p, uint32_t which,
                                   const struct alltoallv_header &h)
{
  char *lines = slot(a, p, a.rank, epoch, which);
  store_number(lines, ALLTOALLV_LINE_SENT, h.sent, h.kind, epoch);
  store_number(lines, ALLTOALLV_LINE_EXPECT, h.expect, 0, epoch);
  store_number(lines, ALLTOALLV_LINE_PLACE, h.place, h.element, epoch);
}

/* Waits for the header of rank p from the block of my number. This wait is why nothing is ever
 * overwritten too early.
 *
 * Let A and B be two ranks and e an epoch. A begins e when its kernel starts, after it has finished
 * e - 1, because the exchanges of a handle follow each other. It finishes e when its kernel ends.
 *   (1) A rank that has a header of e from A knows that A has finished e - 1.
 *   (2) A rank that has finished e has had a header of e from every rank: its block 0 (tile_block)
 *       waits for all of them, for pairs without bytes too. (With device counts in share_counts.)
 * Finished means that all that the kernel stored has arrived, at peers, too. That a relaxed header
 * tells so much, or a DONE of the stores before its fence, is more than PTX promises
 * (griddepcontrol.wait: to the next kernel of that GPU), but a fence would take a trip over the
 * link. NCCL's barriers rely on the same at a kernel's end.
 *
 * Scratch memory. In e, B writes into its mailbox at A without waiting, into the one of the turn of
 * e. That holds what B wrote in e - 3, which A reads in e - 3 only. B has finished e - 1; by (2) it
 * had A's header of e - 1; by (1) A has finished e - 2. What A may still be reading, of e - 1, is
 * in another mailbox. So nothing is overwritten unread, however far one rank is ahead of the
 * others; for that two mailboxes would suffice.
 *
 * Bare lines. They have no epoch, so the places of those of e have to be empty when B stores them:
 *   (3) Whoever has read a bare line makes its place empty, and so its escape. A did that in e - 3,
 *       in a kernel that had ended before A sent its header of e - 1.
 *   (4) Not all of them are read: where counts or calls disagree none may be, and with device
 *       counts none where something does not fit. Then A reports an error in e - 3, and clears all
 *       mailboxes of that turn at the beginning of e - 1, before its header. By then all lines of
 *       e - 3 have come: A has finished e - 2, by (2) with headers of e - 2 from all, so by (1) all
 *       have finished e - 3. And no line of e has come: B stores none before it has A's header of
 *       e - 1. That is why there are three: in e - 1 this turn is at rest, but lines of e - 2 may
 *       still come, and those of e - 1 do.
 * A rank that has given up a wait leaves lines unread, too, but it never reads again.
 *
 * Lines with an epoch stay as they are, read or not (DONE without a large pair is not), until the
 * next ones replace them. When epochs begin again, in 0xffffffff, 4 and 5, all turns are cleared in
 * the same way.
 *
 * Receive buffer. A block of B stores into A's in e only when it has A's header of e. A sent that
 * from its kernel e, so whatever A's stream did with the buffer before is over. That kernel does
 * not end before B has said that all of its blocks have stored their shares, since a block of A
 * waits for that: what A's stream does next finds all of it, and no store of e comes later. When
 * the two disagree about the count, B stores nothing and A waits for nothing: both compare the same
 * two numbers. What goes in lines is stored by A itself, from its mailbox.
 *
 * Timeout. The first thread that has waited too long marks all blocks as broken (give_up), and so
 * ends every wait of this rank. A block that has given up says nothing more: no DONE, or its peer
 * would take bodies for stored that are not. Later kernels of the rank send nothing, no header
 * either, so nobody stores into its receive buffer in later epochs; into its mailboxes a peer that
 * had its last header may, once more. Every peer that waits for something of it gives up, too, in
 * this exchange or in the next one: only what it had sent before, small pairs, arrives.
 *
 * Each exchange increments the epoch of all blocks, so modes and grids may change. Ranks without
 * large pairs run MODE_SMALL where others run MODE_LARGE. Both send and await the header of block
 * 0 of their tiles (tile_block). */
static __device__ bool read_header(const kernel_args &a, uint32_t epoch, int p,
                                   struct alltoallv_header *h)
{
  const char *at = slot(a, a.rank, p, epoch, tile_block(a));
  line l[3];
  if (!await_lines<AWAIT_HEADER>(a, epoch, p, at, ALLTOALLV_LINE_BYTES, l, 0)) return false;
  *h = {number(l[ALLTOALLV_LINE_SENT]), number(l[ALLTOALLV_LINE_EXPECT]),
        number(l[ALLTOALLV_LINE_PLACE]), l[ALLTOALLV_LINE_SENT].z, l[ALLTOALLV_LINE_PLACE].z};
  return true;
}

#endif
