/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold after every step of a sparse allreduce, whatever the gradients were. The reference
 * says what the result is; this says why one may believe the reference:
 *
 *   I1  no gradient is lost: residuals + sums in the result = all acc, per element
 *       (GTOPK as published loses just what its tree discarded)
 *   I2  a residual is acc, or zero where the entry left the rank; what a rank offers is what its
 *       selected_above and selected_tie say
 *   I3  the result is the selected sums / P, as many and as large as they should be
 *   I4  regions are monotone and cover everything; counts per region add up
 *   I5  thresholds move by the configured factors only, and are exact when they should be
 *   I6  words on the wire: the closed forms
 */
#ifndef INVARIANTS_H
#define INVARIANTS_H

#include "reference.h"

/* What has to be remembered of the state before a step. NULL if memory does not suffice. */
struct invariants;
struct invariants *invariants_create(const struct reference *ref);
void invariants_destroy(struct invariants *inv);

/* Call it before each step, ... */
void invariants_before(struct invariants *inv, const struct reference *ref);

/* ... and this one after it. Returns 0 if all hold; else 1 and one line for each that does not, the
 * first place where it does not. */
int invariants_after(const struct invariants *inv, const struct reference *ref, char *text,
                     size_t size);

#endif
