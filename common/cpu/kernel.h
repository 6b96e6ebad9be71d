/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by fiber.c, kernel.c and races.c, which run kernels. */
#ifndef COMMON_CPU_KERNEL_H
#define COMMON_CPU_KERNEL_H

#include "cpu_kernel.h"
#include "internal.h"

#pragma GCC visibility push(hidden)

/* ---- fiber.c: a stack on which a function can stop, and later go on ---------------------------
 */

struct fiber {
  void *sp;    /* where it has stopped */
  char *stack; /* its lowest address */
  size_t bytes;
  void *fake; /* for AddressSanitizer */
};

/* An odd number of cache lines, so that neighbors lie in different sets of the caches. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK_BYTES = 2101 * 64 };
#else
enum { STACK_BYTES = 525 * 64 };
#endif

/* The first switch to the fiber, which has a stack, calls body. That calls fiber_begun at once, and
 * never returns. */
void fiber_begin(struct fiber *f, void (*body)(void));
void fiber_begun(void);
/* The fiber that a thread of the system is anyway. */
void fiber_of_system(struct fiber *f);
/* Stops `from`, the running one, and goes on with `to`. Returns when another one switches back:
 * never if `from` ends. */
void fiber_switch(struct fiber *from, struct fiber *to, bool ends);

/* ---- kernel.c: blocks, threads, who runs next -------------------------------------------------
 */

enum { WARP = 32, MAX_THREADS = 1024 };

/* A thread of a kernel. */
struct thread {
  struct fiber fiber;
  struct block *block;
  struct cpu_index index; /* threadIdx */
  unsigned number;        /* in its block */
  struct thread *next;    /* in the list of those that are free */
  struct cpu_place place; /* where it waits */
  const void *polled;     /* what it has loaded first since it last waited */
  unsigned loads;         /* since then */
};

uint64_t block_barriers(const struct block *b); /* so far */
/* The thread of a kernel that runs here; NULL in host code. */
struct thread *kernel_thread(void);
/* Before a load that may be part of a loop that waits: other threads have to run in between. */
void kernel_before_load(const void *at, struct cpu_place place);

/* ---- races.c -----------------------------------------------------------------------------------
 */

/* Are the stores of this kernel late? */
extern __thread __attribute__((tls_model("initial-exec"))) bool races_on;

void races_begin(void);      /* a kernel begins */
void races_turn(void);       /* all its blocks have had a turn */
bool races_skip_block(void); /* a block has to wait for its next turn */
void races_end(void);        /* the kernel has ended */

/* Another thread may run now. */
void races_settle_store(void);
static inline void races_settle(void)
{
  if (races_on) races_settle_store();
}

#pragma GCC visibility pop
#endif
