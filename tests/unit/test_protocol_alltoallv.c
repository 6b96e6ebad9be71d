/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of 03's library, in every order in which its steps can happen: headers, lines,
 * pushes, and that they are done; two mailboxes that take turns, numbers that wrap around, ranks
 * that give up waiting.
 *
 * Block 0 of a rank sends a header to every other one and waits for theirs; each block does so
 * with its own kind for large pairs, and moves a share of them. Block i sends lines to rank + i and
 * receives them from rank - i. What a rank stores arrives at any time later, in any order. A kernel
 * has ended when its blocks have and all that it stored has arrived; then the next epoch begins. */
#include "unit.h"

#include "explore.h"
#include "alltoallv_protocol.h"

enum { RANKS = 3 };

/* Mistakes that the model has to find. */
enum {
  ONE_MAILBOX = 1,  /* for odd and even epochs */
  NO_CLEARING = 2,  /* when the numbers begin again */
  CLEAR_ONCE = 4,   /* ... which is too few for what nobody waits for */
  SENDS_BROKEN = 8, /* a rank that has given up sends in later epochs */
  SAME_PEER = 16,   /* block i receives lines from rank + i */
  NO_FENCE = 32,    /* a block says that it is done before its data have arrived */
  FEW_HEADERS = 64, /* block 0 waits for those of large pairs only */
  NO_HEADERS = 128, /* a block pushes without having waited */
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

/* Of blocks 0 to RANKS - 1, the first two in two mailboxes (+ parity), and one for lines. */
enum { HEADER, DONE = HEADER + 2 * RANKS, LINE = DONE + 2 * RANKS, DATA = LINE + 2 };
enum { KINDS = DATA + RANKS };

struct place {
  uint8_t now, coming; /* epochs; 0: nothing */
};
enum { SEND, HEADERS, PUSHED, LINES, ARRIVALS, OUT, WAITS }; /* what a block does next */

struct state {
  struct rank {
    uint8_t epoch, failed /* in that epoch */, next[RANKS], read[RANKS];
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
    const bool line = kind >= LINE;
    struct state after = *s;
    if (at.coming == 0) continue;
    if (kind < DATA && at.now && !me->failed && me->epoch <= at.now &&
        !(line && me->epoch == at.now && me->read[p]))
      explore_break(x, "a header or a line is replaced before it was read");
    if (kind >= DATA && at.coming != me->epoch && at.coming != me->failed)
      explore_break(x, "a push arrives outside of its epoch");
    after.rank[r].place[p][kind] = (struct place){at.coming, 0};
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
  const int n = number_of(me->epoch), again = n == 3 || n == 4;
  const int parity = alltoallv_stale_parity(n == job.last ? 0xffffffffu : (uint32_t)n);
  if (parity < 0 || job.mistakes & NO_CLEARING || (job.mistakes & CLEAR_ONCE && again)) return;
  for (int p = 0; p < RANKS; p++)
    for (int kind = 0; kind < DATA; kind += 2) me->place[p][kind + parity].now = 0;
}

/* The next thing that a block does, or WAITS. */
static int step(struct explorer *x, struct state *s, int r, int b)
{
  struct rank *me = &s->rank[r];
  const int n = job.ranks, e = me->epoch, h = half(e), now = me->next[b];
  const int to = (r + b) % n, from = job.mistakes & SAME_PEER ? to : (r + n - b) % n;
  const bool silent = me->failed && me->failed < e && !(job.mistakes & SENDS_BROKEN);
  if (now == SEND && silent) return OUT;
  if (now == SEND && b == 0) clear(me);
  if (now == SEND && pair_of(e, r, to) == 's') s->rank[to].place[r][LINE + h].coming = (uint8_t)e;
  if (now == LINES) {
    if (pair_of(e, from, r) == 's' && !has_come(x, me, from, LINE)) return WAITS;
    me->read[from] = 1;
    return ARRIVALS;
  }
  for (int p = 0; p < n; p++) {
    struct place *there = s->rank[p].place[r];
    const bool sends = pair_of(e, r, p) == 'l', receives = pair_of(e, p, r) == 'l';
    const bool meets = p != r && (b == 0 || sends || receives);
    switch (now) {
    case SEND:
      if (meets) there[HEADER + 2 * b + h].coming = (uint8_t)e;
      break;
    case HEADERS:
      if (!meets || job.mistakes & NO_HEADERS) break;
      if (job.mistakes & FEW_HEADERS && !sends && !receives) break;
      if (!has_come(x, me, p, HEADER + 2 * b) && !has_come(x, me, p, HEADER)) return WAITS;
      break;
    case PUSHED:
      if (sends && there[DATA + b].coming && !(job.mistakes & NO_FENCE)) return WAITS;
      break;
    default:
      if (receives && !has_come(x, me, p, DONE + 2 * b)) return WAITS;
      if (receives && me->place[p][DATA + b].now != e)
        explore_break(x, "an epoch ends before its data are there");
    }
  }
  for (int p = 0; p < n; p++) {
    if (pair_of(e, r, p) != 'l') continue;
    if (now == HEADERS) s->rank[p].place[r][DATA + b].coming = (uint8_t)e;
    if (now == PUSHED) s->rank[p].place[r][DONE + 2 * b + h].coming = (uint8_t)e;
  }
  return now + 1;
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
  static const char stuck[] = "no rank can go on";
  static const struct job jobs[] = {
      {"s-lsll-s", 2, 2, 4, 10, 99, false, 0, NULL},
      {"----", 2, 2, 4, 10, 99, false, 0, NULL},
      {"sls--lls", 2, 1, 4, 10, 99, false, 0, NULL},
      {"lss-ls", 2, 2, 3, 10, 99, true, 0, NULL},
      {"sl-l-sls--", 2, 2, 7, 4, 5, false, 0, NULL},
      {"lll", 3, 2, 1, 10, 99, false, 0, NULL},
      {"sss", 3, 1, 1, 10, 99, false, 0, NULL},
      {"ssssss", 2, 2, 3, 10, 99, false, ONE_MAILBOX, replaced},
      {"ll--ss--ll", 2, 2, 6, 4, 5, false, NO_CLEARING, round},
      {"l-------ll", 2, 2, 5, 4, 5, false, CLEAR_ONCE, round},
      {"l-------ll", 2, 2, 5, 4, 5, false, 0, NULL},
      {"llssss", 2, 2, 3, 10, 99, true, SENDS_BROKEN, replaced},
      {"sss", 3, 1, 1, 10, 99, false, SAME_PEER, stuck},
      {"ll", 2, 2, 1, 10, 99, false, NO_FENCE, "an epoch ends before its data are there"},
      {"s-s-s-", 2, 2, 3, 10, 99, false, FEW_HEADERS, replaced},
      {"ll", 2, 2, 2, 10, 99, false, NO_HEADERS, "a push arrives outside of its epoch"},
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
