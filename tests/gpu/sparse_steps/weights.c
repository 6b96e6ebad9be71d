/* SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

static const float SCALE = -0.3f;

void weights_init(struct weights *w, size_t n)
{
  *w = (struct weights){.n = n, .expected = malloc(n * sizeof(float))};
  for (size_t i = 0; i < n; i++)
    w->expected[i] = i % 5 == 0 ? 0.0f : i % 5 == 1 ? -0.0f : (float)(i % 1000) / 7 - 70;
  CUDACHECK(cudaMalloc((void **)&w->device, n * sizeof(float)));
  CUDACHECK(cudaMemcpy(w->device, w->expected, n * sizeof(float), cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
}

void weights_free(struct weights *w)
{
  CUDACHECK(cudaFree(w->device));
  free(w->expected);
}

void weights_add(const struct weights *w, sparse_allreduce_t handle, cudaStream_t stream)
{
  SPARSECHECK(sparse_allreduce_add(handle, SCALE, w->device, stream));
}

static float one_nan(float x)
{
  const uint32_t bits = 0x7fffffff;
  if (isnan(x)) memcpy(&x, &bits, sizeof x);
  return x;
}

static void add(struct weights *w, size_t i, float average)
{
  w->expected[i] = one_nan(fmaf(SCALE, average, w->expected[i]));
}

void weights_expect(struct weights *w, const struct reference *ref, const float *dense)
{
  if (ref->dense || ref->fell_back) {
    float *host = malloc(w->n * sizeof(float));
    CUDACHECK(cudaMemcpy(host, dense, w->n * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < w->n; i++) add(w, i, host[i]);
    free(host);
  } else {
    for (size_t e = 0; e < ref->nglobal; e++)
      add(w, ref->global[e].index, one_nan(ref->global[e].value / (float)ref->nranks));
  }
}

bool weights_beside_capture(ncclComm_t comm, cudaStream_t stream)
{
  enum { COUNT = 1000 };
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  sparse_allreduce_t handle;
  struct weights w;
  float ones[COUNT], got[COUNT], *gradient;
  cudaGraph_t graph;
  config.algorithm = SPARSE_TOPKA;
  config.warmup_steps = 1;
  config.result = SPARSE_RESULT_ENTRIES;
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  weights_init(&w, COUNT);
  CUDACHECK(cudaMalloc((void **)&gradient, sizeof ones));
  CUDACHECK(cudaMemcpy(gradient, ones, sizeof ones, cudaMemcpyHostToDevice));
  CUDACHECK(cudaDeviceSynchronize());
  SPARSECHECK(sparse_allreduce_create(comm, COUNT, &config, &handle));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  SPARSECHECK(sparse_allreduce_run(handle, gradient, NULL, stream));
  CUDACHECK(cudaStreamEndCapture(stream, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  weights_add(&w, handle, stream);
  for (size_t i = 0; i < COUNT; i++) add(&w, i, 1);
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaMemcpy(got, w.device, sizeof got, cudaMemcpyDeviceToHost));
  const bool good = memcmp(got, w.expected, sizeof got) == 0;
  SPARSECHECK(sparse_allreduce_destroy(handle));
  CUDACHECK(cudaFree(gradient));
  weights_free(&w);
  return good;
}
