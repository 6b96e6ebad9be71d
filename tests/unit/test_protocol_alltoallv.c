/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of 03's library, in every order in which its steps can happen: headers, copies of
 * headers, lines, pushes, counters; two mailboxes that take turns, numbers that wrap around, ranks
 * that give up waiting.
 *
 * Block 0 of a rank is the control block; block i sends to rank + i and receives from rank - i.
 * What a rank stores arrives at any time later, in any order. A kernel has ended when its blocks
 * have and all that it stored has arrived; then the next epoch begins. */
#include "unit.h"

#include "explore.h"

enum { RANKS = 3 };

/* Mistakes that the model has to find. */
enum {
  ONE_MAILBOX = 1,  /* for odd and even epochs */
  NO_CLEARING = 2,  /* when the numbers begin again */
  CLEAR_ONCE = 4,   /* ... which is too few for what nobody waits for */
  SENDS_BROKEN = 8, /* a rank that has given up sends in later epochs */
  SAME_PEER = 16,   /* block i receives from rank + i */
};

static struct job {
  const char *pairs; /* what each rank sends to all others, one epoch after the other: - nothing,
                        s a small part, l a large one; from the beginning again at the end */
  int ranks, resident, epochs;
  int first, last; /* number of the first epoch; after `last`, which is odd, comes 2 */
  bool give_up;    /* any rank may give up waiting, at any time */
  int mistakes;
  const char *found; /* the rule that is broken; NULL: none is */
} job;

enum kind { HEADER, COPY = 2, LINE = 4, DATA = 6, COUNT, KINDS }; /* + parity, of the first three */

struct place {
  uint8_t now, coming; /* epochs; of COUNT: how often; 0: nothing */
};
enum { SEND, WAIT, PUSHED, LINES, OUT, WAITS }; /* what a block does next */

struct state {
  struct rank {
    uint8_t epoch, failed /* in that epoch */, next[RANKS], read[RANKS], counted[RANKS];
    struct place place[RANKS][KINDS]; /* [from]: what others write here */
  } rank[RANKS];
};

static char pair_of(int epoch, int from, int to)
{
  return from == to ? '-' : job.pairs[((epoch - 1) * job.ranks + from) % (int)strlen(job.pairs)];
}
static int number_of(int epoch)
{
  const int n = job.first + epoch - 1;
  return n <= job.last ? n : 2 + (n - job.last - 1) % (job.last - 1);
}
static int half(int epoch)
{
  return job.mistakes & ONE_MAILBOX ? 0 : number_of(epoch) & 1;
}

static void enter(struct rank *me, int epoch)
{
  me->epoch = (uint8_t)epoch;
  for (int b = 0; b < RANKS; b++) {
    me->next[b] = epoch > job.epochs || b >= job.ranks ? OUT : SEND;
    me->read[b] = 0;
  }
}

/* Returns how many there are. */
static int arrivals(struct explorer *x, const struct state *s, int r, int p)
{
  const struct rank *me = &s->rank[r];
  int arrive = 0;
  for (int kind = 0; kind < KINDS; kind++) {
    const struct place at = me->place[p][kind];
    const bool awaited = kind < COPY || (kind >= LINE && kind < DATA), line = kind >= LINE;
    struct state after = *s;
    if (at.coming == 0) continue;
    if (awaited && at.now && !me->failed && me->epoch <= at.now &&
        !(line && me->epoch == at.now && me->read[p]))
      explore_break(x, "a header or a line is replaced before it was read");
    if (kind == DATA && at.coming != me->epoch && at.coming != me->failed)
      explore_break(x, "a push arrives outside of its epoch");
    after.rank[r].place[p][kind] =
        kind == COUNT ? (struct place){at.now + 1, 0} : (struct place){at.coming, 0};
    explore_reach(x, &after);
    arrive++;
  }
  return arrive;
}

/* Does what lies there look like what was sent in this epoch? */
static bool has_come(struct explorer *x, const struct rank *me, int p, int kind)
{
  const int now = me->place[p][kind + half(me->epoch)].now;
  if (now == 0 || number_of(now) != number_of(me->epoch)) return false;
  if (now != me->epoch) explore_break(x, "what was sent in another round is taken");
  return true;
}

static void clear(struct rank *me)
{
  const int n = number_of(me->epoch), once = job.mistakes & CLEAR_ONCE;
  if (job.mistakes & NO_CLEARING || !(n == job.last || n == 2 || (!once && (n == 3 || n == 4))))
    return;
  const int parity = n == 2 || n == 4; /* as alltoallv_stale_parity */
  for (int p = 0; p < RANKS; p++)
    for (int kind = HEADER; kind < DATA; kind += 2) me->place[p][kind + parity].now = 0;
}

/* The next thing that a block does, or WAITS. */
static int step(struct explorer *x, struct state *s, int r, int b)
{
  struct rank *me = &s->rank[r];
  const int n = job.ranks, e = me->epoch, h = half(e);
  const int to = (r + b) % n, from = job.mistakes & SAME_PEER ? to : (r + n - b) % n;
  const bool silent = me->failed && me->failed < e && !(job.mistakes & SENDS_BROKEN);
  const bool large = pair_of(e, r, to) == 'l';
  const int now = me->next[b];
  if (now == SEND && silent) return OUT;
  if (b == 0) { /* control */
    if (now == SEND) clear(me);
    for (int p = 0; p < n && now == SEND; p++) {
      if (p == r) continue;
      s->rank[p].place[r][HEADER + h].coming = (uint8_t)e;
      if (pair_of(e, r, p) == 'l' || pair_of(e, p, r) == 'l')
        s->rank[p].place[r][COPY + h].coming = (uint8_t)e;
    }
    if (now == SEND) return WAIT;
    for (int p = 0; p < n; p++) {
      const bool expects = pair_of(e, p, r) == 'l';
      if (p != r && !has_come(x, me, p, HEADER)) return WAITS;
      if (p != r && me->place[p][COUNT].now < me->counted[p] + expects) return WAITS;
      if (p != r && !me->failed && me->place[p][COUNT].now > me->counted[p] + expects)
        explore_break(x, "a counter has grown for a later epoch");
    }
    for (int p = 0; p < n; p++) me->counted[p] = me->place[p][COUNT].now;
    return OUT;
  }
  switch (now) {
  case SEND: /* lines: small pairs, and the eager bytes of large ones */
    if (pair_of(e, r, to) != '-') s->rank[to].place[r][LINE + h].coming = (uint8_t)e;
    return large ? WAIT : LINES;
  case WAIT:
    if (!has_come(x, me, to, COPY) && !has_come(x, me, to, HEADER)) return WAITS;
    s->rank[to].place[r][DATA].coming = (uint8_t)e;
    return PUSHED;
  case PUSHED:
    if (s->rank[to].place[r][DATA].coming) return WAITS;
    s->rank[to].place[r][COUNT].coming = 1;
    return LINES;
  default:
    if (pair_of(e, from, r) != '-' && !has_come(x, me, from, LINE)) return WAITS;
    me->read[from] = 1;
    return OUT;
  }
}

static void next(struct explorer *x, const void *state)
{
  const struct state *s = state;
  int arrive = 0;
  for (int r = 0; r < job.ranks; r++)
    for (int p = 0; p < job.ranks && (job.ranks < RANKS || !arrive); p++)
      arrive += arrivals(x, s, r, p);
  if (job.ranks == RANKS && arrive) return; /* at once, or there were too many states */
  for (int r = 0; r < job.ranks; r++) {
    const struct rank *me = &s->rank[r];
    int running = 0;
    bool ended = me->epoch <= job.epochs;
    for (int p = 0; p < job.ranks; p++) {
      for (int kind = 0; kind < KINDS; kind++) ended &= !s->rank[p].place[r][kind].coming;
    }
    for (int b = 0; b < job.ranks; b++) {
      if (me->next[b] == OUT || running++ >= job.resident) continue;
      struct state after = *s;
      int does = step(x, &after, r, b);
      if (does == WAITS && (!job.give_up || me->next[b] == PUSHED)) continue;
      if (does == WAITS && !me->failed) after.rank[r].failed = me->epoch;
      after.rank[r].next[b] = (uint8_t)(does == WAITS ? OUT : does);
      explore_reach(x, &after);
    }
    if (!ended || running > 0) continue;
    struct state after = *s;
    enter(&after.rank[r], me->epoch + 1);
    explore_reach(x, &after);
  }
}

static const char *at_end(const void *state)
{
  const struct state *s = state;
  for (int r = 0; r < job.ranks; r++)
    if (s->rank[r].epoch <= job.epochs) return "no rank can go on";
  return NULL;
}

static void test_orders(void **unused)
{
  static const char replaced[] = "a header or a line is replaced before it was read";
  static const char round[] = "what was sent in another round is taken";
  static const struct job jobs[] = {
      {"s-lsll-s", 2, 2, 4, 10, 99, false, 0, NULL},
      {"----", 2, 2, 4, 10, 99, false, 0, NULL},
      {"sls--lls", 2, 1, 4, 10, 99, false, 0, NULL},
      {"lss-ls", 2, 2, 3, 10, 99, true, 0, NULL},
      {"sl-l-sls--", 2, 2, 7, 4, 5, false, 0, NULL},
      {"lll", 3, 2, 1, 10, 99, false, 0, NULL},
      {"ssssss", 2, 2, 3, 10, 99, false, ONE_MAILBOX, replaced},
      {"ll--ss--ll", 2, 2, 6, 4, 5, false, NO_CLEARING, round},
      {"l-------ll", 2, 2, 5, 4, 5, false, CLEAR_ONCE, round},
      {"l-------ll", 2, 2, 5, 4, 5, false, 0, NULL},
      {"llssss", 2, 2, 3, 10, 99, true, SENDS_BROKEN, replaced},
      {"lll", 3, 2, 1, 10, 99, false, SAME_PEER, "no rank can go on"},
  };
  (void)unused;
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    struct explorer x = {.size = sizeof(struct state), .next = next, .at_end = at_end};
    struct state first = {0};
    job = jobs[i];
    for (int r = 0; r < job.ranks; r++) enter(&first.rank[r], 1);
    const char *found = explore(&x, &first);
    assert_true(found == job.found || (found && job.found && strcmp(found, job.found) == 0));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
