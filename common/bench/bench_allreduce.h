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
  size_t bytes;              /* of each buffer */
  void *sendbuff, *recvbuff; /* to be set by setup */
  void *handles[3];          /* for the example: what registration gave, and a handle of its own */
};

struct allreduce_variant {
  const char *name;
  bool shares; /* the buffers of the variant before it, with their handles; set before setup */
  void (*setup)(void *allreduce_buffers);
  void (*teardown)(void *allreduce_buffers);
  /* NULL: ncclAllReduce */
  void (*call)(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff, size_t count,
               cudaStream_t stream);
};

/* All of --bench: device, communicator, sweep, cleanup. Plain buffers are the first variant, `n`
 * more come from the example; `extra` is the device memory that they take beside their first
 * buffers. Returns an exit code. Collective. */
int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    const struct allreduce_variant *variants, int n, size_t extra);

#endif
