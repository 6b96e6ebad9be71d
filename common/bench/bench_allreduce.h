/* SPDX-License-Identifier: Apache-2.0 */
/* --bench of the AllReduce examples: plain cudaMalloc buffers beside those of the example, which
 * brings no more than how it gets and gives back its buffers. */
#ifndef COMMON_BENCH_ALLREDUCE_H
#define COMMON_BENCH_ALLREDUCE_H

#include "bench.h"
#include "verify.h"

/* The state of a variant, as its setup and teardown see it. */
struct allreduce_buffers {
  const struct rank *me;
  ncclComm_t comm;
  struct verifier *verifier;
  size_t bytes;              /* of each buffer */
  void *sendbuff, *recvbuff; /* to be set by setup */
  void *handles[2];          /* for the example: what registration gave */
};

struct allreduce_variant {
  const char *name;
  void (*setup)(void *allreduce_buffers);
  void (*teardown)(void *allreduce_buffers);
};

/* All of --bench: device, communicator, sweep, cleanup. Returns an exit code. Collective. */
int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    struct allreduce_variant variant);

#endif
