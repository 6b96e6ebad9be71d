/* SPDX-License-Identifier: Apache-2.0 */
#include "program/bench/bench_verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "program/gradient.h"
#include "program/program.h"
#include "verify.h"

enum { REFERENCE_COUNT = 4 << 20, SAMPLES = 16, SAMPLE = 1024 /* elements */ };

/* ---- with the reference ---------------------------------------------------------------------- */

static int verify_with_reference(const struct rank *me, const sparse_allreduce_config_t *config,
                                 const struct version *version, size_t count,
                                 void *const gradients[], cudaStream_t stream)
{
  struct verification v;
  const float *result;
  int code = verification_init(&v, me, config, count, VERIFY_FULL);
  for (int i = 0; i < BENCH_GRADIENTS && code == EXIT_VERIFIED; i++) {
    version_run(version, gradients[i], &result, stream);
    CUDACHECK(cudaStreamSynchronize(stream));
    const struct step_left left = version_left(version, result, verification_residual(&v));
    code = launcher_agree(me, verification_step(&v, &left, gradients[i], stream));
  }
  verification_free(&v);
  return code;
}

/* ---- without --------------------------------------------------------------------------------- */

/* Stretches of a vector, spread over all of it: the length of each, and where stretch i begins. */
static size_t sample_length(size_t count)
{
  return count < SAMPLE ? count : SAMPLE;
}

static size_t sample_begin(size_t count, size_t i)
{
  return (size_t)((double)(count - sample_length(count)) * (double)i / (SAMPLES - 1));
}

/* Samples of a vector in device memory as float. Returns the number of elements. */
static size_t take_samples(float *to, const void *device, size_t count, const struct datatype *type,
                           cudaStream_t stream)
{
  const size_t length = sample_length(count);
  char raw[SAMPLE * sizeof(float)];
  for (size_t i = 0; i < SAMPLES; i++) {
    const size_t at = sample_begin(count, i);
    CUDACHECK(cudaMemcpyAsync(raw, (const char *)device + at * type->size, length * type->size,
                              cudaMemcpyDeviceToHost, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
    gradient_widen(to + i * length, raw, length, type->nccl);
  }
  return SAMPLES * length;
}

/* The same of a vector in host memory. */
static void take_host_samples(float *to, const float *host, size_t count)
{
  const size_t length = sample_length(count);
  for (size_t i = 0; i < SAMPLES; i++)
    memcpy(to + i * length, host + sample_begin(count, i), length * sizeof *to);
}

/* What a rank had before a step in the samples, what it kept, and the result. */
struct samples {
  float before[SAMPLES * SAMPLE], gradient[SAMPLES * SAMPLE], after[SAMPLES * SAMPLE],
      result[SAMPLES * SAMPLE];
};

/* Sum over ranks of what they had = result * scale + sum of what they kept, up to rounding. */
static int check_samples(const struct rank *me, const struct samples *mine, size_t n, double scale,
                         double epsilon, const char *what)
{
  struct samples *all = malloc((size_t)me->nranks * sizeof *all);
  int code = EXIT_VERIFIED;
  if (!all) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  launcher_allgather(me, mine, all, sizeof *mine);
  for (size_t i = 0; i < n && code == EXIT_VERIFIED; i++) {
    double had = 0, kept = 0, size = 0;
    for (int r = 0; r < me->nranks; r++) {
      had += (double)all[r].before[i] + (double)all[r].gradient[i];
      kept += (double)all[r].after[i];
      size += fabs((double)all[r].before[i]) + fabs((double)all[r].gradient[i]);
    }
    const double got = (double)mine->result[i] * scale + kept;
    if (fabs(got - had) <= (me->nranks + 2) * epsilon * size + 0x1p-140) continue;
    launcher_error("%s: sample %zu adds up to %.9g, expected %.9g", what, i, got, had);
    code = EXIT_WRONG_DATA;
  }
  free(all);
  return launcher_agree(me, code);
}

/* The bits of the result are the same on all ranks. */
static int check_same(const struct rank *me, const struct datatype *type, const void *result,
                      size_t count, const char *what, cudaStream_t stream)
{
  struct verifier v;
  struct verify_state state;
  unsigned long long all[me->nranks];
  verifier_init(&v, me, type, stream);
  verifier_digest(&v, result, count);
  CUDACHECK(cudaMemcpyAsync(&state, v.device, sizeof state, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  verifier_free(&v);
  launcher_allgather(me, &state.digest, all, sizeof *all);
  if (state.digest == all[0]) return launcher_agree(me, EXIT_VERIFIED);
  launcher_error("%s: the result is not the same as on rank 0", what);
  return launcher_agree(me, EXIT_WRONG_DATA);
}

static struct samples *new_samples(void)
{
  struct samples *samples = calloc(1, sizeof *samples);
  if (!samples) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  return samples;
}

static int verify_samples(const struct rank *me, const sparse_allreduce_config_t *config,
                          const struct version *version, size_t count, void *const gradients[],
                          cudaStream_t stream)
{
  const struct datatype *real = datatype_find("float");
  const struct datatype *type = config->gradient_type == ncclHalf       ? datatype_find("half")
                                : config->gradient_type == ncclBfloat16 ? datatype_find("bfloat16")
                                                                        : real;
  const char *name = sparse_allreduce_name(config->algorithm);
  const bool has_residual = config->algorithm != SPARSE_DENSE;
  const bool conserves = config->algorithm != SPARSE_GTOPK || config->gtopk_exact_residual;
  struct samples *samples = new_samples();
  const float *result;
  float *host = has_residual ? malloc(count * sizeof *host) : NULL;
  int code = EXIT_VERIFIED;
  if (has_residual && !host) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  for (int i = 0; i < BENCH_GRADIENTS && code == EXIT_VERIFIED; i++) {
    size_t n = take_samples(samples->gradient, gradients[i], count, type, stream);
    memcpy(samples->before, samples->after, sizeof samples->before); /* zero at first */
    version_run(version, gradients[i], &result, stream);
    const struct step_left left = version_left(version, result, host);
    if (has_residual) take_host_samples(samples->after, host, count);
    take_samples(samples->result, left.result, count, real, stream);
    code = check_same(me, real, left.result, count, name, stream);
    if (code == EXIT_VERIFIED && conserves)
      code = check_samples(me, samples, n, me->nranks, 0x1p-23, name);
  }
  free(host);
  free(samples);
  return code;
}

/* ---- the interface --------------------------------------------------------------------------- */

int bench_verify_path(const struct rank *me, const sparse_allreduce_config_t *config,
                      const struct version *version, size_t count, void *const gradients[],
                      cudaStream_t stream)
{
  return count <= REFERENCE_COUNT
             ? verify_with_reference(me, config, version, count, gradients, stream)
             : verify_samples(me, config, version, count, gradients, stream);
}

int bench_verify_dense(const struct rank *me, const struct datatype *type, const void *send,
                       const void *recv, size_t count, cudaStream_t stream)
{
  const double epsilon = type->nccl == ncclFloat  ? 0x1p-23
                         : type->nccl == ncclHalf ? 0x1p-10
                                                  : 0x1p-7;
  struct samples *samples = new_samples();
  const size_t n = take_samples(samples->gradient, send, count, type, stream);
  take_samples(samples->result, recv, count, type, stream);
  int code = check_same(me, type, recv, count, "ncclAllReduce", stream);
  if (code == EXIT_VERIFIED) code = check_samples(me, samples, n, 1, epsilon, "ncclAllReduce");
  free(samples);
  return code;
}
