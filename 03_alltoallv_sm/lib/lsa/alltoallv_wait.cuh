/* SPDX-License-Identifier: Apache-2.0 */
/* Headers, waiting with a timeout, and reporting errors. */
#ifndef ALLTOALLV_WAIT_CUH
#define ALLTOALLV_WAIT_CUH

#include "lsa/alltoallv_remote.cuh"
#include "lsa/alltoallv_state.cuh"

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
  record->unit.bytes = a.unit;
  record->unit.rows = a.rows;
  __threadfence_system();
  *written = kind;
}

/* One error per call is enough. */
template <int N>
static __device__ __noinline__ void report_counts(const kernel_args<N> &a, uint32_t call, int kind,
                                                  int source, int destination, uint64_t sent,
                                                  uint64_t expected)
{
  if (atomicExch(&a.state->reported, call) != call)
    report(a, &a.errors->counts, kind, source, destination, sent, expected);
}

/* The number of the last call, and of this one. It comes from memory, so ask for it after other
 * loads: then it is on its way together with them. */
template <int N>
static __device__ __forceinline__ uint32_t last_call(const kernel_args<N> &a)
{
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  return *(volatile uint32_t *)&a.state->call[block];
}

template <int N>
static __device__ __forceinline__ uint32_t this_call(const kernel_args<N> &a)
{
  return alltoallv_next_call(last_call(a));
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
static __device__ char *mailbox(const kernel_args<N> &a, int owner, int source, uint32_t call)
{
  return scratch_of(a, owner) + alltoallv_mailbox_at(&a.scratch, a.n, call, source);
}

/* Line `which` of the header that p has sent in this call, or still an older one. */
template <int N>
static __device__ line header_line(const kernel_args<N> &a, uint32_t call, int p, int which)
{
  return load_line(mailbox(a, a.rank, p, call) + which * ALLTOALLV_LINE_BYTES);
}

/* A waiting loop: look, and if that was in vain for long, give_up(). */
struct patience {
  uint32_t polls = 0;
  uint64_t since = 0;
  /* Time to look at other things than what we wait for? The clock is slow to read. */
  __device__ bool long_wait()
  {
    if ((++polls & 255) != 0) return false;
    if (since == 0) since = nanoseconds();
    return true;
  }
};

/* Whom to name when `source` has kept me waiting: rather a rank that has not even sent its header,
 * because `source` may be waiting for it too. */
template <int N>
static __device__ int absentee(const kernel_args<N> &a, uint32_t call, int source)
{
  for (int p = 0; p < a.n; p++)
    if (p != a.rank && header_line(a, call, p, ALLTOALLV_LINE_SENT).call != call) return p;
  return source;
}

/* Has the handle broken, or have I waited too long for `source`? Then nobody waits any more. (Out
 * of line, as all that is rare: the code of an exchange without trouble shall be short.) */
template <int N>
static __device__ __noinline__ bool give_up(const kernel_args<N> &a, uint32_t call, patience w,
                                            int source)
{
  if (is_broken(a)) return true;
  if (a.limit == 0 || nanoseconds() - w.since < a.limit) return false;
  if (atomicExch(&a.state->broken, 1) == 0)
    report(a, &a.errors->timeout, ALLTOALLV_ERROR_TIMEOUT, absentee(a, call, source), a.rank, 0, 0);
  return true;
}

static __device__ void store_number(char *lines, int which, uint64_t value, uint32_t extra,
                                    uint32_t call)
{
  store_line(lines + which * ALLTOALLV_LINE_BYTES, (uint32_t)value, (uint32_t)(value >> 32), extra,
             call);
}

template <int N>
static __device__ void send_header(const kernel_args<N> &a, uint32_t call, int p, uint32_t copy,
                                   const struct alltoallv_header &h)
{
  char *lines = mailbox(a, p, a.rank, call) + alltoallv_header_at(&a.scratch, copy);
  store_number(lines, ALLTOALLV_LINE_SENT, h.sent, h.kind, call);
  store_number(lines, ALLTOALLV_LINE_EXPECT, h.expect, h.window, call);
  store_number(lines, ALLTOALLV_LINE_OFFSET, h.offset, h.unit, call);
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

/* See alltoallv_stale_parity; once in 2^32 calls. By all threads of block 0, before its headers. */
template <int N>
static __device__ __forceinline__ void clear_stale_lines(const kernel_args<N> &a, uint32_t call)
{
  int parity = alltoallv_stale_parity(call);
  if (parity >= 0) clear_lines(a, parity);
}

/* Waits for the header of rank p. This wait is why nothing is ever overwritten too early.
 *
 * Let A and B be two ranks and e the number of an exchange (`call` in the code). A begins e when
 * its kernel starts, and has then finished e - 1, because the exchanges of a handle follow each
 * other on every rank. A finishes e when its kernel ends, with all its blocks. So:
 *   (1) Whoever has the header of e from A knows that A has finished e - 1.
 *   (2) Whoever has finished e has had the header of e from every peer: its control block waits for
 *       all of them, in every mode and for pairs without bytes too. (With device counts it waits
 *       for the rows in share_counts, and where a wait there is given up, for the header here.)
 *
 * Scratch memory. In exchange e, B writes its header and its lines into its mailbox at A without
 * waiting for anything. There is one mailbox for odd numbers and one for even ones (the parity of
 * the number). The one of e holds what B wrote in e - 2, and A reads that in e - 2 only. B has
 * begun e, so B has finished e - 1; by (2) B had A's header of e - 1; by (1) A has finished e - 2.
 * What B wrote in e - 1, which A may still be reading, is in the mailbox of the other parity. So
 * two parities suffice, however far one rank is ahead of the others.
 *
 * Receive buffer. B stores into the receive buffer of A only in an exchange e, and only when it has
 * A's header of e. A sent that from its kernel e, so whatever A's stream did with the buffer before
 * is over. And A's kernel e does not end before received[B] has grown by all bytes that B has to
 * push: what A's stream does next finds them, and no store of e comes later. When the two disagree
 * about the count, B stores nothing and A waits for nothing: both compare the same two numbers.
 * Small pairs and the lead of large ones are stored by A itself, from its mailbox, within e; of a
 * large pair only if the counts agree.
 *
 * Counters. received[B] at A grows in e only after A's header of e, so it cannot grow for e + 1
 * while A still waits in e: A may wait for one exact value.
 *
 * None of this depends on how an exchange moves its bytes, or on the size of the grid: all kernels
 * send and await headers alike, and each of them counts the number on for all blocks. A plan that
 * uses the copy engines touches no mailbox and no number: its flags lie apart in the scratch
 * memory, only ever grow, and say the same two things of the streams, "my receive buffer is free"
 * and "all has arrived". After a timeout the handle stays broken: it sends no header and no line
 * any more, so nobody stores to it in later exchanges, and what it sent a late peer in the exchange
 * that timed out stays there; what that exchange left here is undefined.
 *
 * Copies of a header lie in the same mailbox and say the same. They only make things faster: after
 * a while a block looks at the header itself, since a peer whose counts disagree may send no
 * copies.
 *
 * All three lines at once: three waits one after the other would cost three trips to memory. */
template <int N>
static __device__ bool read_header(const kernel_args<N> &a, uint32_t call, int p, uint32_t copy,
                                   struct alltoallv_header *h)
{
  const char *header = mailbox(a, a.rank, p, call);
  const char *at = header + alltoallv_header_at(&a.scratch, copy);
  patience w;
  line l[3];
  for (;;) {
#pragma unroll
    for (int i = 0; i < 3; i++) l[i] = load_line(at + i * ALLTOALLV_LINE_BYTES);
    if (l[0].call == call && l[1].call == call && l[2].call == call) break;
    if (!w.long_wait()) continue;
    if (give_up(a, call, w, p)) return false;
    at = header;
  }
  h->sent = pack(l[ALLTOALLV_LINE_SENT].word[0], l[ALLTOALLV_LINE_SENT].word[1]);
  h->kind = l[ALLTOALLV_LINE_SENT].word[2];
  h->expect = pack(l[ALLTOALLV_LINE_EXPECT].word[0], l[ALLTOALLV_LINE_EXPECT].word[1]);
  h->window = l[ALLTOALLV_LINE_EXPECT].word[2];
  h->offset = pack(l[ALLTOALLV_LINE_OFFSET].word[0], l[ALLTOALLV_LINE_OFFSET].word[1]);
  h->unit = l[ALLTOALLV_LINE_OFFSET].word[2];
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
static __device__ __noinline__ bool contradicts(const kernel_args<N> &a, uint32_t call, int p,
                                                uint64_t bytes)
{
  line l = header_line(a, call, p, ALLTOALLV_LINE_SENT);
  if (l.call != call) return false;
  if (l.word[2] != a.kind) return true;
  return a.kind == ALLTOALLV_KIND_HOST &&
         !alltoallv_counts_agree(pack(l.word[0], l.word[1]), bytes);
}

/* Waits until `bytes` bytes from rank p have been added to received[p]. */
template <int N>
static __device__ void wait_for_data(const kernel_args<N> &a, uint32_t call, int p, uint64_t base,
                                     uint64_t bytes)
{
  const uint64_t *counter = reinterpret_cast<const uint64_t *>(scratch_of(a, a.rank)) + p;
  patience w;
  while (load_acquire(counter) != base + bytes)
    if (w.long_wait() && give_up(a, call, w, p)) return;
  a.state->received_before[p] = base + bytes;
}

#endif
