/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and the story need not show. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "elements.h"
#include "launcher.h"
#include "lib/alltoallv.h"
#include "simple/simple.h"

/* As NCCLCHECK, with the sentence that alltoallv.h has for the error. */
#define ALLTOALLVCHECK(call) CHECK_NCCL_RESULT(call, #call, alltoallv_last_error())

/* Who moves the bytes: --method, which names the first seven, and two more of --bench. */
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
  const char *name;                     /* in notes */
  const char *column;                   /* of --bench */
  alltoallv_method_t handle;            /* what the handle beside it is made for */
  const char *(*open)(struct way *way); /* NULL: nothing to do; as in simple.h */
  void (*call)(struct way *way, const char *send, size_t recv_at, cudaStream_t stream);
  void (*close)(struct way *way);
};
extern const struct method methods[];

struct program_options {
  const char *pattern;     /* --pattern, NULL: the default */
  const char *matrix_file; /* --matrix, NULL: none */
  int method;              /* --method: number in methods */
  bool device_counts;      /* --device-counts */
  long seed;               /* --seed */
};
extern struct program_options program_options;
extern const struct option_spec program_option_table[];

bool program_takes_library(void); /* is --method one of the library? */

/* Bytes of guard before and after the receive buffer, of any alignment. */
enum { PROGRAM_GUARD = 256 };

/* Arrays of counts. To be freed with free(x.sendcounts). */
struct exchange program_exchange(const struct rank *me, const struct datatype *type);

/* The matrix (elements, nranks * nranks, to be freed) of --matrix, or of `pattern` with `total`
 * elements per sender. NULL on all ranks after one line on stderr if the options are wrong.
 * Collective. */
size_t *program_matrix(const struct rank *me, const struct options *opt, const char *pattern,
                       size_t total);

/* Sum of the n counts; displs[i] becomes the sum of those before i. */
size_t program_prefix_sums(const size_t *counts, size_t *displs, int n);

/* Fills in what follows from the counts and the layout at the peers. Collective. */
void program_places(struct exchange *x, alltoallv_t handle);

/* Allocates send buffer and window, as large as the largest rank needs. Collective. */
void program_allocate(struct exchange *x);

/* Device memory of an exchange with that many bytes, the handle included. */
size_t program_bytes(size_t send_bytes, size_t recv_bytes, int nranks);

/* alltoallv_init for --method, which has to be able to run. Collective. */
void program_init(const struct rank *me, ncclComm_t comm, alltoallv_t *handle);

/* Where --method cannot run: one line, and the end of the job with EXIT_CANNOT_RUN. Collective. */
void program_cannot_run(const struct rank *me, const char *why);

/* Makes a way ready, of which all but what simple/ sets is given. NULL, or why it cannot be.
 * Collective. */
const char *way_open(struct way *way);
void way_close(struct way *way);

/* Waits for nothing; a mismatch of counts or a timeout that the device has seen ends the job. */
void program_check_async(alltoallv_t handle);

/* Enqueues: guard bytes into all of the window. */
void program_guard(const struct exchange *x, char *window, cudaStream_t stream);

/* Enqueues: this rank's input into the segments of `send`. The data of another round are others. */
void program_fill(const struct exchange *x, char *send, uint32_t round, cudaStream_t stream);

/* What this rank should have received, as nranks segments. */
void program_expect(const struct exchange *x, char *recv, uint32_t round, struct segment *segments);

/* Compares every element of the segments (which it sorts), and the guard bytes between and around
 * them in the window. Waits for the stream. Says on stderr what was wrong; returns the number of
 * wrong elements and bytes of this rank. */
unsigned long long program_verify(const char *what, struct segment *segments, int nsegments,
                                  const struct exchange *x, char *window, cudaStream_t stream);

/* The line of --digest over all ranks' first `count` elements of `recv`. Collective. */
void program_print_digest(const struct rank *me, const char *recv, size_t count,
                          const struct datatype *type, cudaStream_t stream);

#endif
