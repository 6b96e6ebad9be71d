/* SPDX-License-Identifier: Apache-2.0 */
/* What programs load from the driver's libraries: from NVML which devices are linked, from libcuda
 * flags that a stream sets and awaits. See include/dlfcn.h. */
#include <cuda.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

/* ---- NVML ------------------------------------------------------------------------------------ */

int nvmlInit_v2(void)
{
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
  *device = (void *)(uintptr_t)strtoul(id + strlen("0000:"), NULL, 16);
  return 0;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int capability, int *status)
{
  enum { OK = 0, NOT_SUPPORTED = 2 };
  const struct settings *s = cpu_settings();
  const uintptr_t apart = (uintptr_t)(s->pci_bus + s->pcie);
  (void)capability;
  *status = s->pcie >= 0 && ((uintptr_t)a == apart || (uintptr_t)b == apart) ? NOT_SUPPORTED : OK;
  return 0;
}

/* ---- flags of streams ------------------------------------------------------------------------ */

struct batch {
  unsigned count;
  CUstreamBatchMemOpParams operations[];
};

static void run_batch(const void *args)
{
  const struct batch *batch = args;
  for (unsigned i = 0; i < batch->count; i++) {
    const CUstreamBatchMemOpParams *o = &batch->operations[i];
    unsigned *flag = (unsigned *)(uintptr_t)o->writeValue.address;
    if (o->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
      __atomic_store_n(flag, o->writeValue.value, __ATOMIC_RELEASE);
    else
      while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != o->waitValue.value)
        nanosleep(&(struct timespec){0, 20000}, NULL);
  }
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams *operations, unsigned flags)
{
  (void)flags;
  for (unsigned i = 0; i < count; i++)
    if (operations[i].operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
        (operations[i].operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         operations[i].waitValue.flags != CU_STREAM_WAIT_VALUE_EQ))
      return CUDA_ERROR_NOT_SUPPORTED;
  const size_t bytes = sizeof(struct batch) + count * sizeof(*operations);
  struct batch *batch = cpu_allocate(bytes);
  batch->count = count;
  memcpy(batch->operations, operations, count * sizeof(*operations));
  cpu_stream_queue(cpu_stream(stream, -1), cpu_operation(run_batch, NULL, batch, bytes));
  free(batch);
  return CUDA_SUCCESS;
}
