/* SPDX-License-Identifier: Apache-2.0 */
/* Selection, a search and then a filter, in one kernel: in most steps neither has anything to do.
 * And counting above levels, which reads the same input. */
#include "kernels/selection.cuh"

namespace
{

enum { THREADS = OPS_SELECTING_MOST, BLOCKS = OPS_SELECTING_BLOCKS };

template <void (*FOUND)(const sparse_memory *)>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    select_entries(const __grid_constant__ sparse_memory m,
                   const __grid_constant__ sparse_list from, const __grid_constant__ sparse_list to,
                   sparse_selection *selection)
{
  ops_let_next_begin();
  ops_begin();
  __shared__ selection_shared s;
  search_and_keep<FOUND>(m, s, from, to, selection);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* A histogram over the levels: bin j is for what exceeds levels[j - 1], but not levels[j]. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS) count_levels(const __grid_constant__ sparse_memory m)
{
  ops_let_next_begin();
  ops_begin();
  __shared__ sparse_level_t levels[SPARSE_MAX_LEVELS];
  __shared__ uint32_t exceeded[SPARSE_MAX_LEVELS + 1];
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const uint32_t from = state->count_from;
  if (from == SPARSE_FROM_NOTHING) return; /* a threshold has been taken */
  const int nlevels = state->nlevels;
  const sparse_level_t limit = state->limit;
  for (int j = (int)threadIdx.x; j <= nlevels; j += THREADS) {
    if (j < nlevels) levels[j] = state->levels[j];
    exceeded[j] = 0;
  }
  __syncthreads();
  const input in = input_from(m, sparse_offered(&m), from);
  for_each_magnitude(in, [&](sparse_level_t magnitude, bool valid) {
    const bool counts = valid && magnitude > levels[0] && magnitude <= limit;
    int below = 0, above = nlevels; /* levels[below] is exceeded, levels[above] is not */
    while (counts && above - below > 1) {
      const int middle = (below + above) / 2;
      if (magnitude > levels[middle])
        below = middle;
      else
        above = middle;
    }
    count_in(exceeded, (uint32_t)above, counts);
  });
  __syncthreads();
  for (int j = (int)threadIdx.x + 1; j <= nlevels; j += THREADS)
    if (exceeded[j] > 0) atomicAdd(&scratch->levels[j - 1], exceeded[j]);
  if (!ops_last_block(scratch)) return;
  for (int j = (int)threadIdx.x; j < nlevels; j += THREADS) {
    exceeded[j] = __ldcg(&scratch->levels[j]);
    scratch->levels[j] = 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t above = 0;
  for (int j = nlevels - 1; j >= 0; j--) state->level_counts[j] = above += exceeded[j];
  ops_decide<sparse_gaussian_correct>(&m);
}

} // namespace

extern "C" {

ncclResult_t ops_select_offered(const struct sparse_memory *m, cudaStream_t stream)
{
  const sparse_list offered = sparse_offered(m);
  return ops_launch(select_entries<sparse_offered_found>, (unsigned)ops_multiprocessors() * BLOCKS,
                    THREADS, OPS_COOPERATIVE, stream, *m, offered, offered, &m->state->selection);
}

ncclResult_t ops_select_sums(const struct sparse_memory *m, struct sparse_list from,
                             struct sparse_list to, struct sparse_selection *selection,
                             cudaStream_t stream)
{
  return ops_launch(select_entries<sparse_sums_found>, (unsigned)ops_multiprocessors() * BLOCKS,
                    THREADS, OPS_COOPERATIVE, stream, *m, from, to, selection);
}

ncclResult_t ops_count_levels(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(count_levels, (unsigned)ops_multiprocessors() * BLOCKS, THREADS, OPS_NEXT,
                    stream, *m);
}

} // extern "C"

static const ops_load_kernels load(select_entries<sparse_offered_found>,
                                   select_entries<sparse_sums_found>, count_levels);
