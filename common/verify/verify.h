/* SPDX-License-Identifier: Apache-2.0 */
/* Data whose sums are exact, and the comparison of every element on the device.
 *
 * Input elements are whole numbers, so small that their sum over all ranks is exact in the type. So
 * the order of additions does not matter, and the comparison needs no tolerance. It compares bit
 * patterns, so NaN never passes. Outputs are first filled with 0xFF bytes, which are NaN in every
 * floating type and -1 in signed integers: so an element that was never written is found.
 *
 * A result is the sum of all ranks' inputs, as AllReduce makes it. Rank r's element i is a hash of
 * (r, i, round), cut to as many bits as stay exact in the sum: at most 16, but in integers of 64
 * bits all that fit, so that the sums need the type.
 *
 * A failed call in any of these functions ends the job (check.h). */
#ifndef COMMON_VERIFY_H
#define COMMON_VERIFY_H

#include <stdint.h>

#include "launcher.h"

/* What the elements are; small enough to be a kernel argument. */
struct verify_data {
  ncclDataType_t type;
  size_t size; /* bytes of an element: 1, 2, 4 or 8 */
  int nranks;
  uint64_t mask; /* an input is (hash & mask) */
};

/* What the kernels count, in device memory. */
struct verify_state {
  unsigned long long wrong;  /* elements that differed since the last report */
  unsigned long long first;  /* lowest index of one, ~0 if none */
  unsigned long long bits;   /* the element there when it was compared */
  unsigned long long digest; /* of all results so far */
  unsigned long long round;  /* enters the data; a replayed graph can change it */
  unsigned busy;             /* a thread is writing first and bits */
};

/* One per rank. */
struct verifier {
  const struct rank *me;
  const struct datatype *type;
  cudaStream_t stream; /* the caller's, in which the collective is called */
  struct verify_data data;
  struct verify_state *device; /* device memory */
  int code;                    /* EXIT_VERIFIED until a report found wrong elements */
};

void verifier_init(struct verifier *v, const struct rank *me, const struct datatype *type,
                   cudaStream_t stream);
void verifier_free(struct verifier *v);

/* ---- enqueue in `stream` and return at once (may be captured in a graph) -------------------- */

/* Writes this rank's input to sendbuff[0 .. count) and poisons recvbuff[0 .. count) with 0xFF
 * bytes; recvbuff may be NULL. */
void verifier_fill(struct verifier *v, void *sendbuff, void *recvbuff, size_t count);

/* Compares buffer[0 .. count) with the result that the last fill leads to. */
void verifier_compare(struct verifier *v, const void *buffer, size_t count);

/* Adds buffer[0 .. count) to the digest; elements of any type, not only sums. */
void verifier_digest(struct verifier *v, const void *buffer, size_t count);

/* Changes the data of later fills and comparisons. */
void verifier_next_round(struct verifier *v);

/* ---- wait for `stream` ---------------------------------------------------------------------- */

/* Prints this rank's first wrong element and the expected one to stderr, sets v->code. Returns the
 * number of wrong elements since the last report. */
unsigned long long verifier_report(struct verifier *v, const char *what);

/* Rank 0 prints the line of --digest: a hash over all ranks' results, the same for every launcher
 * and build. Collective. */
void verifier_print_digest(struct verifier *v);

#endif
