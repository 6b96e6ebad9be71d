/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of 02_allreduce_sm/lib with 2 to 8 ranks on one GPU, compared bit for bit with plain
 * C: all methods in turns, random delays, vectors without elements, in place and not, numbers of
 * blocks from 1 to 5. Under compute-sanitizer --tool memcheck, too. Prints one line per case. */
#include "one_gpu.h"

#include <stdlib.h>
#include <string.h>

static long calls_of_a_case = 100;

static const struct option_spec options[] = {
    {"calls", 0, OPTION_LONG, &calls_of_a_case, "N", "of each case (100)", 1, MAX_CALLS},
    {0},
};

static void *device_memory(size_t bytes)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, bytes));
  CUDACHECK(cudaMemset(memory, 0, bytes));
  return memory;
}

/* Random calls. */
static int run_case(int n, ncclDataType_t type, int blocks)
{
  static struct calls c;
  enum allreduce_method methods[MAX_CALLS];
  struct one_gpu job = {.n = n, .limit = 20000000000u};
  char *host = malloc(ONE_GPU_ROOM);
  int code = EXIT_VERIFIED;
  if (!host) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  c.n = 0;
  c.bytes = 0;
  for (int i = 0; i < calls_of_a_case; i++) {
    const unsigned seed = (unsigned)((n * 20 + (int)type) * 1000 + blocks * 100000 + i);
    const unsigned long long random = hash(seed);
    const size_t count = random % 8 == 0 ? 0 : (random >> 8) % ((size_t)8 << (random >> 32) % 6);
    calls_add(ONE_GPU_ROOM, &c, type, count, seed);
    methods[i] = (enum allreduce_method)((random >> 40) % ALLREDUCE_METHODS);
  }
  for (int p = 0; p < n; p++) {
    job.send[p] = device_memory(ONE_GPU_ROOM);
    job.recv[p] = device_memory(ONE_GPU_ROOM);
    job.inputs[p] = device_memory(ONE_GPU_ROOM);
    job.results[p] = device_memory(ONE_GPU_ROOM);
    job.scratch[p] = device_memory(allreduce_lines_of(n, ALLREDUCE_PUSH).at +
                                   (size_t)n * ONE_GPU_BLOCKS * ALLREDUCE_SLOTS * ONE_GPU_SLOT);
    job.state[p] = device_memory(sizeof *job.state[p]);
    for (int i = 0; i < c.n; i++) call_fill(&c.call[i], p, host + c.call[i].at + GUARD);
    CUDACHECK(cudaMemcpy(job.inputs[p], host, c.bytes, cudaMemcpyHostToDevice));
  }
  CUDACHECK(cudaHostAlloc((void **)&job.error, (size_t)n * sizeof *job.error, cudaHostAllocMapped));
  memset(job.error, 0, (size_t)n * sizeof *job.error);
  one_gpu_launch(&job, &c, methods, blocks, 10000);
  for (int p = 0; p < n; p++) {
    if (job.error[p].kind != ALLREDUCE_ERROR_NONE) {
      launcher_error("rank %d: error %d, rank %d", p, job.error[p].kind, job.error[p].peer);
      code = EXIT_WRONG_DATA;
    }
    CUDACHECK(cudaMemcpy(host, job.results[p], ONE_GPU_ROOM, cudaMemcpyDeviceToHost));
    for (int i = 0; i < c.n && code == EXIT_VERIFIED; i++) {
      const struct call *k = &c.call[i];
      if (call_is_right(k, n, host + k->at + GUARD)) continue;
      launcher_error("rank %d, call %d is wrong: method %d, count %zu", p, i, (int)methods[i],
                     k->count);
      code = EXIT_WRONG_DATA;
    }
    void *const memory[] = {job.send[p],    job.recv[p],    job.inputs[p],
                            job.results[p], job.scratch[p], job.state[p]};
    for (int i = 0; i < 6; i++) CUDACHECK(cudaFree(memory[i]));
  }
  CUDACHECK(cudaFreeHost(job.error));
  free(host);
  return code;
}

static int run(const struct rank *me, const struct options *opt)
{
  static const ncclDataType_t types[] = {ncclFloat, ncclHalf, ncclDouble, ncclInt32, ncclBfloat16};
  int code = EXIT_VERIFIED;
  (void)opt;
  if (me->nranks != 1)
    return launcher_refuse(me, "one GPU is enough; allowed: NTHREADS=1, mpirun -np 1");
  CUDACHECK(cudaSetDevice(me->device));
  for (int n = 2; n <= ONE_GPU_RANKS; n++)
    for (int i = 0; i < 5; i++) {
      launcher_step("ranks on one GPU");
      const int found = run_case(n, types[i], 1 + (n + i) % ONE_GPU_BLOCKS);
      launcher_print(me, "%s - %d ranks, type %d\n", found == EXIT_VERIFIED ? "ok" : "not ok", n,
                     (int)types[i]);
      if (found != EXIT_VERIFIED) code = found;
    }
  return code;
}

int main(int argc, char **argv)
{
  static const struct program program = {
      .name = "one_gpu",
      .summary = "the kernels of 02_allreduce_sm/lib with several ranks on one GPU",
      .options = options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
