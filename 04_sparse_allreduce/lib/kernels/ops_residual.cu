/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the residual, or returns to it, where the local pass does not do that on its way. */
#include "device/ops_entries.cuh"

namespace
{

__global__ void OPS_BOUNDS(THREADS, BLOCKS) settle(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  const sparse_state *state = m.state;
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  const uint64_t me = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
  if (state->pending == SPARSE_REMOVE_OFFERED)
    for (uint64_t i = me; i < m.n; i += threads)
      sparse_settle_element(state, m.residual, (uint32_t)i);
  else if (state->pending == SPARSE_REMOVE_IN_RESULT)
    for_each_entry(m.gathered, state->result_count, [&](sparse_pair entry) {
      if (entry.index < m.n) /* who has given up may not have fetched all */
        sparse_settle_element(state, m.residual, entry.index);
    });
  if (!ops_last_block((ops_scratch *)m.scratch)) return;
  if (threadIdx.x == 0) m.state->pending = SPARSE_REMOVE_NOTHING;
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    give_back(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
              const __grid_constant__ sparse_list among)
{
  ops_begin();
  const uint64_t count = ops_list_count(among);
  for_each_entry(list.pairs, ops_list_count(list), [&](sparse_pair entry) {
    const uint64_t at = ops_binary_search(among.pairs, count, entry.index);
    if (at < count && among.pairs[at].index == entry.index)
      m.residual[entry.index] = __fadd_rn(m.residual[entry.index], entry.value);
  });
}

} // namespace

extern "C" {

ncclResult_t ops_settle(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(settle, list_blocks(m), THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  return ops_launch(give_back, list_blocks(m), THREADS, OPS_NEXT, stream, *m, list, among);
}

} // extern "C"

ncclResult_t ops_load_residual(void)
{
  return ops_load_kernels(settle, give_back);
}
