/* SPDX-License-Identifier: Apache-2.0 */
/* --bench of the AllReduce examples: compares plain cudaMalloc buffers with those of the example.
 * The example defines how its buffers are registered and deregistered, and its other AllReduces. */
#ifndef COMMON_BENCH_ALLREDUCE_H
#define COMMON_BENCH_ALLREDUCE_H

#include "bench.h"
#include "verify.h"

struct allreduce_variant;

/* The state of a variant. */
struct allreduce_buffers {
  const struct rank *me;
  const struct options *opt;
  ncclComm_t comm;
  struct verifier *verifier;
  const struct allreduce_variant *variant;
  size_t bytes; /* of each buffer */
  void *sendbuff, *recvbuff;
  void *handles[2]; /* of the registrations */
  void *handle;     /* for variant->call; NULL: ncclAllReduce is called */
};

struct allreduce_variant {
  const char *name;
  bool shares; /* uses the buffers and handles of the variant before it; else it gets buffers from
                  ncclMemAlloc */
  void (*setup)(struct allreduce_buffers *b); /* after the buffers exist; before they are freed: */
  void (*teardown)(struct allreduce_buffers *b);
  void (*call)(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff, size_t count,
               cudaStream_t stream);
};

/* All of --bench: device, communicator, sweep, cleanup. Plain buffers are the first variant; the
 * example adds `n` variants, which need `extra` bytes of device memory, not counting buffers.
 * Without --bench the last variant makes one AllReduce of --count elements, which is verified.
 * Returns an exit code. Collective. */
int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    const struct allreduce_variant *variants, int n, size_t extra);

#endif
