/* SPDX-License-Identifier: Apache-2.0 */
/* What the host code (allreduce.c) asks of the device: device.cu with GPUs, device_cpu.c on the
 * stand-in. Functions return NCCL's codes and have set the sentence where they fail. */
#ifndef ALLREDUCE_DEVICE_H
#define ALLREDUCE_DEVICE_H

#include <cuda_runtime.h>
#include <nccl.h>

#include "allreduce.h"
#include "choose.h"
#include "protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL's device interface came with 2.28; loads and stores of 128 bits, which PTX makes single
 * ones, with CUDA 12.3. */
#define ALLREDUCE_HAS_DEVICE_CODE \
  (NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) && CUDART_VERSION >= 12030)

/* What a rank remembers from call to call, in device memory: each block has a copy of its own,
 * which it reads by one load. */
struct allreduce_state {
  struct allreduce_memory {
    uint64_t number; /* of the last call */
    uint64_t broken; /* a wait was given up: this rank sends nothing any more */
  } block[ALLREDUCE_MAX_BLOCKS];
  uint32_t reported; /* the first error, which stays */
};

enum allreduce_error_kind {
  ALLREDUCE_ERROR_NONE,
  ALLREDUCE_ERROR_TIMEOUT, /* `peer` did not come */
  ALLREDUCE_ERROR_COUNT,   /* `peer` has called with another count, type or place */
};

/* In host memory that the device can write; `kind` is written last. */
struct allreduce_error {
  int kind, peer;
};

/* One AllReduce. Addresses are as this rank sees them; those of other ranks matter to two-shot. */
struct allreduce_call {
  struct allreduce_shape shape;
  ncclDataType_t type;
  size_t count;
  uint32_t check;
  struct allreduce_slice slice; /* for two-shot */
  const char *send[ALLREDUCE_MAX_RANKS];
  char *recv[ALLREDUCE_MAX_RANKS];
};

struct allreduce_device;

/* Bytes of an element; 0: no sums of this type. */
size_t allreduce_size_of(ncclDataType_t type);

/* Seconds to wait for another rank, 0: for ever. */
double allreduce_timeout(const allreduce_config_t *config);

enum { ALLREDUCE_ID = 32 };

/* "" or why this rank cannot; `ids` name the GPUs of all n ranks, as cudaDeviceGetPCIBusId does;
 * one that could not find out has "". Sets what it can at most. Local. */
const char *allreduce_device_why_not(ncclComm_t comm, int n, const char *ids,
                                     struct allreduce_limits *limits);

/* How this rank's device reaches the GPU of that id. Local. GPUs have atomic operations on each
 * other's memory over NVLink, not over PCIe. Of a GPU that this process does not see nothing is
 * known. */
enum allreduce_link { ALLREDUCE_LINK_UNKNOWN, ALLREDUCE_LINK_PCIE, ALLREDUCE_LINK_NVLINK };
enum allreduce_link allreduce_device_link(int device, const char *id);

/* Local: memory, among it the scratch memory, of zeros; and how many blocks of each method this GPU
 * runs at once. What has been made when it fails is to be destroyed. */
ncclResult_t allreduce_device_create(ncclComm_t comm, int rank, int n,
                                     const allreduce_config_t *config,
                                     struct allreduce_limits *limits,
                                     struct allreduce_device **device);

/* Collective. A slower peer may still store a flag, which nobody reads any more: it stores through
 * its own mapping, which keeps the memory until that peer, too, has given back its window. So there
 * is no barrier, and a peer that never comes is not waited for. */
ncclResult_t allreduce_device_destroy(struct allreduce_device *device);

/* Collective: the scratch memory becomes a window. */
ncclResult_t allreduce_device_connect(struct allreduce_device *device);

/* Where this rank sees the beginning of the window of every rank. */
ncclResult_t allreduce_device_peers(struct allreduce_device *device, ncclWindow_t window,
                                    char **peers);

ncclResult_t allreduce_device_launch(struct allreduce_device *device,
                                     const struct allreduce_call *call, cudaStream_t stream);

struct allreduce_error *allreduce_device_error(struct allreduce_device *device);

#ifdef __cplusplus
}
#endif
#endif
