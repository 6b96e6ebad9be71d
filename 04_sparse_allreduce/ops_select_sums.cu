/* SPDX-License-Identifier: Apache-2.0 */
/* The largest of all ranks' sums, without moving them: ranks tell each other how many they have of
 * which size (ops_search.cuh), so that each knows what to keep of its own. */
#include "ops_selection.cuh"

namespace
{

enum {
  THREADS = 512,
  BLOCKS = 2, /* per multiprocessor */
};
static_assert((int)THREADS >= (int)OPS_SELECTING_LEAST && (int)THREADS <= (int)OPS_SELECTING_MOST,
              "there is room");

/* Whether a rank is late, all blocks find the same: only the last block at a barrier waits. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS) select_sums(const __grid_constant__ sparse_memory m)
{
  ops_begin_early();
  __shared__ selection_shared s;
  sparse_state *state = m.state;
  if (ops_late(m)) return;
  const sparse_list sums = {m.reduced, &state->reduced_count, 1};
  const sparse_list chosen = {m.reduced, &state->chosen_count, 1}, nowhere = {NULL, NULL, 0};
  const input in = input_from(m, sums, SPARSE_FROM_LIST);
  search<true>(s.search, m, in, &state->global, SPARSE_GLOBAL_FOUND);
  if (ops_late(m)) return;
  const noted_units units = {m.unit_begins, state->boundaries[m.rank],
                             state->boundaries[m.rank + 1]};
  if (!keep(s.keep, m, in, &state->global, chosen, nowhere, units)) return;
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
    ops_fence_system();
    ops_tell_sums(m, p, (uint32_t)state->chosen_count, (uint32_t)state->received_counts[p]);
  }
}

} // namespace

extern "C" ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream)
{
  const int blocks = ops_at_once(sizeof(selection_shared), BLOCKS);
  return ops_launch(select_sums, (unsigned)(ops_multiprocessors() * blocks), THREADS,
                    OPS_COOPERATIVE, stream, *m);
}

ncclResult_t ops_load_select_sums(void)
{
  return ops_load_kernels(select_sums);
}
