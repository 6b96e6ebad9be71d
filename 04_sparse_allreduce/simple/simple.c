/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, and numbers of the host on their way between ranks. */
#include "simple.h"

#include <stdlib.h>

#include "check.h"

struct simple *simple_create(ncclComm_t comm, size_t count, const sparse_allreduce_config_t *config)
{
  struct simple *s = calloc(1, sizeof *s);
  if (!s) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  *s = (struct simple){.config = *config, .comm = comm, .n = count};
  sparse_constants_init(&s->constants, config->preset);
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  NCCLCHECK(ncclCommCount(comm, &s->nranks));
  s->t = (size_t)((double)count * config->density);
  sparse_allreduce_sizes(count, config->density, &s->k, &s->capacity);

  const size_t ranks = (size_t)s->nranks;
  const size_t vector = count * sizeof(float), list = count * sizeof(struct sparse_pair);
  CUDACHECK(cudaMalloc((void **)&s->acc, vector));
  CUDACHECK(cudaMalloc((void **)&s->sums, vector));
  CUDACHECK(cudaMalloc((void **)&s->result, vector));
  CUDACHECK(cudaMalloc((void **)&s->offered, list));
  CUDACHECK(cudaMalloc((void **)&s->received, ranks * s->capacity * sizeof *s->received));
  CUDACHECK(cudaMalloc((void **)&s->reduced, list));
  CUDACHECK(cudaMalloc((void **)&s->global, list));
  s->work_bytes = 32 * count + ((size_t)1 << 20); /* keys before and after sorting, and CUB's */
  CUDACHECK(cudaMalloc(&s->work, s->work_bytes));
  CUDACHECK(cudaMalloc((void **)&s->numbers, (ranks + 1) * ranks * sizeof *s->numbers));
  CUDACHECK(cudaMemset(s->acc, 0, vector)); /* no residual yet */
  CUDACHECK(cudaDeviceSynchronize());

  s->list = malloc(list);
  s->boundaries = malloc((ranks + 1) * sizeof *s->boundaries);
  if (!s->list || !s->boundaries)
    launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  for (size_t j = 0; j < ranks; j++) s->boundaries[j] = count / ranks * j;
  s->boundaries[ranks] = count;
  return s;
}

void simple_destroy(struct simple *s)
{
  void *memory[] = {s->acc,     s->sums,   s->result, s->offered, s->received,
                    s->reduced, s->global, s->work,   s->numbers};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) CUDACHECK(cudaFree(memory[i]));
  free(s->list);
  free(s->boundaries);
  free(s);
}

void simple_gather_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count,
                           cudaStream_t stream)
{
  const size_t bytes = count * sizeof *mine;
  uint64_t *gathered = s->numbers + count;
  CUDACHECK(cudaMemcpyAsync(s->numbers, mine, bytes, cudaMemcpyHostToDevice, stream));
  NCCLCHECK(ncclAllGather(s->numbers, gathered, count, ncclUint64, s->comm, stream));
  CUDACHECK(
      cudaMemcpyAsync(all, gathered, bytes * (size_t)s->nranks, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}
