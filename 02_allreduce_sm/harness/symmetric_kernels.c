/* SPDX-License-Identifier: Apache-2.0 */
#include "symmetric_kernels.h"

#include "check.h"
#include "lib/allreduce_internal.h"

bool type_has_symmetric_kernel(ncclDataType_t type)
{
  return type == ncclFloat || type == ncclHalf || type == ncclBfloat16;
}

/* No public call answers this, and a window that is not NULL proves nothing: up to NCCL 2.29.1 an
 * unsupported communicator gets an ordinary registration instead, and later versions make windows
 * even without kernels for them. But the direct AllReduce has the same needs as these kernels: all
 * ranks share memory, and from 2.29.7 on they do so over NVLink. Collective. */
static const char *ask(ncclComm_t comm, ncclDataType_t type, ncclWindow_t window, int runtime,
                       const char **why)
{
  allreduce_t probe = NULL;
  const ncclResult_t created = allreduce_create(comm, NULL, &probe);
  if (created != ncclInvalidUsage)
    CHECK_NCCL_RESULT(created, "allreduce_create(comm, NULL, &probe)", allreduce_last_error());
  *why = created == ncclSuccess ? "all GPUs reach each other's memory over NVLink"
                                : allreduce_last_error();
  CHECK_NCCL_RESULT(allreduce_destroy(probe), "allreduce_destroy(probe)", allreduce_last_error());
  if (window == NULL) return *why = "the window is NULL", "no";
  if (!type_has_symmetric_kernel(type)) return *why = "NCCL has none for sums of this type", "no";
#ifdef CPU_STANDIN
  return *why = "the CPU stand-in has windows but no symmetric kernels", "no";
#endif
  if (runtime >= NCCL_VERSION(2, 29, 2) && runtime < NCCL_VERSION(2, 29, 7))
    return *why = "NCCL 2.29.2 and 2.29.3 have none for some sizes", "unknown";
  if (created == ncclSuccess) return "yes";
  const bool same = NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0) && CUDART_VERSION >= 12030;
  return same && runtime >= NCCL_VERSION(2, 29, 7) ? "no" : "unknown";
}

bool note_symmetric_kernels(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                            ncclWindow_t window)
{
  /* a step for the watchdog: a rank that forgot to register waits here, the others at STEP 4 */
  launcher_step("STEP 4: are the windows symmetric?");
  const char *why = "";
  int runtime = 0;
  NCCLCHECK(ncclGetVersion(&runtime));
  const char *answer = ask(comm, type, window, runtime, &why);
  launcher_note(me, "symmetric kernels: %s (%s)", answer, why);
  return *answer == 'y';
}
