/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: where they begin, and what comes from whom. */
#ifndef REGIONS_H
#define REGIONS_H

#include "state/sparse_state.h"

SPARSE_DEVICE void sparse_uniform_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int j = 0; j < m->nranks; j++) s->boundaries[j] = (uint64_t)j * (m->n / (size_t)m->nranks);
  s->boundaries[m->nranks] = m->n;
}

SPARSE_DEVICE void sparse_proposed_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  if (m->nranks == 1 || s->proposal[0] > 0) {
    sparse_uniform_regions(m, s);
    return;
  }
  s->boundaries[0] = 0;
  for (int j = 1; j < m->nranks; j++) s->boundaries[j] = s->proposal[j] / (uint64_t)m->nranks;
  s->boundaries[m->nranks] = m->n;
}

SPARSE_DEVICE void sparse_split_counts(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int p = 0; p < m->nranks; p++) s->received_counts[p] = m->matrix[p * m->nranks + m->rank];
}

#endif
