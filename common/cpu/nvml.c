/* SPDX-License-Identifier: Apache-2.0 */
/* What programs load from NVML: which devices are linked. See include/dlfcn.h. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

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
