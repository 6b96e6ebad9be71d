/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* To wake a thread takes some 50 us, longer than most turns last. So who waits for work looks this
 * many times first, which is less than a millisecond, and lets others run meanwhile. */
enum { LOOKS = 1000 };

/* A loop that is running; it lives on the stack of the thread that runs it. */
struct loop {
  void (*turn)(void *context, size_t i);
  void *context;
  size_t count, next;       /* turns: all, the first that nobody has taken */
  atomic_size_t unfinished; /* turns that are not done yet */
  pthread_cond_t finished;
  struct loop *later;
};

struct team {
  pthread_mutex_t mutex; /* of everything here and in the loops */
  pthread_cond_t work;
  struct loop *first, **last; /* loops with turns that nobody has taken, the oldest first */
  atomic_size_t loops;        /* how many those are */
  bool ending;
  int helpers;
  pthread_t threads[];
};

/* ---- with the mutex held ----------------------------------------------------------------------*/

static void add_loop(struct team *team, struct loop *loop)
{
  *team->last = loop;
  team->last = &loop->later;
  team->loops++;
}

static void remove_loop(struct team *team, const struct loop *loop)
{
  struct loop **at = &team->first;
  while (*at != loop) at = &(*at)->later;
  *at = loop->later;
  if (team->last == &loop->later) team->last = at;
  team->loops--;
}

/* Takes the next turn, for which the mutex is released. */
static void take_turn(struct team *team, struct loop *loop)
{
  const size_t i = loop->next++;
  if (loop->next == loop->count) remove_loop(team, loop);
  const bool more = team->first != NULL;
  pthread_mutex_unlock(&team->mutex);
  /* Whoever takes a turn wakes one more, who does the same: nobody has to wake all of them. */
  if (more) pthread_cond_signal(&team->work);
  loop->turn(loop->context, i);
  pthread_mutex_lock(&team->mutex);
  if (--loop->unfinished == 0) pthread_cond_signal(&loop->finished);
}

/* Releases the mutex for a while, until *number is or is not 0. */
static void look(struct team *team, const atomic_size_t *number, bool zero)
{
  pthread_mutex_unlock(&team->mutex);
  for (int i = 0; i < LOOKS && (atomic_load(number) == 0) != zero; i++) sched_yield();
  pthread_mutex_lock(&team->mutex);
}

/* ---- threads ----------------------------------------------------------------------------------*/

static void *help(void *argument)
{
  struct team *team = argument;
  pthread_mutex_lock(&team->mutex);
  while (!team->ending) {
    if (!team->first) look(team, &team->loops, false);
    if (team->first)
      take_turn(team, team->first);
    else if (!team->ending)
      pthread_cond_wait(&team->work, &team->mutex);
  }
  pthread_mutex_unlock(&team->mutex);
  return NULL;
}

struct team *team_create(int threads)
{
  const size_t most = threads > 1 ? (size_t)threads - 1 : 0;
  struct team *team = most > 0 ? malloc(sizeof *team + most * sizeof *team->threads) : NULL;
  if (!team) return NULL;
  *team = (struct team){.last = &team->first};
  pthread_mutex_init(&team->mutex, NULL);
  pthread_cond_init(&team->work, NULL);
  while ((size_t)team->helpers < most &&
         pthread_create(&team->threads[team->helpers], NULL, help, team) == 0)
    team->helpers++;
  return team;
}

void team_destroy(struct team *team)
{
  if (!team) return;
  pthread_mutex_lock(&team->mutex);
  team->ending = true;
  pthread_cond_broadcast(&team->work);
  pthread_mutex_unlock(&team->mutex);
  for (int i = 0; i < team->helpers; i++) pthread_join(team->threads[i], NULL);
  pthread_cond_destroy(&team->work);
  pthread_mutex_destroy(&team->mutex);
  free(team);
}

void parallel_for(struct team *team, size_t count, void (*turn)(void *context, size_t i),
                  void *context)
{
  if (!team || count < 2) {
    for (size_t i = 0; i < count; i++) turn(context, i);
    return;
  }
  struct loop loop = {.turn = turn, .context = context, .count = count, .unfinished = count};
  pthread_cond_init(&loop.finished, NULL);
  pthread_mutex_lock(&team->mutex);
  add_loop(team, &loop);
  while (loop.next < count) take_turn(team, &loop);
  if (loop.unfinished > 0) look(team, &loop.unfinished, true);
  while (loop.unfinished > 0) pthread_cond_wait(&loop.finished, &team->mutex);
  pthread_mutex_unlock(&team->mutex);
  pthread_cond_destroy(&loop.finished);
}
