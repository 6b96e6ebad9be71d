/* SPDX-License-Identifier: Apache-2.0 */
#include "update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "program.h"

static const float SCALE = -0.1f; /* minus the learning rate: no power of 2, so that it rounds */

struct update *update_create(size_t count)
{
  struct update *u = malloc(sizeof *u);
  if (!u) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  u->count = count;
  CUDACHECK(cudaMalloc((void **)&u->weights, count * sizeof *u->weights));
  CUDACHECK(cudaMalloc((void **)&u->result, count * sizeof *u->result));
  CUDACHECK(cudaMemset(u->weights, 0, count * sizeof *u->weights));
  CUDACHECK(cudaDeviceSynchronize());
  return u;
}

void update_destroy(struct update *u)
{
  if (!u) return;
  CUDACHECK(cudaFree(u->weights));
  CUDACHECK(cudaFree(u->result));
  free(u);
}

size_t update_bytes(size_t count)
{
  return 2 * count * sizeof(float);
}

ncclResult_t update_weights(const struct update *u, sparse_allreduce_t handle, cudaStream_t stream)
{
  return sparse_allreduce_add(handle, SCALE, u->weights, stream);
}

const float *update_dense(const struct update *u, sparse_allreduce_t handle)
{
  CUDACHECK(cudaDeviceSynchronize());
  CUDACHECK(cudaMemset(u->result, 0, u->count * sizeof *u->result));
  SPARSECHECK(sparse_allreduce_add(handle, 1, u->result, 0));
  CUDACHECK(cudaDeviceSynchronize());
  return u->result;
}

/* ---- what is expected ------------------------------------------------------------------------ */

/* GPUs have one NaN as the result of arithmetic. */
static float one_nan(float x)
{
  const uint32_t bits = 0x7fffffff;
  if (isnan(x)) memcpy(&x, &bits, sizeof x);
  return x;
}

static void add(float *weight, float result)
{
  *weight = one_nan(fmaf(SCALE, result, *weight));
}

void update_expect(float *weights, const struct reference *ref, const float *result)
{
  if (ref->dense || ref->fell_back) {
    for (size_t i = 0; i < ref->n; i++) add(&weights[i], result[i]);
    return;
  }
  for (size_t e = 0; e < ref->nglobal; e++)
    add(&weights[ref->global[e].index], one_nan(ref->global[e].value / (float)ref->nranks));
}
