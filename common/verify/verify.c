/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"

#include <math.h>

#include "check.h"
#include "verify_kernels.h"

/* The sum of nranks inputs, each at most `mask`, must be exact. 16 bits are enough variety, except
 * for 64-bit integers: a sum made in 32 bits would go unnoticed. */
static uint64_t mask_of(const struct verifier *v)
{
  const uint64_t nranks = (uint64_t)v->me->nranks, most = ~0ULL >> (64 - v->type->exact_bits);
  uint64_t mask = v->type->exact_bits > 53 ? most : 0xFFFF;
  while (mask > 1 && mask > most / nranks) mask >>= 1;
  return mask;
}

static void launch(struct verifier *v, enum verify_operation operation, const void *buffer,
                   size_t count, cudaStream_t stream)
{
  CUDACHECK(
      verify_launch(operation, (void *)buffer, count, v->data, v->me->rank, v->device, stream));
}

/* Waits, so that comparisons in any stream may follow. */
static void reset_counts(struct verifier *v)
{
  CUDACHECK(cudaMemsetAsync(&v->device->wrong, 0, sizeof v->device->wrong, v->own));
  CUDACHECK(cudaMemsetAsync(&v->device->first, 0xFF, sizeof v->device->first, v->own));
  CUDACHECK(cudaStreamSynchronize(v->own));
}

void verifier_init(struct verifier *v, const struct rank *me, const struct datatype *type,
                   cudaStream_t stream)
{
  *v = (struct verifier){.me = me, .type = type, .stream = stream, .code = EXIT_VERIFIED};
  v->data = (struct verify_data){type->nccl, type->size, me->nranks, mask_of(v)};
  /* non-blocking: it does not even wait for the default stream */
  CUDACHECK(cudaStreamCreateWithFlags(&v->own, cudaStreamNonBlocking));
  CUDACHECK(cudaMalloc((void **)&v->device, sizeof *v->device));
  CUDACHECK(cudaMemsetAsync(v->device, 0, sizeof *v->device, v->own));
  reset_counts(v);
}

void verifier_free(struct verifier *v)
{
  CUDACHECK(cudaFree(v->device));
  CUDACHECK(cudaStreamDestroy(v->own));
}

void verifier_fill(struct verifier *v, void *sendbuff, void *recvbuff, size_t count)
{
  launch(v, VERIFY_FILL, sendbuff, count, v->stream);
  if (recvbuff) CUDACHECK(cudaMemsetAsync(recvbuff, 0xFF, count * v->type->size, v->stream));
}

void verifier_compare(struct verifier *v, const void *buffer, size_t count)
{
  launch(v, VERIFY_COMPARE, buffer, count, v->stream);
}

void verifier_digest(struct verifier *v, const void *buffer, size_t count)
{
  launch(v, VERIFY_DIGEST, buffer, count, v->stream);
}

void verifier_next_round(struct verifier *v)
{
  launch(v, VERIFY_NEXT_ROUND, NULL, 0, v->stream);
}

/* Waits for the stream and returns what its kernels have counted. */
static struct verify_state fetch_state(struct verifier *v, cudaStream_t stream)
{
  struct verify_state state;
  CUDACHECK(cudaMemcpyAsync(&state, v->device, sizeof state, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  return state;
}

static unsigned long long report(struct verifier *v, const char *what, cudaStream_t stream)
{
  const struct verify_state state = fetch_state(v, stream);
  const size_t i = (size_t)state.first;
  const long double is = datatype_value(v->type, state.bits);
  if (state.wrong == 0) return 0;
  const bool poison = state.bits == ~0ULL >> (64 - 8 * v->type->size); /* see verifier_fill */
  launcher_error("%s: element %zu is %.20Lg, expected %llu (%llu elements wrong)%s", what, i,
                 is == is ? is : (long double)NAN /* without a sign */,
                 (unsigned long long)verify_expected(&v->data, state.round, i), state.wrong,
                 poison ? ": the element was never written; did you wait for the stream?" : "");
  reset_counts(v);
  v->code = EXIT_WRONG_DATA;
  return state.wrong;
}

unsigned long long verifier_report(struct verifier *v, const char *what)
{
  return report(v, what, v->stream);
}

void verifier_check(struct verifier *v, const char *what, const void *buffer, size_t count)
{
  launch(v, VERIFY_COMPARE, buffer, count, v->own);
  launch(v, VERIFY_DIGEST, buffer, count, v->own);
  report(v, what, v->own);
}

void verifier_print_digest(struct verifier *v)
{
  uint64_t mine = fetch_state(v, v->stream).digest, all[v->me->nranks], joined = 0;
  launcher_allgather(v->me, &mine, all, sizeof mine);
  for (int rank = 0; rank < v->me->nranks; rank++) joined = hash_mix(joined ^ all[rank]);
  launcher_print(v->me, "Digest: %016llx\n", (unsigned long long)joined);
}
