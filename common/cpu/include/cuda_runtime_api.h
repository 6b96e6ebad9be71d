/* SPDX-License-Identifier: Apache-2.0 */
/* Some programs include CUDA's part for C under this name. */
#include "cuda_runtime.h"
