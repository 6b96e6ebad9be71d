/* SPDX-License-Identifier: Apache-2.0 */
/* Goes through every state that a model of a protocol can get into.
 *
 * A state is a struct of `size` bytes without pointers and without padding that is not zero. The
 * model's next() is given one, and for each single step that may come next, of any rank, in any
 * order, it calls explore_reach() with the state after that step; where a step breaks a rule it
 * calls explore_break(). A state without a next one is an end; at_end() judges it.
 *
 * Of states that were visited 128 bits of hash are kept: that two of a million have the same ones
 * is as likely as 1 in 10^26. */
#ifndef EXPLORE_H
#define EXPLORE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EXPLORE_ROOM = 1 << 22 }; /* for hashes; half of it at most is used */

struct explorer {
  size_t size; /* of a state */
  void (*next)(struct explorer *x, const void *state);
  const char *(*at_end)(const void *state); /* NULL: all is well there; else what is wrong */
  /* what explore() finds; to be 0 before */
  const char *broken; /* the first rule that was broken; NULL: all hold */
  long states, ends;
  /* its memory */
  bool reached;
  uint64_t (*seen)[2];
  char *stack;
  size_t depth, stack_room;
};

static inline void explore_break(struct explorer *x, const char *rule)
{
  if (x->broken == NULL) x->broken = rule;
}

static inline uint64_t explore_hash(const char *state, size_t size, uint64_t seed)
{
  uint64_t hash = seed, word;
  for (size_t i = 0; i < size; i += sizeof word) {
    word = 0;
    memcpy(&word, state + i, size - i < sizeof word ? size - i : sizeof word);
    hash = (hash ^ word ^ hash >> 32) * 0x9e3779b97f4a7c15u;
  }
  return hash ^ hash >> 29;
}

static inline void *explore_memory(void *old, size_t bytes)
{
  void *memory = realloc(old, bytes);
  if (memory == NULL) abort();
  return memory;
}

/* Whether the hash is new; it is no longer, then. */
static inline bool explore_add(struct explorer *x, const uint64_t hash[2])
{
  size_t at = hash[0] & (EXPLORE_ROOM - 1);
  for (; x->seen[at][0] | x->seen[at][1]; at = (at + 1) & (EXPLORE_ROOM - 1))
    if (memcmp(x->seen[at], hash, sizeof *x->seen) == 0) return false;
  memcpy(x->seen[at], hash, sizeof *x->seen);
  return true;
}

static inline void explore_reach(struct explorer *x, const void *state)
{
  const uint64_t hash[2] = {explore_hash(state, x->size, 1) | 1, explore_hash(state, x->size, 2)};
  x->reached = true;
  if (!explore_add(x, hash)) return;
  if (++x->states > EXPLORE_ROOM / 2) abort();
  if (x->depth == x->stack_room) {
    x->stack_room = 2 * x->stack_room + 1024;
    x->stack = explore_memory(x->stack, x->stack_room * x->size);
  }
  memcpy(x->stack + x->depth++ * x->size, state, x->size);
}

/* From the first state on. Returns the rule that was broken, or NULL. */
static inline const char *explore(struct explorer *x, const void *first)
{
  char *state = explore_memory(NULL, x->size);
  x->seen = calloc(EXPLORE_ROOM, sizeof *x->seen);
  if (x->seen == NULL) abort();
  explore_reach(x, first);
  while (x->depth > 0 && x->broken == NULL) {
    memcpy(state, x->stack + --x->depth * x->size, x->size);
    x->reached = false;
    x->next(x, state);
    if (x->reached) continue;
    const char *wrong = x->at_end(state);
    if (wrong != NULL) explore_break(x, wrong);
    x->ends++;
  }
  free(state);
  free(x->stack);
  free(x->seen);
  return x->broken;
}

#endif
