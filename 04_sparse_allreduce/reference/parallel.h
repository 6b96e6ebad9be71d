/* SPDX-License-Identifier: Apache-2.0 */
/* Loops whose turns run on several cores.
 *
 * What comes out must be the same on any number of cores. So
 *   - how a loop is cut depends on its length alone;
 *   - a turn writes only what no other turn reads or writes, or adds whole numbers to an atomic;
 *   - everything else that turns find out is put together after the loop, in the order of turns.
 * A turn may run a loop of its own, and several threads may run loops with one team at a time. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include <stddef.h>

/* Threads that help the one that runs a loop. */
struct team;

/* For `threads` threads, the caller included. NULL, which is a team too, of the caller alone: for
 * one thread, and where no other can be had. */
struct team *team_create(int threads);
void team_destroy(struct team *team);

/* turn(context, i) for all i < count, in any order. Returns after the last one. */
void parallel_for(struct team *team, size_t count, void (*turn)(void *context, size_t i),
                  void *context);

/* A long vector is cut into ranges, a turn for each: elements first ... end - 1. */
enum { MOST_RANGES = 64, SHORTEST_RANGE = 32 << 10 };
struct range {
  size_t first, end;
};

static inline size_t range_count(size_t n)
{
  const size_t count = n / SHORTEST_RANGE;
  return count < 1 ? 1 : count < MOST_RANGES ? count : MOST_RANGES;
}

static inline struct range range_of(size_t n, size_t i)
{
  const size_t count = range_count(n); /* n is below 2^32: no overflow */
  return (struct range){n * i / count, n * (i + 1) / count};
}

#endif
