/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <stdio.h>

uint32_t next_random(struct test *t)
{
  t->random ^= t->random >> 12;
  t->random ^= t->random << 25;
  t->random ^= t->random >> 27;
  return (uint32_t)(t->random * 2685821657736338717ULL >> 32);
}

float element(struct test *t, enum kind kind)
{
  const uint32_t r = next_random(t);
  const float sign = r & 1 ? -1.0f : 1.0f;
  switch (kind) {
  case RANDOM: /* heavy tails */
    return sign * ldexpf((float)(1 + (r >> 8)), -24 - (int)(r >> 1 & 15));
  case TIES:
    return sign * (float)(r >> 8 & 3);
  case EQUAL:
    return sign * 1.5f;
  case DENORMAL:
    return sign * ldexpf((float)(r >> 20), -149);
  case NONFINITE:
    if ((r >> 4 & 255) == 0) return r >> 12 & 1 ? sign * INFINITY : NAN;
    return sign * ldexpf((float)(1 + (r >> 12)), -16);
  default:
    return sign * 0.0f;
  }
}

float added(float a, float b)
{
  const float sum = a + b;
  return sum != sum ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : sum;
}

static void *device_memory(size_t bytes)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, bytes));
  return memory;
}

void world_open(struct world *w, struct test *t, size_t n, size_t k, int nranks)
{
  struct sparse_memory *m = &w->m;
  memset(w, 0, sizeof *w);
  w->stream = t->stream;
  m->n = n;
  m->k = m->t = k;
  m->capacity = 2 * k > 4096 ? 2 * k : 4096;
  if (m->capacity > n) m->capacity = n;
  m->list_room = m->capacity + 1;
  m->nranks = nranks;
  m->room = nranks > 1 ? 2 * m->capacity : m->capacity;
  m->config.gradient_type = ncclFloat;
  m->config.nonfinite = SPARSE_NONFINITE_ERROR;
  w->lists = (size_t)(nranks < 2 ? 2 : nranks) * m->list_room;
  w->gradient = device_memory((n + 16) * sizeof(float));
  m->residual = device_memory(n * sizeof(float));
  m->dense = device_memory((n + SPARSE_SECTOR) * sizeof(float));
  m->offered = device_memory(w->lists * sizeof(struct sparse_pair));
  m->received = device_memory(w->lists * sizeof(struct sparse_pair));
  m->gathered = device_memory(w->lists * sizeof(struct sparse_pair));
  m->state = device_memory(sizeof(struct sparse_state));
  m->scratch = device_memory(ops_scratch_bytes(n, nranks, m->capacity));
  CUDACHECK(cudaMemset(m->scratch, 0, ops_scratch_bytes(n, nranks, m->capacity)));
  w->residual = launcher_allocate(n * sizeof(float));
  w->dense = launcher_allocate(n * sizeof(float));
  w->offered = launcher_allocate(w->lists * sizeof(struct sparse_pair));
  w->received = launcher_allocate(w->lists * sizeof(struct sparse_pair));
  w->gathered = launcher_allocate(w->lists * sizeof(struct sparse_pair));
  w->state = launcher_allocate(sizeof(struct sparse_state));
}

void world_close(struct world *w)
{
  CUDACHECK(cudaStreamSynchronize(w->stream));
  CUDACHECK(cudaFree(w->gradient));
  CUDACHECK(cudaFree(w->m.residual));
  CUDACHECK(cudaFree(w->m.dense));
  CUDACHECK(cudaFree(w->m.offered));
  CUDACHECK(cudaFree(w->m.received));
  CUDACHECK(cudaFree(w->m.gathered));
  CUDACHECK(cudaFree(w->m.state));
  CUDACHECK(cudaFree(w->m.scratch));
  free(w->residual);
  free(w->dense);
  free(w->offered);
  free(w->received);
  free(w->gathered);
  free(w->state);
}

static void copy(struct world *w, void *host, void *device, size_t bytes, bool push)
{
  if (push)
    CUDACHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, w->stream));
  else
    CUDACHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, w->stream));
}

static void copy_all(struct world *w, bool push)
{
  const size_t vector = w->m.n * sizeof(float), list = w->lists * sizeof(struct sparse_pair);
  copy(w, w->residual, w->m.residual, vector, push);
  copy(w, w->dense, w->m.dense, vector, push);
  copy(w, w->offered, w->m.offered, list, push);
  copy(w, w->received, w->m.received, list, push);
  copy(w, w->gathered, w->m.gathered, list, push);
  copy(w, w->state, w->m.state, sizeof *w->state, push);
  CUDACHECK(cudaStreamSynchronize(w->stream));
}

void world_push(struct world *w)
{
  copy_all(w, true);
}

void world_pull(struct world *w)
{
  copy_all(w, false);
}

size_t random_list(struct test *t, struct sparse_pair *pairs, size_t most, uint64_t begin,
                   uint64_t end, uint32_t gap, enum kind kind)
{
  size_t count = 0;
  for (uint64_t i = begin + next_random(t) % gap; i < end && count < most;
       i += 1 + next_random(t) % (2 * gap - 1))
    pairs[count++] = (struct sparse_pair){(uint32_t)i, element(t, kind)};
  return count;
}

void expect_cleared(const struct world *w, size_t count, float *residual)
{
  const struct sparse_selection *s = &w->state->selection;
  char *pending = calloc(1, w->m.n);
  memset(pending, w->state->pending == SPARSE_REMOVE_OFFERED, w->m.n);
  for (size_t i = 0; w->state->pending == SPARSE_REMOVE_IN_RESULT && i < count; i++)
    pending[w->gathered[i].index] = 1;
  for (size_t i = 0; i < w->m.n; i++) {
    const sparse_level_t magnitude = sparse_magnitude(residual[i]);
    const bool chosen = magnitude > s->above || (magnitude == s->above && (int64_t)i <= s->tie);
    if (pending[i] && chosen && magnitude <= s->limit) residual[i] = 0;
  }
  free(pending);
}

bool same_bits(const void *a, const void *b, size_t bytes, const char *what)
{
  const uint32_t *x = a, *y = b;
  if (memcmp(a, b, bytes) == 0) return true;
  for (size_t i = 0; i < bytes / 4; i++)
    if (x[i] != y[i]) {
      launcher_error("%s: word %zu of %zu is %08x, expected %08x", what, i, bytes / 4, x[i], y[i]);
      break;
    }
  return false;
}

bool same_number(uint64_t got, uint64_t expected, const char *what)
{
  if (got != expected)
    launcher_error("%s is %llu, expected %llu", what, (unsigned long long)got,
                   (unsigned long long)expected);
  return got == expected;
}

void report(struct test *t, bool good, const char *what)
{
  const int code = launcher_agree(t->me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  launcher_print(t->me, "%s - %s\n", code == EXIT_VERIFIED ? "ok" : "not ok", what);
  fflush(stdout);
  if (code != EXIT_VERIFIED) t->code = code;
}
