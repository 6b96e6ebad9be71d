/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading all that one step hands to the next. */
#include "decide/decide.h"
#include "sparse_internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a saved state begins with; the kept part of sparse_state and the residual follow. */
struct saved {
  char magic[8];
  uint64_t fingerprint, rank, nranks, step;
  uint64_t checksum; /* of all the others, and of what follows */
};
static const char MAGIC[8] = "SPARSE3";

static size_t kept_bytes(void)
{
  return offsetof(struct sparse_state, levels);
}

static struct saved saved_header(const struct sparse_allreduce_handle *h)
{
  /* Steps give the same bits whatever these are: who restarts elsewhere may choose others. */
  sparse_allreduce_config_t config = h->m.config;
  config.throttle = 0;
  config.balance = SPARSE_BALANCE_NEVER;
  config.exchange = SPARSE_EXCHANGE_AUTO;
  config.timeout_seconds = 0;
  struct saved saved = {.fingerprint = sparse_fingerprint(h->m.n, &config),
                        .rank = (uint64_t)h->m.rank,
                        .nranks = (uint64_t)h->m.nranks,
                        .step = h->step};
  memcpy(saved.magic, MAGIC, sizeof(MAGIC));
  return saved;
}

/* FNV-1a over words of 8 bytes, the last one filled up with zeros. Each step can be undone, so
 * states that differ in one word never have the same. */
static uint64_t hash(uint64_t so_far, const char *bytes, size_t count)
{
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, bytes + i, count - i < sizeof(word) ? count - i : sizeof(word));
    so_far = (so_far ^ word) * 1099511628211u;
    so_far ^= so_far >> 32; /* or high bits would never reach the low ones */
  }
  return so_far;
}

static uint64_t checksum_of(const struct sparse_allreduce_handle *h, const char *state)
{
  const size_t header = sizeof(struct saved),
               all = sparse_allreduce_state_bytes((sparse_allreduce_t)h);
  const uint64_t start = 14695981039346656037u;
  const uint64_t of_header = hash(start, state, offsetof(struct saved, checksum));
  return hash(of_header, state + header, all - header);
}

/* Could a step leave that? What this has let through can do no harm, whoever made it. */
static const char *state_error(const struct sparse_allreduce_handle *h, const struct saved *saved,
                               const struct sparse_state *s)
{
  const int nranks = h->m.nranks;
  if (saved->step > INT64_MAX) return "the number of the step";
  for (int j = 0; j < nranks; j++)
    if (s->boundaries[j] > s->boundaries[j + 1]) return "regions";
  if (s->boundaries[0] != 0 || s->boundaries[nranks] != h->m.n) return "regions";
  if (h->path->intervals != NULL && /* other steps go on with what exact ones have found */
      !(s->local_threshold >= 0 && s->global_threshold >= 0))
    return "thresholds";
  if (!(s->guess_ratio >= 0.5 && s->guess_ratio <= 1) || s->guess < -1) return "the guess";
  return NULL;
}

size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle)
{
  if (handle == NULL) return 0;
  const size_t residual = handle->m.residual != NULL ? handle->m.n * sizeof(float) : 0;
  return sizeof(struct saved) + kept_bytes() + residual;
}

/* Few elements are chosen: blocks in which none is large enough are passed over. */
static void settle_all(const struct sparse_state *s, float *residual, size_t n)
{
  enum { BLOCK = 256 };
  const sparse_level_t above = s->selection.above;
  for (size_t first = 0; first < n; first += BLOCK) {
    const size_t count = n - first < BLOCK ? n - first : BLOCK;
    bool any = count < BLOCK; /* the last block */
    if (count == BLOCK)
      for (size_t i = 0; i < BLOCK; i++) any |= sparse_magnitude(residual[first + i]) >= above;
    for (size_t i = 0; any && i < count; i++)
      sparse_settle_element(s, residual, (uint32_t)(first + i));
  }
}

static ncclResult_t no_residual(void)
{
  return sparse_fail(ncclInvalidUsage, "a dense allreduce has no residual");
}

/* Nothing changes on the device: what is pending there becomes zero in the copy. */
ncclResult_t sparse_allreduce_copy_residual(sparse_allreduce_t handle, float *to)
{
  if (handle == NULL || to == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const struct sparse_memory *m = &handle->m;
  const struct sparse_state *s = handle->state;
  if (m->residual == NULL) return no_residual();
  SPARSE_TRY(sparse_read_state(handle));
  SPARSE_CUDA(cudaMemcpy(to, m->residual, m->n * sizeof(float), cudaMemcpyDeviceToHost));
  if (s->pending == SPARSE_REMOVE_OFFERED) settle_all(s, to, m->n);
  if (s->pending != SPARSE_REMOVE_IN_RESULT || s->result_count == 0) return ncclSuccess;
  const size_t bytes = s->result_count * sizeof(struct sparse_pair);
  struct sparse_pair *result = malloc(bytes);
  if (result == NULL) return sparse_fail(ncclSystemError, "out of memory");
  const cudaError_t error = cudaMemcpy(result, m->gathered, bytes, cudaMemcpyDeviceToHost);
  for (uint64_t i = 0; error == cudaSuccess && i < s->result_count; i++)
    if (result[i].index != SPARSE_NO_INDEX) sparse_settle_element(s, to, result[i].index);
  free(result);
  SPARSE_CUDA(error);
  return ncclSuccess;
}

/* Nothing of the last step is to leave the residual any more. */
static ncclResult_t put_residual(const struct sparse_memory *m, const void *from)
{
  if (m->residual != NULL)
    SPARSE_CUDA(cudaMemcpy(m->residual, from, m->n * sizeof(float), cudaMemcpyHostToDevice));
  SPARSE_CUDA(cudaMemset(&m->state->pending, SPARSE_REMOVE_NOTHING, sizeof(uint32_t)));
  SPARSE_CUDA(cudaDeviceSynchronize()); /* the caller's stream may not wait for the default one */
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_set_residual(sparse_allreduce_t handle, const float *from)
{
  if (handle == NULL || from == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  if (handle->m.residual == NULL) return no_residual();
  SPARSE_TRY(sparse_wait(handle));
  return put_residual(&handle->m, from);
}

ncclResult_t sparse_allreduce_save(sparse_allreduce_t handle, void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  char *to = state, *kept = to + sizeof(struct saved);
  struct saved saved = saved_header(handle);
  SPARSE_TRY(sparse_read_state(handle));
  memcpy(to, &saved, sizeof(saved));
  memcpy(kept, handle->state, kept_bytes());
  if (handle->m.residual != NULL)
    SPARSE_TRY(sparse_allreduce_copy_residual(handle, (void *)(kept + kept_bytes())));
  saved.checksum = checksum_of(handle, to);
  memcpy(to, &saved, sizeof(saved));
  return ncclSuccess;
}

/* What is wrong with a state, in words; NULL if nothing. */
static const char *refusal(const struct sparse_allreduce_handle *h, const char *state,
                           char text[128])
{
  struct saved saved, own = saved_header(h);
  struct sparse_state kept;
  memcpy(&saved, state, sizeof(saved));
  if (memcmp(saved.magic, own.magic, sizeof(own.magic)) != 0)
    return "not a state that this version of sparse_allreduce_save() has written";
  if (saved.fingerprint != own.fingerprint || saved.rank != own.rank || saved.nranks != own.nranks)
    return "not a state of a handle with this count, configuration, rank and ranks";
  if (saved.checksum != checksum_of(h, state)) return "a damaged state: its checksum is wrong";
  memcpy(&kept, state + sizeof(saved), kept_bytes());
  const char *error = state_error(h, &saved, &kept);
  if (error == NULL) return NULL;
  snprintf(text, 128, "not a state that a step can leave: %s out of bounds", error);
  return text;
}

/* What the last step has left for its caller is not of the step that is loaded. The dense result
 * still has its entries; the next step clears them. */
static ncclResult_t forget_step(struct sparse_allreduce_handle *h)
{
  h->holds = h->latest = SPARSE_HOLDS_NOTHING;
  h->last = (struct sparse_step){0};
  SPARSE_CUDA(cudaMemset(&h->m.state->nonfinite, 0, sizeof(h->m.state->nonfinite)));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const char *from = (const char *)state + sizeof(struct saved);
  char text[128];
  const char *error = refusal(handle, state, text);
  struct saved saved;
  if (error != NULL) return sparse_fail(ncclInvalidArgument, "%s", error);
  memcpy(&saved, state, sizeof(saved));
  SPARSE_TRY(sparse_wait(handle));
  SPARSE_CUDA(cudaMemcpy(handle->m.state, from, kept_bytes(), cudaMemcpyHostToDevice));
  SPARSE_TRY(forget_step(handle));
  SPARSE_TRY(put_residual(&handle->m, from + kept_bytes()));
  handle->step = saved.step;
  return ncclSuccess;
}
