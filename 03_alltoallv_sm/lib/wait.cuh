/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the kernel share: its arguments, what a rank and a block remember, lines, and
 * waiting with a timeout. */
#ifndef ALLTOALLV_WAIT_CUH
#define ALLTOALLV_WAIT_CUH

#include "protocol.h"

/* 128-bit scalar accesses came with PTX 8.3. A vector store is not promised to stay whole. */
#if __CUDACC_VER_MAJOR__ < 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 3)
#error "the AlltoAllV needs nvcc of CUDA 12.3 or newer, for stores of 128 bits"
#endif

/* ---- arguments and state ------------------------------------------------------------------ */

/* What a rank remembers from one exchange to the next, in its own device memory. Numbers that the
 * host passed would freeze in a graph. */
struct device_state {
  uint32_t broken;                      /* a timeout has occurred: for ever */
  uint32_t reported;                    /* last epoch that has reported an error */
  uint32_t blocks_done;                 /* blocks that have pushed their tiles */
  unsigned long long taken;             /* slots handed out */
  uint32_t epoch[ALLTOALLV_MAX_BLOCKS]; /* per block: the last one */
  /* per source: what received[] in the scratch memory, which grows, was after the last epoch */
  uint64_t received_before[ALLTOALLV_MAX_LSA_RANKS];
};

/* What every path reads comes first: the arguments are cached by lines of 64 bytes, and each line
 * costs a miss per launch. */
template <int N>
struct kernel_args {
  struct device_state *state;
  char *scratch_base;      /* where I see the scratch memory of rank 0 */
  uint64_t scratch_stride; /* from there to that of the next rank */
  int rank, n;
  uint32_t kind, ll_threshold;
  const char *send;
  char *recv;
  uint64_t window_offset; /* my receive buffer: number of the window, offset in it */
  uint32_t window;
  uint32_t element; /* bytes that a count of one means */
  uint32_t eager;   /* so many bytes of a large pair travel as lines */
  struct alltoallv_scratch scratch;
  const uint64_t *sendcounts, *sdispls;
  uint64_t capacity; /* elements that fit into my receive buffer, or into each of its slots */
  alignas(64) struct alltoallv_pair pairs[N];
  uint64_t limit; /* nanoseconds to wait; 0: for ever */
  struct alltoallv_errors *errors;
  char *const *windows; /* [number * n + rank]: where I see that window of that rank */
  uint64_t *recvcounts, *rdispls, *needed;
};

/* How tiles are dealt to warps: see make_schedule in push.cuh. A chunk is two tiles that follow
 * each other in a pair. */
struct schedule {
  uint32_t shift, width; /* width: the most chunks that one round has */
  uint64_t slots;        /* one per tile, and some without */
};

struct tile {
  int peer; /* -1: this slot has none */
  uint64_t number;
};

/* What the threads of a block share. */
template <int N>
struct block_state {
  struct alltoallv_pair pairs[N];
  char *to[N];        /* where I push data for rank p; NULL: nowhere, the counts disagree */
  bool coming[N];     /* a large pair is coming from rank p, and the counts agree */
  uint32_t chunks[N]; /* how many of the pair have to be pushed */
  unsigned long long pushed[N]; /* bytes that this block has pushed to rank p */
  /* Device counts: bytes for rank p, from all and from those before me; what fits there; its
   * receive buffer: offset in the window, and number of the window. */
  uint64_t total[N], before[N], capacity[N], offset[N];
  uint32_t window[N];
  struct schedule schedule; /* device counts: how tiles are dealt, */
  struct tile first[16];    /* and the first one of each warp */
  uint32_t epoch;
  int bad;    /* device counts: which entry does not fit */
  int stop;   /* a wait of this block has been given up */
  int broken; /* the handle was broken when the block began */
};

#define NOT_BAD 0x7fffffff

/* ---- lines, and loads and stores that another GPU takes part in --------------------------- */

/* Three words of data and the epoch, written by one 128-bit store and read by one 128-bit load,
 * which PTX makes single accesses for the scalar type b128. So a reader that finds its epoch has
 * the data too, after one trip over the link; data and flag in two stores would need a fence
 * between them, which costs a round trip. */
struct line {
  uint32_t word[3];
  uint32_t epoch;
};

static __device__ __forceinline__ uint64_t pack(uint32_t low, uint32_t high)
{
  return (uint64_t)high << 32 | low;
}

static __device__ __forceinline__ void store_line(void *at, uint32_t a, uint32_t b, uint32_t c,
                                                  uint32_t epoch)
{
  uint64_t low = pack(a, b), high = pack(c, epoch);
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
  line l;
  l.word[0] = (uint32_t)low;
  l.word[1] = (uint32_t)(low >> 32);
  l.word[2] = (uint32_t)high;
  l.epoch = (uint32_t)(high >> 32);
  return l;
}

/* Adds to a counter on another GPU, after all that this thread, and through the block barrier
 * before it the whole block, has written there. */
static __device__ __forceinline__ void add_release(uint64_t *counter, uint64_t value)
{
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

/* What another GPU wrote before its add_release is visible after a load that sees the sum. */
static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *counter)
{
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/* ---- waiting and reporting ---------------------------------------------------------------- */

template <int N>
static __device__ void report(const kernel_args<N> &a, struct alltoallv_error *record, int kind,
                              int source, int destination, uint64_t sent, uint64_t expected)
{
  volatile int *written = &record->kind;
  if (*written != ALLTOALLV_ERROR_NONE) return; /* the first one stays until it is read */
  record->source = source;
  record->destination = destination;
  record->sent = sent;
  record->expected = expected;
  record->element = a.element;
  __threadfence_system();
  *written = kind;
}

/* One error per epoch is enough. */
template <int N>
static __device__ __noinline__ void report_counts(const kernel_args<N> &a, uint32_t epoch, int kind,
                                                  int source, int destination, uint64_t sent,
                                                  uint64_t expected)
{
  if (atomicExch(&a.state->reported, epoch) != epoch)
    report(a, &a.errors->counts, kind, source, destination, sent, expected);
}

/* The last epoch, and this one. The number comes from memory, so ask for it after other
 * loads: then it is on its way together with them. */
template <int N>
static __device__ __forceinline__ uint32_t last_epoch(const kernel_args<N> &a)
{
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  return *(volatile uint32_t *)&a.state->epoch[block];
}

template <int N>
static __device__ __forceinline__ uint32_t this_epoch(const kernel_args<N> &a)
{
  return alltoallv_next_epoch(last_epoch(a));
}

/* Has a wait been given up, now or in an exchange before? */
template <int N>
static __device__ __forceinline__ bool is_broken(const kernel_args<N> &a)
{
  return *(volatile uint32_t *)&a.state->broken != 0;
}

/* ---- headers ------------------------------------------------------------------------------ */

template <int N>
static __device__ char *scratch_of(const kernel_args<N> &a, int p)
{
  return a.scratch_base + (uint64_t)p * a.scratch_stride;
}

/* The mailbox at `owner` in which `source` writes. */
template <int N>
static __device__ char *mailbox(const kernel_args<N> &a, int owner, int source, uint32_t epoch)
{
  return scratch_of(a, owner) + alltoallv_mailbox_at(&a.scratch, a.n, epoch, source);
}

/* Line `which` of the header that p has sent in this epoch, or still an older one. */
template <int N>
static __device__ line header_line(const kernel_args<N> &a, uint32_t epoch, int p, int which)
{
  return load_line(mailbox(a, a.rank, p, epoch) + which * ALLTOALLV_LINE_BYTES);
}

/* A waiting loop: look, and if that was in vain for long, give_up(). */
struct poll_clock {
  uint32_t polls = 0;
  uint64_t started = 0;
  /* Time to look at other things than what we wait for? The clock is slow to read. */
  __device__ bool long_wait()
  {
    if ((++polls & 255) != 0) return false;
    if (started == 0) started = nanoseconds();
    return true;
  }
};

/* Whom to name when `source` has kept me waiting: rather a rank that has not even sent its header,
 * because `source` may be waiting for it too. */
template <int N>
static __device__ int missing_rank(const kernel_args<N> &a, uint32_t epoch, int source)
{
  for (int p = 0; p < a.n; p++)
    if (p != a.rank && header_line(a, epoch, p, ALLTOALLV_LINE_SENT).epoch != epoch) return p;
  return source;
}

/* Has the handle broken, or have I waited too long for `source`? Then nobody waits any more. (Out
 * of line, as all that is rare: the code of an exchange without trouble shall be short.) */
template <int N>
static __device__ __noinline__ bool give_up(const kernel_args<N> &a, uint32_t epoch, poll_clock w,
                                            int source)
{
  if (is_broken(a)) return true;
  if (a.limit == 0 || nanoseconds() - w.started < a.limit) return false;
  if (atomicExch(&a.state->broken, 1) == 0)
    report(a, &a.errors->timeout, ALLTOALLV_ERROR_TIMEOUT, missing_rank(a, epoch, source), a.rank,
           0, 0);
  return true;
}

static __device__ void store_number(char *lines, int which, uint64_t value, uint32_t extra,
                                    uint32_t epoch)
{
  store_line(lines + which * ALLTOALLV_LINE_BYTES, (uint32_t)value, (uint32_t)(value >> 32), extra,
             epoch);
}

template <int N>
static __device__ void send_header(const kernel_args<N> &a, uint32_t epoch, int p, uint32_t copy,
                                   const struct alltoallv_header &h)
{
  char *lines = mailbox(a, p, a.rank, epoch) + alltoallv_header_at(&a.scratch, copy);
  store_number(lines, ALLTOALLV_LINE_SENT, h.sent, h.kind, epoch);
  store_number(lines, ALLTOALLV_LINE_EXPECT, h.expect, h.window, epoch);
  store_number(lines, ALLTOALLV_LINE_OFFSET, h.offset, h.element, epoch);
}

template <int N>
static __device__ __noinline__ void clear_lines(const kernel_args<N> &a, int parity)
{
  uint4 *lines = reinterpret_cast<uint4 *>(mailbox(a, a.rank, 0, (uint32_t)parity));
  uint64_t count = (uint64_t)a.n * a.scratch.mailbox_bytes / ALLTOALLV_LINE_BYTES;
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) lines[i] = make_uint4(0, 0, 0, 0);
  __threadfence_system();
  __syncthreads();
}

/* See alltoallv_stale_parity; thrice at first, then in 2^32 epochs. By all threads of block 0,
 * before its headers. */
template <int N>
static __device__ __forceinline__ void clear_stale_lines(const kernel_args<N> &a, uint32_t epoch)
{
  int parity = alltoallv_stale_parity(epoch);
  if (parity >= 0) clear_lines(a, parity);
}

/* Waits for the header of rank p. This wait is why nothing is ever overwritten too early.
 *
 * Let A and B be two ranks and e an epoch. A begins e when its kernel starts, and has then finished
 * e - 1, because the exchanges of a handle follow each other on every rank. A finishes e when its
 * kernel ends, with all its blocks. So:
 *   (1) Whoever has the header of e from A knows that A has finished e - 1.
 *   (2) Whoever has finished e has had the header of e from every peer: its control block waits for
 *       all of them, in every mode and for pairs without bytes too. (With device counts it waits
 *       for the rows in share_counts, and where a wait there is given up, for the header here.)
 *
 * Scratch memory. In e, B writes its header and its lines into its mailbox at A without waiting for
 * anything. There is one mailbox for odd epochs and one for even ones. The one of e holds what B
 * wrote in e - 2, and A reads that in e - 2 only. B has
 * begun e, so B has finished e - 1; by (2) B had A's header of e - 1; by (1) A has finished e - 2.
 * What B wrote in e - 1, which A may still be reading, is in the mailbox of the other parity. So
 * two parities suffice, however far one rank is ahead of the others.
 *
 * Receive buffer. B stores into the receive buffer of A in e only when it has A's header of e. A
 * sent that from its kernel e, so whatever A's stream did with the buffer before is over. And A's
 * kernel e does not end before received[B] has grown by all bytes that B has to push: what A's
 * stream does next finds them, and no store of e comes later. When the two disagree about the
 * count, B stores nothing and A waits for nothing: both compare the same two numbers. Small pairs
 * and the eager bytes of large ones are stored by A itself, from its mailbox, within e; of a large
 * pair only if the counts agree.
 *
 * Counters. received[B] at A grows in e only after A's header of e, so it cannot grow for e + 1
 * while A still waits in e: A may wait for one exact value.
 *
 * None of this depends on how an exchange moves its bytes, or on the size of the grid: all kernels
 * send and await headers alike, and each of them counts the epoch on for all blocks. After a
 * timeout the handle stays broken: it sends no header and no line any more, so nobody stores to it
 * in later epochs, and what it sent a late peer in the epoch that timed out stays there; what that
 * epoch left here is undefined.
 *
 * Copies of a header lie in the same mailbox and say the same. They only make things faster: after
 * a while a block looks at the header itself, since a peer whose counts disagree may send no
 * copies.
 *
 * All three lines at once: three waits one after the other would cost three trips to memory. */
template <int N>
static __device__ bool read_header(const kernel_args<N> &a, uint32_t epoch, int p, uint32_t copy,
                                   struct alltoallv_header *h)
{
  const char *header = mailbox(a, a.rank, p, epoch);
  const char *at = header + alltoallv_header_at(&a.scratch, copy);
  poll_clock w;
  line l[3];
  for (;;) {
#pragma unroll
    for (int i = 0; i < 3; i++) l[i] = load_line(at + i * ALLTOALLV_LINE_BYTES);
    if (l[0].epoch == epoch && l[1].epoch == epoch && l[2].epoch == epoch) break;
    if (!w.long_wait()) continue;
    if (give_up(a, epoch, w, p)) return false;
    at = header;
  }
  h->sent = pack(l[ALLTOALLV_LINE_SENT].word[0], l[ALLTOALLV_LINE_SENT].word[1]);
  h->kind = l[ALLTOALLV_LINE_SENT].word[2];
  h->expect = pack(l[ALLTOALLV_LINE_EXPECT].word[0], l[ALLTOALLV_LINE_EXPECT].word[1]);
  h->window = l[ALLTOALLV_LINE_EXPECT].word[2];
  h->offset = pack(l[ALLTOALLV_LINE_OFFSET].word[0], l[ALLTOALLV_LINE_OFFSET].word[1]);
  h->element = l[ALLTOALLV_LINE_OFFSET].word[2];
  return true;
}

/* Where I see window number `window` of rank p. */
template <int N>
static __device__ char *window_of(const kernel_args<N> &a, int p, uint32_t window)
{
  return a.windows[window * (uint32_t)a.n + (uint32_t)p];
}

/* Does the header that p has sent (if it has) rule out that `bytes` bytes from p are coming? */
template <int N>
static __device__ __noinline__ bool contradicts(const kernel_args<N> &a, uint32_t epoch, int p,
                                                uint64_t bytes)
{
  line l = header_line(a, epoch, p, ALLTOALLV_LINE_SENT);
  if (l.epoch != epoch) return false;
  if (l.word[2] != a.kind) return true;
  return a.kind == ALLTOALLV_KIND_HOST &&
         !alltoallv_counts_agree(pack(l.word[0], l.word[1]), bytes);
}

/* Waits until `bytes` bytes from rank p have been added to received[p]. */
template <int N>
static __device__ void wait_for_data(const kernel_args<N> &a, uint32_t epoch, int p, uint64_t base,
                                     uint64_t bytes)
{
  const uint64_t *counter = reinterpret_cast<const uint64_t *>(scratch_of(a, a.rank)) + p;
  poll_clock w;
  while (load_acquire(counter) != base + bytes)
    if (w.long_wait() && give_up(a, epoch, w, p)) return;
  a.state->received_before[p] = base + bytes;
}

#endif
