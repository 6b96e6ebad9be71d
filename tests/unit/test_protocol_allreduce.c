/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of the direct AllReduce of 02, in every order in which its steps can happen: LL
 * lines, wide lines, two hops and two-shot, one after the other, with ranks that give up waiting.
 *
 * A rank has one or two blocks of one thread. Each sends one line to all, or meets the same block
 * of the others. What a rank stores into another one's memory arrives at any time later, in any
 * order. A kernel has ended when its blocks have and all that it stored has arrived; then the next
 * one begins. What the stream does in between (it reads the receive buffer, fills the send buffer)
 * needs no step: it is done when the rank's epoch goes up. Of the mark of a wide line a reader here
 * sees only that it is not 0. Sums of two hops are where one hop has the lines of block 1. */
#include "unit.h"

#include "explore.h"

enum { RANKS = 3, BLOCKS = 2 };

/* Mistakes that the model has to find. */
enum {
  ONE_HALF = 1,     /* lines of odd and of even epochs lie in the same place */
  NOT_CLEARED = 2,  /* wide lines that were read are not set to 0 */
  NO_ENDED = 4,     /* two-shot does not wait until the others have read and stored */
  BROKEN_SENDS = 8, /* a rank that has given up sends in later epochs */
};

static struct job {
  const char *epochs; /* the method of each: L lines, W wide lines, H two hops, T two-shot */
  const char *blocks; /* of each epoch: 1 or 2; of H 1 */
  int ranks;
  int resident; /* so many blocks of a rank have room at once; they start in order */
  bool give_up; /* any rank may give up waiting, at any time */
  int mistakes;
  const char *found; /* the rule that is broken; NULL: none is */
} job;

/* What other ranks write into a rank's memory; SUMS into its receive buffer. */
enum kind { EVEN_LINE, ODD_LINE, EVEN_WIDE, ODD_WIDE, BEGUN, ENDED, SUMS, KINDS };

/* What is there, and what is on its way: an epoch, or 0. */
struct place {
  uint8_t now, coming;
};

/* What a block does next. */
enum { BEGIN, LOOK, CLEAR, LOOK_SUMS, CLEAR_SUMS, MET, STORED, LEAVE, OUT };

struct rank {
  uint8_t epoch;  /* it is in; the first is 1 */
  uint8_t failed; /* the epoch in which it has given up */
  uint8_t wrong;  /* the epoch in which it has used data that may be others than they should */
  uint8_t next[BLOCKS], taken[BLOCKS] /* its line, from all */;
  struct place place[RANKS][KINDS][BLOCKS]; /* [from][][] */
};

struct state {
  struct rank rank[RANKS];
};

static enum kind line_of(int epoch)
{
  const bool odd = epoch % 2 != 0 && !(job.mistakes & ONE_HALF);
  return (strchr("WH", job.epochs[epoch - 1]) ? EVEN_WIDE : EVEN_LINE) + (odd ? 1 : 0);
}

static void enter(struct rank *me, int epoch)
{
  const int blocks = epoch > (int)strlen(job.epochs) ? 0 : job.blocks[epoch - 1] - '0';
  me->epoch = (uint8_t)epoch;
  for (int b = 0; b < BLOCKS; b++) {
    me->next[b] = b < blocks ? BEGIN : OUT;
    me->taken[b] = 0;
  }
}

static void arrivals(struct explorer *x, const struct state *s, int r, int from)
{
  const struct rank *me = &s->rank[r];
  for (int kind = 0; kind < KINDS; kind++)
    for (int b = 0; b < BLOCKS; b++) {
      const struct place at = me->place[from][kind][b];
      if (at.coming == 0) continue;
      const bool read = me->epoch > at.now || (me->epoch == at.now && me->taken[b]);
      if (kind <= ODD_WIDE && at.now && !read && !me->failed)
        explore_break(x, "a line is replaced before it was read");
      if (kind == SUMS && at.coming != me->epoch && at.coming != me->failed)
        explore_break(x, "sums arrive at a rank that has left their epoch");
      struct state after = *s;
      after.rank[r].place[from][kind][b] = (struct place){at.coming, 0};
      explore_reach(x, &after);
    }
}

static void send(struct state *s, int r, enum kind kind, int b)
{
  for (int p = 0; p < job.ranks; p++)
    if (p != r) s->rank[p].place[r][kind][b].coming = s->rank[r].epoch;
}

/* Has all that this block has stored so arrived? */
static bool arrived(const struct state *s, int r, enum kind kind, int b)
{
  bool all = true;
  for (int p = 0; p < job.ranks; p++) all = all && s->rank[p].place[r][kind][b].coming == 0;
  return all;
}

/* Has it come from all others? Or, with a mark, anything? */
static bool has_come(const struct rank *me, int r, enum kind kind, int b, bool mark)
{
  bool all = true;
  for (int p = 0; p < job.ranks; p++) {
    const int now = me->place[p][kind][b].now;
    all = all && (p == r || (mark ? now != 0 : now == me->epoch));
  }
  return all;
}

/* The next thing that the block does, if it can. */
static void step(struct explorer *x, const struct state *before, int r, int b)
{
  struct state s = *before;
  struct rank *me = &s.rank[r];
  uint8_t *next = &me->next[b];
  const int now = *next, at = now == LOOK_SUMS || now == CLEAR_SUMS ? 1 : b;
  const char method = job.epochs[me->epoch - 1];
  const enum kind line = line_of(me->epoch);
  const enum kind awaited = now == MET ? BEGUN : now == LEAVE ? ENDED : line;
  if (now == LOOK || now == LOOK_SUMS || now == MET || now == LEAVE) {
    const bool come = has_come(me, r, awaited, at, method == 'W' || method == 'H');
    if (!come && !job.give_up) return;
    if (!come) {
      if (!me->failed) me->failed = me->epoch;
      *next = OUT;
      explore_reach(x, &s);
      return;
    }
  }
  switch (now) {
  case BEGIN:
    *next = method == 'T' ? MET : LOOK;
    if (me->failed && !(job.mistakes & BROKEN_SENDS)) {
      *next = OUT;
      break;
    }
    if (method != 'T') send(&s, r, line, b);
    if (method == 'T' || b == 0) send(&s, r, BEGUN, b);
    break;
  case LOOK:
  case LOOK_SUMS:
    if (!has_come(me, r, line, at, false)) me->wrong = me->epoch;
    me->taken[at] = 1;
    *next = method == 'L' || job.mistakes & NOT_CLEARED ? OUT : (uint8_t)(now + 1);
    break;
  case CLEAR:
  case CLEAR_SUMS:
    if (!has_come(me, r, line, at, false)) explore_break(x, "a line is cleared before it was read");
    for (int p = 0; p < job.ranks; p++) me->place[p][line][at].now = 0;
    *next = OUT;
    if (method != 'H' || now == CLEAR_SUMS) break;
    send(&s, r, line, 1);
    *next = LOOK_SUMS;
    break;
  case MET:
    for (int p = 0; p < job.ranks; p++) {
      if (s.rank[p].epoch == me->epoch) continue;
      me->wrong = me->epoch;
      if (s.rank[p].failed != me->epoch)
        explore_break(x, "the send buffer is read of a rank that has left the epoch");
    }
    send(&s, r, SUMS, b);
    *next = STORED;
    break;
  case STORED:
    if (!arrived(&s, r, SUMS, b)) return;
    send(&s, r, ENDED, b);
    *next = job.mistakes & NO_ENDED ? OUT : LEAVE;
    break;
  default:
    *next = OUT;
  }
  explore_reach(x, &s);
}

static void next(struct explorer *x, const void *state)
{
  const struct state *s = state;
  for (int r = 0; r < job.ranks; r++) {
    const struct rank *me = &s->rank[r];
    int running = 0;
    bool ended = me->epoch <= strlen(job.epochs);
    for (int p = 0; p < job.ranks; p++) arrivals(x, s, r, p);
    for (int b = 0; b < BLOCKS; b++) {
      if (me->next[b] != OUT && running++ < job.resident) step(x, s, r, b);
      for (int kind = 0; kind < KINDS; kind++) ended = ended && arrived(s, r, (enum kind)kind, b);
    }
    if (!ended || running > 0) continue;
    /* A rank that stops in the middle of two-shot for longer than others wait may read what they
     * have changed since, and have met all their flags: it finds out in the next epoch. */
    const bool next_tells = me->wrong == me->epoch && job.epochs[me->epoch - 1] == 'T';
    if (me->wrong && !me->failed && !next_tells)
      explore_break(x, "a result is wrong, and there is no error");
    struct state after = *s;
    enter(&after.rank[r], me->epoch + 1);
    explore_reach(x, &after);
  }
}

static const char *at_end(const void *state)
{
  const struct state *s = state;
  const size_t last = strlen(job.epochs);
  size_t first = last, noticed = 0;
  for (int r = 0; r < job.ranks; r++) {
    if (s->rank[r].epoch <= last) return "no rank can go on";
    if (!s->rank[r].failed) continue;
    noticed++;
    if (s->rank[r].failed < first) first = s->rank[r].failed;
  }
  return first < last && noticed < (size_t)job.ranks ? "a rank has given up, another has no error"
                                                     : NULL;
}

static void test_orders(void **unused)
{
  static const struct job jobs[] = {
      {"LLL", "212", 2, 2, false, 0, NULL},
      {"WWW", "221", 2, 2, false, 0, NULL},
      {"TTT", "212", 2, 2, false, 0, NULL},
      {"LWTLT", "12121", 2, 2, false, 0, NULL},
      {"TWLTW", "21212", 2, 1, false, 0, NULL},
      {"LWLT", "1111", 3, 1, false, 0, NULL},
      {"TLTW", "1111", 3, 1, false, 0, NULL},
      {"WLTW", "2121", 2, 2, true, 0, NULL},
      {"TTLT", "1212", 2, 2, true, 0, NULL},
      {"WWTWW", "11211", 2, 2, true, 0, NULL},
      {"WLWW", "1111", 3, 1, false, 0, NULL},
      {"LT", "11", 3, 1, true, 0, NULL},
      {"WHWHH", "21211", 2, 2, false, 0, NULL},
      {"HWTH", "1111", 3, 1, false, 0, NULL},
      {"HWH", "121", 2, 2, true, 0, NULL},
      {"LLL", "111", 2, 1, false, ONE_HALF, "a line is replaced before it was read"},
      {"WTL", "111", 2, 1, false, ONE_HALF, NULL}, /* two-shot keeps them apart */
      {"HHWW", "1111", 2, 1, false, ONE_HALF, "a line is replaced before it was read"},
      {"WWW", "111", 2, 1, false, NOT_CLEARED, "a result is wrong, and there is no error"},
      {"TLT", "111", 2, 1, false, NO_ENDED,
       "the send buffer is read of a rank that has left the epoch"},
      {"WWWW", "1111", 2, 1, true, BROKEN_SENDS, "a line is cleared before it was read"},
      {"LLLL", "1111", 2, 1, true, BROKEN_SENDS, "a rank has given up, another has no error"},
      {"TTT", "111", 2, 1, true, BROKEN_SENDS,
       "the send buffer is read of a rank that has left the epoch"},
  };
  (void)unused;
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    struct explorer x = {.size = sizeof(struct state), .next = next, .at_end = at_end};
    struct state first = {0};
    job = jobs[i];
    for (int r = 0; r < job.ranks; r++) enter(&first.rank[r], 1);
    const char *found = explore(&x, &first);
    print_message("%s, blocks %s, %d ranks: %ld states, %s\n", job.epochs, job.blocks, job.ranks,
                  x.states, found ? found : "all rules hold");
    assert_true(found == job.found || (found && job.found && strcmp(found, job.found) == 0));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
