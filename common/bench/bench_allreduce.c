/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_allreduce.h"

#include <string.h>

#include "check.h"

static const struct allreduce_variant plain = {"plain", false, NULL, NULL, NULL};

/* Variants are in an array and are set up in that order: b[-1] is ready. */
static void setup(void *state)
{
  struct allreduce_buffers *b = state;
  if (b->variant == &plain) {
    CUDACHECK(cudaMalloc(&b->sendbuff, b->bytes));
    CUDACHECK(cudaMalloc(&b->recvbuff, b->bytes));
  } else if (b->variant->shares) {
    b->sendbuff = b[-1].sendbuff;
    b->recvbuff = b[-1].recvbuff;
    memcpy(b->handles, b[-1].handles, sizeof b->handles);
  } else {
    NCCLCHECK(ncclMemAlloc(&b->sendbuff, b->bytes));
    NCCLCHECK(ncclMemAlloc(&b->recvbuff, b->bytes));
  }
  if (b->variant->setup) b->variant->setup(b);
}

static void teardown(void *state)
{
  struct allreduce_buffers *b = state;
  if (b->variant == &plain) {
    CUDACHECK(cudaFree(b->sendbuff));
    CUDACHECK(cudaFree(b->recvbuff));
    return;
  }
  if (!b->variant->shares) launcher_barrier(b->me); /* a slower peer may still read this memory */
  b->variant->teardown(b);
  if (b->variant->shares) return;
  NCCLCHECK(ncclMemFree(b->sendbuff));
  NCCLCHECK(ncclMemFree(b->recvbuff));
}

static void call(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  struct allreduce_buffers *b = state;
  const size_t shift = (size_t)slot * size.bytes;
  const char *sendbuff = (const char *)b->sendbuff + shift;
  char *recvbuff = (char *)b->recvbuff + shift;
  if (b->handle)
    b->variant->call(b, sendbuff, recvbuff, size.count, stream);
  else
    NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, size.count, b->verifier->type->nccl, ncclSum,
                            b->comm, stream));
}

/* The slots follow each other in the buffers, so the verifier sees one large AllReduce. */
static void fill(void *state, struct bench_size size)
{
  struct allreduce_buffers *b = state;
  verifier_fill(b->verifier, b->sendbuff, b->recvbuff, size.count * (size_t)size.slots);
  /* no kernel directly before a symmetric AllReduce: docs/symmetric_memory.md */
  CUDACHECK(cudaStreamSynchronize(b->verifier->stream));
}

static unsigned long long check(void *state, struct bench_size size)
{
  struct allreduce_buffers *b = state;
  verifier_compare(b->verifier, b->recvbuff, size.count * (size_t)size.slots);
  return verifier_report(b->verifier, "bench");
}

/* A ring sends this: reduce-scatter and allgather, each with (n - 1) / n of the bytes. */
static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  (void)bench;
  return (double)size.bytes * 2 * (me->nranks - 1) / me->nranks;
}

/* One AllReduce of the last of n variants. */
static int run_once(struct allreduce_buffers *buffers, int n, size_t count)
{
  struct allreduce_buffers *b = &buffers[n - 1];
  const struct bench_size size = {.bytes = b->bytes, .count = count, .slots = 1};
  for (int i = 0; i < n; i++) setup(&buffers[i]);
  launcher_step(b->variant->name);
  launcher_print(b->me, "AllReduce \"%s\"%s with %zu elements on %d rank%s\n", b->variant->name,
                 b->variant->call && !b->handle ? " (NCCL's, see the note)" : "", count,
                 b->me->nranks, b->me->nranks == 1 ? "" : "s");
  fill(b, size);
  call(b, size, 0, b->verifier->stream);
  verifier_compare(b->verifier, b->recvbuff, count);
  verifier_digest(b->verifier, b->recvbuff, count);
  verifier_report(b->verifier, b->variant->name);
  for (int i = n - 1; i >= 0; i--) teardown(&buffers[i]);
  const int code = launcher_agree(b->me, b->verifier->code);
  launcher_print(b->me, code == EXIT_VERIFIED ? "Results verified correctly\n"
                                              : "Results are WRONG, see standard error\n");
  if (b->opt->digest) verifier_print_digest(b->verifier);
  return code;
}

int bench_allreduce(const struct rank *me, const struct options *opt, const char *title,
                    const struct allreduce_variant *variants, int n, size_t extra)
{
  const size_t count = opt->count ? opt->count : 1 << 20;
  /* a size below an element is rounded up */
  const size_t bytes = opt->type->size + (opt->bench ? opt->max_bytes : count * opt->type->size);
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

  struct allreduce_buffers buffers[BENCH_MAX_VARIANTS];
  struct bench_variant columns[BENCH_MAX_VARIANTS];
  for (int i = 0; i <= n; i++) {
    const struct allreduce_variant *v = i == 0 ? &plain : &variants[i - 1];
    buffers[i] = (struct allreduce_buffers){
        .me = me, .opt = opt, .comm = comm, .verifier = &verifier, .variant = v, .bytes = bytes};
    columns[i] = (struct bench_variant){v->name, &buffers[i], setup, teardown, call, fill, check};
  }
  const struct bench bench = {
      .title = title,
      .variants = columns,
      .nvariants = n + 1,
      .rate = "busbw",
      .moved = moved,
  };
  const int code =
      opt->bench ? bench_run(me, opt, &bench, stream) : run_once(buffers + 1, n, count);

  verifier_free(&verifier);
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  return code;
}
