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

enum { OPS_SELECTING_BLOCKS = 2 }; /* per multiprocessor, of kernels that only select, */
static_assert(sizeof(selection_shared) < 16 << 10, "which run at once: there is room for both");

/* All blocks have to come to the same grid barriers, so they have to see the same sources. Both are
 * looked at first, at the same time. A search takes its decision when all blocks have come to a
 * barrier, and what that may have changed for the filter is read after the last barrier. Without a
 * search, a decision changes nothing for the filter (ops.h). */
__device__ inline void search_and_keep(const sparse_memory &m, selection_shared &s,
                                       const sparse_list &list, const uint32_t *search_source,
                                       const uint32_t *keep_source, sparse_selection *selection,
                                       const sparse_list &to, const sparse_list &dropped,
                                       enum sparse_decision found)
{
  uint32_t searched = SPARSE_FROM_NOTHING, kept = SPARSE_FROM_NOTHING;
  if (search_source != NULL) searched = *search_source;
  if (keep_source != NULL) kept = *keep_source;
  if (searched != SPARSE_FROM_NOTHING) {
    search<false>(s.search, m, input_from(m, list, searched), selection, found);
    if (keep_source != NULL) kept = *keep_source;
  } else if (blockIdx.x == 0 && threadIdx.x == 0) {
    ops_decide(found, &m);
  }
  if (kept != SPARSE_FROM_NOTHING)
    keep(s.keep, m, input_from(m, list, kept), selection, to, dropped);
}

} // namespace

#endif
