/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_allreduce.h"

#include <string.h>

#include "check.h"

static void setup_plain(void *state)
{
  struct allreduce_buffers *b = state;
  CUDACHECK(cudaMalloc(&b->sendbuff, b->bytes));
  CUDACHECK(cudaMalloc(&b->recvbuff, b->bytes));
}

static void teardown_plain(void *state)
{
  struct allreduce_buffers *b = state;
  CUDACHECK(cudaFree(b->sendbuff));
  CUDACHECK(cudaFree(b->recvbuff));
}

/* Variants are set up in their order, and lie in an array. */
static void setup(void *state)
{
  struct allreduce_buffers *b = state;
  if (b->variant->shares) {
    b->sendbuff = b[-1].sendbuff;
    b->recvbuff = b[-1].recvbuff;
    memcpy(b->handles, b[-1].handles, sizeof b->handles);
  }
  b->variant->setup(b);
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  struct allreduce_buffers *b = state;
  const size_t shift = (size_t)slot * size.bytes;
  const char *sendbuff = (const char *)b->sendbuff + shift;
  char *recvbuff = (char *)b->recvbuff + shift;
  if (b->variant->call)
    b->variant->call(b, sendbuff, recvbuff, size.count, stream);
  else
    NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, size.count, b->verifier->type->nccl, ncclSum,
                            b->comm, stream));
}

/* The slots lie side by side, so to the verifier they are one large AllReduce. */
static void fill(void *state, struct bench_size size)
{
  struct allreduce_buffers *b = state;
  verifier_fill(b->verifier, VERIFY_INDEXED, b->sendbuff, b->recvbuff,
                size.count * (size_t)size.slots);
  /* no kernel directly in front of a symmetric AllReduce: docs/symmetric_memory.md */
  CUDACHECK(cudaStreamSynchronize(b->verifier->stream));
}

static unsigned long long check(void *state, struct bench_size size)
{
  struct allreduce_buffers *b = state;
  verifier_compare(b->verifier, b->recvbuff, size.count * (size_t)size.slots);
  return verifier_report(b->verifier, "bench");
}

/* What a ring sends: reduce-scatter and allgather, each with (n - 1) / n of the bytes. */
static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  (void)bench;
  return (double)size.bytes * 2 * (me->nranks - 1) / me->nranks;
}

int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    const struct allreduce_variant *variants, int n, size_t extra)
{
  const size_t bytes = opt->max_bytes + opt->type->size; /* a size below an element is rounded up */
  launcher_step("bench: communicator");
  CUDACHECK(cudaSetDevice(me->device));
  if (!launcher_has_memory(me, 4 * bytes + extra)) return EXIT_USAGE;

  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  struct verifier verifier;
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&stream));
  verifier_init(&verifier, me, opt->type, stream);

  static const struct allreduce_variant plain = {"plain", false, setup_plain, teardown_plain, NULL};
  struct allreduce_buffers buffers[BENCH_MAX_VARIANTS];
  struct bench_variant columns[BENCH_MAX_VARIANTS];
  for (int i = 0; i <= n; i++) {
    const struct allreduce_variant *v = i == 0 ? &plain : &variants[i - 1];
    buffers[i] = (struct allreduce_buffers){
        .me = me, .opt = opt, .comm = comm, .verifier = &verifier, .variant = v, .bytes = bytes};
    columns[i] =
        (struct bench_variant){v->name, &buffers[i], setup, v->teardown, call, fill, check};
  }
  const struct bench bench = {
      .title = title,
      .variants = columns,
      .nvariants = n + 1,
      .rate = "busbw",
      .moved = moved,
  };
  const int code = bench_run(me, opt, &bench, stream);

  verifier_free(&verifier);
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  return code;
}
