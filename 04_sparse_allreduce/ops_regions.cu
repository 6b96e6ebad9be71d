/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions, and the regions of Ok-Topk: where they begin, and who gets what lies in them. */
#include "ops_notes.cuh"

namespace
{

enum { PARTITION_THREADS = 1024 };

__global__ void control(const __grid_constant__ sparse_memory m, enum sparse_control what)
{
  ops_begin();
  ops_decide(what, &m);
}

/* Where the regions begin in the offered list: a warp looks for each. Direct: blocks copy pieces of
 * the list to the owners' memory, so each of them looks; without, there is one block. What the
 * first block writes to the state, no other one reads. */
__global__ void OPS_BOUNDS(PARTITION_THREADS, 1)
    partition(const __grid_constant__ sparse_memory m, enum sparse_control then)
{
  ops_begin();
  __shared__ uint32_t begin[SPARSE_MAX_RANKS + 1];
  sparse_state *state = m.state;
  if (m.direct && ops_late(m)) return;
  const uint32_t count = (uint32_t)state->offered_count;
  for (int j = (int)threadIdx.x / 32; j <= m.nranks; j += PARTITION_THREADS / 32) {
    const uint32_t at = ops_lower_bound(m.offered, 0, count, state->boundaries[j]);
    if (threadIdx.x % 32 == 0) begin[j] = at;
  }
  __syncthreads();
  if (m.direct) {
    if (blockIdx.x == 0) ops_tell_owners(m, begin);
    ops_store_parts(m, begin);
  }
  if (blockIdx.x > 0) return;
  for (int j = (int)threadIdx.x; j < m.nranks; j += PARTITION_THREADS) {
    state->region_displs[j] = begin[j];
    state->region_counts[j] = begin[j + 1] - begin[j];
  }
  __syncthreads();
  if (threadIdx.x == 0) ops_decide(then, &m);
}

__global__ void __launch_bounds__(SPARSE_MAX_RANKS) propose(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  sparse_state *state = m.state;
  const uint64_t chunk = state->offered_count / (uint64_t)m.nranks, j = threadIdx.x;
  if (j == 0)
    state->proposal[0] = chunk == 0;
  else if (j < (uint64_t)m.nranks)
    state->proposal[j] = chunk == 0 ? 0 : m.offered[chunk * j].index;
}

} // namespace

extern "C" {

ncclResult_t ops_control(const struct sparse_memory *m, enum sparse_control what,
                         cudaStream_t stream)
{
  return ops_launch(control, 1, 1, OPS_NEXT, stream, *m, what);
}

ncclResult_t ops_partition(const struct sparse_memory *m, enum sparse_control then,
                           cudaStream_t stream)
{
  const unsigned blocks = m->direct ? ops_blocks(m->k, 2 * PARTITION_THREADS, 1) : 1;
  return ops_launch(partition, blocks, PARTITION_THREADS, OPS_NEXT, stream, *m, then);
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(propose, 1, SPARSE_MAX_RANKS, OPS_NEXT, stream, *m);
}

} // extern "C"

ncclResult_t ops_load_regions(void)
{
  return ops_load_kernels(control, partition, propose);
}
