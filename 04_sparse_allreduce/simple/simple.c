/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, and what every step begins and ends with. */
#include "simple.h"

#include <stdlib.h>

#include "check.h"

static void *device_memory(size_t bytes)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, bytes));
  CUDACHECK(cudaMemset(memory, 0, bytes));
  return memory;
}

struct simple *simple_create(ncclComm_t comm, size_t count, const sparse_allreduce_config_t *config)
{
  struct simple *s = calloc(1, sizeof *s);
  if (!s) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  *s = (struct simple){.config = *config, .comm = comm, .n = count};
  NCCLCHECK(ncclCommUserRank(comm, &s->rank));
  NCCLCHECK(ncclCommCount(comm, &s->nranks));
  s->t = (size_t)((double)count * config->density);
  sparse_allreduce_sizes(count, config->density, &s->k, &s->capacity);

  const size_t ranks = (size_t)s->nranks, entry = sizeof(struct sparse_pair);
  s->acc = device_memory(count * sizeof *s->acc);
  s->sums = device_memory(count * sizeof *s->sums);
  s->result = device_memory(count * sizeof *s->result);
  s->offered = device_memory(s->capacity * entry);
  s->received = device_memory(ranks * s->capacity * entry);
  s->reduced = device_memory(ranks * s->capacity * entry);
  s->global = device_memory(ranks * s->capacity * entry);
  s->numbers = device_memory((ranks + 1) * ranks * sizeof *s->numbers);
  s->ops = simple_ops_create(s);

  s->boundaries = calloc(ranks + 1, sizeof *s->boundaries);
  s->list = malloc(s->capacity * entry);
  if (!s->boundaries || !s->list)
    launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  for (size_t j = 0; j < ranks; j++) s->boundaries[j] = count / ranks * j;
  s->boundaries[ranks] = count;
  CUDACHECK(cudaDeviceSynchronize()); /* the memory is cleared */
  return s;
}

void simple_destroy(struct simple *s)
{
  void *memory[] = {s->acc,      s->sums,    s->result, s->offered,
                    s->received, s->reduced, s->global, s->numbers};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) CUDACHECK(cudaFree(memory[i]));
  simple_ops_destroy(s->ops);
  free(s->list);
  free(s->boundaries);
  free(s);
}

void simple_gather_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count,
                           cudaStream_t stream)
{
  const size_t bytes = count * sizeof *mine, ranks = (size_t)s->nranks;
  uint64_t *gathered = s->numbers + count;
  CUDACHECK(cudaMemcpyAsync(s->numbers, mine, bytes, cudaMemcpyHostToDevice, stream));
  NCCLCHECK(ncclAllGather(s->numbers, gathered, count, ncclUint64, s->comm, stream));
  CUDACHECK(cudaMemcpyAsync(all, gathered, bytes * ranks, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}

/* A step of the warm-up: everything is added, and nothing stays behind. */
static void dense(struct simple *s, const float *gradient, cudaStream_t stream)
{
  NCCLCHECK(ncclAllReduce(gradient, s->sums, s->n, ncclFloat, ncclSum, s->comm, stream));
  simple_divide(s, s->result, s->sums, s->nranks, stream);
  s->last.selected_above = 0x7fffffff; /* nothing was selected */
  s->last.selected_tie = -1;
  s->last.words_sent = 2 * s->n * ((uint64_t)s->nranks - 1) / (uint64_t)s->nranks;
  s->last.words_received = s->last.words_sent;
}

void simple_run(struct simple *s, const float *gradient, cudaStream_t stream)
{
  const sparse_allreduce_config_t *c = &s->config;
  const uint64_t step = s->steps++, warmup = (uint64_t)c->warmup_steps;
  /* the first sparse step has nothing to use again */
  const bool first = step == warmup, adapts = c->algorithm == SPARSE_OKTOPK && step >= warmup;

  s->last = (sparse_allreduce_statistics_t){
      .step = step,
      .k = s->k,
      .capacity = s->capacity,
      .dense = step < warmup,
      .exact_local = adapts && (first || step % (uint64_t)c->local_interval == 0),
      .exact_global = adapts && (first || step % (uint64_t)c->global_interval == 0),
      .repartitioned = adapts && (first || step % (uint64_t)c->repartition_interval == 0),
  };
  if (s->last.dense)
    dense(s, gradient, stream);
  else if (c->algorithm == SPARSE_OKTOPK)
    simple_oktopk(s, gradient, stream);
  else
    simple_topka(s, gradient, stream);
  s->last.local_threshold = s->local_threshold;
  s->last.global_threshold = s->global_threshold;
  CUDACHECK(cudaStreamSynchronize(stream));
}
