/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of kernels that other ranks see, with the order that CUDA promises.
 *
 * With CPU_STANDIN_RACES=SEED with no more order than that, to find races: stores into windows
 * reach memory late and in any order, unless a fence or a release comes between; blocks, warps and
 * ranks run in random order, one rank at a time. This takes kernels that are compiled with
 * -fsanitize=thread and -DCPU_RACES (`make CPU=1 RACES=1`): that calls __tsan_write8(at) before a
 * store of 8 bytes, and so on, but these functions are here. Before the next one runs, what was
 * stored is taken out of memory again and kept. */
#include <string.h>
#include <time.h>

#include "kernel.h"

enum { LATE = 64 };

struct late {
  char *to;
  unsigned size;
  char bytes[16];
  const struct block *block; /* NULL: it has ended */
  unsigned thread;
  uint64_t barriers; /* of the block, before the store */
};

__thread bool races_on;
static __thread struct {
  struct late *stores; /* not here: a library that is loaded has little thread-local memory */
  struct late current;
  unsigned n, rate;
  bool has_current;
  uint64_t random;
} late;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t seed;
  unsigned weight[MAX_RANKS]; /* of kernels that run: how often they have a turn */
  int turn;                   /* which one has it; -1: none */
} races = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .turn = -1};
static __thread int my_place;

static unsigned below(uint64_t *state, unsigned n)
{
  *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
  return (unsigned)(*state >> 20) % n;
}
#define RANDOM(n) below(&late.random, n)

/* ---- turns of the ranks: all of this with the lock ------------------------------------------- */

static void next_turn(void)
{
  unsigned all = 0;
  for (int i = 0; i < MAX_RANKS; i++) all += races.weight[i];
  races.turn = -1;
  if (all > 0) {
    unsigned pick = below(&races.seed, all);
    for (races.turn = 0; pick >= races.weight[races.turn]; races.turn++)
      pick -= races.weight[races.turn];
  }
  pthread_cond_broadcast(&races.changed);
}

static void await_turn(void)
{
  while (races.turn != my_place) pthread_cond_wait(&races.changed, &races.lock);
}

static void enter(void)
{
  for (my_place = 0; races.weight[my_place] > 0;) my_place++;
  races.weight[my_place] = (1 + below(&races.seed, 8)) * (1 + below(&races.seed, 8));
  if (races.turn == -1) next_turn();
  await_turn();
}

static void leave(void)
{
  races.weight[my_place] = 0;
  next_turn();
}

/* ---- what kernel.c calls --------------------------------------------------------------------- */

void races_begin(void)
{
  const long long seed = cpu_settings()->races;
  races_on = seed >= 0;
  if (!races_on) return;
  if (late.stores == NULL) late.stores = cpu_allocate(LATE * sizeof *late.stores);
  pthread_mutex_lock(&races.lock);
  if (races.seed == 0) races.seed = (uint64_t)seed * 0x9E3779B97F4A7C15u + 88172645463325252u;
  if (late.random == 0) late.random = races.seed += 0x9E3779B97F4A7C15u;
  enter();
  pthread_mutex_unlock(&races.lock);
}

static void deliver(unsigned i)
{
  memcpy(late.stores[i].to, late.stores[i].bytes, late.stores[i].size);
  late.stores[i] = late.stores[--late.n];
}

void races_turn(void)
{
  if (!races_on) return;
  if (RANDOM(64) == 0) late.rate = RANDOM(20);
  for (unsigned k = RANDOM(late.rate * 4 + 1); k > 0 && late.n > 0; k--) deliver(RANDOM(late.n));
  pthread_mutex_lock(&races.lock);
  next_turn();
  await_turn();
  pthread_mutex_unlock(&races.lock);
}

bool races_skip_block(void)
{
  return races_on && RANDOM(4) == 0;
}

void races_end(void)
{
  if (!races_on) return;
  pthread_mutex_lock(&races.lock);
  if (late.n > 0 && RANDOM(4) == 0) { /* others go on, even with their next kernels */
    leave();
    pthread_mutex_unlock(&races.lock);
    nanosleep(&(struct timespec){0, 1000 * (long)RANDOM(500)}, NULL);
    pthread_mutex_lock(&races.lock);
    enter();
  }
  while (late.n > 0) deliver(RANDOM(late.n));
  leave();
  pthread_mutex_unlock(&races.lock);
  races_on = false;
}

/* ---- stores that are late -------------------------------------------------------------------- */

static bool overlap(const struct late *l, const char *at, size_t size)
{
  return l->to < at + size && at < l->to + l->size;
}

/* Does this thread see it, as its own or of its block before a barrier? */
static bool seen(const struct late *l)
{
  const struct thread *t = kernel_thread();
  return l->block == t->block && (l->thread == t->number || l->barriers < block_barriers(t->block));
}

/* What is stored there, or anywhere if `at` is NULL, arrives: all of it or what this thread sees.
 */
static void apply(const char *at, size_t size, bool all)
{
  for (unsigned i = 0; i < late.n;)
    if ((at == NULL || overlap(&late.stores[i], at, size)) && (all || seen(&late.stores[i])))
      deliver(i);
    else
      i++;
}

static void keep(char *to, const void *bytes, unsigned size)
{
  const struct thread *t = kernel_thread();
  if (late.n == LATE) deliver(RANDOM(LATE));
  struct late *l = &late.stores[late.n++];
  *l = (struct late){to, size, {0}, t->block, t->number, block_barriers(t->block)};
  memcpy(l->bytes, bytes, size);
}

void races_settle_store(void)
{
  if (!late.has_current) return;
  late.has_current = false;
  char now[16];
  memcpy(now, late.current.to, late.current.size);
  if (memcmp(now, late.current.bytes, late.current.size) == 0) return; /* nothing has changed */
  memcpy(late.current.to, late.current.bytes, late.current.size);
  keep(late.current.to, now, late.current.size);
}

static void before_read(const void *at, unsigned size)
{
  if (!races_on || kernel_thread() == NULL) return;
  /* to copy 16 bytes, the hook of the load comes after that of the store */
  if (late.has_current && memcmp(late.current.to, late.current.bytes, late.current.size) != 0)
    races_settle();
  if (late.n > 0 && cpu_memory_is_window(at)) apply(at, size, false);
}

/* ---- loads and stores ------------------------------------------------------------------------ */

#ifdef __SANITIZE_THREAD__ /* sees no order where CUDA's kernels end and begin, or relaxed stores \
                            */
enum { STORE = __ATOMIC_RELEASE };
#else
enum { STORE = __ATOMIC_RELAXED };
#endif

/* What this thread sees, all others see. */
static void release(void)
{
  races_settle();
  if (races_on) apply(NULL, 0, false);
}

void cpu_fence(void)
{
  release();
  __sync_synchronize();
}

void cpu_before_atomic(const void *at)
{
  if (!races_on) return;
  races_settle();
  apply(at, 16, true);
}

static bool is_late(void *at, const void *bytes, unsigned size)
{
  if (!races_on) return false;
  races_settle();
  apply(at, size, true); /* stores to one place stay in order */
  if (RANDOM(4) == 0) return false;
  keep(at, bytes, size);
  return true;
}

void cpu_store_u64(void *at, uint64_t value, bool releases)
{
  if (releases) release();
  if (!is_late(at, &value, 8))
    __atomic_store_n((uint64_t *)at, value, releases ? __ATOMIC_RELEASE : STORE);
}

uint64_t cpu_load_u64(const void *at, struct cpu_place place)
{
  races_settle();
  kernel_before_load(at, place);
  before_read(at, 8);
  return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

/* Whoever sees the second half sees the first: as much as a line needs. */
void cpu_store_b128(void *at, uint64_t low, uint64_t high)
{
  if (is_late(at, (const uint64_t[]){low, high}, 16)) return;
  __atomic_store_n((uint64_t *)at, low, STORE);
  __atomic_store_n((uint64_t *)at + 1, high, __ATOMIC_RELEASE);
}

void cpu_load_b128(uint64_t *low, uint64_t *high, const void *at, struct cpu_place place)
{
  races_settle();
  kernel_before_load(at, place);
  before_read(at, 16);
  *high = __atomic_load_n((const uint64_t *)at + 1, __ATOMIC_ACQUIRE);
  *low = __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}

/* ---- what instrumented code calls ------------------------------------------------------------ */

#ifndef __SANITIZE_THREAD__
static void before_write(void *at, unsigned size)
{
  if (!races_on || kernel_thread() == NULL) return;
  races_settle();
  if (!cpu_memory_is_window(at)) return;
  apply(at, size, true);
  if (size > 16 || RANDOM(4) == 0) return;
  late.current.to = at;
  late.current.size = size;
  memcpy(late.current.bytes, at, size);
  late.has_current = true;
}

#define HOOKS(N)                           \
  void __tsan_read##N(void *at)            \
  {                                        \
    before_read(at, N);                    \
  }                                        \
  void __tsan_write##N(void *at)           \
  {                                        \
    before_write(at, N);                   \
  }                                        \
  void __tsan_unaligned_read##N(void *at)  \
  {                                        \
    before_read(at, N);                    \
  }                                        \
  void __tsan_unaligned_write##N(void *at) \
  {                                        \
    before_write(at, N);                   \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *at, size_t size)
{
  before_read(at, (unsigned)size);
}
void __tsan_write_range(void *at, size_t size)
{
  before_write(at, (unsigned)size);
}
/* which look at no argument */
void __tsan_func_entry(void) {}
void __tsan_vptr_update(void) {}
void __tsan_func_exit(void) {}
void __tsan_init(void) {}
#endif
