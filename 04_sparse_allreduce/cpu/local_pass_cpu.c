/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass: gradient + residual, and the candidates. */
#include "float16.h"
#include "ops_cpu.h"

float gradient_value(const void *gradient, ncclDataType_t type, size_t i)
{
  switch (type) {
  case ncclHalf:
    return half_to_float(((const uint16_t *)gradient)[i]);
  case ncclBfloat16:
    return bfloat16_to_float(((const uint16_t *)gradient)[i]);
  default:
    return ((const float *)gradient)[i];
  }
}

static void clear_pending(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  for (size_t i = 0; s->pending == SPARSE_REMOVE_OFFERED && i < m->n; i++)
    sparse_clear_element(s, m->residual, (uint32_t)i);
  for (uint64_t i = 0; s->pending == SPARSE_REMOVE_IN_RESULT && i < s->result_count; i++)
    sparse_clear_element(s, m->residual, m->gathered[i].index);
  s->pending = SPARSE_REMOVE_NOTHING;
}

ncclResult_t ops_clear_pending(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = clear_pending});
}

static void local_pass(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  clear_pending(c);
  s->nlevels = sparse_first_levels(m, c->candidates, s->levels, &s->limit);
  sparse_begin(s, s->epoch + 1);
  s->pending = c->removal;
  s->offered_count = 0;
  memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
  for (size_t i = 0; i < m->n; i++) {
    if (c->gradient != NULL) {
      const float g = gradient_value(c->gradient, m->config.gradient_type, i);
      if (isfinite(g))
        m->residual[i] = one_nan(m->residual[i] + g);
      else if (!s->nonfinite)
        s->nonfinite = (uint32_t)i + 1;
    }
    const float acc = m->residual[i];
    const sparse_level_t magnitude = sparse_magnitude(acc);
    for (int j = 0; magnitude <= s->limit && j < s->nlevels; j++)
      s->level_counts[j] += magnitude > s->levels[j];
    if (magnitude > s->levels[0] && magnitude <= s->limit && s->offered_count < m->room)
      m->offered[s->offered_count++] = (struct sparse_pair){(uint32_t)i, acc};
  }
  if (c->candidates != SPARSE_GAUSSIAN_GUESS) return;
  double sum = 0, squares = 0;
  for (size_t i = 0; i < m->n; i++) sum += m->residual[i];
  s->mean = sum / (double)m->n;
  for (size_t i = 0; i < m->n; i++)
    squares += (m->residual[i] - s->mean) * (m->residual[i] - s->mean);
  s->deviation = sqrt(squares / (double)(m->n - 1));
}

ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream)
{
  const struct call c = {
      .run = local_pass, .gradient = gradient, .candidates = candidates, .removal = removal};
  return enqueue(m, stream, c);
}
