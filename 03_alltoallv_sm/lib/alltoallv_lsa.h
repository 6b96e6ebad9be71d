/* SPDX-License-Identifier: Apache-2.0 */
/* The one-sided part of the AlltoAllV among ranks that reach each other's memory by load and store.
 * The folder lsa/ implements it: alltoallv_lsa.cu (with alltoallv_lsa_flags.cu) for GPUs, its plain
 * C twin alltoallv_lsa_cpu.c for `make CPU=1`. Ranks here are those of `comm`, which holds LSA
 * ranks only. A function that fails has set the sentence of alltoallv_last_error(). */
#ifndef ALLTOALLV_LSA_H
#define ALLTOALLV_LSA_H

#include <stdbool.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "alltoallv_protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

struct alltoallv_lsa; /* what the back end keeps: scratch memory, device state, launch limits */

/* The number of consecutive ranks around this one that could use the kernel: at most all ranks of
 * the host; 0 if this build or this NCCL has no device interface, and then *why says so. Not
 * collective. */
int alltoallv_lsa_ranks(ncclComm_t comm, const char **why);

/* Is the GPU with that PCI id, of another rank of the host, reached over NVLink? Only there do
 * additions from other GPUs add up. In the order in which one counts more than the one before. */
enum alltoallv_link { ALLTOALLV_LINK_NVLINK, ALLTOALLV_LINK_UNKNOWN, ALLTOALLV_LINK_PCIE };
enum { ALLTOALLV_PCI_ID = 16 }; /* bytes of one as text, its 0 included */
enum alltoallv_link alltoallv_lsa_link(int device, const char *id);

struct alltoallv_lsa_config {
  int max_blocks;
  size_t ll_threshold;
  uint32_t first_call;
  double timeout_seconds;
};

/* In two steps, so that ranks can agree in between that all have got so far: create allocates what
 * is this rank's own; connect is collective and returns ncclInvalidUsage without symmetric memory.
 * After a failure of either *lsa, unless NULL, can only be destroyed. */
ncclResult_t alltoallv_lsa_create(ncclComm_t comm, const struct alltoallv_lsa_config *config,
                                  struct alltoallv_lsa **lsa);
ncclResult_t alltoallv_lsa_connect(struct alltoallv_lsa *lsa);
/* Frees everything and returns the first failure. */
ncclResult_t alltoallv_lsa_destroy(struct alltoallv_lsa *lsa);

/* Where the device leaves its errors. */
struct alltoallv_errors *alltoallv_lsa_errors(struct alltoallv_lsa *lsa);

/* Collective. Makes a buffer known as window number `id`; peers[p] receives the address at which
 * this rank sees the buffer of rank p. */
ncclResult_t alltoallv_lsa_register(struct alltoallv_lsa *lsa, int id, void *buff, size_t bytes,
                                    void **peers);
ncclResult_t alltoallv_lsa_unregister(struct alltoallv_lsa *lsa, int id);

/* An exchange. */
struct alltoallv_request {
  enum alltoallv_kind kind;
  const void *send;
  void *recv;
  uint32_t window;        /* the number of the window that holds recv */
  uint64_t window_offset; /* of recv in it */
  struct alltoallv_unit unit;
  struct alltoallv_pair pairs[ALLTOALLV_MAX_LSA_RANKS]; /* kind HOST only */
  /* device counts: device arrays and numbers in units */
  uint64_t capacity;
  const size_t *sendcounts, *sdispls;
  size_t *recvcounts, *rdispls, *needed;
};

/* Enqueues the exchange. */
ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *lsa,
                                  const struct alltoallv_request *request, cudaStream_t stream);

/* For benchmarks: the same bytes along the same way, to[p] on the peers, without any protocol. */
ncclResult_t alltoallv_lsa_bare_push(struct alltoallv_lsa *lsa,
                                     const struct alltoallv_request *request, void *const *to,
                                     cudaStream_t stream);

/* Flags for the copy engines, set and awaited by the stream itself, without a timeout. Sets the
 * flag of this rank to `value` at every rank p with set[p], then waits until the flag of every rank
 * p with wait[p] has reached `value` (modulo 2^32) here. */
enum alltoallv_flag { ALLTOALLV_FLAG_READY, ALLTOALLV_FLAG_ARRIVED };
ncclResult_t alltoallv_lsa_flags(struct alltoallv_lsa *lsa, enum alltoallv_flag flag,
                                 const bool *set, const bool *wait, uint32_t value,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
