/* SPDX-License-Identifier: Apache-2.0 */
/* An AllReduce without a barrier.
 *
 *   send   every float goes to every rank as a line: the float and the epoch (the number of the
 *          call), stored together by one instruction
 *   add    read the lines in this rank's memory until each has this epoch, and so its float
 *
 * No barrier before: a line is stored into scratch memory, which only this AllReduce uses, so
 * nothing has to be ready there. No barrier after: there are two halves, for odd and for even
 * epochs. Rank A overwrites in epoch e what it stored at rank B in e - 2. Kernels of one stream run
 * one after the other, so A has finished e - 1, and read a line of e - 1 from B. So B had begun
 * e - 1, and had finished e - 2 before: it has read what A overwrites.
 *
 * It is faster than barrier.cu for small vectors: a store is one trip over the link and a
 * load is two, and a rank waits once, not twice. It is slow for large vectors: four bytes of
 * sixteen are data, every rank sends its whole vector to all, and the receiver reads all of it
 * again. ../lib/allreduce_lines.cuh has lines that are all data, ../lib/allreduce_push.cuh sends
 * each rank a part. They take any type and count, have timeouts, and check that all ranks make the
 * same call.
 */
#include "allreduce_simple.h"

#include "check.h"

/* One store and one load of 128 bits. PTX promises that 64 bits stay whole; that 128 do is what we
 * and others have seen on H100 and H200 over NVLink. */
static __device__ void store_line(line *at, uint64_t data, uint64_t epoch)
{
  asm volatile(
      "{ .reg .b128 l; mov.b128 l, {%1, %2}; st.relaxed.sys.global.b128 [%0], l; }" ::"l"(at),
      "l"(data), "l"(epoch)
      : "memory");
}

static __device__ line load_line(const line *at)
{
  line l;
  asm volatile("{ .reg .b128 l; ld.relaxed.sys.global.b128 l, [%2]; mov.b128 {%0, %1}, l; }"
               : "=l"(l.data), "=l"(l.epoch)
               : "l"(at)
               : "memory");
  return l;
}

__global__ void __launch_bounds__(THREADS)
    add_lines(ncclWindow_t scratch_window, uint64_t *epochs, int rank, int n, const float *sendbuff,
              float *recvbuff, size_t count)
{
  const uint64_t epoch = epochs[blockIdx.x] + 1; /* each block has its own copy */
  const size_t half = (epoch & 1) * n * ROOM;
  const size_t start = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;

  for (size_t i = start; i < count; i += step)
    for (int p = 0; p < n; p++) { /* also to this rank: the code is shorter */
      line *scratch = (line *)ncclGetLsaPointer(scratch_window, 0, p);
      store_line(&scratch[half + rank * ROOM + i], __float_as_uint(sendbuff[i]), epoch);
    }

  const line *scratch = (const line *)ncclGetLsaPointer(scratch_window, 0, rank);
  for (size_t i = start; i < count; i += step) {
    float sum = 0;
    for (int p = 0; p < n; p++) { /* the same order on all ranks, so the same bits */
      line l;
      do l = load_line(&scratch[half + p * ROOM + i]);
      while (l.epoch != epoch);
      sum += __uint_as_float((uint32_t)l.data);
    }
    recvbuff[i] = sum;
  }
  __syncthreads(); /* all threads have the epoch */
  if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

void lines_allreduce(simple *s, const float *sendbuff, float *recvbuff, size_t count,
                     cudaStream_t stream)
{
  for (size_t first = 0; first < count; first += ROOM) { /* each launch is an epoch */
    const size_t here = count - first < ROOM ? count - first : ROOM;
    add_lines<<<s->blocks, s->threads, 0, stream>>>(s->scratch_window, s->epochs, s->rank, s->n,
                                                    sendbuff + first, recvbuff + first, here);
  }
  CUDACHECK(cudaGetLastError());
}
