/* SPDX-License-Identifier: Apache-2.0 */
/* Flags: a rank whose gradient is not finite says so in an entry after its list. And counting
 * lists that may end with one. */
#ifndef FLAGS_H
#define FLAGS_H

#include <stdbool.h>
#include <string.h>

#include "state/sparse_state.h"

/* In front of a loop over ranks that is seldom what others wait for: it is not unrolled, since its
 * code stands in nearly all kernels. */
#ifdef __CUDA_ARCH__
#define SPARSE_ROLLED _Pragma("unroll 1")
#else
#define SPARSE_ROLLED
#endif

/* What this rank has to report of a gradient: see state->nonfinite. 0: nothing. */
SPARSE_DEVICE uint32_t sparse_says_nonfinite(const struct sparse_memory *m,
                                             const struct sparse_state *s)
{
  return m->config.nonfinite == SPARSE_NONFINITE_ERROR ? s->nonfinite : 0;
}

/* The flag entry after a list, if there is something to report: the bits of its value are that.
 * Fixed: there always is one, and in place of SPARSE_NO_INDEX it has the rank that it is about. */
SPARSE_DEVICE void sparse_seal(const struct sparse_memory *m, struct sparse_state *s,
                               struct sparse_pair *pairs, uint64_t count, bool fixed)
{
  const uint32_t flag = sparse_says_nonfinite(m, s);
  const uint32_t from = s->nonfinite_from ? s->nonfinite_from - 1 : (uint32_t)m->rank;
  if (flag || fixed) {
    pairs[count].index = fixed ? from : SPARSE_NO_INDEX;
    memcpy(&pairs[count].value, &flag, sizeof(flag));
    count++;
  }
  s->sealed_count = count;
  for (int p = 0; p < m->nranks; p++) s->send_counts[p] = count;
}

/* What a flag entry says of that rank's gradient goes into the state. */
SPARSE_DEVICE void sparse_collect_flag(struct sparse_state *s, const struct sparse_pair *flag,
                                       uint32_t rank)
{
  uint32_t said;
  memcpy(&said, &flag->value, sizeof(said));
  if (said == 0) return;
  s->nonfinite = said;
  s->nonfinite_from = rank + 1;
}

/* 1 if the list of rank p ends with a flag entry. Of several the one collected last counts, so
 * lists are looked at from the last rank's to the first one's. */
SPARSE_DEVICE uint64_t sparse_collect(struct sparse_state *s, const struct sparse_pair *pairs,
                                      uint64_t count, int p)
{
  if (count == 0 || pairs[count - 1].index != SPARSE_NO_INDEX) return 0;
  sparse_collect_flag(s, &pairs[count - 1], (uint32_t)p);
  return 1;
}

/* Of lists that are summed where they are: their flag entries are not counted any more. */
SPARSE_DEVICE void sparse_collect_flags(const struct sparse_memory *m, struct sparse_state *s,
                                        const struct sparse_pair *lists)
{
  SPARSE_ROLLED
  for (int p = m->nranks - 1; p >= 0; p--)
    s->received_counts[p] -=
        sparse_collect(s, lists + s->received_displs[p], s->received_counts[p], p);
}

/* k entries and a flag entry from every rank. */
SPARSE_DEVICE void sparse_collect_fixed(const struct sparse_memory *m, struct sparse_state *s)
{
  SPARSE_ROLLED
  for (int p = m->nranks - 1; p >= 0; p--) {
    const struct sparse_pair *flag;
    s->received_counts[p] = m->k;
    s->received_displs[p] = (uint64_t)p * (m->k + 1);
    flag = m->received + s->received_displs[p] + m->k;
    sparse_collect_flag(s, flag, flag->index);
  }
}

/* GTOPK: a list of k entries has come from a peer. Its flag goes on with ours, unless ours says
 * something already. */
SPARSE_DEVICE void sparse_collect_peer(const struct sparse_memory *m, struct sparse_state *s)
{
  const struct sparse_pair *flag = m->received + m->k;
  s->received_counts[0] = m->k;
  if (!s->nonfinite) sparse_collect_flag(s, flag, flag->index);
  sparse_seal(m, s, m->offered, m->k, true);
}

/* GTOPK: the root's list has come. */
SPARSE_DEVICE void sparse_collect_root(const struct sparse_memory *m, struct sparse_state *s)
{
  const struct sparse_pair *flag = m->gathered + m->k;
  s->result_count = m->k;
  sparse_collect_flag(s, flag, flag->index);
}

/* ---- how many entries ------------------------------------------------------------------------ */

SPARSE_DEVICE void sparse_count_gathered(const struct sparse_memory *m, struct sparse_state *s)
{
  uint64_t entries = 0;
  for (int p = 0; p < m->nranks; p++) entries += s->gathered_counts[p];
  s->result_count = entries;
  s->result_flags = 0;
}

/* The result, or the sums that it is chosen from, has come from all ranks, flags after lists. */
SPARSE_DEVICE void sparse_collect_gathered(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_count_gathered(m, s);
  SPARSE_ROLLED
  for (int p = m->nranks - 1; p >= 0; p--) {
    const uint64_t count = s->gathered_counts[p];
    const uint64_t flag = sparse_collect(s, m->gathered + s->gathered_displs[p], count, p);
    s->sums[p] = count - flag;
    s->result_flags += flag;
  }
  s->gathered_total = s->result_count - s->result_flags;
}

#endif
