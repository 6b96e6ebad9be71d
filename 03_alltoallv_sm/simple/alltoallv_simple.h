/* SPDX-License-Identifier: Apache-2.0 */
/* The steps below the library, and what each is slow at:
 *
 *   sendrecv.c     everything: NCCL's own buffers and handshakes for every pair
 *   barrier.cu     small exchanges: three trips over the link, one after the other
 *   lines.cu       large exchanges: half of what crosses the link is epochs, all is copied twice
 *   copy_engine.c  all but large exchanges: messages of NCCL before and after the copies
 *
 * The last three need ranks that share memory. None notices that counts disagree or that a peer
 * will never come. A failed call ends the job. */
#ifndef ALLTOALLV_SIMPLE_H
#define ALLTOALLV_SIMPLE_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "check.h"
#include "launcher.h"
#include "lib/alltoallv.h"

/* As NCCLCHECK, with the sentence that alltoallv.h has for the error. */
#define ALLTOALLVCHECK(call) CHECK_NCCL_RESULT(call, #call, alltoallv_last_error())

#ifdef __cplusplus
extern "C" {
#endif

enum { SIMPLE_MAX_BLOCKS = 64, SIMPLE_THREADS = 512 };
enum { SIMPLE_MAX_RANKS = 80, SIMPLE_LINES = 1 + (32 << 10) };

struct line {
  uint64_t data, epoch;
};

/* Device memory that the peers write, zeros at first. */
struct scratch {
  uint64_t epochs[SIMPLE_MAX_BLOCKS]; /* for lines: the last one, a copy for each block */
  struct line lines[];                /* [epoch & 1][source][SIMPLE_LINES] */
};

/* What barrier and lines need, made once for any number of exchanges. */
struct simple {
  int blocks;  /* of barrier; all run at the same time, or those that wait would keep others out */
  int threads; /* of a block: as many as the kernels can have */
  struct scratch *scratch;
  char *guarded;       /* after it in the same allocation: guard, receive buffer, guard */
  ncclWindow_t window; /* both as NCCL knows them */
  void *dev_comm;      /* what a kernel knows of comm */
};

/* One rank's side of an exchange. Counts and displacements are in elements. */
enum { EXCHANGE_MAX_RANKS = 512 };
struct exchange {
  const struct rank *me;
  const struct datatype *type;
  ncclComm_t comm;
  alltoallv_t handle;   /* for the methods of the library, and copy engine */
  struct simple simple; /* for barrier, lines */
  size_t sendcounts[EXCHANGE_MAX_RANKS], sdispls[EXCHANGE_MAX_RANKS];
  size_t recvcounts[EXCHANGE_MAX_RANKS], rdispls[EXCHANGE_MAX_RANKS];
  size_t places[EXCHANGE_MAX_RANKS]; /* where the peers want what this rank sends */
  size_t largest;                    /* of the counts of all ranks */
  size_t receives;                   /* all that this rank receives */
  char *send, *guarded;              /* guarded: guard bytes, receive buffer, guard bytes */
  size_t bytes, guarded_bytes;       /* of send, guarded; of the largest rank: equal on all */
  size_t *device_counts;             /* 3 rows, in device memory */
  unsigned *words;                   /* for copy engine: one for each rank, in device memory */
};

/* Collective: enqueue an exchange. For barrier and lines `recv` lies in x->simple.guarded, for copy
 * engine in x->guarded, which the handle knows; at the same place on all ranks. */
void sendrecv_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);
void barrier_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);
void lines_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);
void copy_engine_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);

/* Collective: make x->simple, where the kernel of the library can run, and take it down when all
 * exchanges are over on all ranks. */
void simple_open(struct exchange *x);
void simple_close(struct exchange *x);

/* The copies of copy engine alone. */
void copy_to_peers(const struct exchange *x, const char *send, char *recv, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
