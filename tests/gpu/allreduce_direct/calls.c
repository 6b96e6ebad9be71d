/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned long long hash(unsigned long long x)
{
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 32;
}

void result(struct test *t, int code, const char *what)
{
  code = launcher_agree(t->me, code);
  launcher_print(t->me, "%s - %s\n", code == EXIT_VERIFIED ? "ok" : "not ok", what);
  if (code != EXIT_VERIFIED) t->code = code;
}

allreduce_t make_handle(struct test *t, const allreduce_config_t *config)
{
  allreduce_t handle;
  LIBRARYCHECK(allreduce_create(t->comm, config, &handle));
  LIBRARYCHECK(allreduce_add_window(handle, t->window, t->recv, t->bytes));
  return handle;
}

allreduce_config_t small_limits(const struct test *t)
{
  const int n = t->me->nranks;
  return (allreduce_config_t){.ll_bytes = 300,
                              .onehop_bytes = n == 2 ? 1500 : 7500L * (n - 2),
                              .twohop_bytes = 8000,
                              .scratch_bytes = (size_t)n * 2 * 512};
}

void destroy_handle(struct test *t, allreduce_t handle)
{
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_destroy(handle));
}

ncclResult_t found_error(struct test *t, allreduce_t handle)
{
  ncclResult_t error = ncclSuccess;
  CUDACHECK(cudaStreamSynchronize(t->stream));
  LIBRARYCHECK(allreduce_get_async_error(handle, &error));
  return error;
}

/* Numbers whose sums are rounded, so that another order of adding shows: random bits, with an
 * exponent so near to that of 1 that nothing overflows. */
void call_fill(const struct call *k, int rank, char *to)
{
  for (size_t i = 0; i < k->count; i++) {
    const uint64_t random = hash(k->seed * 1000003ull + i * 131 + (unsigned)rank);
    const uint64_t near = random >> 50 & 7;
    uint64_t bits = random;
    switch (k->type) {
    case ncclFloat:
      bits = (random & 0x807fffff) | (124 + near) << 23;
      break;
    case ncclDouble:
      bits = (random & 0x800fffffffffffff) | (1020 + near) << 52;
      break;
    case ncclHalf:
      bits = (random & 0x83ff) | (near + 6) << 10; /* sums of 0x1p-24 upwards */
      if (random >> 60 == 0) bits &= 0x83ff;       /* subnormal */
      break;
    case ncclBfloat16:
      bits = (random & 0x807f) | (124 + near) << 7;
      break;
    default:
      break;
    }
    memcpy(to + i * k->size, &bits, k->size);
  }
  /* Last bytes that bare lines cannot send as they are: rank 0 or 1 has them, and the sum may be
   * such, too; or all ranks have them. */
  for (size_t at = 12; k->type <= ncclUint64 && at + 4 <= k->count * k->size; at += 16) {
    const uint64_t random = hash(k->seed * 7919ull + at);
    const bool has = random >> 1 & 1 || (int)(random & 1) == rank;
    const uint32_t last = has ? ALLREDUCE_KEY ^ (hash(random + (unsigned)rank) & 1) : 0;
    if (random >> 60 == 0 || k->seed >= ESCAPES) memcpy(to + at, &last, 4);
  }
}

void calls_add(size_t room, struct calls *c, ncclDataType_t type, size_t count, unsigned seed)
{
  const size_t size = allreduce_size_of(type), per_word = 16 / size;
  struct call *k = &c->call[c->n];
  const uint64_t random = hash(seed);
  *k = (struct call){.type = type, .size = size, .count = count, .at = c->bytes, .seed = seed};
  k->to = GUARD / size + random % (4 * per_word);
  k->from = random >> 8 & 1 ? GUARD / size + (random >> 16) % (4 * per_word)
                            : k->to + 16 / size * (random >> 16 & 3);
  if ((random >> 9) % 3 == 0) k->from = IN_PLACE;
  c->bytes += (count * size + 2 * GUARD + 63) / 64 * 64;
  c->n++;
  if (c->n > MAX_CALLS || c->bytes > room || (count + 6 * GUARD) * size > room)
    launcher_fail(__FILE__, __LINE__, "calls_add", "no room", NULL);
}

void calls_prepare(struct test *t, const struct calls *c)
{
  for (int i = 0; i < c->n; i++) {
    const struct call *k = &c->call[i];
    call_fill(k, t->me->rank, t->host + k->at + GUARD);
  }
  CUDACHECK(cudaMemcpy(t->inputs, t->host, c->bytes, cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemset(t->results, 0x5a, c->bytes));
}

void calls_enqueue(struct test *t, const struct calls *c, allreduce_t handle, unsigned late)
{
  for (int i = 0; i < c->n; i++) {
    const struct call *k = &c->call[i];
    const size_t bytes = k->count * k->size;
    const uint64_t random = hash(k->seed * 64ull + (unsigned)t->me->rank);
    const bool in_place = k->from == IN_PLACE && random >> 40 & 3;
    char *to = t->recv + k->to * k->size;
    char *from = t->send + (k->from == IN_PLACE ? k->to : k->from + (random >> 44 & 3)) * k->size;
    if (in_place) from = to;
    if (late > 0 && random % 4 == 0) usleep((unsigned)(random >> 8) % late);
    CUDACHECK(cudaMemsetAsync(to - GUARD, 0xa5, bytes + 2 * GUARD, t->stream));
    CUDACHECK(cudaMemcpyAsync(from, t->inputs + k->at + GUARD, bytes, cudaMemcpyDeviceToDevice,
                              t->stream));
    LIBRARYCHECK(allreduce_run(handle, bytes ? from : NULL, bytes ? to : NULL, k->count, k->type,
                               t->stream));
    CUDACHECK(cudaMemcpyAsync(t->results + k->at, to - GUARD, bytes + 2 * GUARD,
                              cudaMemcpyDeviceToDevice, t->stream));
  }
}

bool call_is_right(const struct call *k, int nranks, const char *got)
{
  const size_t bytes = k->count * k->size, n = (size_t)nranks;
  const void *from[64];
  char *inputs = launcher_allocate((n + 1) * (bytes + 1));
  bool right = true;
  char *want = inputs + n * bytes;
  for (int p = 0; p < nranks; p++) {
    from[p] = inputs + (size_t)p * bytes;
    call_fill(k, p, inputs + (size_t)p * bytes);
  }
  allreduce_plain_sum(k->type, from, nranks, k->count, want);
  if (memcmp(got, want, bytes) != 0) right = false;
  for (int i = 0; i < GUARD; i++)
    if ((unsigned char)got[-1 - i] != 0xa5 || (unsigned char)got[bytes + (size_t)i] != 0xa5)
      right = false;
  free(inputs);
  return right;
}

int calls_check(struct test *t, const struct calls *c, allreduce_t handle)
{
  if (found_error(t, handle) != ncclSuccess) {
    launcher_error("%s", allreduce_last_error());
    return EXIT_FAILED_CALL;
  }
  CUDACHECK(cudaMemcpy(t->host, t->results, c->bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < c->n; i++)
    if (!call_is_right(&c->call[i], t->me->nranks, t->host + c->call[i].at + GUARD)) {
      launcher_error("call %d of %d is wrong: type %d, count %zu, from %zd to %zu", i, c->n,
                     (int)c->call[i].type, c->call[i].count, (ssize_t)c->call[i].from,
                     c->call[i].to);
      return EXIT_WRONG_DATA;
    }
  return EXIT_VERIFIED;
}
