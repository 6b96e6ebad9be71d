/* SPDX-License-Identifier: Apache-2.0 */
/* The published constants, and the check of a configuration. */
#include "handle.h"

#include <string.h>

#define TEXT_OF(macro) TEXT(macro)
#define TEXT(words) #words

void sparse_constants_init(struct sparse_constants *constants, sparse_preset_t preset)
{
  struct sparse_constants c = {
      .local_interval = 32,
      .topkaopt_interval = 32,
      .global_interval = 32,
      .repartition_interval = 64,
      .raise_steps = 5,
      .raise_above = {4, 3},
      .raise_factor = 1.03,
      .local_band = {{2, 3}, {5, 4}, 1.012, 1.012},
      .global_band = {{2, 3}, {4, 3}, 1.008, 1.008},
      .correction = {{3, 4}, {3, 4}, {5, 4}, 1.02, 1.02, 20, 20},
  };
  if (preset == SPARSE_PRESET_LSTM) {
    c.raise_above = (sparse_fraction_t){3, 2};
    c.local_band.low = (sparse_fraction_t){3, 4};
    c.global_band = (sparse_band_t){{3, 4}, {5, 4}, 1.01, 1.008};
    c.correction = (sparse_correction_t){{3, 4}, {3, 4}, {1, 1}, 1.012, 1, 50, 0};
  } else if (preset == SPARSE_PRESET_BERT) {
    c.local_interval = c.global_interval = 128;
    c.raise_steps = 0;
    c.local_band = (sparse_band_t){{4, 5}, {5, 4}, 1.025, 1.025};
    c.global_band = (sparse_band_t){{4, 5}, {5, 4}, 1.036, 1.025};
    c.correction = (sparse_correction_t){{3, 4}, {5, 6}, {1, 1}, 1.012, 1, 20, 0};
  }
  *constants = c;
}

void sparse_allreduce_config_init(sparse_allreduce_config_t *config, size_t size,
                                  sparse_preset_t preset)
{
  const bool bert = preset == SPARSE_PRESET_BERT;
  const sparse_allreduce_config_t c = {
      .size = size, /* what the caller's header says, for sparse_allreduce_create() */
      .algorithm = SPARSE_OKTOPK,
      .preset = preset,
      .density = bert ? 0.01 : 0.02,
      .gradient_type = ncclFloat,
      .throttle = 4,
      .balance = bert,
      .timeout_seconds = SPARSE_DEFAULT_TIMEOUT,
  };
  memset(config, 0, size);
  memcpy(config, &c, size < sizeof(c) ? size : sizeof(c));
}

void sparse_allreduce_sizes(size_t count, double density, size_t *k, size_t *capacity)
{
  const size_t t = (size_t)((double)count * density), offered = t > 1 ? t : 1;
  const size_t most = 2 * offered > 4096 ? 2 * offered : 4096;
  if (k != NULL) *k = offered;
  if (capacity != NULL) *capacity = most < count ? most : count;
}

int sparse_allreduce_nccl_version(void)
{
  return NCCL_VERSION_CODE;
}

/* What is wrong with a configuration, in words; NULL if nothing. */
static const char *error_of(const sparse_allreduce_config_t *c, size_t count, int nranks)
{
  if (c->size != sizeof(*c))
    return "config.size is not that of this library: begin with sparse_allreduce_config() "
           "from this library's own header";
  if ((unsigned)c->algorithm >= SPARSE_ALGORITHMS) return "unknown algorithm";
  if (count < 1 || count >= SPARSE_NO_INDEX) return "count must be 1 to 2^32 - 2";
  if (nranks < 1 || nranks > SPARSE_MAX_RANKS)
    return "ranks must be 1 to " TEXT_OF(SPARSE_MAX_RANKS);
  if ((unsigned)c->preset > SPARSE_PRESET_BERT) return "unknown preset";
  /* below that, half of it loses bits, and Gaussian thresholds would differ */
  if (!(c->density >= 1e-300 && c->density <= 1)) return "density must be 1e-300 to 1";
  if (c->gradient_type != ncclFloat && c->gradient_type != ncclHalf &&
      c->gradient_type != ncclBfloat16)
    return "gradient_type must be ncclFloat, ncclHalf or ncclBfloat16";
  if (c->warmup_steps < 0) return "warmup_steps must not be negative";
  if ((unsigned)c->gtopk_exact_residual > 1) return "gtopk_exact_residual must be 0 or 1";
  if (c->throttle < 1) return "throttle must be at least 1";
  if (!(c->timeout_seconds <= SPARSE_MAX_TIMEOUT)) /* nor NaN */
    return "timeout_seconds must be at most 1e9, 0 for 60, or less than 0 for never";
  if ((unsigned)c->balance > 1) return "balance must be 0 or 1";
  if ((unsigned)c->nonfinite > SPARSE_NONFINITE_DROP) return "unknown nonfinite";
  if ((unsigned)c->exchange > SPARSE_EXCHANGE_SENDRECV) return "unknown exchange";
  if ((unsigned)c->result > SPARSE_RESULT_ENTRIES) return "unknown result";

  /* Nothing exceeds the largest magnitude, and one element has no deviation. */
  const enum sparse_select select = sparse_path_of(c->algorithm)->select;
  size_t k;
  sparse_allreduce_sizes(count, c->density, &k, NULL);
  if (select == SPARSE_SELECT_ABOVE_KTH && k < 2)
    return "count * density must be 2 or more where the threshold is exact in every step: nothing "
           "exceeds the largest element";
  if (select == SPARSE_SELECT_GAUSSIAN && count < 2)
    return "count must be 2 or more where the threshold is Gaussian: one element has no deviation";
  return NULL;
}

ncclResult_t sparse_allreduce_check(const sparse_allreduce_config_t *config, size_t count,
                                    int ranks)
{
  if (config == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const char *error = error_of(config, count, ranks);
  return error == NULL ? ncclSuccess : sparse_fail(ncclInvalidArgument, "%s", error);
}
