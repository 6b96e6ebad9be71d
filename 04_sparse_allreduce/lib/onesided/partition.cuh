/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of the offered list lies in which region, and telling the owners of the regions. */
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

/* By all threads of a grid; `begins` is shared memory for a number per rank and one more. Blocks
 * copy pieces of the list to the owners' memory, so each of them looks where the regions begin.
 * What the first block writes to the state, no other one reads. */
static __device__ inline void ops_send_offered(const sparse_memory &m, uint32_t *begins)
{
  if (__syncthreads_or(ops_late(m))) return;
  ops_find_regions(m, begins);
  __syncthreads();
  for (int p = (int)threadIdx.x; blockIdx.x == 0 && p < m.nranks; p += (int)blockDim.x)
    ops_signal_owner(m, ops_peer_of(m, p), begins, p, OPS_ALL_LEVELS);
  ops_store_parts(m, begins);
  if (blockIdx.x == 0) ops_note_regions(m, begins, threadIdx.x, blockDim.x);
}

#endif
