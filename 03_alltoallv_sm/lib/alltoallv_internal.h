/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the AlltoAllV share; not for users. C and CUDA C++. */
#ifndef ALLTOALLV_INTERNAL_H
#define ALLTOALLV_INTERNAL_H

#include <stdbool.h>

#include "alltoallv.h"
#include "alltoallv_protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- handles ------------------------------------------------------------------------------ */

enum { ALLTOALLV_TEXT = 512 }; /* a sentence */

/* Memory that peers can write. */
struct alltoallv_window {
  char *base; /* NULL: free entry */
  size_t bytes;
  ncclWindow_t window;
  void *peers[ALLTOALLV_MAX_LSA_RANKS]; /* where this rank sees the memory of each */
  /* Where a header says that it is, the same on all ranks: so many bytes after the scratch memory
   * of the same rank. */
  uint64_t place;
};

struct alltoallv_handle {
  ncclComm_t comm;
  int rank, n;
  alltoallv_config_t config; /* max_blocks: of all ranks the least */
  size_t ll_bytes;           /* of a mailbox, for lines: whole groups. See choose_launch */
  char why[ALLTOALLV_TEXT + 16];

  struct alltoallv_state *state; /* in device memory; NULL: send/recv */
  bool launches_early;           /* see GRIDDEPCONTROL */
  bool next_waits;  /* all kernels of this NCCL that are launched early wait for the previous one */
  int most_threads; /* of a block of the kernel */
  ncclComm_t lsa_comm; /* ours, with the same ranks */
  struct alltoallv_window scratch, windows[ALLTOALLV_MAX_WINDOWS];

  /* The last exchange that was not captured: two of them never overlap. */
  cudaStream_t last_stream;
  cudaEvent_t last_done;
  bool last_exists;

  /* In one piece of host memory that the device can write: */
  struct alltoallv_errors *errors;
  struct alltoallv_pair *pairs; /* of the current exchange; the host is done with it at return */
  uint64_t *words;              /* to talk to all ranks through NCCL: see alltoallv_agree */
  cudaStream_t words_stream;
};

/* The registered buffer that has some of these bytes, or NULL. */
struct alltoallv_window *alltoallv_find_window(alltoallv_t handle, const void *buff, size_t bytes);

/* Collective, waits. The first `words` words of h->words of every rank, at most n + 67, reach
 * h->words of all: those of rank r are at h->words + r * words. */
ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words);

/* What each rank says of itself when a handle is made or a buffer registered. */
struct alltoallv_answer {
  uint64_t result, max_blocks, method;
  char text[ALLTOALLV_TEXT];
};

/* ---- errors ------------------------------------------------------------------------------- */

/* Sets the sentence of alltoallv_last_error() and returns `result`. The old sentence may be among
 * the arguments. */
ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's own reason for a failure, or the result in words. */
const char *alltoallv_nccl_reason(ncclResult_t result);

#define ALLTOALLV_CHECK(type, call, text, result, reason)                       \
  do {                                                                          \
    const type code = (call);                                                   \
    if (code != (type)0) return alltoallv_fail(result, "%s: %s", text, reason); \
  } while (0)
#define ALLTOALLV_NCCLTRY(call) \
  ALLTOALLV_CHECK(ncclResult_t, call, #call, code, alltoallv_nccl_reason(code))
#define ALLTOALLV_CUDATRY(call) \
  ALLTOALLV_CHECK(cudaError_t, call, #call, ncclUnhandledCudaError, cudaGetErrorString(code))

/* For functions that have set the sentence themselves. */
#define ALLTOALLV_TRY(call)                           \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

/* ncclRemoteError if a wait has been given up: other ranks may not come any more. */
ncclResult_t alltoallv_check_timeout(const struct alltoallv_handle *h);

/* ---- exchanges ---------------------------------------------------------------------------- */

/* An exchange by send/recv. Counts from the host are in h->pairs. */
ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                cudaStream_t stream);

/* ---- the kernel's side: lsa.cu ------------------------------------------------------------ */

/* Why the kernel cannot run on this rank; "" if it can. Each rank's answer is the PCI id of its
 * GPU. *blocks: the most that a launch can have. Not collective. */
const char *alltoallv_lsa_why_not(struct alltoallv_handle *h, int device,
                                  const struct alltoallv_answer *gpus, int *blocks);

/* ll_bytes for so many ranks. */
size_t alltoallv_lsa_lines(int n);

/* ncclInvalidUsage where h->lsa_comm has no symmetric memory. Collective. */
ncclResult_t alltoallv_lsa_probe(struct alltoallv_handle *h);

/* Fills peers and place; the scratch memory comes first. */
ncclResult_t alltoallv_lsa_peers(struct alltoallv_handle *h, struct alltoallv_window *w);

/* Enqueues an exchange. Counts from the host are in h->pairs. */
ncclResult_t alltoallv_lsa_launch(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
