/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is not written for the stand-in, with calls as they stand in public C++ programs: several devices in
 * one thread, an AllReduce for each kind of pointer, a graph of it on a stream with a priority, a copy that relies on the
 * order of the default stream, and no look at any return code. foreign mistake: the ranks differ in the count. */
#include <cstdio>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

int main(int argc, char **)
{
  const int devices = 3, count = 100000;
  std::vector<ncclComm_t> comms(devices);
  std::vector<cudaStream_t> streams(devices);
  std::vector<float *> send(devices), recv(devices);
  float *host;
  int least, greatest, wrong = 0;
  cudaMallocHost(&host, count * sizeof(float));
  for (int i = 0; i < count; i++) host[i] = i % 1000;
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int d = 0; d < devices; d++) {
    cudaSetDevice(d);
    ncclCommInitRank(&comms[d], devices, id, d);
  }
  ncclGroupEnd();
  for (int d = 0; d < devices; d++) {
    cudaSetDevice(d);
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStreamCreateWithPriority(&streams[d], cudaStreamDefault, greatest);
    cudaMalloc(&send[d], count * sizeof(float));
    cudaMalloc(&recv[d], count * sizeof(float));
    cudaMemcpyAsync(send[d], host, count * sizeof(float), cudaMemcpyHostToDevice); // the default stream
  }
  ncclGroupStart();
  for (int d = 0; d < devices; d++)
    ncclAllReduce(send[d], recv[d], count - (argc > 1 && d == 1), ncclFloat, ncclSum, comms[d], streams[d]);
  ncclGroupEnd();
  for (int d = 0; d < devices; d++) {
    std::vector<float> got(count);
    cudaSetDevice(d);
    cudaMemcpy(got.data(), recv[d], count * sizeof(float), cudaMemcpyDeviceToHost);
    for (int i = 0; i < count; i++) wrong += got[i] != devices * host[i];
    while (cudaStreamQuery(streams[d]) == cudaErrorNotReady) continue;
  }

  cudaSetDevice(0);
  ncclComm_t alone;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ncclCommInitAll(&alone, 1, nullptr);
  cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal);
  ncclReduce(send[0], recv[0], count, ncclFloat, ncclSum, 0, alone, streams[0]);
  ncclBcast(recv[0], count, ncclFloat, 0, alone, streams[0]);
  cudaStreamEndCapture(streams[0], &graph);
  cudaGraphInstantiate(&exec, graph, nullptr, nullptr, 0);
  cudaGraphUpload(exec, streams[0]);
  cudaGraphLaunch(exec, streams[0]);
  cudaMemcpy(host, recv[0], sizeof(float), cudaMemcpyDeviceToHost);
  ncclCommAbort(alone);
  for (int d = 0; d < devices; d++) {
    cudaFree(send[d]);
    cudaFree(recv[d]);
    ncclCommDestroy(comms[d]);
  }
  std::printf("%d wrong\n", wrong);
  return wrong != 0 && argc == 1;
}
