/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of oktopk where ranks load from and store to each other's memory, in place of
 * messages. All ranks have to call them in the same order: each of them stores to the others, or
 * waits for what the others store, at most config.timeout_seconds. After that state->late says for
 * whom, and nobody waits any more. They replace an exchange and the operators around it, and take
 * their decisions themselves: a launch of its own for each would be most of what they gain.
 *
 * Two have kernels of their own, in onesided.cu; the others are forms of local kernels (kernels/).
 */
#ifndef OPS_ONESIDED_H
#define OPS_ONESIDED_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The offered list is divided by state->boundaries, as ops_partition() does, and each part stored
 * in the memory of the owner of its region, at the same place in this rank's list there. Flags
 * tell the owners. */
ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream);

/* ops_local_pass() of SPARSE_ABOVE_THRESHOLDS, selection and ops_send_parts() in one: candidates go
 * to the owners of regions on the way, and flags say above which level they count.
 * offered_count is that of those, then. If there are more than `capacity`, no flag is written, and
 * state->unsent is 1: ops_reduce_sent() chooses from them. */
ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream);

/* By the owner of a region: ops_reduce_region() of the lists that the ranks have for this one.
 * Waits for the flags of all of them, sets state->received_counts, says in m->unit_begins
 * where sums are, and in the end writes to all ranks how many there are; not with
 * SPARSE_SUMS_NONZERO, which ops_select_sums() is to follow: then they are
 * SPARSE_WANT_K_NEAR_THRESHOLD. If state->unsent says so, it begins with ops_select_offered(),
 * SPARSE_AS_THE_STATE_IS, and ops_send_parts(). */
ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream);

/* Of the sums of all ranks, `reduced` with reduced_count entries at each, the state->wanted
 * largest; of equal ones those of lower ranks and then those of lower indices. Only histograms go
 * from rank to rank. Sets wanted and `above` of state->global as ops_select() does and takes the
 * decision SPARSE_GLOBAL_THRESHOLD. What is chosen of a rank's own sums is in `reduced` then,
 * state->chosen_count of them, m->unit_begins says where, and flags tell all ranks. reduced_count
 * stays. */
ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream);

/* ops_apply() of the sums of all ranks: waits until they are there and fetches them on the way, to
 * `gathered`, in rank order, one after the other, with state->gathered_counts, gathered_displs and,
 * if a rank says so, nonfinite. `then`, SPARSE_COUNT_GATHERED or SPARSE_COUNT_AND_ADAPT, is decided
 * as soon as the counts are there. */
ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision then,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
