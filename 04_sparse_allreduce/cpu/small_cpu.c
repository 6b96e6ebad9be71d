/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions on their own, regions, entries that return to the residual, the result and adding it to
 * a vector of the caller, dense vectors, lists of indices and values apart. */
#include "ops_cpu.h"

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  (void)nranks, (void)capacity;
  return n; /* is element i an entry of the result? */
}

ncclResult_t ops_load(void)
{
  return ncclSuccess;
}

static void run_call(const void *arg)
{
  const struct call *c = arg;
  const uint64_t count = c->list.pairs != NULL ? list_count(c->list) : c->m.n;
  for (uint64_t i = 0; c->each != NULL && i < count; i++) c->each(c, i);
  if (c->run != NULL) c->run(c);
  sparse_decide(c->then, &c->m);
}

ncclResult_t enqueue(const struct sparse_memory *m, cudaStream_t stream, struct call call)
{
  call.m = *m;
  return cpu_launch(stream, run_call, &call, sizeof(call)) == cudaSuccess ? ncclSuccess
                                                                          : ncclUnhandledCudaError;
}

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.then = what});
}

/* ---- regions --------------------------------------------------------------------------------- */

void cpu_partition(const struct sparse_memory *m, const struct sparse_pair *pairs, uint64_t count,
                   uint64_t *displs, uint64_t *counts)
{
  for (int p = 0; p < m->nranks; p++) {
    displs[p] = lower_bound(pairs, count, m->state->boundaries[p]);
    counts[p] = lower_bound(pairs, count, m->state->boundaries[p + 1]) - displs[p];
  }
}

static void partition(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  cpu_partition(&c->m, c->m.offered, s->offered_count, s->region_displs, s->region_counts);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = partition});
}

static void propose(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  const uint64_t chunk = s->offered_count / (uint64_t)c->m.nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < c->m.nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : c->m.offered[chunk * (uint64_t)j].index;
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = propose});
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Averages of the entries, and 0 elsewhere, if a dense result is wanted. */
static void apply(const struct call *c)
{
  bool *in_result = c->m.scratch;
  const bool dense = c->m.config.result != SPARSE_RESULT_ENTRIES;
  for (size_t i = 0; i < c->m.n; i++) {
    if (dense && in_result[i]) c->m.dense[i] = 0;
    in_result[i] = false;
  }
  for (uint64_t i = 0, count = list_count(c->list); i < count; i++) {
    const struct sparse_pair pair = c->list.pairs[i];
    if (dense) c->m.dense[pair.index] = one_nan(pair.value / (float)c->m.nranks);
    in_result[pair.index] = true;
  }
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_decision then, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = apply, .list = list, .then = then});
}

static void add_to(const struct call *c, uint64_t i, float result)
{
  c->vector[i] = one_nan(fmaf(c->scale, result, c->vector[i]));
}

static void add_entry(const struct call *c, uint64_t i)
{
  add_to(c, c->list.pairs[i].index, c->list.pairs[i].value / (float)c->m.nranks);
}

ncclResult_t ops_add_entries(const struct sparse_memory *m, struct sparse_list list, float scale,
                             float *vector, cudaStream_t stream)
{
  return enqueue(m, stream,
                 (struct call){.each = add_entry, .list = list, .scale = scale, .vector = vector});
}

static void add_element(const struct call *c, uint64_t i)
{
  add_to(c, i, c->m.dense[i]);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = add_element, .scale = scale, .vector = vector});
}

/* ---- entries and elements on their own ------------------------------------------------------- */

static void give_back(const struct call *c, uint64_t i)
{
  const struct sparse_pair pair = c->list.pairs[i];
  const bool *in_result = c->m.scratch;
  if (!sparse_chosen(c->selection, sparse_magnitude(pair.value), pair.index) &&
      in_result[pair.index])
    c->m.residual[pair.index] = one_nan(c->m.residual[pair.index] + pair.value);
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        const struct sparse_selection *selection, cudaStream_t stream)
{
  const struct call c = {
      .each = give_back, .list = list, .selection = (struct sparse_selection *)selection};
  return enqueue(m, stream, c);
}

static void scatter(const struct call *c, uint64_t i)
{
  c->m.dense[c->list.pairs[i].index] = c->list.pairs[i].value;
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = scatter, .list = list});
}

static void average(const struct call *c, uint64_t i)
{
  bool *in_result = c->m.scratch;
  c->m.dense[i] = one_nan(c->m.dense[i] / (float)c->m.nranks);
  if (in_result != NULL) in_result[i] = true;
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = average});
}

static void convert(const struct call *c, uint64_t i)
{
  c->m.dense[i] = gradient_value(c->gradient, c->m.config.gradient_type, i);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = convert, .gradient = gradient});
}

static void unzip(const struct call *c, uint64_t i)
{
  c->indices[i] = c->list.pairs[i].index;
  c->values[i] = c->list.pairs[i].value;
}

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream)
{
  return enqueue(m, stream,
                 (struct call){.each = unzip, .list = list, .indices = indices, .values = values});
}

static void zip(const struct call *c, uint64_t i)
{
  c->list.pairs[i] = (struct sparse_pair){c->indices[i], c->values[i]};
}

ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream)
{
  const struct call c = {
      .each = zip, .list = to, .indices = (uint32_t *)indices, .values = (float *)values};
  return enqueue(m, stream, c);
}
