/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the sparse allreduce: everything but messages. ops*.cu are the kernels,
 * ops_cpu.c their plain C twins for the CPU stand-in.
 *
 * All of them enqueue on the stream and return; none waits, allocates or reads anything on the host
 * but its arguments, so all can be captured into a CUDA graph. Lists have their number of entries
 * in device memory. Results do not depend on the number of blocks or on timing: no operator adds
 * floats by atomics. "then" is a decision (decide/decisions.h) that one thread of the operator takes at its
 * end, behind all the rest if nothing else is said, which saves a kernel; SPARSE_THEN_NOTHING if
 * there is none. Where a source is nothing, decisions must leave it so.
 *
 * Operators are local, but for those that work "direct" (m->direct): there ranks load from and
 * store to each other's memory. Those are collective: ops_local_pass(), ops_partition(),
 * ops_reduce() and ops_select_sums() store; ops_reduce(), ops_select_sums() and ops_apply() wait
 * for the other ranks, at most config.timeout_seconds. After that state->late says for whom, and
 * nobody waits any more.
 *
 * Operators return ncclSuccess or, if CUDA refuses a launch, ncclUnhandledCudaError. */
#ifndef OPS_H
#define OPS_H

#include "decide/decisions.h"
#include "state/sparse_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory that the operators need beside lists, zeroed once by the caller. */
size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity);

/* Loads all kernels of the current device, so that later launches do not, and finds out whether
 * they can start early there (ops_device.cuh). To be called before any operator. */
ncclResult_t ops_load(void);

/* A decision on its own. */
ncclResult_t ops_control(const struct sparse_memory *m, enum sparse_control what,
                         cudaStream_t stream);

/* ---- the local pass: one read of gradient and residual, one write of the residual ------------ */

/* What else there is to be done. */
enum sparse_pass {
  SPARSE_PASS_SELECTS, /* nothing */
  SPARSE_PASS_MOMENTS, /* state->mean and state->deviation of the new residual, in double, the same
                          bits in every run */
  SPARSE_PASS_OFFERS,  /* direct, with SPARSE_THRESHOLD_LEVELS and _OFFER: the entries of the list
                          go to the owners of state->boundaries' regions on the way, and these are
                          told above which level they count. offered_count is that of those, then.
                          If there are more than `capacity`, nobody is told, and state->unoffered
                          is 1: ops_reduce() chooses from them. */
};

/* `begin` is the decision that a step begins with: it sets the levels and the limit.
 * First, what is pending in the residual (state->pending, by state->selection) becomes zero, as in
 * ops_settle(), the result being that of the last ops_apply(). From then on `leaves` is pending:
 * what this step is going to take out of the residual. For all i: residual[i] += gradient[i] (one
 * IEEE add of float(gradient[i])), where gradient[i] is finite or m->config.nonfinite is
 * SPARSE_NONFINITE_PROPAGATE; else residual[i] stays, and state->nonfinite says where. gradient ==
 * NULL: the residual is taken as it is. Elements with magnitude > levels[0] and <= limit go to the
 * offered list, ascending, as far as m->room entries; offered_count says how many there are in the
 * list, level_counts[j] for j < nlevels how many exceed levels[j]. */
ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_pass what, enum sparse_leaves leaves,
                            enum sparse_control begin, enum sparse_control then,
                            cudaStream_t stream);

/* level_counts[j] for j < nlevels, counted over state->count: the offered list, all of the
 * residual, or nothing, which leaves the counts. Levels ascend. */
ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_control then,
                              cudaStream_t stream);

/* ---- selection ------------------------------------------------------------------------------- */

/* A search, its decision `found`, a filter, its decision `then`; each sees what those before it
 * have left. *search and *keep, enum sparse_source in device memory, say what the two read: `list`,
 * all of the residual, or nothing, and then the part does nothing. NULL instead of the address of a
 * source is nothing, too. Decisions are taken in any case. Where *search is nothing, `found` must
 * leave both sources as they are.
 *
 * The search, a radix search over magnitudes, finds the state->wanted largest entries, or all if
 * there are fewer, and then sets wanted to how many. It looks above state->near first. It sets
 * selection->above to the magnitude of the last one, ->take to how many of that very magnitude are
 * wanted, ->tie to -1, ->limit to SPARSE_NAN_LEVEL. wanted == 0 or an empty source: above =
 * SPARSE_NAN_LEVEL, take = 0.
 *
 * The filter writes the entries that *selection chooses to `to` (one part), ascending, and their
 * number to *to.counts; if take > 0, of the entries equal to `above` the first `take`, and sets
 * ->tie to the index of the last of those. to.pairs may be list.pairs. Entries with index
 * SPARSE_NO_INDEX are never chosen. dropped (may be NULL): receives those not chosen, same rules
 * (lists of one part only). The caller makes sure that `to` has room. */
ncclResult_t ops_select(const struct sparse_memory *m, struct sparse_list list,
                        const uint32_t *search, const uint32_t *keep,
                        struct sparse_selection *selection, struct sparse_list to,
                        const struct sparse_list *dropped, enum sparse_control found,
                        enum sparse_control then, cudaStream_t stream);

/* ---- regions --------------------------------------------------------------------------------- */

/* state->region_counts and region_displs of the offered list for state->boundaries. Direct: also
 * stores the parts of the list in the memory of the owners of the regions, at the same place in
 * this rank's slot there, and tells them. */
ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream);

/* state->proposal: with c = offered_count / nranks, [j] = index of offered entry c * j for
 * j = 1 ... nranks - 1 and [0] = 0; all zero but [0] = 1 if c == 0. */
ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream);

/* ---- sums ------------------------------------------------------------------------------------ */

/* Which sums a reduction keeps. */
enum sparse_sums {
  SPARSE_SUMS_NONZERO, /* != 0, NaN included */
  SPARSE_SUMS_ABOVE,   /* |sum| > (float)state->global_threshold */
};

/* Sums nranks lists: list p is base[displs[p] ...] with counts[p] entries (device arrays). With
 * base == NULL (direct) these are the lists that the ranks have for this one; the kernel waits
 * until it has been told of all of them, sets state->received_counts, says in m->unit_begins where
 * sums are, and in the end tells all ranks how many there are; no word of sums with
 * SPARSE_SUMS_NONZERO, which ops_select_sums() is to follow. If state->unoffered says so, it begins
 * with ops_select() of the offered list by state->search, keep and selection,
 * SPARSE_THRESHOLD_OVERFLOW and ops_partition(). The region is [region[0], region[1]) (device);
 * entries outside it are ignored. Every sum starts at 0.0f and takes the lists in the order first,
 * first + stride, ... modulo nranks (stride 1 or -1); indices are unique within a list. Sums that
 * are kept go to `to`, ascending. */
ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                        const uint64_t *displs, const uint64_t *counts, int first, int stride,
                        const uint64_t *region, enum sparse_sums which, struct sparse_list to,
                        enum sparse_control then, cudaStream_t stream);

/* Merges two lists (one part each): all indices of both, values of equal indices added, a + b. */
ncclResult_t ops_merge(const struct sparse_memory *m, struct sparse_list a, struct sparse_list b,
                       struct sparse_list to, cudaStream_t stream);

/* Direct: of the sums of all ranks, `reduced` with reduced_count entries at each, the state->wanted
 * largest; of equal ones those of lower ranks and then those of lower indices. Only histograms go
 * from rank to rank. Sets wanted and `above` of state->global as ops_select() does and takes the
 * decision SPARSE_GLOBAL_FOUND. What is chosen of a rank's own sums is in `reduced` then,
 * state->chosen_count of them, m->unit_begins says where, and all ranks are told. reduced_count
 * stays; gathered_total is its sum over all ranks. */
ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream);

/* ---- results --------------------------------------------------------------------------------- */

/* dense[i] = value / nranks (IEEE division) for the entries of the list, and 0 for all other i.
 * Before, dense is what the last ops_apply() or ops_clear() has left. Either the list has one part,
 * or part p has the entries of region p, state->boundaries[p] on. With list.pairs == NULL (direct)
 * the list is that of all ranks' sums: waits until they are there and fetches them on the way, to
 * `gathered`, in rank order, one behind the other, with state->gathered_counts, gathered_displs
 * and, if a rank says so, nonfinite. `then` is taken before all of that is done: it must be one
 * about counts. */
ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_control then, cudaStream_t stream);

/* What is pending, now: residual[i] = 0 where state->selection chooses residual[i], for all i or,
 * as state->pending says, for those of the state->result_count first entries of `gathered`. */
ncclResult_t ops_settle(const struct sparse_memory *m, cudaStream_t stream);

/* dense[i] = 0 for all i, whatever has written there. */
ncclResult_t ops_clear(const struct sparse_memory *m, cudaStream_t stream);

/* residual[i] += value for the entries of `list` whose index is in `among` (both one part). */
ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream);

/* ---- dense vectors --------------------------------------------------------------------------- */

/* dense[i] = value for the entries of the list. */
ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream);

/* dense[i] /= nranks for all i. */
ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream);

/* dense[i] = float(gradient[i]) for all i. */
ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream);

/* ---- indices and values apart ---------------------------------------------------------------- */

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream);

/* to[i] = {indices[i], values[i]} for as many as `counts` says (sum of `parts`). */
ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
