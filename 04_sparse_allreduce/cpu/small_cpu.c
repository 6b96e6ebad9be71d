/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions on their own; regions; entries that return to the residual; the result added to a
 * vector of the caller; dense vectors; lists of indices and values apart. */
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

static void run_decide(const void *call)
{
  const struct call *c = call;
  sparse_decide(c->then, &c->m);
}

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  return enqueue(stream, run_decide, &(struct call){.m = *m, .then = what});
}

/* ---- regions --------------------------------------------------------------------------------- */

void cpu_partition(const struct sparse_memory *m, uint64_t count)
{
  struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = lower_bound(m->offered, count, s->boundaries[p]);
    s->region_displs[p] = first;
    s->region_counts[p] = lower_bound(m->offered, count, s->boundaries[p + 1]) - first;
  }
}

static void run_partition(const void *call)
{
  const struct call *c = call;
  cpu_partition(&c->m, c->m.state->offered_count);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(stream, run_partition, &(struct call){.m = *m});
}

static void run_propose(const void *call)
{
  const struct call *c = call;
  struct sparse_state *s = c->m.state;
  const uint64_t chunk = s->offered_count / (uint64_t)c->m.nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < c->m.nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : c->m.offered[chunk * (uint64_t)j].index;
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(stream, run_propose, &(struct call){.m = *m});
}

/* ---- entries --------------------------------------------------------------------------------- */

static void run_return(const void *call)
{
  const struct call *c = call;
  const uint64_t count = list_count(c->a), among = list_count(c->b);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = c->a.pairs[i];
    const uint64_t at = lower_bound(c->b.pairs, among, pair.index);
    if (at < among && c->b.pairs[at].index == pair.index)
      c->m.residual[pair.index] = one_nan(c->m.residual[pair.index] + pair.value);
  }
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  return enqueue(stream, run_return, &(struct call){.m = *m, .a = list, .b = among});
}

static void add_to(const struct call *c, size_t i, float result)
{
  c->vector[i] = one_nan(fmaf(c->scale, result, c->vector[i]));
}

static void run_add_entries(const void *call)
{
  const struct call *c = call;
  const uint64_t count = list_count(c->a);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = c->a.pairs[i];
    add_to(c, pair.index, pair.value / (float)c->m.nranks);
  }
}

ncclResult_t ops_add_entries(const struct sparse_memory *m, struct sparse_list list, float scale,
                             float *vector, cudaStream_t stream)
{
  const struct call c = {.m = *m, .a = list, .scale = scale, .vector = vector};
  return enqueue(stream, run_add_entries, &c);
}

static void run_scatter(const void *call)
{
  const struct call *c = call;
  const uint64_t count = list_count(c->a);
  for (uint64_t i = 0; i < count; i++) c->m.dense[c->a.pairs[i].index] = c->a.pairs[i].value;
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return enqueue(stream, run_scatter, &(struct call){.m = *m, .a = list});
}

static void run_unzip(const void *call)
{
  const struct call *c = call;
  const uint64_t count = list_count(c->a);
  for (uint64_t i = 0; i < count; i++) {
    c->indices[i] = c->a.pairs[i].index;
    c->values[i] = c->a.pairs[i].value;
  }
}

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream)
{
  const struct call c = {.m = *m, .a = list, .indices = indices, .values = values};
  return enqueue(stream, run_unzip, &c);
}

static void run_zip(const void *call)
{
  const struct call *c = call;
  const uint64_t count = list_count(c->to);
  for (uint64_t i = 0; i < count; i++)
    c->to.pairs[i] = (struct sparse_pair){c->indices[i], c->values[i]};
}

ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream)
{
  const struct call c = {
      .m = *m, .to = to, .indices = (uint32_t *)indices, .values = (float *)values};
  return enqueue(stream, run_zip, &c);
}

/* ---- dense vectors --------------------------------------------------------------------------- */

static void run_add_dense(const void *call)
{
  const struct call *c = call;
  for (size_t i = 0; i < c->m.n; i++) add_to(c, i, c->m.dense[i]);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  return enqueue(stream, run_add_dense, &(struct call){.m = *m, .scale = scale, .vector = vector});
}

static void run_average(const void *call)
{
  const struct call *c = call;
  for (size_t i = 0; i < c->m.n; i++) c->m.dense[i] = one_nan(c->m.dense[i] / (float)c->m.nranks);
  if (c->m.scratch != NULL) memset(c->m.scratch, true, c->m.n); /* in the result: see apply_cpu.c */
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(stream, run_average, &(struct call){.m = *m});
}

static void run_convert(const void *call)
{
  const struct call *c = call;
  for (size_t i = 0; i < c->m.n; i++)
    c->m.dense[i] = gradient_value(c->gradient, c->m.config.gradient_type, i);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  return enqueue(stream, run_convert, &(struct call){.m = *m, .gradient = gradient});
}
