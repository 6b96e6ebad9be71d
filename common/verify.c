/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"

#include "check.h"
#include "verify_kernels.h"

static struct verify_data data_of(const struct verifier *v)
{
  /* nranks inputs of `mask` at most have to add up to an exact value; 16 bits are variety enough */
  uint64_t nranks = (uint64_t)v->me->nranks;
  uint64_t limit = 1ULL << (v->type->exact_bits < 32 ? v->type->exact_bits : 32);
  uint32_t mask = 0xFFFF;
  while (mask > 1 && mask * nranks >= limit) mask >>= 1;
  if (v->kind == VERIFY_CONSTANT && nranks * (nranks - 1) / 2 < limit) mask = ~0U;
  return (struct verify_data){v->type->nccl, v->type->size, v->kind, v->me->nranks, mask};
}

static void reset_counts(struct verifier *v)
{
  CUDACHECK(cudaMemsetAsync(&v->device->wrong, 0, sizeof v->device->wrong, v->stream));
  CUDACHECK(cudaMemsetAsync(&v->device->first, 0xFF, sizeof v->device->first, v->stream));
}

void verifier_init(struct verifier *v, const struct rank *me, const struct datatype *type,
                   cudaStream_t stream)
{
  *v = (struct verifier){.me = me, .type = type, .stream = stream, .code = EXIT_VERIFIED};
  CUDACHECK(cudaMalloc((void **)&v->device, sizeof *v->device));
  CUDACHECK(cudaMemsetAsync(v->device, 0, sizeof *v->device, stream));
  reset_counts(v);
}

void verifier_free(struct verifier *v)
{
  CUDACHECK(cudaFree(v->device));
}

void verifier_fill(struct verifier *v, enum verify_kind kind, void *sendbuff, void *recvbuff,
                   size_t count)
{
  v->kind = kind;
  CUDACHECK(verify_launch_fill(sendbuff, count, data_of(v), v->me->rank, v->device, v->stream));
  if (recvbuff) CUDACHECK(cudaMemsetAsync(recvbuff, 0xFF, count * v->type->size, v->stream));
}

void verifier_compare(struct verifier *v, const void *buffer, size_t count)
{
  CUDACHECK(verify_launch_compare(buffer, count, data_of(v), v->device, v->stream));
}

void verifier_digest(struct verifier *v, const void *buffer, size_t count)
{
  CUDACHECK(verify_launch_digest(buffer, count, data_of(v), v->device, v->stream));
}

void verifier_next_round(struct verifier *v)
{
  CUDACHECK(verify_launch_next_round(v->device, v->stream));
}

static struct verify_state fetch_state(struct verifier *v)
{
  struct verify_state state;
  CUDACHECK(cudaMemcpyAsync(&state, v->device, sizeof state, cudaMemcpyDeviceToHost, v->stream));
  CUDACHECK(cudaStreamSynchronize(v->stream));
  return state;
}

unsigned long long verifier_report(struct verifier *v, const char *what, const void *buffer)
{
  struct verify_state state = fetch_state(v);
  if (state.wrong == 0) return 0;
  size_t i = (size_t)state.first;
  launcher_error("%s: element %zu is %g, expected %g (%llu elements wrong)", what, i,
                 verifier_element(v, buffer, i), verifier_expected(v, i), state.wrong);
  reset_counts(v);
  v->code = EXIT_WRONG_DATA;
  return state.wrong;
}

void verifier_check(struct verifier *v, const char *what, const void *buffer, size_t count)
{
  verifier_compare(v, buffer, count);
  verifier_digest(v, buffer, count);
  verifier_report(v, what, buffer);
}

double verifier_element(struct verifier *v, const void *buffer, size_t i)
{
  uint64_t bits = 0; /* the element's bytes become the low ones: CUDA's hosts are little-endian */
  CUDACHECK(cudaMemcpyAsync(&bits, (const char *)buffer + i * v->type->size, v->type->size,
                            cudaMemcpyDeviceToHost, v->stream));
  CUDACHECK(cudaStreamSynchronize(v->stream));
  return datatype_value(v->type, bits);
}

double verifier_expected(struct verifier *v, size_t i)
{
  struct verify_data data = data_of(v);
  return verify_sum(&data, fetch_state(v).round, i);
}

void verifier_print_digest(struct verifier *v)
{
  uint64_t mine = fetch_state(v).digest, all[v->me->nranks], joined = 0;
  launcher_allgather(v->me, &mine, all, sizeof mine);
  for (int rank = 0; rank < v->me->nranks; rank++) joined = verify_mix(joined ^ all[rank]);
  launcher_print(v->me, "Digest: %016llx\n", (unsigned long long)joined);
}
