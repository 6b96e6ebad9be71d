/* SPDX-License-Identifier: Apache-2.0 */
/* Data whose sums are exact, and the comparison of every element on the device.
 *
 * An input element is a whole number so small that the sum over all ranks has an exact value in
 * its type: the order in which a collective adds does not matter and the comparison needs no
 * tolerance. The comparison is of bit patterns, so NaN never passes. Outputs are filled with 0xFF
 * bytes before, which is NaN in every floating type and -1 in the signed ones: an element that was
 * never written shows.
 *
 * A result is expected to be the sum of all ranks' inputs, as AllReduce makes it. verifier_expect
 * says what else it is, so that the same data serve ReduceScatter, Broadcast, AllGather and the
 * like.
 *
 * A failed call in any of these functions ends the job (check.h). */
#ifndef COMMON_VERIFY_H
#define COMMON_VERIFY_H

#include <stdint.h>

#include "launcher.h"

/* What the input is. Rank r's element i is
 *   VERIFY_CONSTANT: r (its low bits only, where the sum over all ranks would not be exact)
 *   VERIFY_INDEXED:  a hash of (r, i, round), cut to as many bits as stay exact in the sum; at most
 *                    16, but in integers of 64 bits all that fit, so that the sums need the type */
enum verify_kind { VERIFY_CONSTANT, VERIFY_INDEXED };

/* Whose input a result is, where it is not that of one rank. */
enum { VERIFY_SUM = -1 };

/* What the elements are; small enough to be a kernel argument. */
struct verify_data {
  ncclDataType_t type;
  size_t size;           /* bytes of an element: 1, 2, 4 or 8 */
  enum verify_kind kind; /* of the last fill */
  int nranks;
  uint64_t mask; /* an input is (rank & mask) or (hash & mask) */
  size_t first;  /* as verifier_expect was told: where in the whole vector a result begins ... */
  int source;    /* ... and whose input it is, or VERIFY_SUM */
};

/* What the kernels count, in device memory. */
struct verify_state {
  unsigned long long wrong;  /* elements that differed since the last report */
  unsigned long long first;  /* lowest index of one, ~0 if none */
  unsigned long long bits;   /* what stood there when it was compared */
  unsigned long long digest; /* of all results so far */
  unsigned long long round;  /* enters the indexed data; a replayed graph can change it */
  unsigned busy;             /* a thread is writing first and bits */
};

/* One per rank. */
struct verifier {
  const struct rank *me;
  const struct datatype *type;
  cudaStream_t stream; /* the caller's, in which the collective is called */
  cudaStream_t own;    /* what only reads a finished result is done here */
  struct verify_data data;
  struct verify_state *device; /* device memory */
  int code;                    /* EXIT_VERIFIED until a report found wrong elements */
};

void verifier_init(struct verifier *v, const struct rank *me, const struct datatype *type,
                   cudaStream_t stream);
void verifier_free(struct verifier *v);

/* What results are from now on: their element i is element first + i of the whole vector, either of
 * the sum over all ranks (VERIFY_SUM) or of the input of rank `source`. At the beginning 0 and
 * VERIFY_SUM. ReduceScatter of n elements to each rank: rank * n, VERIFY_SUM. Broadcast: 0, root.
 * AllGather: 0, r before the part of rank r is compared. */
void verifier_expect(struct verifier *v, size_t first, int source);

/* ---- enqueue in `stream` and return at once (may be captured in a graph) -------------------- */

/* Writes this rank's input to sendbuff[0 .. count) and poisons recvbuff[0 .. count) with 0xFF
 * bytes; recvbuff may be NULL. */
void verifier_fill(struct verifier *v, enum verify_kind kind, void *sendbuff, void *recvbuff,
                   size_t count);

/* Compares buffer[0 .. count) with what is expected after the last fill. */
void verifier_compare(struct verifier *v, const void *buffer, size_t count);

/* Adds buffer[0 .. count) to the digest; elements of any type, not only sums. */
void verifier_digest(struct verifier *v, const void *buffer, size_t count);

/* From here on the indexed data are others. */
void verifier_next_round(struct verifier *v);

/* Waits for `stream`, then reports the comparisons enqueued there: says on stderr which element of
 * this rank was wrong first, what it was and what was expected, and sets v->code. Returns how many
 * were wrong since the last report. */
unsigned long long verifier_report(struct verifier *v, const char *what);

/* ---- read what is finished ------------------------------------------------------------------ */
/* These do not wait for `stream`. They read through a stream of their own, at once: whoever calls
 * them before the collective is finished finds what stands there until then. */

/* Compare, add the elements to the digest, report. */
void verifier_check(struct verifier *v, const char *what, const void *buffer, size_t count);

/* Element i of a buffer in device memory, and what element i of a result should be. */
double verifier_element(struct verifier *v, const void *buffer, size_t i);
double verifier_expected(struct verifier *v, size_t i);

/* Rank 0 prints the line of --digest: a hash over all ranks' results, the same for every launcher
 * and build. Collective. */
void verifier_print_digest(struct verifier *v);

#endif
