/* SPDX-License-Identifier: Apache-2.0 */
/* What the back end on GPUs keeps from alltoallv_lsa_create to alltoallv_lsa_destroy. */
#ifndef ALLTOALLV_LSA_STATE_CUH
#define ALLTOALLV_LSA_STATE_CUH

#include <nccl_device.h>

#include "alltoallv_lsa.h"

struct alltoallv_lsa {
  ncclComm_t comm;
  ncclDevComm dev_comm;
  bool have_dev_comm;
  int rank, n;
  struct alltoallv_lsa_config config;
  int max_blocks;
  struct alltoallv_scratch scratch;
  char *peer[ALLTOALLV_MAX_LSA_RANKS]; /* scratch memory */
  uint64_t stride;                     /* from one to the next */
  struct device_state *state;
  struct alltoallv_errors *errors; /* host memory that the device can write */
  char **windows;                  /* device: see kernel_args */
  ncclWindow_t window[ALLTOALLV_MAX_WINDOWS];
};

#endif
