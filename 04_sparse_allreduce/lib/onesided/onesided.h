/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of oktopk where ranks load from and store to each other's memory, in place of
 * messages. All ranks call them in the same order: each stores to the others, or waits for what the
 * others store, at most config.timeout_seconds. After that state->late says for whom, and nobody
 * waits any more. They replace an exchange and the operators around it, and take their decisions
 * themselves: a launch for each would be most of what they gain. Two have kernels of their own, in
 * onesided.cu; the others are forms of local kernels (kernels/). */
#ifndef OPS_ONESIDED_H
#define OPS_ONESIDED_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each part of the offered list, divided by state->boundaries as in ops_partition(), goes to the
 * memory of the owner of its region, to the same place in this rank's list there. */
ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream);

/* ops_local_pass() of SPARSE_ABOVE_THRESHOLDS, selection and ops_send_parts() in one: candidates go
 * to the owners on the way, and flags say above which level they count; offered_count is how many
 * do. If there are more than `capacity`, no flag is written, and state->unsent is 1. */
ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream);

/* By the owner of a region: ops_reduce() of the lists that the ranks have for this one, when all
 * are there. Sets state->received_counts. SPARSE_SUMS_ABOVE: in the end writes to all ranks how
 * many there are, and m->unit_begins says where. SPARSE_SUMS_NONZERO: ops_select_sums() is to
 * follow, and wants SPARSE_WANT_K_NEAR_THRESHOLD. state->unsent: selects first what is offered, as
 * the state says, and sends it. */
ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream);

/* Of the sums of all ranks, `reduced` with reduced_count entries at each, the state->wanted
 * largest; of equal ones those of lower ranks and then those of lower indices. Sets wanted and
 * `above` of state->global as ops_select() does and takes the decision SPARSE_GLOBAL_THRESHOLD.
 * reduced_count stays. Only histograms go from rank to rank: afterwards `reduced` has
 * state->chosen_count entries, and flags and m->unit_begins say so. */
ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream);

/* ops_apply() of the sums of all ranks, when they are there: fetches them on the way, to
 * `gathered`, in rank order, one after the other. Sets state->gathered_counts and, if a rank says
 * so, nonfinite. `then`, SPARSE_COUNT_GATHERED or SPARSE_COUNT_AND_ADAPT, is decided as soon as the
 * counts are there. */
ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision then,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
