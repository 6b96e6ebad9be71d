/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CPU_CUDA_BF16_H
#define COMMON_CPU_CUDA_BF16_H
#include "cuda_fp16.h"
CPU_FLOAT16(__nv_bfloat16, bfloat16)
#endif
