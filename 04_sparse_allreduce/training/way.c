/* SPDX-License-Identifier: Apache-2.0 */
#include "way.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "mlp.h"

void way_begin(struct way *way, ncclComm_t comm, const struct path *path,
               const sparse_allreduce_config_t *config, long seed)
{
  float weights[MLP_WEIGHTS];
  SPARSECHECK(sparse_allreduce_create(comm, MLP_WEIGHTS, config, &way->handle));
  way->residual = NULL;
  if (path->forgets) SPARSECHECK(sparse_allreduce_residual(way->handle, &way->residual));
  mlp_initial_weights(weights, (uint64_t)seed);
  CUDACHECK(cudaMemcpy(way->weights, weights, sizeof weights, cudaMemcpyHostToDevice));
}

void way_end(struct way *way, const struct rank *me)
{
  SPARSECHECK(sparse_allreduce_destroy(way->handle));
  launcher_barrier(me); /* several GPUs in one process: see sparse_allreduce_destroy */
}

void way_forget(const struct way *way, cudaStream_t stream)
{
  static const size_t bytes = MLP_WEIGHTS * sizeof(float);
  if (way->residual) CUDACHECK(cudaMemsetAsync(way->residual, 0, bytes, stream));
}

/* The weights of this rank's `way`, in host memory, to be freed. */
static float *weights_of(const struct way *way)
{
  static const size_t bytes = MLP_WEIGHTS * sizeof(float);
  float *weights = malloc(bytes);
  if (!weights) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  CUDACHECK(cudaMemcpy(weights, way->weights, bytes, cudaMemcpyDeviceToHost));
  return weights;
}

/* Whether they are the same to the last bit; NaN is no exception. */
static int compare(const struct path *path, const struct epoch *epoch, const float *weights,
                   const float *others, const char *where)
{
  for (int i = 0; i < MLP_WEIGHTS; i++) {
    if (memcmp(&weights[i], &others[i], sizeof *weights) == 0) continue;
    launcher_error("%s, epoch %ld: weight %d is %.9g, %s it is %.9g", path->name, epoch->number, i,
                   (double)weights[i], where, (double)others[i]);
    return EXIT_WRONG_DATA;
  }
  return EXIT_VERIFIED;
}

/* All ranks began with the same weights and were given the same averages. So they have the same
 * weights now, however they were updated, or something is wrong. */
int ways_agree(const struct rank *me, const struct path *path, const struct epoch *epoch,
               const struct way *entries, const struct way *dense)
{
  CUDACHECK(cudaDeviceSynchronize());
  float *weights = weights_of(entries), *others = weights_of(dense);
  int code = compare(path, epoch, weights, others, "by the dense result");
  memcpy(others, weights, MLP_WEIGHTS * sizeof *others);
  launcher_broadcast(me, others, MLP_WEIGHTS * sizeof *others, 0);
  if (code == EXIT_VERIFIED) code = compare(path, epoch, weights, others, "on rank 0");
  free(weights);
  free(others);
  return launcher_agree(me, code);
}
