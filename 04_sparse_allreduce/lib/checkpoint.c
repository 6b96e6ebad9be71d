/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading all that one step hands to the next. */
#include "handle.h"

#include <stddef.h>
#include <string.h>

/* What a saved state begins with; the kept part of sparse_state and the residual follow. */
struct saved {
  char magic[8];
  uint64_t fingerprint, rank, nranks, step;
  uint64_t checksum; /* of all the others, and of what follows */
};
static const char MAGIC[8] = "SPARSE4";

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

size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle)
{
  if (handle == NULL) return 0;
  const size_t residual = handle->m.residual != NULL ? handle->m.n * sizeof(float) : 0;
  return sizeof(struct saved) + kept_bytes() + residual;
}

static ncclResult_t no_residual(void)
{
  return sparse_fail(ncclInvalidUsage, "a dense allreduce has no residual");
}

ncclResult_t sparse_allreduce_copy_residual(sparse_allreduce_t handle, float *to)
{
  if (handle == NULL || to == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  if (handle->m.residual == NULL) return no_residual();
  SPARSE_TRY(sparse_clear_pending(handle));
  SPARSE_CUDA(
      cudaMemcpy(to, handle->m.residual, handle->m.n * sizeof(float), cudaMemcpyDeviceToHost));
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
static const char *refusal(const struct sparse_allreduce_handle *h, const char *state)
{
  struct saved saved, own = saved_header(h);
  memcpy(&saved, state, sizeof(saved));
  if (memcmp(saved.magic, own.magic, sizeof(own.magic)) != 0)
    return "not a state that this version of sparse_allreduce_save() has written";
  if (saved.fingerprint != own.fingerprint || saved.rank != own.rank || saved.nranks != own.nranks)
    return "not a state of a handle with this count, configuration, rank and ranks";
  if (saved.checksum != checksum_of(h, state)) return "a damaged state: its checksum is wrong";
  return NULL;
}

ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const char *from = (const char *)state + sizeof(struct saved);
  const char *error = refusal(handle, state);
  struct saved saved;
  if (error != NULL) return sparse_fail(ncclInvalidArgument, "%s", error);
  memcpy(&saved, state, sizeof(saved));
  SPARSE_TRY(sparse_wait(handle));
  SPARSE_CUDA(cudaMemcpy(handle->m.state, from, kept_bytes(), cudaMemcpyHostToDevice));
  SPARSE_TRY(put_residual(&handle->m, from + kept_bytes()));
  /* What the last step has left for its caller is not of the step that is loaded. The dense result
   * still has its entries; the next step clears them. */
  handle->holds = handle->latest = SPARSE_HOLDS_NOTHING;
  handle->last = (struct sparse_step){0};
  handle->step = saved.step;
  return ncclSuccess;
}
