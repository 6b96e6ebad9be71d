/* SPDX-License-Identifier: Apache-2.0 */
/* The third AlltoAllV: no barrier at all. Every 4 bytes of data travel together with the number of
 * the exchange, the epoch, as one store of 8 bytes, into scratch memory of the receiver; two such
 * stores are a line. Whoever sees the epoch sees the data.
 *
 *   send      lines to all peers: first how many bytes come, then the bytes
 *   receive   look at one's own scratch memory until each line has this epoch, and copy it out
 *
 * No barrier before: scratch memory is nobody's receive buffer. No barrier after: the data have
 * come when their lines have. And what still lies there from an earlier epoch? Epochs alternate
 * between two halves. To overwrite in e what I sent you in e - 2, I have begun e, so I have
 * finished e - 1, so I have had your line of e - 1 (all peers send at least one); you had begun e -
 * 1 then, so you had finished e - 2: you have read it.
 *
 * NCCL's kernels do the same below some sizes ("LL"); ncclLLA2ASession of nccl_device.h is this for
 * kernels of one's own. The library (lib/lines.cuh) has 12 bytes of data in 16, and timeouts. */
#include <nccl_device.h>

#include "simple.h"

enum { BLOCKS = 32, THREADS = 512, ROOM = 32 << 10 }; /* ROOM: lines of a part, of 8 bytes each */

struct line_args {
  ncclWindow_t window; /* line [epoch & 1][source][1 + ROOM] */
  unsigned *epoch;     /* of each block: on the device, or graphs would repeat it */
  int rank, n;
  struct {
    const char *from;
    char *into;
    size_t bytes, recv_bytes;
  } parts[SIMPLE_MAX_RANKS];
};

static __device__ void send_line(ulonglong2 *at, uint64_t data, uint64_t epoch)
{
  const uint64_t low = (uint32_t)data | epoch << 32, high = data >> 32 | epoch << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high)
               : "memory");
}

static __device__ uint64_t receive_line(const ulonglong2 *at, uint64_t epoch)
{
  uint64_t low, high;
  do
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
  while (low >> 32 != epoch || high >> 32 != epoch);
  return (uint32_t)low | high << 32;
}

/* `left` bytes, 8 at most, of any alignment. */
static __device__ uint64_t load(const char *at, size_t left)
{
  uint64_t data = 0;
  if (left >= 8 && (uintptr_t)at % 8 == 0) return *(const uint64_t *)at;
  for (int i = 0; i < 8 && i < left; i++) data |= (uint64_t)(uint8_t)at[i] << 8 * i;
  return data;
}

static __device__ void store(char *at, uint64_t data, size_t left)
{
  if (left >= 8 && (uintptr_t)at % 8 == 0)
    *(uint64_t *)at = data;
  else
    for (int i = 0; i < 8 && i < left; i++) at[i] = (char)(data >> 8 * i);
}

static __global__ void __launch_bounds__(THREADS)
    exchange_lines(const __grid_constant__ line_args a)
{
  const uint32_t epoch = a.epoch[blockIdx.x] + 1;
  const size_t first = blockIdx.x * THREADS + threadIdx.x, step = BLOCKS * THREADS;
  for (int i = 0; i < a.n; i++) { /* to myself, too: shorter */
    const int p = (a.rank + i) % a.n;
    ulonglong2 *mail = (ulonglong2 *)ncclGetLsaPointer(a.window, 0, p);
    mail += ((epoch & 1) * a.n + a.rank) * (1 + ROOM);
    const size_t bytes = a.parts[p].bytes;
    if (first == 0) send_line(mail, bytes, epoch);
    for (size_t w = first; w * 8 < bytes; w += step)
      send_line(mail + 1 + w, load(a.parts[p].from + w * 8, bytes - w * 8), epoch);
  }
  for (int i = 0; i < a.n; i++) {
    const int p = (a.rank + a.n - i) % a.n;
    const ulonglong2 *mail = (const ulonglong2 *)ncclGetLsaPointer(a.window, 0, a.rank);
    mail += ((epoch & 1) * a.n + p) * (1 + ROOM);
    const size_t bytes = receive_line(mail, epoch); /* by all: nobody leaves before p has begun */
    for (size_t w = first; w * 8 < bytes && w * 8 < a.parts[p].recv_bytes; w += step)
      store(a.parts[p].into + w * 8, receive_line(mail + 1 + w, epoch), bytes - w * 8);
  }
  __syncthreads();
  if (threadIdx.x == 0) a.epoch[blockIdx.x] = epoch;
}

static size_t mail_bytes(const way *w)
{
  return 2 * (size_t)w->x->me->nranks * (1 + ROOM) * sizeof(ulonglong2);
}

/* Parts that are larger than the scratch memory go in several exchanges, as many on all ranks. */
void lines_call(way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  const exchange *x = w->x;
  const size_t size = x->type->size, room = 8 * (size_t)ROOM;
  unsigned *epoch = (unsigned *)(w->scratch + mail_bytes(w));
  for (size_t at = 0; at == 0 || at < x->largest * size; at += room) {
    line_args a = {w->scratch_window, epoch, x->me->rank, x->me->nranks, {}};
    auto piece = [=](size_t count) {
      const size_t bytes = count * size;
      return bytes <= at ? 0 : bytes - at < room ? bytes - at : room;
    };
    for (int p = 0; p < a.n; p++)
      a.parts[p] = {send + x->sdispls[p] * size + at,
                    w->window + recv_at + x->rdispls[p] * size + at, piece(x->sendcounts[p]),
                    piece(x->recvcounts[p])};
    exchange_lines<<<BLOCKS, THREADS, 0, stream>>>(a);
    CUDACHECK(cudaGetLastError());
  }
}

const char *lines_open(way *w)
{
  const char *why = simple_why_not(w);
  if (why) return why;
  cudaFuncAttributes attributes; /* a first launch may wait for a device that waits for us */
  CUDACHECK(cudaFuncGetAttributes(&attributes, exchange_lines));
  simple_open_scratch(w, mail_bytes(w) + BLOCKS * sizeof(unsigned)); /* epoch 0: never written */
  return NULL;
}

void lines_close(way *w)
{
  simple_close_scratch(w);
}
