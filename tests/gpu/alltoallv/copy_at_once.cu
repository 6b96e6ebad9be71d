/* SPDX-License-Identifier: Apache-2.0 */
/* A copy by a kernel that is launched early and does not wait, as NCCL's symmetric kernels
 * of 2.28.3 to 2.30.6. A multiple of 512 bytes. */
#include <cuda_runtime.h>

static __global__ void copy(char *to, const char *from)
{
  const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i];
}

extern "C" cudaError_t copy_at_once(char *to, const char *from, size_t bytes, cudaStream_t stream)
{
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {dim3(bytes / 512), 512, 0, stream, &early, 1};
  return cudaLaunchKernelEx(&config, copy, to, from);
}
