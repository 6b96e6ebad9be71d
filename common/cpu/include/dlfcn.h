/* SPDX-License-Identifier: Apache-2.0 */
/* Programs open NVML to ask whether GPUs are linked. With the stand-in they get it instead: even on
 * a machine with a driver, and with no file of NVML's name, which other programs could find. */
#ifndef COMMON_CPU_DLFCN_H
#define COMMON_CPU_DLFCN_H

#include_next <dlfcn.h>
#include <string.h>

static inline void *cpu_dlopen(const char *name, int flags)
{
  const int is_nvml = name != NULL && strcmp(name, "libnvidia-ml.so.1") == 0;
  return dlopen(is_nvml ? "libcpu_standin.so" : name, flags);
}
#define dlopen(name, flags) cpu_dlopen(name, flags)
#endif
