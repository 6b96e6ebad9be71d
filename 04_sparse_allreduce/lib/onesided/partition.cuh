/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of the offered list lies in which region, and sending the parts to the owners. */
#ifndef OPS_PARTITION_CUH
#define OPS_PARTITION_CUH

#include "onesided/flags.cuh"

/* Where the regions begin among the offered entries; a warp looks for each. */
static __device__ inline void ops_find_regions(const sparse_memory &m, uint32_t *begins)
{
  const uint32_t count = (uint32_t)m.state->offered_count;
  for (uint32_t j = threadIdx.x / 32; j <= (uint32_t)m.nranks; j += blockDim.x / 32) {
    const uint32_t at = ops_lower_bound(m.offered, 0, count, m.state->boundaries[j]);
    if (threadIdx.x % 32 == 0) begins[j] = at;
  }
}

/* By `threads` threads of a block, of which this is number `thread`. */
static __device__ inline void ops_note_regions(const sparse_memory &m, const uint32_t *begins,
                                               uint32_t thread, uint32_t threads)
{
  for (int j = (int)thread; j < m.nranks; j += (int)threads) {
    m.state->region_displs[j] = begins[j];
    m.state->region_counts[j] = begins[j + 1] - begins[j];
  }
}

/* By all threads of a grid; `begins` is shared memory for a number per rank and one more. Each
 * block stores a share of every part in the owner's memory, and counts what it has stored: none has
 * to wait for the last one. So each looks where the regions begin, and what the first block writes
 * to the state, no other one reads. */
static __device__ inline void ops_send_offered(const sparse_memory &m, uint32_t *begins)
{
  if (__syncthreads_or(ops_late(m))) return;
  ops_find_regions(m, begins);
  __syncthreads();
  const auto share =
      [&](int p, uint32_t block) { /* where that of a block begins */
                                   const uint32_t count = begins[p + 1] - begins[p];
                                   return begins[p] + min(count, (count / gridDim.x + 1) * block);
      };
  for (int p = (int)threadIdx.x; blockIdx.x == 0 && p < m.nranks; p += (int)blockDim.x)
    ops_signal_owner(m, ops_peer_of(m, p), begins, p, OPS_ALL_LEVELS);
  for (int step = 1; step < m.nranks; step++) { /* not all to the same one */
    const int p = (m.rank + step) % m.nranks;
    const uint32_t end = share(p, blockIdx.x + 1);
    sparse_pair *to = m.state->list_at[p];
#pragma unroll 4
    for (uint32_t i = share(p, blockIdx.x) + threadIdx.x; i < end; i += blockDim.x)
      *(uint2 *)&to[i] = *(const uint2 *)&m.offered[i];
  }
  __syncthreads();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    const uint32_t stored = share(p, blockIdx.x + 1) - share(p, blockIdx.x);
    ops_fence_system();
    if (p != m.rank && stored > 0) ops_count_stored(m, ops_peer_of(m, p), stored);
  }
  if (blockIdx.x == 0) ops_note_regions(m, begins, threadIdx.x, blockDim.x);
}

#endif
