/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading all that one step hands to the next. */
#include "handle.h"

#include <stddef.h>
#include <string.h>

/* What a saved state begins with; the residual follows. */
struct saved {
  char magic[8];
  sparse_allreduce_config_t config;
  uint64_t count, rank, nranks, step, exact_step;
  double density;
  struct sparse_kept kept;
  uint64_t checksum; /* of all the others, and of the residual */
};

/* FNV-1a over words of 8 bytes, the last one filled up with zeros. Each step can be undone, so
 * states that differ in one word never have the same. */
uint64_t sparse_hash(uint64_t so_far, const void *bytes, size_t count)
{
  for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, (const char *)bytes + i, count - i < sizeof(word) ? count - i : sizeof(word));
    so_far = (so_far ^ word) * 1099511628211u;
    so_far ^= so_far >> 32; /* or high bits would never reach the low ones */
  }
  return so_far;
}

static struct saved saved_header(const struct sparse_allreduce_handle *h)
{
  struct saved saved = {.magic = "SPARSE6",
                        .config = h->m.config,
                        .count = h->m.n,
                        .rank = (uint64_t)h->m.rank,
                        .nranks = (uint64_t)h->m.nranks,
                        .step = h->step,
                        .exact_step = h->exact_step,
                        .density = h->density,
                        .kept = h->state->kept};
  /* Steps give the same bits whatever these are, so a restart may choose others. */
  saved.config.throttle = 0;
  saved.config.balance = 0;
  saved.config.exchange = SPARSE_EXCHANGE_AUTO;
  saved.config.result = SPARSE_RESULT_DENSE;
  saved.config.timeout_seconds = 0;
  return saved;
}

static size_t residual_bytes(const struct sparse_allreduce_handle *h)
{
  return h->m.residual != NULL ? h->m.n * sizeof(float) : 0;
}

static uint64_t checksum_of(const struct sparse_allreduce_handle *h, const char *state)
{
  const uint64_t so_far = sparse_hash(0, state, offsetof(struct saved, checksum));
  return sparse_hash(so_far, state + sizeof(struct saved), residual_bytes(h));
}

size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle)
{
  return handle != NULL ? sizeof(struct saved) + residual_bytes(handle) : 0;
}

ncclResult_t sparse_allreduce_save(sparse_allreduce_t handle, void *state)
{
  float *residual;
  SPARSE_TRY(
      sparse_allreduce_residual(handle, &residual)); /* an error of the last step ends here */
  if (state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  struct saved saved = saved_header(handle);
  memcpy(state, &saved, sizeof(saved));
  if (residual != NULL)
    SPARSE_CUDA(cudaMemcpy((char *)state + sizeof(saved), residual, residual_bytes(handle),
                           cudaMemcpyDeviceToHost));
  saved.checksum = checksum_of(handle, state);
  memcpy(state, &saved, sizeof(saved));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state)
{
  struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(sparse_wait(h, state));
  const struct saved own = saved_header(h);
  struct saved saved;
  memcpy(&saved, state, sizeof(saved));
  if (memcmp(&saved, &own, offsetof(struct saved, step)) != 0)
    return sparse_fail(ncclInvalidArgument, "not a state that this version saved of a handle with "
                                            "this count, configuration, rank and ranks");
  if (saved.checksum != checksum_of(h, state))
    return sparse_fail(ncclInvalidArgument, "the state is damaged: its checksum is wrong");
  /* What the last step left does not belong to the loaded state: nothing of it may leave the
   * residual any more, and there is no result. (The next step clears its entries.) */
  h->state->kept = saved.kept;
  h->state->pending = SPARSE_REMOVE_NOTHING;
  if (h->m.residual != NULL)
    SPARSE_CUDA(cudaMemcpy(h->m.residual, (const char *)state + sizeof(saved), residual_bytes(h),
                           cudaMemcpyHostToDevice));
  h->step = saved.step;
  h->exact_step = saved.exact_step;
  return sparse_change_density(h, saved.density);
}
