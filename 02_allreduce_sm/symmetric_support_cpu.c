/* SPDX-License-Identifier: Apache-2.0 */
#include "symmetric_support.h"

#include <stddef.h>

enum symmetric_support symmetric_support(ncclComm_t comm, ncclWindow_t window, const char **why)
{
  (void)comm, (void)window;
  *why = "the CPU stand-in has windows but no symmetric kernels";
  return SYMMETRIC_NO;
}
