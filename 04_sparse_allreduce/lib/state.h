/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a handle, not for users. What one operator passes to the next is in one struct in
 * device memory. So a step can run without the host, which passes pointers, never counts. */
#ifndef SPARSE_STATE_H
#define SPARSE_STATE_H

#include <stdbool.h>

#include "constants.h"

#ifdef __CUDACC__
#define SPARSE_DEVICE static __host__ __device__ inline
#else
#define SPARSE_DEVICE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SPARSE_MAX_ROUNDS 8         /* of a binary tree of them */
#define SPARSE_NO_INDEX 0xffffffffu /* of no element */
#define SPARSE_SECTOR 8             /* floats of the dense result that are written at once */
#define SPARSE_UNIT 1024            /* elements of the dense result that a warp takes at a time */
#define SPARSE_UNITS(n) (((n)-1) / SPARSE_UNIT + 1)
#define SPARSE_SAMPLE 256 /* sums, by which a threshold is found after one of 0 */
#define SPARSE_BINS 2048  /* of the histograms that a search makes */
#define SPARSE_MAX_LEVELS (1 + 2 * SPARSE_MAX_CORRECTIONS)

/* A magnitude is the bits of |x| as an integer: for floats that orders like |x|, with NaN above
 * infinity. A level is a magnitude to be exceeded; -1 is exceeded by all. */
typedef int32_t sparse_level_t;
#define SPARSE_INFINITY_LEVEL 0x7f800000 /* the largest magnitude that is not NaN */
#define SPARSE_NAN_LEVEL 0x7fffffff

/* Which elements of a vector are chosen: element i of magnitude m is iff
 *   m <= limit && (m > above || (m == above && i <= tie)).
 * Ties: a filter keeps the first `take` elements equal to `above`; after it `tie` is the index of
 * the last one kept. */
struct sparse_selection {
  sparse_level_t above, limit;
  int64_t tie;
  uint64_t take;
};

/* Where an operator gets its input from, decided on the device: SPARSE_FROM_LIST is the list that
 * it is given; from nothing it leaves lists as they are. */
enum sparse_source { SPARSE_FROM_NOTHING, SPARSE_FROM_LIST, SPARSE_FROM_RESIDUAL };

/* By flags, ranks that use each other's memory know what is there (onesided/flags.cuh). A flag is a
 * value of 32 bits and, in the upper half, the epoch of its step. Rank p writes flags [p] in the
 * memory of the rank that they are for. */
enum { SPARSE_FLAG_FIRST, SPARSE_FLAG_COUNT, SPARSE_FLAG_LEVEL, SPARSE_LIST_FLAGS };
#define SPARSE_TOO_MANY UINT32_MAX
enum { SPARSE_FLAG_SUMS, SPARSE_FLAG_NONFINITE, SPARSE_FLAG_TAKEN, SPARSE_SUM_FLAGS };
struct sparse_flags {
  /* Entries FIRST to FIRST + COUNT of the list that p offers are for the reader. Those whose
   * magnitude exceeds LEVEL (a sparse_level_t) count. Overflow: a rank that has found more than its
   * list holds writes SPARSE_TOO_MANY, as COUNT, to itself only, and flags when it has cut it. */
  uint64_t lists[SPARSE_MAX_RANKS][SPARSE_LIST_FLAGS];
  /* A running total of the entries that p has stored here: those of a step have come when it has
   * grown by COUNT. A rank's own part is not copied, and not counted. */
  uint64_t stored[SPARSE_MAX_RANKS];
  /* SUMS: the number of sums of p's region. NONFINITE: an element of p's gradient, as in struct
   * sparse_state. TAKEN: how many of the reader's entries p has added. */
  uint64_t sums[SPARSE_MAX_RANKS][SPARSE_SUM_FLAGS];
  /* Exact steps: from how many sums p chose those, for statistics. It comes before the others. */
  uint64_t reduced[SPARSE_MAX_RANKS];
  /* p has stored its histogram of this round of a search. */
  uint64_t histograms[SPARSE_MAX_RANKS];
  /* Not a flag, and not one-sided: `nonfinite` of rank p, from exchange_nonfinite(). Where NCCL
   * moves it, its memory may not be that of lists (create.c), and it is in the state. */
  uint32_t nonfinite[SPARSE_MAX_RANKS];
};

/* Which of the elements that state->selection chooses leave the residual. They do not leave it in
 * the step that sends them: the removal is pending (state->pending). The local pass of the next
 * step makes them zero, on its way through the residual; or ops_clear_pending() does it at once,
 * for a caller who wants to see the residual. What is in the result is known by the bits that
 * ops_apply() sets; the CPU versions look into `gathered`. */
enum sparse_removal {
  SPARSE_REMOVE_NOTHING,
  SPARSE_REMOVE_OFFERED,   /* all that was offered */
  SPARSE_REMOVE_IN_RESULT, /* what was offered and is in the result */
};

/* The state has parts by lifetime. This one goes from step to step, and is all that a checkpoint
 * keeps beside the residual. Selections first look above `guess`, which is guess_ratio times a
 * level of the step before. Only speed depends on these two. */
struct sparse_kept {
  double local_threshold, global_threshold;
  double guess_ratio;
  uint64_t boundaries[SPARSE_MAX_RANKS + 1]; /* regions: rank j has [j] to [j + 1] */
  sparse_level_t guess;
};

/* Set when the handle is made. */
struct sparse_fixed {
  uint64_t whole[2];                      /* the region 0 .. n */
  uint64_t ones[SPARSE_MAX_RANKS];        /* 1, 1, ... */
  uint64_t zeros[SPARSE_MAX_RANKS];       /* 0, 0, ... */
  uint64_t list_displs[SPARSE_MAX_RANKS]; /* where every source has a place of its own in the
                                             received list: that of p */
  /* One-sided: where this rank sees the memory of all ranks that holds the lists, and the place of
   * its own list there. */
  char *peers[SPARSE_MAX_RANKS];
  struct sparse_pair *list_at[SPARSE_MAX_RANKS];
};

/* One-sided, from step to step: the number of the step; what each rank had stored before it, see
 * struct sparse_flags; the rank that was too late, + 1. */
struct sparse_progress {
  uint32_t epoch, late;
  uint64_t stored[SPARSE_MAX_RANKS];
};

struct sparse_state {
  struct sparse_kept kept;
  struct sparse_fixed fixed;
  struct sparse_progress progress;

  /* All that follows is of one step. By what rule this rank has chosen what it offers, and what of
   * it has yet to leave the residual (enum sparse_removal). */
  struct sparse_selection selection;
  uint32_t pending;

  /* The local pass. Elements above levels[0] and not above `limit` become candidates.
   * level_counts[j] is how many elements are above levels[j] and not above `limit`. Levels ascend.
   */
  sparse_level_t levels[SPARSE_MAX_LEVELS], limit;
  int32_t nlevels;
  uint64_t level_counts[SPARSE_MAX_LEVELS];
  double mean, deviation;    /* of residual + gradient, if asked for; deviation: unbiased */
  double gaussian_threshold; /* before corrections */
  /* The first element of this rank's gradient that is not finite, + 1; 0: there is none. */
  uint32_t nonfinite;

  /* Selection. What counting, a search and a filter have to read (enum sparse_source) */
  uint32_t count_from, search_from, keep_from;
  uint64_t wanted;     /* how many entries a search is to find */
  sparse_level_t near; /* the last of them is likely just above this; -1: not known. Only speed
                          depends on it */
  /* Gaussian thresholds */
  int32_t first_level;    /* the level from which corrections go down or up */
  uint64_t candidates;    /* elements above the guess */
  uint64_t needed;        /* the largest count of a level that was looked at, */
  sparse_level_t lowest;  /* and the lowest such level */
  uint64_t offered_count; /* entries of the offered list that count */
  uint32_t overflowed;    /* 1: the k largest, because a threshold selected too many */
  uint32_t unsent; /* 1: more candidates than the list holds: reduce_sent() selects and sends */

  /* Exchanges. */
  uint64_t send_counts[SPARSE_MAX_RANKS]; /* of a list that goes to every rank: its length, each */
  uint64_t region_counts[SPARSE_MAX_RANKS], region_displs[SPARSE_MAX_RANKS]; /* in the list */
  uint64_t proposal[SPARSE_MAX_RANKS]; /* [0]: 1 if this rank cannot propose; [j]: boundary j */
  /* What came from the others: list p is received[received_displs[p] ...], or, where every source
   * has a place of its own, received[list_displs[p] ...]. */
  uint64_t received_counts[SPARSE_MAX_RANKS], received_displs[SPARSE_MAX_RANKS];

  /* The sum over one region, and the sums of all regions. */
  uint64_t reduced_count;
  uint64_t chosen_count; /* one-sided, exact: those of them that are in the result */
  uint64_t gathered_counts[SPARSE_MAX_RANKS], gathered_displs[SPARSE_MAX_RANKS];
  sparse_level_t sample[SPARSE_SAMPLE]; /* magnitudes of some: sparse_needs_sample() */
  struct sparse_selection global;       /* of the sums */
  /* GTOPK: of each round's on this rank, and how many there were */
  struct sparse_selection merges[SPARSE_MAX_ROUNDS];
  uint64_t merge_counts[SPARSE_MAX_ROUNDS];
  uint64_t result_count; /* entries of `gathered` that are the result */

  /* `nonfinite` of all ranks (device counts: what has come to the flags), and how many have come */
  uint32_t all_nonfinite[SPARSE_MAX_RANKS];
  uint64_t nonfinite_counts[SPARSE_MAX_RANKS];
};

/* What a rank offers: exactly the k largest entries, ... */
enum sparse_select {
  SPARSE_SELECT_NOTHING, /* it adds whole vectors */
  SPARSE_SELECT_K,
  SPARSE_SELECT_ABOVE_KTH, /* what exceeds the k-th magnitude */
  SPARSE_SELECT_REUSED,    /* the same in some steps; in others what exceeds the last threshold */
  SPARSE_SELECT_GAUSSIAN,  /* what exceeds a threshold from mean and deviation */
};

/* What a handle owns, passed to operators by value. Sizes never change. */
struct sparse_memory {
  size_t n, k, t, capacity; /* see sparse_allreduce.h; t = floor(n * density) */
  int rank, nranks;
  sparse_allreduce_config_t config;
  struct sparse_constants constants;
  enum sparse_select select;
  bool adapts;     /* OKTOPK: thresholds follow what they select */
  double z;        /* Phi^-1(1 - density / 2) */
  float *residual; /* n */
  float *dense;    /* n, and room up to a multiple of SPARSE_SECTOR; NULL: no step leaves one */
  /* Lists: nranks * list_room pairs each. One-sided `offered` is the last part of `received`
   * (make_onesided), with `room` of its own. */
  size_t list_room; /* of one rank's: at least capacity */
  struct sparse_pair *offered, *received, *gathered;
  struct sparse_pair *reduced; /* takes the place of `offered`, unless peers read both */
  size_t room;                 /* of the offered list for candidates: at least capacity */
  char *lists;                 /* the memory of all these, and of what is next */
  struct sparse_flags *flags;
  /* Where the sums of this region's units begin in `reduced`, for other ranks, which read only what
   * they need; unit u are the SPARSE_UNIT elements from u * SPARSE_UNIT on. */
  uint32_t *unit_begins;
  uint32_t (*histograms)[SPARSE_BINS]; /* two of each rank, which it stores */
  uint64_t *matrix; /* [source * nranks + destination] entries, filled by the send/recv exchange */
  struct sparse_state *state;
  void *scratch; /* of the operators, see ops_scratch_bytes */
};

/* One-sided: where rank p's list begins in the received list of an owner, whose own is the last. */
SPARSE_DEVICE size_t sparse_list_place(const struct sparse_memory *m, int owner, int p)
{
  return (size_t)((p - owner - 1 + m->nranks) % m->nranks) * m->list_room;
}

/* Entries in device memory, indices ascending. The number of entries is the sum of `parts` numbers
 * at counts; the parts lie one after the other. */
struct sparse_list {
  struct sparse_pair *pairs;
  uint64_t *counts;
  int parts;
};

/* What this rank offers; the sums of its region; */
SPARSE_DEVICE struct sparse_list sparse_offered(const struct sparse_memory *m)
{
  const struct sparse_list list = {m->offered, &m->state->offered_count, 1};
  return list;
}

SPARSE_DEVICE struct sparse_list sparse_reduced(const struct sparse_memory *m)
{
  const struct sparse_list list = {m->reduced, &m->state->reduced_count, 1};
  return list;
}

/* All ranks' lists, one after the other; and the entries of the result, once they are one list. */
SPARSE_DEVICE struct sparse_list sparse_gathered(const struct sparse_memory *m)
{
  const struct sparse_list list = {m->gathered, m->state->gathered_counts, m->nranks};
  return list;
}

SPARSE_DEVICE struct sparse_list sparse_result(const struct sparse_memory *m)
{
  const struct sparse_list list = {m->gathered, &m->state->result_count, 1};
  return list;
}

#ifdef __cplusplus
}
#endif
#endif
