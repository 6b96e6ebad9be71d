/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

#include "check.h"
#include "hash.h"

static const char images[][1 + MLP_INPUT + 1] = {
#include "digits.inc"
};
_Static_assert(sizeof images / sizeof *images == DIGITS_IMAGES, "digits.inc is not whole");

static void *device_memory(size_t words)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, words * sizeof(float)));
  return memory;
}

void mlp_create(struct mlp *mlp, int capacity)
{
  float pixels[DIGITS_IMAGES * MLP_INPUT];
  int labels[DIGITS_IMAGES];
  const size_t n = (size_t)capacity;
  for (int image = 0; image < DIGITS_IMAGES; image++) {
    labels[image] = images[image][0] - '0';
    for (int i = 0; i < MLP_INPUT; i++) {
      const char letter = images[image][1 + i];
      pixels[image * MLP_INPUT + i] = letter == '.' ? 0 : (float)(letter - 'a' + 1) / 16;
    }
  }
  *mlp = (struct mlp){.weights = device_memory(MLP_WEIGHTS),
                      .gradient = device_memory(MLP_WEIGHTS),
                      .values = device_memory(n * MLP_VALUES),
                      .slopes = device_memory(n * MLP_VALUES),
                      .loss = device_memory(n),
                      .right = device_memory(n),
                      .pixels = device_memory(DIGITS_IMAGES * MLP_INPUT),
                      .labels = device_memory(DIGITS_IMAGES),
                      .order = device_memory(DIGITS_IMAGES)};
  CUDACHECK(cudaMemcpy(mlp->pixels, pixels, sizeof pixels, cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemcpy(mlp->labels, labels, sizeof labels, cudaMemcpyHostToDevice));
}

void mlp_destroy(struct mlp *mlp)
{
  void *memory[] = {mlp->weights, mlp->gradient, mlp->values, mlp->slopes, mlp->loss,
                    mlp->right,   mlp->pixels,   mlp->labels, mlp->order};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) CUDACHECK(cudaFree(memory[i]));
}

void mlp_initial_weights(float *weights, uint64_t seed)
{
  for (int layer = 1; layer <= 3; layer++) {
    const int in = mlp_width(layer - 1), out = mlp_width(layer);
    const float bound = sqrtf(6.0f / (float)in); /* He: scores neither grow nor vanish */
    for (int i = 0; i < in * out; i++)
      *weights++ = bound * ((float)(hash_next(&seed) >> 40) * 0x1p-23f - 1);
    for (int o = 0; o < out; o++) *weights++ = 0;
  }
}
