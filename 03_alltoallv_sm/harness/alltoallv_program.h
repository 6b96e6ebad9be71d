/* SPDX-License-Identifier: Apache-2.0 */
/* For bench.c. */
#ifndef ALLTOALLV_PROGRAM_H
#define ALLTOALLV_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "elements.h"
#include "launcher.h"
#include "lib/alltoallv.h"
#include "simple/alltoallv_simple.h"

/* What moves the bytes: --method, and one more of --bench. */
enum {
  METHOD_AUTO,     /* the library: the kernel where it can run, else send/recv */
  METHOD_SENDRECV, /* simple/: */
  METHOD_BARRIER,
  METHOD_LINES,
  METHOD_COPY_ENGINE,
  METHOD_LSA,          /* the library: the kernel */
  METHOD_LIB_SENDRECV, /* the library: send/recv */
  METHOD_DEVICE_COUNTS,
  METHOD_BARE_PUSH, /* the stores of barrier alone */
};

struct method {
  const char *name; /* in notes and in --bench */
  void (*call)(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);
  bool library, simple;      /* of lib/; needs simple_open, and its buffer */
  alltoallv_method_t handle; /* which handle it needs */
};
extern const struct method methods[];

struct program_options {
  const char *pattern; /* NULL: not given */
  int method;          /* number in methods */
};
extern struct program_options program_options;

/* The stores of barrier alone: what waiting costs. */
void bare_push_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);

/* Bytes of guard before and after the receive buffer, of any alignment. */
enum { PROGRAM_GUARD = 256 };

/* From the counts: displacements of packed parts, sums, and where the parts belong at the
 * peers. Collective. */
void program_layout(struct exchange *x);

/* Send buffer and guarded receive buffer of x->bytes, which are equal on all ranks, and device
 * counts. */
void program_allocate(struct exchange *x);
void program_free(struct exchange *x);

/* A handle for --method that knows the receive buffer; or says why there is none and ends the job
 * with EXIT_CANNOT_RUN. Collective. */
void program_init(struct exchange *x);

/* Enqueues: guard bytes into all of `guarded`. */
void program_guard(const struct exchange *x, char *guarded, cudaStream_t stream);

/* Enqueues: this rank's input into `send`, which differs between rounds. Says what should arrive at
 * `recv`, as nranks segments. */
void program_prepare(const struct exchange *x, char *send, char *recv, uint32_t round,
                     struct segment *expected, cudaStream_t stream);

/* Compares every element of the segments and the guard bytes around them, and leaves only guard
 * bytes. Waits. Says on stderr what is wrong, and returns how many elements and bytes are. */
unsigned long long program_verify(const char *what, const struct segment *segments, int nsegments,
                                  const struct exchange *x, char *guarded, cudaStream_t stream);

#endif
