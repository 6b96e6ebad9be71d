/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and what the story need not show: the program's own options, the
 * count matrix that they ask for, and filling and verifying the buffers of one exchange. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alltoallv.h"
#include "check.h"
#include "elements.h"
#include "launcher.h"

/* --method: who moves the bytes. */
enum method {
  METHOD_AUTO,         /* alltoallv.h: the kernel where it can run, else send/recv */
  METHOD_SENDRECV,     /* simple/sendrecv.h */
  METHOD_BARRIER,      /* simple/barrier.h */
  METHOD_LSA,          /* alltoallv.h: the kernel */
  METHOD_COPY_ENGINE,  /* alltoallv.h: a plan, by the copy engines */
  METHOD_LIB_SENDRECV, /* alltoallv.h: send/recv */
};

/* As NCCLCHECK, with the sentence that alltoallv.h has for the error. */
#define ALLTOALLVCHECK(call) CHECK_NCCL_RESULT(call, #call, alltoallv_last_error())

struct program_options {
  const char *pattern;     /* --pattern, NULL: the default */
  const char *matrix_file; /* --matrix, NULL: none */
  int method;              /* --method, an enum method */
  bool device_counts;      /* --device-counts */
  long seed;               /* --seed */
};
extern struct program_options program_options;
extern const struct option_spec program_option_table[];

/* The matrix (elements, nranks * nranks, to be freed) of --matrix, or of `pattern` with `total`
 * elements per sender. NULL on all ranks after one line on stderr if the options are wrong.
 * Collective. */
size_t *program_matrix(const struct rank *me, const struct options *opt, const char *pattern,
                       size_t total);

/* Is --method one of alltoallv.h? */
bool program_takes_library(void);

/* Where --method cannot run: one line, and the end of the job with EXIT_CANNOT_RUN. Collective. */
void program_cannot_run(const struct rank *me, const char *why);

/* alltoallv_init with --method, which is one of alltoallv.h and has to be able to run. Collective.
 */
void program_init(const struct rank *me, ncclComm_t comm, alltoallv_t *handle);

/* Sum of the n counts; displs[i] becomes the sum of those before i. */
size_t program_prefix_sums(const size_t *counts, size_t *displs, int n);

/* Waits for nothing; a mismatch of counts or a timeout that the device has seen ends the job. */
void program_check_async(alltoallv_t handle);

/* Bytes of guard before and after the receive buffer, of any alignment. */
enum { PROGRAM_GUARD = 256 };

/* The buffers of an exchange; sizes are the largest of all ranks, which makes them the same on
 * each. window holds guard, receive buffer, guard. */
struct program_buffers {
  size_t send_bytes, recv_bytes, window_bytes;
  char *send, *window;
};
struct program_buffers program_sizes(const size_t *matrix, int nranks, size_t element_size);

/* Device memory for them and the handle. */
size_t program_bytes(struct program_buffers buffers, int nranks);

/* Enqueues: guard bytes into all of the window. */
void program_guard(const struct program_buffers *buffers, cudaStream_t stream);

/* Enqueues: this rank's input into the segments of sendbuff. The data of another round are others.
 */
void program_fill(const struct rank *me, char *sendbuff, const size_t *sendcounts,
                  const size_t *sdispls, size_t element_size, uint32_t round, cudaStream_t stream);

/* What this rank should have received, as nranks segments. */
void program_expect(const struct rank *me, char *recvbuff, const size_t *recvcounts,
                    const size_t *rdispls, size_t element_size, uint32_t round,
                    struct segment *segments);

/* Compares every element of the segments (which it sorts), and the guard bytes between and around
 * them in the window. Waits for the stream. Says on stderr what was wrong; returns the number of
 * wrong elements and bytes of this rank. */
unsigned long long program_verify(const char *what, struct segment *segments, int nsegments,
                                  const struct program_buffers *buffers, cudaStream_t stream);

/* The line of --digest over all ranks' first `count` elements of recvbuff. Collective. */
void program_print_digest(const struct rank *me, const char *recvbuff, size_t count,
                          const struct datatype *type, cudaStream_t stream);

#endif
