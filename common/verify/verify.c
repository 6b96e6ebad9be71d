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
                   size_t count)
{
  const struct verify_job job = {(void *)buffer, count, v->data, v->me->rank, v->device};
  CUDACHECK(verify_launch(operation, job, v->stream));
}

static void reset_counts(struct verifier *v)
{
  CUDACHECK(cudaMemsetAsync(&v->device->wrong, 0, sizeof v->device->wrong, v->stream));
  CUDACHECK(cudaMemsetAsync(&v->device->first, 0xFF, sizeof v->device->first, v->stream));
}

void verifier_init(struct verifier *v, const struct rank *me, const struct datatype *type,
                   cudaStream_t stream)
{
  *v = (struct verifier){.me = me, .type = type, .stream = stream};
  v->data = (struct verify_data){type->nccl, type->size, me->nranks, mask_of(v)};
  CUDACHECK(cudaMalloc((void **)&v->device, sizeof *v->device));
  CUDACHECK(cudaMemsetAsync(v->device, 0, sizeof *v->device, stream));
  reset_counts(v);
}

void verifier_free(struct verifier *v)
{
  CUDACHECK(cudaFree(v->device));
}

void verifier_fill(struct verifier *v, void *sendbuff, void *recvbuff, size_t count)
{
  launch(v, VERIFY_FILL, sendbuff, count);
  if (recvbuff) CUDACHECK(cudaMemsetAsync(recvbuff, 0xFF, count * v->type->size, v->stream));
}

void verifier_compare(struct verifier *v, const void *buffer, size_t count)
{
  launch(v, VERIFY_COMPARE, buffer, count);
}

void verifier_digest(struct verifier *v, const void *buffer, size_t count)
{
  launch(v, VERIFY_DIGEST, buffer, count);
}

void verifier_next_round(struct verifier *v)
{
  launch(v, VERIFY_NEXT_ROUND, NULL, 0);
}

/* Waits for the stream and returns what its kernels have counted. */
static struct verify_state fetch_state(struct verifier *v)
{
  struct verify_state state;
  CUDACHECK(cudaMemcpyAsync(&state, v->device, sizeof state, cudaMemcpyDeviceToHost, v->stream));
  CUDACHECK(cudaStreamSynchronize(v->stream));
  return state;
}

unsigned long long verifier_report(struct verifier *v, const char *what)
{
  const struct verify_state state = fetch_state(v);
  const size_t i = (size_t)state.first;
  const long double is = datatype_value(v->type, state.bits);
  if (state.wrong == 0) return 0;
  launcher_error("%s: element %zu is %.20Lg, expected %llu (%llu elements wrong)", what, i,
                 is == is ? is : (long double)NAN /* without a sign */,
                 (unsigned long long)verify_expected(&v->data, state.round, i), state.wrong);
  reset_counts(v);
  v->code = EXIT_WRONG_DATA;
  return state.wrong;
}

void verifier_print_digest(struct verifier *v)
{
  uint64_t mine = fetch_state(v).digest, all[v->me->nranks], joined = 0;
  launcher_allgather(v->me, &mine, all, sizeof mine);
  for (int rank = 0; rank < v->me->nranks; rank++) joined = hash_mix(joined ^ all[rank]);
  launcher_print(v->me, "Digest: %016llx\n", (unsigned long long)joined);
}
