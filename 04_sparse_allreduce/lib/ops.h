/* SPDX-License-Identifier: Apache-2.0 */
/* The operators: everything but messages. kernels/ has the kernels; ../cpu/ their CPU versions, for
 * the stand-in, of all but the one-sided ones, which use other ranks' memory.
 *
 * All of them enqueue on the stream and return; none waits or allocates, and on the host none reads
 * more than its arguments. So all can be captured into a CUDA graph. Lists have their number of
 * entries in device memory. No operator adds floats by atomics, so that results do not depend on
 * timing. They return ncclSuccess or, if CUDA refuses a launch, ncclUnhandledCudaError.
 *
 * Most decisions of a step (decide/decide.h) are launches of their own. Others are taken by a
 * thread of an operator at its end, which saves a kernel. */
#ifndef OPS_H
#define OPS_H

#include "decide/decide.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory that the operators need besides lists, zeroed once by the caller. */
size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity);

/* Loads all kernels of the current device and finds out whether they can start early there
 * (device/device.cuh). To be called before any operator. */
ncclResult_t ops_load(void);

/* ops_search_k(m, stream) takes the decision sparse_search_k(m), and so on. */
#define OPS_DECISIONS(DO) \
  DO(search_k)            \
  DO(take_threshold)      \
  DO(gaussian_threshold)  \
  DO(propose_regions)     \
  DO(take_regions)        \
  DO(take_counts)         \
  DO(send_offered)        \
  DO(want_k)              \
  DO(want_k_near_threshold)
#define OPS_DECLARE(name) \
  ncclResult_t ops_##name(const struct sparse_memory *m, cudaStream_t stream);
OPS_DECISIONS(OPS_DECLARE)

/* ---- the local pass: one read of gradient and residual, one write of the residual ------------ */

/* 1. What the step before has left pending (state->pending) becomes zero in the residual, as
 *    ops_clear_pending() does it. From now on `removal` is pending, for the step after this one.
 * 2. For all i: residual[i] += float(gradient[i]), one IEEE add. If gradient[i] is not finite,
 *    residual[i] stays as it is, and state->nonfinite says where the first such i was. With
 *    gradient == NULL nothing is added.
 * 3. Candidates are the elements whose magnitude exceeds levels[0], but not the limit. They go to
 *    the offered list, ascending; if they are more than m->room, only the first ones do.
 *    offered_count says how many count (one-sided with a raised threshold: of those in the list,
 *    the ones above it). level_counts[j] for j < nlevels says how many
 *    elements exceed levels[j] (and not the limit), whether they are in the list or not.
 * 4. Of SPARSE_GAUSSIAN_GUESS only: state->mean and deviation of the new residual, in double, with
 *    the same bits in every run. */
ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream);

/* Counts level_counts[j] for j < nlevels again, over what state->count_from says: the offered list
 * or all of the residual. If it says nothing, the counts stay. Then the decision
 * sparse_gaussian_correct(). */
ncclResult_t ops_count_levels(const struct sparse_memory *m, cudaStream_t stream);

/* ---- selection ------------------------------------------------------------------------------- */

/* Three parts, one after the other: a search, a decision about what it has found, and a filter.
 * state->search_from says what the search reads, state->keep_from what the filter reads (enum
 * sparse_source): the list `from`, all of the residual, or nothing. A part that reads nothing does
 * nothing. The decision may change *selection.
 *
 * The search finds the state->wanted largest entries, or all if there are fewer, by a radix search
 * over magnitudes, which looks above state->near first. It sets
 *   state->wanted       to how many it has found
 *   selection->above    to the magnitude of the last of them
 *   selection->take     to how many of those with that very magnitude are wanted
 *   selection->tie      to -1, and ->limit to SPARSE_NAN_LEVEL
 * If nothing is wanted or the source is empty, above is SPARSE_NAN_LEVEL and take is 0.
 *
 * The filter writes the entries that *selection chooses to `to`, which has one part, ascending, and
 * their number to *to.counts. If take > 0, it keeps the first `take` of the entries whose magnitude
 * equals `above`, and sets ->tie to the index of the last of those. `to` needs room for all.
 * to.pairs may be from.pairs.
 *
 * ops_select_offered() does this to the offered list, in place, with state->selection and the
 * decision sparse_offered_found(); ops_select_sums() to sums, with sparse_sums_found(). */
ncclResult_t ops_select_offered(const struct sparse_memory *m, cudaStream_t stream);
ncclResult_t ops_select_sums(const struct sparse_memory *m, struct sparse_list from,
                             struct sparse_list to, struct sparse_selection *selection,
                             cudaStream_t stream);

/* ---- regions --------------------------------------------------------------------------------- */

/* state->region_counts and region_displs of the offered list for state->kept.boundaries. */
ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream);

/* ---- sums ------------------------------------------------------------------------------------ */

/* Which sums a reduction keeps. */
enum sparse_sums {
  SPARSE_SUMS_NONZERO, /* != 0, NaN included */
  SPARSE_SUMS_ABOVE,   /* |sum| > (float)state->kept.global_threshold */
  SPARSE_SUMS_ALL,
};

/* Which lists are added, where they begin, and in which order they are added. */
enum sparse_order {
  /* All entries. List p is at lists + received_displs[p]. First the list of rank 0, then 1, ... */
  SPARSE_FROM_RANK_0,
  /* The entries in this rank's region. List p is at lists + list_displs[p]. First this rank's list,
   * then that of rank - 1, ... modulo nranks. Then the decision sparse_send_reduced(). */
  SPARSE_FROM_OWNER,
};

/* Sums nranks lists, state->received_counts[p] entries each; sums that are kept go to `to`,
 * ascending. Every sum starts at 0.0f; indices are unique within a list. */
ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *lists,
                        enum sparse_order order, enum sparse_sums which, struct sparse_list to,
                        cudaStream_t stream);

/* ---- results --------------------------------------------------------------------------------- */

/* dense[i] = value / nranks (IEEE division) for the entries of the list, and 0 for all other i. It
 * expects in dense what the last ops_apply() or ops_average() has left there, and clears no more
 * than that. The list has one part, or part p has the entries of region p. With
 * SPARSE_RESULT_ENTRIES dense is neither read nor written. In both cases it notes which elements
 * have an entry, for the next ops_local_pass(). Then the decision sparse_applied(). */
ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_thresholds thresholds, cudaStream_t stream);

/* vector[i] = fma(scale, value / nranks, vector[i]), with the division of ops_apply(), for the
 * entries of the list; or the same of the dense result, for all i. */
ncclResult_t ops_add(const struct sparse_memory *m, struct sparse_list list, float scale,
                     float *vector, cudaStream_t stream);
ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream);

/* What is pending in the residual becomes zero now, see enum sparse_removal. */
ncclResult_t ops_clear_pending(const struct sparse_memory *m, cudaStream_t stream);

/* residual[i] += value for the entries of `list` (one part) that *selection does not choose and
 * whose index is in the list of the last ops_apply(). */
ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        const struct sparse_selection *selection, cudaStream_t stream);

/* ---- dense vectors --------------------------------------------------------------------------- */

/* dense[index] = value for the entries of the list. */
ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream);

/* dense[i] /= nranks for all i. The next ops_apply() clears all of them. */
ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream);

/* dense[i] = float(gradient[i]) for all i. */
ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream);

/* ---- one-sided -------------------------------------------------------------------------------
 * The operators of oktopk where ranks load from and store to each other's memory, instead of
 * messages. All ranks call them in the same order: each stores to the others, or waits for what the
 * others store, at most config.timeout_seconds. After that state->progress.late says for whom, and
 * this rank waits no more. They replace an exchange and the operators around it. They take their
 * decisions themselves, because a launch for each would cost most of what they gain. */
struct sparse_onesided {
  /* Each part of the offered list, divided by state->kept.boundaries as in ops_partition(), goes to
   * the memory of the owner of its region, to the same place in this rank's list there. */
  ncclResult_t (*send_parts)(const struct sparse_memory *m, cudaStream_t stream);

  /* ops_local_pass() of SPARSE_ABOVE_THRESHOLDS and SPARSE_REMOVE_IN_RESULT, selection and
   * send_parts() in one: candidates go to the owners on the way, and flags say above which level
   * they count; offered_count is how many do. More than sparse_most(): no flag, state->unsent is 1.
   */
  ncclResult_t (*pass_and_send)(const struct sparse_memory *m, const void *gradient,
                                cudaStream_t stream);

  /* The owner of a region adds the lists for it as ops_reduce() does, when all ranks' have come.
   * Sets state->received_counts. SPARSE_SUMS_ABOVE: in the end writes to all ranks how many there
   * are, m->unit_begins where. SPARSE_SUMS_NONZERO: choose_sent() is to follow, and wants
   * sparse_want_k_near_threshold(). state->unsent: selects first what is offered, as the state
   * says, and sends it. */
  ncclResult_t (*reduce_sent)(const struct sparse_memory *m, enum sparse_sums which,
                              cudaStream_t stream);

  /* Chooses the state->wanted largest of the sums of all ranks, `reduced` with reduced_count
   * entries at each; among equals those of lower ranks, then of lower indices. Sets wanted and
   * `above` of state->global as ops_select_sums() does and takes its decision. reduced_count stays.
   * Only histograms go from rank to rank: afterwards `reduced` has state->chosen_count entries, and
   * flags and m->unit_begins say so. */
  ncclResult_t (*choose_sent)(const struct sparse_memory *m, cudaStream_t stream);

  /* ops_apply() of the sums of all ranks, each in its owner's memory, when they are there: fetches
   * them on the way to `gathered`, in rank order, one after the other. Sets gathered_counts. */
  ncclResult_t (*apply_sent)(const struct sparse_memory *m, enum sparse_thresholds thresholds,
                             cudaStream_t stream);
};

/* NULL: there are none, as among the CPU versions. */
extern const struct sparse_onesided *const ops_onesided;

#ifdef __cplusplus
}
#endif
#endif
