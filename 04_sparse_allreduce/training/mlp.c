/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

#include "check.h"

static const int WIDTH[MLP_LAYERS + 1] = {MLP_INPUT, MLP_HIDDEN_1, MLP_HIDDEN_2, MLP_OUTPUT};

/* Where the weights of a layer begin; layers count from 1. */
static size_t first_weight(int layer)
{
  size_t first = 0;
  for (int l = 1; l < layer; l++) first += (size_t)(WIDTH[l - 1] + 1) * (size_t)WIDTH[l];
  return first;
}

static float *floats(size_t n)
{
  float *memory;
  CUDACHECK(cudaMalloc((void **)&memory, n * sizeof *memory));
  return memory;
}

void mlp_images_create(struct mlp_images *images, const float *pixels, const int *labels, size_t n)
{
  images->pixels = floats(n * MLP_INPUT);
  CUDACHECK(cudaMalloc((void **)&images->labels, n * sizeof *labels));
  CUDACHECK(
      cudaMemcpy(images->pixels, pixels, n * MLP_INPUT * sizeof *pixels, cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemcpy(images->labels, labels, n * sizeof *labels, cudaMemcpyHostToDevice));
}

void mlp_images_destroy(struct mlp_images *images)
{
  CUDACHECK(cudaFree(images->pixels));
  CUDACHECK(cudaFree(images->labels));
}

void mlp_create(struct mlp *mlp, int capacity, cudaStream_t stream)
{
  *mlp = (struct mlp){.stream = stream, .capacity = capacity};
  mlp->weights = floats(MLP_WEIGHTS);
  mlp->gradient = floats(MLP_WEIGHTS);
  for (int l = 0; l <= MLP_LAYERS; l++) mlp->values[l] = floats((size_t)(capacity * WIDTH[l]));
  for (int l = 1; l < MLP_LAYERS; l++) mlp->slopes[l] = floats((size_t)(capacity * WIDTH[l]));
  mlp->slopes[MLP_LAYERS] = mlp->values[MLP_LAYERS]; /* takes the scores' place */
  mlp->loss = floats((size_t)capacity);
  CUDACHECK(cudaMalloc((void **)&mlp->right, (size_t)capacity * sizeof *mlp->right));
}

void mlp_destroy(struct mlp *mlp)
{
  for (int l = 0; l <= MLP_LAYERS; l++) CUDACHECK(cudaFree(mlp->values[l]));
  for (int l = 1; l < MLP_LAYERS; l++) CUDACHECK(cudaFree(mlp->slopes[l]));
  CUDACHECK(cudaFree(mlp->weights));
  CUDACHECK(cudaFree(mlp->gradient));
  CUDACHECK(cudaFree(mlp->loss));
  CUDACHECK(cudaFree(mlp->right));
}

uint64_t mlp_random(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15ULL; /* splitmix64 */
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  return z ^ z >> 31;
}

void mlp_initial_weights(float *weights, uint64_t seed)
{
  for (int l = 1; l <= MLP_LAYERS; l++) {
    const float bound = sqrtf(6.0f / (float)WIDTH[l - 1]); /* He: scores neither grow nor vanish */
    for (int i = 0; i < WIDTH[l - 1] * WIDTH[l]; i++)
      *weights++ = bound * ((float)(mlp_random(&seed) >> 40) * 0x1p-23f - 1);
    for (int o = 0; o < WIDTH[l]; o++) *weights++ = 0;
  }
}

void mlp_forward(struct mlp *mlp, const struct mlp_images *images, const int *order, int n)
{
  struct mlp_loop loop = {.work = MLP_GATHER,
                          .rounds = n * MLP_INPUT,
                          .n = n,
                          .in = MLP_INPUT,
                          .to = mlp->values[0],
                          .order = order,
                          .images = *images};
  CUDACHECK(mlp_launch(&loop, mlp->stream));

  loop.work = MLP_LAYER;
  for (int l = 1; l <= MLP_LAYERS; l++) {
    loop.rounds = n * WIDTH[l];
    loop.in = WIDTH[l - 1];
    loop.out = WIDTH[l];
    loop.hidden = l < MLP_LAYERS;
    loop.weights = mlp->weights + first_weight(l);
    loop.below = mlp->values[l - 1];
    loop.to = mlp->values[l];
    CUDACHECK(mlp_launch(&loop, mlp->stream));
  }

  loop.work = MLP_LOSS;
  loop.rounds = n;
  loop.loss = mlp->loss;
  loop.right = mlp->right;
  CUDACHECK(mlp_launch(&loop, mlp->stream));
}

void mlp_backward(struct mlp *mlp, int n, float scale)
{
  struct mlp_loop loop = {.n = n, .scale = scale};
  for (int l = MLP_LAYERS; l >= 1; l--) {
    loop.in = WIDTH[l - 1];
    loop.out = WIDTH[l];
    loop.weights = mlp->weights + first_weight(l);
    loop.below = mlp->values[l - 1];
    loop.above = mlp->slopes[l];

    loop.work = MLP_GRADIENT; /* of all weights of the layer; zeros on a rank without images */
    loop.rounds = (loop.in + 1) * loop.out;
    loop.to = mlp->gradient + first_weight(l);
    CUDACHECK(mlp_launch(&loop, mlp->stream));

    if (l == 1) break; /* nobody changes the pixels */
    loop.work = MLP_SLOPE;
    loop.rounds = n * loop.in;
    loop.to = mlp->slopes[l - 1];
    CUDACHECK(mlp_launch(&loop, mlp->stream));
  }
}

void mlp_update(struct mlp *mlp, float *weights, const float *average, float rate)
{
  const struct mlp_loop loop = {
      .work = MLP_UPDATE, .rounds = MLP_WEIGHTS, .above = average, .to = weights, .scale = rate};
  CUDACHECK(mlp_launch(&loop, mlp->stream));
}
