/* SPDX-License-Identifier: Apache-2.0 */
/* The rungs below the library, each with what it is slow at:
 *
 *   send/recv    NCCL's own buffers and handshakes for every pair: everything
 *   barrier      a kernel stores into the receive buffers of the peers, between two barriers: small
 *                exchanges, which are three trips over the link, one after the other
 *   lines        every 8 bytes carry their own flag, so there are no barriers: large exchanges,
 *                since half of what crosses the link is flags, and all is copied twice
 *   copy engine  the GPUs' copy engines move the bytes and leave the multiprocessors to others:
 *                all but large exchanges, which take some 20 us
 *
 * But for send/recv they are for ranks that share memory (NVLink on one host). None notices that
 * counts disagree or that a peer will never come. A failed call ends the job. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "check.h"
#include "launcher.h"
#include "lib/alltoallv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The AlltoAllV that everybody writes first: grouped ncclSend and ncclRecv, anywhere. Arguments as
 * MPI_Alltoallv; `size` is the bytes of an element. Returns NCCL's errors. */
ncclResult_t sendrecv_alltoallv(const void *sendbuff, const size_t sendcounts[],
                                const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                const size_t rdispls[], ncclDataType_t datatype, size_t size,
                                int nranks, ncclComm_t comm, cudaStream_t stream);

/* More than the 72 GPUs that one NVLink domain has today. */
enum { SIMPLE_MAX_RANKS = 80 };

/* One rank's side of an exchange. Counts and displacements are in elements. */
struct exchange {
  const struct rank *me;
  const struct datatype *type;
  size_t *sendcounts, *sdispls, *recvcounts, *rdispls;
  size_t *places;                /* where the peers want what this rank sends */
  size_t sends, receives;        /* all that this rank sends, receives */
  size_t largest;                /* of the counts of all ranks */
  char *send, *window;           /* guard, receive buffer, guard */
  size_t send_bytes, recv_bytes; /* of the largest rank, so that sizes are alike */
};

/* A method, made ready for exchanges. */
struct way {
  const struct method *method;
  const struct exchange *x; /* the next exchange */
  ncclComm_t comm;
  alltoallv_t handle;
  char *window; /* x->window, or one of its own: from ncclMemAlloc, as large on all ranks */
  size_t bytes; /* of the window */
  size_t *device_counts; /* for the library's device counts: sendcounts, recvcounts, rdispls */
  size_t room;           /* and how many elements the receive buffer has */
  /* of simple/: */
  ncclWindow_t registered; /* the window, in the hands of comm */
  char *scratch;           /* memory that the peers write, in a window, too */
  ncclWindow_t scratch_window;
  char *peer[SIMPLE_MAX_RANKS];         /* addresses of the windows, and of scratch memory */
  char *peer_scratch[SIMPLE_MAX_RANKS]; /* of all ranks: copy engines only */
  void *dev_comm;                       /* what a kernel knows of comm */
};

/* Collective. Makes the way ready. NULL, or on all ranks why it cannot be. */
const char *barrier_open(struct way *way);
const char *lines_open(struct way *way);
const char *copy_engine_open(struct way *way);

/* Enqueues an exchange, which is collective, too: from `send` to `recv_at` in the window, the same
 * place on all ranks. */
void barrier_call(struct way *way, const char *send, size_t recv_at, cudaStream_t stream);
void lines_call(struct way *way, const char *send, size_t recv_at, cudaStream_t stream);
void copy_engine_call(struct way *way, const char *send, size_t recv_at, cudaStream_t stream);
/* The stores of barrier alone, for --bench: nobody may use that, but it shows what waiting costs.
 */
void bare_push_call(struct way *way, const char *send, size_t recv_at, cudaStream_t stream);

/* Collective. */
void barrier_close(struct way *way);
void lines_close(struct way *way);
void copy_engine_close(struct way *way);

/* Flags in memory that the stream itself sets and awaits, for the copy engines. */
struct stream_flag {
  unsigned *address;
  int peer; /* whose memory that is: set it to 1. This rank: wait until it is 1, then set it to 0 */
};
void stream_flags(const struct stream_flag *flags, int count, const struct way *way,
                  cudaStream_t stream);

/* Why a kernel cannot reach all ranks; NULL if it can. */
const char *simple_why_not(const struct way *way);

/* Scratch memory of so many bytes, all 0, in a window of comm. */
static inline void simple_open_scratch(struct way *w, size_t bytes)
{
  NCCLCHECK(ncclMemAlloc((void **)&w->scratch, bytes));
  CUDACHECK(cudaMemset(w->scratch, 0, bytes));
  CUDACHECK(cudaDeviceSynchronize());
  NCCLCHECK(ncclCommWindowRegister(w->comm, w->scratch, bytes, &w->scratch_window,
                                   NCCL_WIN_COLL_SYMMETRIC));
}

static inline void simple_close_scratch(struct way *w)
{
  NCCLCHECK(ncclCommWindowDeregister(w->comm, w->scratch_window));
  NCCLCHECK(ncclMemFree(w->scratch));
}

#ifdef __cplusplus
}
#endif
#endif
