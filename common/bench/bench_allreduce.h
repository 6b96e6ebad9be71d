/* SPDX-License-Identifier: Apache-2.0 */
/* --bench of the AllReduce examples: plain cudaMalloc buffers beside those of the example, which
 * brings no more than how it gets and gives back its buffers, and calls of its own, if it has any.
 */
#ifndef COMMON_BENCH_ALLREDUCE_H
#define COMMON_BENCH_ALLREDUCE_H

#include "bench.h"
#include "verify.h"

struct allreduce_variant;

/* The state of a variant, as its setup and teardown see it. */
struct allreduce_buffers {
  const struct rank *me;
  const struct options *opt;
  ncclComm_t comm;
  struct verifier *verifier;
  const struct allreduce_variant *variant;
  size_t bytes; /* of each buffer */
  void *sendbuff, *recvbuff;
  void *handles[2]; /* for the example: what registration gave ... */
  void *handle;     /* ... and what variant->call needs; NULL: ncclAllReduce is called */
};

struct allreduce_variant {
  const char *name;
  bool shares; /* the buffers of the variant before it, with their handles; else it has buffers of
                  its own, from ncclMemAlloc */
  void (*setup)(struct allreduce_buffers *b); /* when there are buffers; before they go: */
  void (*teardown)(struct allreduce_buffers *b);
  void (*call)(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff, size_t count,
               cudaStream_t stream);
};

/* All of --bench: device, communicator, sweep, cleanup. Plain buffers are the first variant, `n`
 * more come from the example; `extra` is the device memory that they take beside their first
 * buffers. Without --bench the last variant makes one AllReduce, of --count elements, which is
 * verified. Returns an exit code. Collective. */
int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    const struct allreduce_variant *variants, int n, size_t extra);

#endif
