/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the CPU stand-in that CUDA and NCCL do not have: they launch the plain C version of
 * a kernel, and give it access to the memory of other ranks.
 *
 * Everything here is for `make CPU=1` only. */
#ifndef COMMON_CPU_CPU_H
#define COMMON_CPU_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Like kernel<<<..., stream>>>(args): enqueues fn on the stream with a copy of the `bytes`
 * bytes at `args`. Under stream capture it becomes a node of the graph instead, with that copy as
 * its arguments at every launch. fn runs on the stream's worker thread and must not call CUDA or
 * NCCL. */
cudaError_t cpu_launch(cudaStream_t stream, void (*fn)(const void *args), const void *args,
                       size_t bytes);

/* Blocks the calling worker until ready(arg) is true or `seconds` have passed; returns the last
 * value of ready. It sleeps, and calls ready again whenever a rank of comm calls cpu_notify for
 * this rank. Memory that a peer wrote before its cpu_notify is visible to ready. */
bool cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg, double seconds);

/* Wakes the cpu_wait of `peer` in comm. Earlier writes of this thread are visible to it. */
void cpu_notify(ncclComm_t comm, int peer);

#ifdef __cplusplus
}
#endif
#endif
