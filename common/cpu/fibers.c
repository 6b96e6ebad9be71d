/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: every CUDA thread is a fiber on the thread of its stream. See cpu_threads.h. */
#include "cpu_threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "internal.h"

enum {
  WARP = 32,
  MAX_THREADS = 1024,
  RESIDENT = 16, /* blocks of a kernel that run at the same time */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  STACK = 128 << 10,
#else
  STACK = 32 << 10,
#endif
  SLAB = 64,     /* stacks in one mapping */
  SPINS = 16,    /* loads before others may run */
  GROUPS = 8,    /* of a warp, that exchange values at the same time */
  SHARED = 64 << 10
};

/* ---- stacks and switches --------------------------------------------------------------------- */

/* Saves the registers that a function has to preserve, and the stack pointer at *from; continues
 * where `to` was saved. */
void cpu_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(
    ".globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, @function\ncpu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size cpu_switch, .-cpu_switch\n");
static void *first_frame(char *top, void (*body)(void))
{
  void **sp = (void **)(void *)top;
  *--sp = NULL; /* where body would return to; keeps the stack aligned at its entry */
  *--sp = (void *)(uintptr_t)body;
  for (int i = 0; i < 6; i++) *--sp = NULL;
  return sp;
}
#elif defined(__aarch64__)
__asm__(
    ".globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, %function\ncpu_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n.size cpu_switch, .-cpu_switch\n");
static void *first_frame(char *top, void (*body)(void))
{
  void **sp = (void **)(void *)(top - 160);
  memset(sp, 0, 160);
  sp[11] = (void *)(uintptr_t)body;
  return sp;
}
#else
#error "kernels on the CPU need cpu_switch for this processor"
#endif

struct block;

struct fiber {
  struct block *block;
  struct cpu_index thread; /* threadIdx */
  void *sp;
  char *stack;
  struct fiber *next; /* in the list of those that are free */
  const void *first;  /* the first load since it last waited */
  unsigned loads;
  unsigned number; /* of the thread in its block */
  uint64_t awaits; /* the barrier, or exchange, that has to come before it continues */
  const uint64_t *reached;
#ifdef __SANITIZE_ADDRESS__
  void *fake;
#endif
};

/* Threads of a warp that exchange values: those of a mask. */
struct group {
  uint32_t mask, arrived;
  uint64_t done; /* exchanges so far */
  uint64_t values[2][WARP];
  uint32_t present[2];
};

struct block {
  struct cpu_index index; /* blockIdx */
  const struct cpu_grid *grid;
  unsigned threads, started, finished;
  unsigned next; /* to look at in this pass */
  unsigned arrived, count, result;
  uint64_t barriers;
  unsigned arrived_some;
  uint64_t barriers_of_some;
  struct fiber *fibers[MAX_THREADS]; /* NULL: not started or ended */
  size_t used;
  unsigned declarations;
  struct {
    const void *key;
    void *memory;
  } shared[32];
  uint32_t ended[MAX_THREADS / WARP];
  struct group groups[MAX_THREADS / WARP][GROUPS]; /* cleared as far as needed */
  _Alignas(128) char memory[SHARED];
};

__thread struct cpu_index threadIdx, blockIdx, blockDim, gridDim;
__thread void *cpu_dynamic;

/* Of the thread of a stream. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
  void *sp;
  struct fiber *self, *free;
  struct block *blocks; /* RESIDENT of them */
  bool progress;
#ifdef __SANITIZE_ADDRESS__
  void *fake;
  const void *bottom;
  size_t size;
#endif
} worker;

#ifdef __SANITIZE_ADDRESS__
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
#define ENTER(fake) __sanitizer_finish_switch_fiber(fake, NULL, NULL)
#else
#define ENTER(fake)
#endif

static struct fiber *next_fiber(struct block *b);
#ifdef CPU_RACES
static void late_settle(void);
#else
#define late_settle()
#endif

/* From a fiber to the next one of its block, or to the scheduler. */
static void leave(void)
{
  late_settle();
  struct fiber *f = worker.self, *next = next_fiber(f->block);
  if (next == f) return;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&f->fake, next != NULL ? next->stack : worker.bottom,
                                 next != NULL ? STACK : worker.size);
#endif
  if (next != NULL) {
    worker.self = next;
    threadIdx = next->thread;
  }
  cpu_switch(&f->sp, next != NULL ? next->sp : worker.sp);
  ENTER(f->fake);
}

static void resume(struct fiber *f)
{
  worker.self = f;
  threadIdx = f->thread;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&worker.fake, f->stack, STACK);
#endif
  cpu_switch(&worker.sp, f->sp);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(worker.fake, NULL, NULL);
#endif
}

/* ---- threads --------------------------------------------------------------------------------- */

static void barrier_if_complete(struct block *b)
{
  if (b->arrived == 0 || b->arrived + b->finished < b->threads) return;
  b->result = b->count;
  b->arrived = b->count = 0;
  b->barriers++;
  worker.progress = true;
}

static void exchange_if_complete(struct block *b, unsigned warp, struct group *g)
{
  const uint32_t expected = g->mask & ~b->ended[warp];
  if (g->arrived == 0 || (g->arrived & expected) != expected) return;
  g->present[g->done & 1] = g->arrived;
  g->arrived = 0;
  g->done++;
  worker.progress = true;
}

/* A fiber does one thread after the other, as long as none has to wait. */
static void body(void)
{
  ENTER(NULL);
  for (;;) {
    struct fiber *f = worker.self;
    struct block *b = f->block;
    while (b->started < b->threads) {
      const struct cpu_index size = b->grid->threads;
      const unsigned t = f->number = b->started++;
      b->next = b->started;
      threadIdx = f->thread = 
          t < size.x ? (struct cpu_index){t, 0, 0}
                     : (struct cpu_index){t % size.x, t / size.x % size.y, t / size.x / size.y};
      f->first = NULL, f->loads = 0, f->reached = NULL;
      b->fibers[t] = f;
      b->grid->run(b->grid->args);
      late_settle();
      f = worker.self;
      b->fibers[f->number] = NULL;
      b->finished++;
      b->ended[f->number / WARP] |= 1u << f->number % WARP;
      worker.progress = true;
      barrier_if_complete(b);
      struct group *g = b->groups[f->number / WARP];
      for (int i = 0; i < GROUPS && g[i].mask != 0; i++)
        exchange_if_complete(b, f->number / WARP, &g[i]);
    }
    f->next = worker.free;
    worker.free = f; /* whoever takes it continues here, even if that is this fiber */
    leave();
  }
}

static struct fiber *new_fiber(void)
{
  if (worker.free == NULL) {
    char *stacks = mmap(NULL, (size_t)SLAB * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) cpu_out_of_memory("the threads of a kernel");
    struct fiber *all = cpu_allocate(SLAB * sizeof(*all));
    for (int i = 0; i < SLAB; i++) {
      all[i].stack = stacks + (size_t)i * STACK;
      all[i].sp = first_frame(all[i].stack + STACK - 16 * (i % 8 * 64 + 1), body); /* other sets */
      all[i].next = worker.free;
      worker.free = &all[i];
    }
  }
  struct fiber *f = worker.free;
  worker.free = f->next;
  return f;
}

/* ---- the scheduler --------------------------------------------------------------------------- */

static void begin_block(struct block *b, const struct cpu_grid *grid, size_t number)
{
  memset(b, 0, offsetof(struct block, groups));
  b->grid = grid;
  b->index.x = (unsigned)(number % grid->blocks.x);
  b->index.y = (unsigned)(number / grid->blocks.x % grid->blocks.y);
  b->index.z = (unsigned)(number / grid->blocks.x / grid->blocks.y);
  b->threads = grid->threads.x * grid->threads.y * grid->threads.z;
  for (unsigned w = 0; w < (b->threads + WARP - 1) / WARP; w++)
    for (int i = 0; i < GROUPS; i++)
      b->groups[w][i].mask = b->groups[w][i].arrived = 0, b->groups[w][i].done = 0;
  b->used = (grid->shared + 127) / 128 * 128;
  if (b->threads > MAX_THREADS || b->used > SHARED) cpu_out_of_memory("a block of a kernel");
}

/* That has not run in this pass and need not wait. */
static struct fiber *next_fiber(struct block *b)
{
  while (b->next < b->started) {
    struct fiber *f = b->fibers[b->next++];
    if (f == NULL || (f->reached != NULL && *f->reached < f->awaits)) continue;
    f->reached = NULL;
    return f;
  }
  if (b->started == b->threads) return NULL;
  struct fiber *f = new_fiber();
  f->block = b;
  return f;
}

static void run_block(struct block *b)
{
  blockIdx = b->index;
  cpu_dynamic = b->memory;
  b->next = 0;
  for (struct fiber *f; (f = next_fiber(b)) != NULL;) resume(f);
  worker.self = NULL;
}

/* Nothing has happened: waits for other ranks. */
static void pause_after(unsigned passes)
{
  if (passes < 50)
    sched_yield();
  else
    nanosleep(&(struct timespec){0, passes < 200 ? 20000 : 100000}, NULL);
}

#ifdef CPU_RACES
static void late_begin(void);
static void late_turn(void);
static void late_end(void);
static bool late_skips(void);
#else
#define late_begin()
#define late_turn()
#define late_end()
#define late_skips() false
#endif

void cpu_run_grid(const struct cpu_grid *grid)
{
  const size_t all = (size_t)grid->blocks.x * grid->blocks.y * grid->blocks.z;
  size_t next = 0, ended = 0;
#ifdef __SANITIZE_ADDRESS__
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, (void **)&worker.bottom, &worker.size);
  pthread_attr_destroy(&attributes);
#endif
  if (worker.blocks == NULL) worker.blocks = cpu_allocate(RESIDENT * sizeof(*worker.blocks));
  struct block *blocks = worker.blocks;
  blockDim = grid->threads;
  gridDim = grid->blocks;
  for (int i = 0; i < RESIDENT; i++) blocks[i].threads = 0;
  late_begin();
  for (unsigned idle = 0; ended < all;) {
    worker.progress = false;
    late_turn();
    for (int i = 0; i < RESIDENT; i++) {
      if (blocks[i].threads == 0) {
        if (next == all) continue;
        begin_block(&blocks[i], grid, next++);
      }
      if (late_skips()) continue;
      run_block(&blocks[i]);
      if (blocks[i].finished < blocks[i].threads) continue;
      blocks[i].threads = 0;
      ended++;
    }
    idle = worker.progress ? 0 : idle + 1;
    if (idle > 0) pause_after(idle);
  }
  late_end();
}

/* ---- what a thread calls --------------------------------------------------------------------- */

void cpu_yield(bool idle)
{
  struct fiber *f = worker.self;
  if (f == NULL) return; /* host code */
  if (!idle) worker.progress = true;
  f->loads = 0;
  leave();
}

static void wait_until(const uint64_t *reached, uint64_t awaits)
{
  struct fiber *f = worker.self;
  f->first = NULL;
  if (*reached >= awaits) return;
  f->reached = reached;
  f->awaits = awaits;
  leave();
}

unsigned cpu_barrier(bool value)
{
  late_settle();
  struct block *b = worker.self->block;
  const uint64_t awaits = b->barriers + 1;
  b->count += value;
  b->arrived++;
  barrier_if_complete(b);
  wait_until(&b->barriers, awaits);
  return b->result;
}

void cpu_barrier_of(unsigned threads)
{
  late_settle();
  struct block *b = worker.self->block;
  const uint64_t awaits = b->barriers_of_some + 1;
  if (++b->arrived_some == threads) {
    b->arrived_some = 0;
    b->barriers_of_some++;
    worker.progress = true;
  }
  wait_until(&b->barriers_of_some, awaits);
}

uint32_t cpu_exchange(uint32_t mask, uint64_t value, const uint64_t **values)
{
  late_settle();
  struct fiber *f = worker.self;
  struct block *b = f->block;
  const unsigned warp = f->number / WARP, lane = f->number % WARP;
  const unsigned rest = b->threads - warp * WARP;
  if (rest < WARP) mask &= (1u << rest) - 1;
  struct group *g = b->groups[warp];
  while (g->mask != mask && g->mask != 0) {
    if (++g < b->groups[warp] + GROUPS) continue;
    for (g = b->groups[warp]; g->arrived != 0; g++) continue; /* one that is not in use */
    g->mask = 0;
  }
  g->mask = mask;
  const uint64_t done = g->done;
  g->values[done & 1][lane] = value;
  g->arrived |= 1u << lane;
  exchange_if_complete(b, warp, g);
  wait_until(&g->done, done + 1);
  *values = g->values[done & 1];
  return g->present[done & 1];
}

void *cpu_shared(const void *key, size_t bytes)
{
  struct block *b = worker.self->block;
  for (unsigned i = 0; i < b->declarations; i++)
    if (b->shared[i].key == key) return b->shared[i].memory;
  void *memory = b->memory + b->used;
  b->used += (bytes + 127) / 128 * 128;
  if (b->used > SHARED || b->declarations == 32) cpu_out_of_memory("shared memory of a block");
  memset(memory, 0xCB, bytes);
  b->shared[b->declarations].key = key;
  b->shared[b->declarations++].memory = memory;
  return memory;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void cpu_before_load(const void *at)
{
  struct fiber *f = worker.self;
  const bool again = at == f->first;
  if (!again && ++f->loads < SPINS) {
    if (f->first == NULL) f->first = at;
    return;
  }
  f->first = at;
  cpu_yield(again);
}

#ifndef CPU_RACES
void cpu_fence(void)
{
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void cpu_store_u64(void *at, uint64_t value, bool release)
{
  __atomic_store_n((uint64_t *)at, value, release ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}

uint64_t cpu_load_u64(const void *at)
{
  cpu_before_load(at);
  return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

/* Whoever sees the second half sees the first: as much as a line needs. */
void cpu_store_b128(void *at, uint64_t low, uint64_t high)
{
  __atomic_store_n((uint64_t *)at, low, __ATOMIC_RELAXED);
  __atomic_store_n((uint64_t *)at + 1, high, __ATOMIC_RELEASE);
}

void cpu_load_b128(uint64_t *low, uint64_t *high, const void *at)
{
  cpu_before_load(at);
  *high = __atomic_load_n((const uint64_t *)at + 1, __ATOMIC_ACQUIRE);
  *low = __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}
#else
#include "races.h"
#endif

uint64_t cpu_nanoseconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
