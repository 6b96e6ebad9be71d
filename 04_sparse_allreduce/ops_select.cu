/* SPDX-License-Identifier: Apache-2.0 */
/* Selection, a search and then a filter, in one kernel: in most steps there is nothing to do for
 * either, and then it costs what an empty kernel does. ops_offer() tells the owners of regions
 * behind that. And counting above levels, which reads the same input. */
#include "ops_keep.cuh"
#include "ops_partition.cuh"
#include "ops_search.cuh"

namespace
{

/* There is a grid barrier between any two. */
union selection_shared {
  search_shared search;
  keep_shared keep;
  uint32_t begins[SPARSE_MAX_RANKS + 1];
};

/* What a source says; no source is nothing. */
__device__ inline uint32_t said_by(const uint32_t *source)
{
  return source != NULL ? *source : (uint32_t)SPARSE_FROM_NOTHING;
}

/* All blocks have to come to the same grid barriers, so they have to see the same sources. Both are
 * looked at first, at the same time. A search has grid barriers before its decision, so that all
 * have looked by then; without a search, a decision leaves the sources as they are (ops.h). What a
 * decision may have changed for the filter is read behind the last barrier. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    select_entries(const __grid_constant__ sparse_memory m,
                   const __grid_constant__ sparse_list list, const uint32_t *search_source,
                   const uint32_t *keep_source, sparse_selection *selection,
                   const __grid_constant__ sparse_list to,
                   const __grid_constant__ sparse_list dropped, enum sparse_control found,
                   enum sparse_control then, bool offers)
{
  ops_begin_early();
  __shared__ selection_shared s;
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  const uint32_t searched = said_by(search_source);
  uint32_t kept = said_by(keep_source);
  if (searched == SPARSE_FROM_NOTHING && kept == SPARSE_FROM_NOTHING) {
    if (first && !offers) ops_decide(found, &m);
    if (first && !offers) ops_decide(then, &m);
    return;
  }
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  if (searched != SPARSE_FROM_NOTHING)
    search(grid, s.search, m, input_from(m, list, searched), selection);
  if (searched != SPARSE_FROM_NOTHING || found != SPARSE_THEN_NOTHING) {
    if (first) ops_decide(found, &m);
    if (keep_source != NULL) grid.sync();
    kept = said_by(keep_source);
  }
  const bool last = kept == SPARSE_FROM_NOTHING
                        ? first
                        : keep(s.keep, m, input_from(m, list, kept), selection, to, dropped);
  if (last) ops_decide(then, &m);
  if (!offers) return;
  grid.sync();
  ops_partition_offered(m, s.begins);
}

/* ---- counting ----------------------------------------------------------------------------------
 */

/* A histogram over the levels: bin j is for what exceeds levels[j - 1], but not levels[j]. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    count_levels(const __grid_constant__ sparse_memory m, enum sparse_control then)
{
  ops_begin_early();
  __shared__ sparse_level_t levels[SPARSE_MAX_LEVELS];
  __shared__ uint32_t exceeded[SPARSE_MAX_LEVELS + 1];
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const uint32_t from = state->count;
  if (from == SPARSE_FROM_NOTHING) { /* no decision makes something of nothing afterwards */
    if (blockIdx.x == 0 && threadIdx.x == 0) ops_decide(then, &m);
    return;
  }
  const int nlevels = state->nlevels;
  const sparse_level_t limit = state->limit;
  for (int j = (int)threadIdx.x; j <= nlevels; j += THREADS) {
    if (j < nlevels) levels[j] = state->levels[j];
    exceeded[j] = 0;
  }
  __syncthreads();
  const input in = input_from(m, {m.offered, &state->offered_count, 1}, from);
  for_each_magnitude(in, [&](const sparse_level_t(&magnitudes)[4], unsigned valid) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const sparse_level_t magnitude = magnitudes[e];
      const bool counts = (valid >> e & 1) && magnitude > levels[0] && magnitude <= limit;
      int below = 0, above = nlevels; /* levels[below] is exceeded, levels[above] is not */
      while (counts && above - below > 1) {
        const int middle = (below + above) / 2;
        if (magnitude > levels[middle])
          below = middle;
        else
          above = middle;
      }
      count_in(exceeded, (uint32_t)above, counts);
    }
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
  ops_decide(then, &m);
}

/* As many as run at once, which grid barriers need: Turing's multiprocessors have shared memory for
 * one each. CUDA keeps up to 1024 bytes of it for itself in each block. */
unsigned selection_blocks(void)
{
  int device = 0, bytes = 0;
  const bool two = cudaGetDevice(&device) == cudaSuccess &&
                   cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                          device) == cudaSuccess &&
                   (size_t)bytes >= BLOCKS * (sizeof(selection_shared) + 1024);
  return (unsigned)ops_multiprocessors() * (two ? BLOCKS : 1);
}

} // namespace

extern "C" ncclResult_t ops_select(const struct sparse_memory *m, struct sparse_list list,
                                   const uint32_t *search, const uint32_t *keep,
                                   struct sparse_selection *selection, struct sparse_list to,
                                   const struct sparse_list *dropped, enum sparse_control found,
                                   enum sparse_control then, cudaStream_t stream)
{
  const struct sparse_list nowhere = {NULL, NULL, 0};
  return ops_launch(select_entries, selection_blocks(), THREADS, OPS_COOPERATIVE, stream, *m, list,
                    search, keep, selection, to, dropped != NULL ? *dropped : nowhere, found, then,
                    false);
}

extern "C" ncclResult_t ops_offer(const struct sparse_memory *m, enum sparse_control found,
                                  cudaStream_t stream)
{
  sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1}, nowhere = {NULL, NULL, 0};
  return ops_launch(select_entries, selection_blocks(), THREADS, OPS_COOPERATIVE, stream, *m,
                    offered, &s->search, &s->keep, &s->selection, offered, nowhere, found,
                    SPARSE_THEN_NOTHING, true);
}

extern "C" ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_control then,
                                         cudaStream_t stream)
{
  return ops_launch(count_levels, (unsigned)ops_multiprocessors() * BLOCKS, THREADS, OPS_NEXT,
                    stream, *m, then);
}

ncclResult_t ops_load_select(void)
{
  return ops_load_kernels(select_entries, count_levels);
}
