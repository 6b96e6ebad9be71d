/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass reduced to its movement of bytes: residual[i] += gradient[i] and nothing else (the
 * last n % 4 elements are left out). What this takes, launch and end of a kernel included, no local
 * pass can go below. */
#ifndef SPARSE_BARE_H
#define SPARSE_BARE_H

#include <stddef.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues; returns what the launch returned. */
cudaError_t bare_pass(float *residual, const float *gradient, size_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
