/* SPDX-License-Identifier: Apache-2.0 */
/* Runs CUDA kernels on the CPU: the same .cu files that nvcc compiles.
 *
 * How the source becomes C++. `g++ -E` expands macros and includes. cuda.pl then rewrites the few
 * things that are no C++: `<<<...>>>`, `__shared__` and inline PTX. All else that CUDA has are
 * functions, types and variables of include/cuda_kernels.h. g++ compiles the result; the lines keep
 * their numbers, so messages and gdb name the .cu file.
 *
 * How threads run. A kernel of 4 blocks of 512 threads would need 2,048 threads of the system,
 * which take turns of milliseconds. Here one system thread, that of the stream, runs them all:
 * each thread of the kernel is a fiber (fiber.c), which goes on until it has to wait, and then
 * switches to the next one of its block. It waits
 *
 *   at __syncthreads, __syncwarp, a shuffle: until a number that the block counts is reached
 *   in a loop that loads a flag: it has loaded the same address before, so others get a turn
 *   in `while (...) continue;` and in __nanosleep: likewise
 *
 * When all threads of a block wait, or have had their turn, the next block has its turn, up to
 * RESIDENT blocks of a kernel; then again the first one. If nothing happens in such a pass, the
 * kernel waits for another rank: the system thread sleeps for a while. Blocks and ranks need no
 * help to run side by side: they share memory (window.c), as on GPUs.
 *
 * A fiber that has run a thread to its end begins the next thread on the same stack. So a kernel
 * whose threads never wait needs one stack, and a thread of it costs about 10 ns.
 *
 * threadIdx and the like are variables of the system thread, set at each switch.
 *
 * A block in which every thread waits for the others can never go on. That is certain, unlike a
 * flag that does not come, so the kernel ends, and its stream fails with a sentence that says which
 * threads wait where. */
#include "kernel.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
  RESIDENT = 16,  /* blocks of a kernel that run at the same time */
  SLAB = 64,      /* stacks that are made together */
  LOADS = 16,     /* of different addresses before others get a turn */
  GROUPS = 8,     /* of a warp, that exchange values at the same time */
  VARIABLES = 32, /* declarations with __shared__ */
  SHARED = 64 << 10,
  LONG_WAIT = 10 /* seconds, after which a note says where the threads are */
};

/* Threads that wait for each other: of a block; or of a warp, which exchange values. */
struct meeting {
  unsigned arrived;         /* so many threads, */
  unsigned sum;             /* of what they add: values that are true, or bits of lanes */
  unsigned result[2];       /* the last sums */
  uint64_t done;            /* times so far */
  uint32_t mask;            /* of a warp, or 0 */
  uint64_t values[2][WARP]; /* in turn */
};

struct block {
  const struct cpu_grid *grid;
  const void *args;
  struct cpu_index index; /* blockIdx */
  unsigned threads, started, ended;
  unsigned next;                       /* thread to look at in this pass */
  struct thread *running[MAX_THREADS]; /* NULL: not started, or ended */
  uint32_t ended_of_warp[MAX_THREADS / WARP];
  uint32_t waits[MAX_THREADS / WARP]; /* threads that need no turn before one of these meets: */
  struct meeting all, some;           /* at __syncthreads; at a barrier of some threads */
  struct {
    const void *key;
    void *memory;
  } variables[VARIABLES];
  unsigned declared;
  size_t used;                                       /* bytes of memory */
  struct meeting groups[MAX_THREADS / WARP][GROUPS]; /* of warps; cleared as far as needed */
  _Alignas(128) char memory[SHARED];
};

/* What a kernel needs while it runs. They are kept for the next kernel. */
struct residence {
  struct residence *next;
  struct thread *free;
  struct block blocks[RESIDENT];
};

static pthread_mutex_t residences_lock = PTHREAD_MUTEX_INITIALIZER;
static struct residence *residences, *stuck; /* for the next kernel; of one that cannot end */

__thread struct cpu_index threadIdx, blockIdx, blockDim, gridDim;
__thread void *cpu_dynamic_shared;

/* The thread of a stream. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
  struct fiber fiber;
  struct thread *self; /* the thread of the kernel that runs */
  struct residence *residence;
  bool progress; /* in this pass something has happened */
} worker;

uint64_t block_barriers(const struct block *b)
{
  return b->all.done;
}

struct thread *kernel_thread(void)
{
  return worker.self;
}

/* ---- threads --------------------------------------------------------------------------------- */

static struct thread *next_thread(struct block *b);

/* To the next thread of the block, or if all have had their turn to the block's caller. */
static void leave(bool ends)
{
  races_settle();
  struct thread *t = worker.self, *next = next_thread(t->block);
  if (next == t) return;
  if ((char *)__builtin_frame_address(0) < t->fiber.stack + STACK_BYTES / 16)
    cpu_out_of_memory("the variables of a kernel's thread");
  worker.self = next;
  if (next != NULL) threadIdx = next->index;
  fiber_switch(&t->fiber, next != NULL ? &next->fiber : &worker.fiber, ends);
}

static void end_if_complete(struct block *b, struct meeting *m, unsigned warp, unsigned threads)
{
  const uint32_t missing = m->mask & ~b->ended_of_warp[warp] & ~m->sum;
  if (m->arrived == 0 || m->arrived < threads || missing != 0) return;
  m->result[m->done & 1] = m->sum;
  m->arrived = m->sum = 0;
  m->done++;
  if (m->mask != 0)
    b->waits[warp] = 0;
  else
    memset(b->waits, 0, sizeof(b->waits));
  worker.progress = true;
}

static struct cpu_index index_of(unsigned n, struct cpu_index size)
{
  return (struct cpu_index){n % size.x, n / size.x % size.y, n / size.x / size.y};
}

static void run_thread(struct block *b, struct thread *t)
{
  const struct cpu_index size = b->grid->threads;
  const unsigned n = b->started++, warp = n / WARP;
  b->next = b->started;
  b->running[n] = t;
  t->number = n;
  t->index = n < size.x ? (struct cpu_index){n, 0, 0} : index_of(n, size);
  t->polled = NULL, t->loads = 0;
  threadIdx = t->index;
  b->grid->run(b->args);
  races_settle();
  b->running[n] = NULL;
  b->ended++;
  b->ended_of_warp[warp] |= 1u << n % WARP;
  worker.progress = true;
  end_if_complete(b, &b->all, 0, b->threads - b->ended);
  for (struct meeting *g = b->groups[warp]; g < b->groups[warp] + GROUPS && g->mask != 0; g++)
    end_if_complete(b, g, warp, 0);
}

/* What a fiber does: one thread after the other, as long as none has to wait. */
static void run_threads(void)
{
  fiber_begun();
  struct thread *t = worker.self;
  while (t->block->started < t->block->threads) run_thread(t->block, t);
  t->next = worker.residence->free;
  worker.residence->free = t;
  leave(true);
}

static struct thread *make_threads(void)
{
  char *stacks = mmap(NULL, (size_t)SLAB * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) cpu_out_of_memory("the threads of a kernel");
  struct thread *all = cpu_allocate(SLAB * sizeof(*all));
  for (int i = 0; i < SLAB; i++) {
    all[i].fiber.stack = stacks + (size_t)i * STACK_BYTES;
    all[i].next = i + 1 < SLAB ? &all[i + 1] : NULL;
  }
  return all;
}

static struct thread *new_thread(struct block *b)
{
  struct residence *r = worker.residence;
  if (r->free == NULL) r->free = make_threads();
  struct thread *t = r->free;
  r->free = t->next;
  t->block = b;
  fiber_begin(&t->fiber, run_threads);
  return t;
}

/* One that has not run in this pass and need not wait. */
static struct thread *next_thread(struct block *b)
{
  while (b->next < b->started) {
    const uint32_t ready = ~b->waits[b->next / WARP] >> b->next % WARP;
    b->next += ready != 0 ? (unsigned)__builtin_ctz(ready) : WARP - b->next % WARP;
    if (ready == 0 || b->next >= b->started) continue;
    struct thread *t = b->running[b->next++];
    if (t != NULL) return t;
  }
  return b->started < b->threads ? new_thread(b) : NULL;
}

/* ---- blocks and grids ------------------------------------------------------------------------ */

static struct residence *take_residence(void)
{
  pthread_mutex_lock(&residences_lock);
  struct residence *r = residences;
  if (r != NULL) residences = r->next;
  pthread_mutex_unlock(&residences_lock);
  return r != NULL ? r : cpu_allocate(sizeof(*r));
}

static void give_back(struct residence *r, struct residence **list)
{
  pthread_mutex_lock(&residences_lock);
  r->next = *list;
  *list = r;
  pthread_mutex_unlock(&residences_lock);
}

static void begin_block(struct block *b, const struct cpu_grid *grid, const void *args,
                        unsigned number)
{
  memset(b, 0, offsetof(struct block, groups));
  b->grid = grid;
  b->args = args;
  b->index = index_of(number, grid->blocks);
  b->threads = grid->threads.x * grid->threads.y * grid->threads.z;
  for (unsigned w = 0; w < (b->threads + WARP - 1) / WARP; w++)
    for (struct meeting *g = b->groups[w]; g < b->groups[w] + GROUPS; g++)
      g->mask = g->arrived = g->sum = 0, g->done = 0;
  b->used = (grid->shared + 127) / 128 * 128;
}

/* A turn of all its threads. False: none can go on. */
static bool run_block(struct block *b)
{
  blockIdx = b->index;
  cpu_dynamic_shared = b->memory;
  b->next = 0;
  bool any = false;
  for (struct thread *t; (t = next_thread(b)) != NULL; any = true) {
    worker.self = t;
    threadIdx = t->index;
    fiber_switch(&worker.fiber, &t->fiber, false);
    worker.self = NULL;
  }
  return any || b->ended == b->threads;
}

static bool same_place(const struct thread *a, const struct thread *b)
{
  return a != NULL && b != NULL && a->place.line == b->place.line &&
         a->place.file == b->place.file && a->place.what == b->place.what;
}

/* Where the threads are. */
static void explain(const struct block *b, char *text, size_t bytes)
{
  size_t at =
      (size_t)snprintf(text, bytes, "block %u", b->index.x + b->index.y * b->grid->blocks.x);
  bool first = true;
  for (unsigned i = 0; i < b->threads && at < bytes; i++) {
    unsigned before = 0, same = 0;
    for (unsigned j = 0; j < b->threads; j++) {
      const bool here = same_place(b->running[i], b->running[j]);
      same += here;
      before += here && j < i;
    }
    if (same == 0 || before > 0) continue;
    const struct cpu_place *place = &b->running[i]->place;
    const char *slash = strrchr(place->file, '/');
    char who[64];
    if (first)
      snprintf(who, sizeof(who), ": %u of %u threads wait", same, b->threads);
    else
      snprintf(who, sizeof(who), same == 1 ? ", thread %u" : ", %u threads", same == 1 ? i : same);
    first = false;
    at += (size_t)snprintf(text + at, bytes - at, "%s at %s in %s:%d", who, place->what,
                           slash != NULL ? slash + 1 : place->file, place->line);
  }
}

/* Nothing has happened in so many passes: waits for other ranks. */
static void pause_after(unsigned passes, const struct block *b, struct timespec *since)
{
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (passes < 50) {
    sched_yield();
    return;
  }
  nanosleep(&(struct timespec){0, passes < 200 ? 20000 : 100000}, NULL);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (since->tv_sec == 0) *since = now;
  if (now.tv_sec - since->tv_sec < LONG_WAIT || atomic_flag_test_and_set(&said)) return;
  char text[SENTENCE];
  explain(b, text, sizeof(text));
  if (!cpu_settings()->quiet)
    fprintf(stderr, "note: CPU stand-in: a kernel has waited for %d s: %s\n", LONG_WAIT, text);
}

static bool fits(const struct cpu_grid *grid)
{
  const size_t threads = (size_t)grid->threads.x * grid->threads.y * grid->threads.z;
  char text[SENTENCE];
  if (threads <= MAX_THREADS && threads > 0 && grid->shared <= SHARED) return true;
  snprintf(text, sizeof(text),
           "a kernel has %zu threads per block and %zu bytes of dynamic shared memory; allowed: 1 "
           "to %d, and %d",
           threads, grid->shared, MAX_THREADS, SHARED);
  cpu_worker_fail(text);
  return false;
}

void cpu_run_grid(const struct cpu_grid *grid, const void *args)
{
  if (!fits(grid)) return;
  const unsigned all = grid->blocks.x * grid->blocks.y * grid->blocks.z;
  unsigned next = 0, ended = 0;
  struct residence **list = &residences;
  struct residence *r = worker.residence = take_residence();
  struct timespec since = {0, 0};
  fiber_of_system(&worker.fiber);
  blockDim = grid->threads;
  gridDim = grid->blocks;
  races_begin();
  for (unsigned idle = 0; ended < all;) {
    const struct block *waits = NULL;
    worker.progress = false;
    races_turn();
    for (struct block *b = r->blocks; b < r->blocks + RESIDENT; b++) {
      if (b->threads == 0 && next < all) begin_block(b, grid, args, next++);
      if (b->threads == 0 || races_skip_block()) continue;
      if (!run_block(b)) {
        char text[SENTENCE];
        explain(b, text, sizeof(text));
        cpu_worker_fail(text);
        ended = all;
        list = &stuck;
        break;
      }
      waits = b;
      if (b->ended < b->threads) continue;
      b->threads = 0;
      ended++;
    }
    idle = worker.progress ? 0 : idle + 1;
    if (idle == 0) since.tv_sec = 0;
    if (idle > 0 && waits != NULL) pause_after(idle, waits, &since);
  }
  races_end();
  give_back(r, list);
}

/* ---- what a thread calls --------------------------------------------------------------------- */

void cpu_yield(bool idle, struct cpu_place place)
{
  struct thread *t = worker.self;
  if (t == NULL) return; /* host code */
  if (!idle) worker.progress = true;
  t->loads = 0;
  t->place = place;
  leave(false);
}

void kernel_before_load(const void *at, struct cpu_place place)
{
  struct thread *t = worker.self;
  const bool again = at == t->polled;
  if (!again && ++t->loads < LOADS) {
    if (t->polled == NULL) t->polled = at;
    return;
  }
  t->polled = at;
  cpu_yield(again, place);
}

static unsigned meet(struct meeting *m, unsigned adds, unsigned threads, struct cpu_place place)
{
  struct thread *t = worker.self;
  const unsigned warp = t->number / WARP;
  const uint64_t awaits = m->done + 1;
  t->polled = NULL;
  t->place = place;
  m->sum += adds;
  m->arrived++;
  end_if_complete(t->block, m, warp, threads);
  while (m->done < awaits) {
    t->block->waits[warp] |= 1u << t->number % WARP;
    leave(false);
  }
  return m->result[(awaits - 1) & 1];
}

unsigned cpu_barrier(bool value, unsigned threads, struct cpu_place place)
{
  races_settle();
  struct block *b = worker.self->block;
  return threads == 0 ? meet(&b->all, value, b->threads - b->ended, place)
                      : meet(&b->some, value, threads, place);
}

/* The group of a warp with that mask; or else one that nobody uses. */
static struct meeting *group_of(struct meeting *groups, uint32_t mask)
{
  struct meeting *g = groups;
  while (g < groups + GROUPS && g->mask != mask && g->mask != 0) g++;
  if (g == groups + GROUPS)
    for (g = groups; g->arrived != 0;) g++;
  g->mask = mask;
  return g;
}

uint32_t cpu_exchange(uint32_t mask, uint64_t value, const uint64_t **values,
                      struct cpu_place place)
{
  races_settle();
  struct thread *t = worker.self;
  struct block *b = t->block;
  const unsigned warp = t->number / WARP, lane = t->number % WARP, left = b->threads - warp * WARP;
  if (left < WARP) mask &= (1u << left) - 1;
  struct meeting *g = group_of(b->groups[warp], mask);
  *values = g->values[g->done & 1];
  g->values[g->done & 1][lane] = value;
  return meet(g, 1u << lane, 0, place);
}

void *cpu_shared(const void *key, size_t bytes)
{
  struct block *b = worker.self->block;
  for (unsigned i = 0; i < b->declared; i++)
    if (b->variables[i].key == key) return b->variables[i].memory;
  void *memory = b->memory + b->used;
  b->used += (bytes + 127) / 128 * 128;
  if (b->used > SHARED || b->declared == VARIABLES)
    cpu_out_of_memory("the shared memory of a block");
  memset(memory, 0xCB, bytes); /* not zeros, which may look right */
  b->variables[b->declared].key = key;
  b->variables[b->declared++].memory = memory;
  return memory;
}
