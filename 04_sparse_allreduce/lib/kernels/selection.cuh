/* SPDX-License-Identifier: Apache-2.0 */
/* A search and then a filter, as far as sources say so, by a grid whose blocks run at once. */
#ifndef OPS_SELECTION_CUH
#define OPS_SELECTION_CUH

#include "device/keep.cuh"
#include "kernels/search.cuh"

namespace
{

/* There is a grid barrier between both. */
union selection_shared {
  search_shared search;
  keep_shared keep;
};

enum { OPS_SELECTING_BLOCKS = 2 }; /* per multiprocessor, of kernels that only select */

/* Their blocks have to run at once. */
inline unsigned ops_selecting_blocks(void)
{
  return (unsigned)(ops_multiprocessors() *
                    ops_at_once(sizeof(selection_shared), OPS_SELECTING_BLOCKS));
}

/* What a source says; no source is nothing. */
__device__ inline uint32_t said_by(const uint32_t *source)
{
  return source != NULL ? *source : (uint32_t)SPARSE_FROM_NOTHING;
}

/* All blocks have to come to the same grid barriers, so they have to see the same sources. Both are
 * looked at first, at the same time. A search takes its decision when all blocks have come to a
 * barrier, so that all have looked by then; without a search, a decision leaves the sources as they
 * are (ops.h). What a decision may have changed for the filter is read after the last barrier. */
__device__ inline void search_and_keep(const sparse_memory &m, selection_shared &s,
                                       const sparse_list &list, const uint32_t *search_source,
                                       const uint32_t *keep_source, sparse_selection *selection,
                                       const sparse_list &to, const sparse_list &dropped,
                                       enum sparse_decision found)
{
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  const uint32_t searched = said_by(search_source);
  uint32_t kept = said_by(keep_source);
  if (searched == SPARSE_FROM_NOTHING && kept == SPARSE_FROM_NOTHING) {
    if (first) ops_decide(found, &m);
    return;
  }
  if (searched != SPARSE_FROM_NOTHING) {
    search<false>(s.search, m, input_from(m, list, searched), selection, found);
  } else if (found != SPARSE_THEN_NOTHING) {
    if (first) ops_decide(found, &m);
    ops_grid_sync((ops_scratch *)m.scratch);
  }
  if (searched != SPARSE_FROM_NOTHING || found != SPARSE_THEN_NOTHING) kept = said_by(keep_source);
  if (kept != SPARSE_FROM_NOTHING)
    keep(s.keep, m, input_from(m, list, kept), selection, to, dropped);
}

} // namespace

#endif
