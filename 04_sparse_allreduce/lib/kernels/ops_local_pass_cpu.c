/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass: gradient + residual, and the candidates. Counting by levels. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

struct local_pass {
  struct sparse_memory m;
  const void *gradient;
  enum sparse_candidates candidates;
  enum sparse_removal removal;
  bool moments, sends;
};

static void count_levels(struct sparse_state *s, sparse_level_t magnitude)
{
  for (int j = 0; magnitude <= s->limit && j < s->nlevels && magnitude > s->levels[j]; j++)
    s->level_counts[j]++;
}

static void run_local_pass(const void *args)
{
  const struct local_pass *a = args;
  const struct sparse_memory *m = &a->m;
  struct sparse_state *s = m->state;
  twin_settle(m);
  sparse_begin_pass(m, a->candidates);
  s->pending = a->removal;
  s->offered_count = 0;
  memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
  for (size_t i = 0; i < m->n; i++) {
    if (a->gradient != NULL) {
      const float g = gradient_value(a->gradient, m->config.gradient_type, i);
      if (isfinite(g))
        m->residual[i] = one_nan(m->residual[i] + g);
      else if (!s->nonfinite)
        s->nonfinite = (uint32_t)i + 1;
    }
    const float acc = m->residual[i];
    const sparse_level_t magnitude = sparse_magnitude(acc);
    count_levels(s, magnitude);
    if (magnitude > s->levels[0] && magnitude <= s->limit && s->offered_count < m->room)
      m->offered[s->offered_count++] = (struct sparse_pair){(uint32_t)i, acc};
  }
  if (a->moments) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < m->n; i++) sum += m->residual[i];
    s->mean = sum / (double)m->n;
    for (size_t i = 0; i < m->n; i++)
      squares += (m->residual[i] - s->mean) * (m->residual[i] - s->mean);
    s->deviation = sqrt(squares / (double)(m->n - 1));
  }
  if (!a->sends) return;
  sparse_decide(SPARSE_OFFER_THRESHOLD, m);
  if (s->unoffered) return;
  uint64_t kept = 0; /* the kernel leaves the others to the owners of regions */
  for (uint64_t i = 0; kept < s->offered_count; i++)
    if (sparse_chosen(&s->selection, sparse_magnitude(m->offered[i].value), m->offered[i].index))
      m->offered[kept++] = m->offered[i];
  twin_send_parts(m);
}

ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream)
{
  const struct local_pass a = {
      .m = *m, .gradient = gradient, .candidates = candidates, .removal = removal};
  return twin_launch(stream, run_local_pass, &a, sizeof(a));
}

ncclResult_t ops_local_pass_moments(const struct sparse_memory *m, const void *gradient,
                                    enum sparse_candidates candidates, enum sparse_removal removal,
                                    cudaStream_t stream)
{
  const struct local_pass a = {
      .m = *m, .gradient = gradient, .candidates = candidates, .removal = removal, .moments = true};
  return twin_launch(stream, run_local_pass, &a, sizeof(a));
}

ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream)
{
  const struct local_pass a = {.m = *m,
                               .gradient = gradient,
                               .candidates = SPARSE_ABOVE_THRESHOLDS,
                               .removal = removal,
                               .sends = true};
  return twin_launch(stream, run_local_pass, &a, sizeof(a));
}

static void run_count_levels(const void *args)
{
  const struct control *a = args;
  const struct sparse_memory *m = &a->m;
  struct sparse_state *s = m->state;
  if (s->count_from != SPARSE_FROM_NOTHING) {
    const struct input in =
        input_from(m, (struct sparse_list){m->offered, &s->offered_count, 1}, s->count_from);
    memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
    for (uint64_t i = 0; i < in.count; i++)
      if (is_entry(entry(&in, i))) count_levels(s, sparse_magnitude(entry(&in, i).value));
  }
  sparse_decide(a->what, m);
}

ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_decision then,
                              cudaStream_t stream)
{
  const struct control a = {*m, then};
  return twin_launch(stream, run_count_levels, &a, sizeof(a));
}

#endif
