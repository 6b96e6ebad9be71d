/* SPDX-License-Identifier: Apache-2.0 */
/* What barrier and lines need before the first exchange. */
#include <nccl_device.h>

#include "alltoallv_simple.h"

extern const void *const barrier_kernel, *const lines_kernel;

void simple_open(exchange *x)
{
  simple *s = &x->simple;
  const int n = x->me->nranks;
  const size_t lines = 2 * n * SIMPLE_LINES * sizeof(line);
  const size_t guarded_at = (sizeof(scratch) + lines + 4095) / 4096 * 4096;
  const size_t bytes = guarded_at + x->guarded_bytes;
  ncclDevComm dev_comm;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  int device;
  CUDACHECK(cudaGetDevice(&device));
  CUDACHECK(cudaDeviceGetAttribute(&s->blocks, cudaDevAttrMultiProcessorCount, device));
  if (s->blocks > SIMPLE_MAX_BLOCKS) s->blocks = SIMPLE_MAX_BLOCKS;
  requirements.lsaBarrierCount = s->blocks; /* one for each block of the kernel */
  NCCLCHECK(ncclDevCommCreate(x->comm, &requirements, &dev_comm));
  s->dev_comm = new ncclDevComm(dev_comm);
  NCCLCHECK(ncclMemAlloc((void **)&s->scratch, bytes));
  s->guarded = (char *)s->scratch + guarded_at;
  CUDACHECK(cudaMemset(s->scratch, 0, guarded_at));
  CUDACHECK(cudaDeviceSynchronize()); /* before a peer can reach it */
  NCCLCHECK(
      ncclCommWindowRegister(x->comm, s->scratch, bytes, &s->window, NCCL_WIN_COLL_SYMMETRIC));
  /* with lazy loading a first launch may wait for a device that waits for us: so load them now */
  cudaFuncAttributes attributes;
  CUDACHECK(cudaFuncGetAttributes(&attributes, barrier_kernel));
  CUDACHECK(cudaFuncGetAttributes(&attributes, lines_kernel));
  s->threads = attributes.maxThreadsPerBlock; /* of all, which have the same bounds */
}

void simple_close(exchange *x)
{
  ncclDevComm *dev_comm = (ncclDevComm *)x->simple.dev_comm;
  NCCLCHECK(ncclCommWindowDeregister(x->comm, x->simple.window));
  NCCLCHECK(ncclMemFree(x->simple.scratch));
  NCCLCHECK(ncclDevCommDestroy(x->comm, dev_comm));
  delete dev_comm;
}
