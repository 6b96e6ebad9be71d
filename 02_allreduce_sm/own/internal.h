/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host code share. */
#ifndef ALLREDUCE_INTERNAL_H
#define ALLREDUCE_INTERNAL_H

#include <stdbool.h>

#include "allreduce.h"
#include "device.h"
#include "errors.h"

enum { ALLREDUCE_MAX_WINDOWS = 64 };

struct allreduce_window {
  ncclWindow_t window;
  char *base; /* the user's address */
  size_t bytes;
  char *peers[ALLREDUCE_MAX_RANKS];
};

struct allreduce_handle {
  ncclComm_t comm;
  int rank, n;
  struct allreduce_limits limits;  /* the same on all ranks */
  struct allreduce_device *device; /* NULL with a single rank */
  int windows;
  struct allreduce_window window[ALLREDUCE_MAX_WINDOWS];
};

#endif
