/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions, and the regions of Ok-Topk: where they begin, and who gets what lies in them. */
#include "onesided/ops_onesided.h"
#include "onesided/ops_partition.cuh"

namespace
{

enum { PARTITION_THREADS = 1024 };

__global__ void decide(const __grid_constant__ sparse_memory m, enum sparse_decision what)
{
  ops_begin();
  ops_decide(what, &m);
}

__global__ void OPS_BOUNDS(PARTITION_THREADS, 1) partition(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ uint32_t begins[SPARSE_MAX_RANKS + 1];
  ops_find_regions(m, begins);
  __syncthreads();
  ops_note_regions(m, begins, threadIdx.x, blockDim.x);
}

/* By many blocks, which copy. */
__global__ void OPS_BOUNDS(PARTITION_THREADS, 1) send_parts(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ uint32_t begins[SPARSE_MAX_RANKS + 1];
  ops_send_offered(m, begins);
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

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  return ops_launch(decide, 1, 1, OPS_NEXT, stream, *m, what);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(partition, 1, PARTITION_THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(send_parts, ops_blocks(m->k, 2 * PARTITION_THREADS, 1), PARTITION_THREADS,
                    OPS_NEXT, stream, *m);
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(propose, 1, SPARSE_MAX_RANKS, OPS_NEXT, stream, *m);
}

} // extern "C"

ncclResult_t ops_load_regions(void)
{
  return ops_load_kernels(decide, partition, send_parts, propose);
}
