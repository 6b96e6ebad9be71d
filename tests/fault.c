/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand: a library to be preloaded into any of the programs, with a GPU or without.
 *
 *   gcc -shared -fPIC -I<folder of nccl.h and cuda_runtime.h> -o fault.so tests/fault.c -ldl
 *   FAULT=corrupt:ncclAllReduce:1:2 LD_PRELOAD=./fault.so ./allreduce_ub
 *
 * FAULT=<kind>:<call>:<n>:<rank>[:<element>], and the n-th call of that name (from 1) on that rank
 *   corrupt   is followed by one wrong element in its result: the given one, else the last
 *   fail      returns an error and does nothing
 *   hang      never returns
 *   kill      ends the process with SIGKILL
 *
 * The rank is that of mpirun's environment; without mpirun every rank is a thread, which is known
 * by the device that it sets and the rank that it gives to ncclCommInitRank. */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define LAST_ELEMENT (~(size_t)0)

enum kind { NONE, CORRUPT, FAIL, HANG, KILL };

static struct {
  enum kind kind;
  char call[64];
  long n, rank;
  size_t element;
} fault;

static int process_rank = -1;               /* under mpirun */
static _Thread_local int thread_rank = -1;  /* without it */
static _Thread_local long calls_so_far = 0; /* of fault.call, on this rank */

/* To be called by every interposed function. True if it is the one that has to go wrong; does not
 * return if that means hanging or dying. */
static bool is_faulty(const char *call)
{
  const int rank = process_rank >= 0 ? process_rank : thread_rank;
  if (fault.kind == NONE || rank != fault.rank || strcmp(call, fault.call) != 0) return false;
  if (++calls_so_far != fault.n) return false;
  if (fault.kind == KILL) raise(SIGKILL);
  while (fault.kind == HANG) pause();
  return true;
}

static uintptr_t real_function(const char *name) /* an integer: C knows no way from void * */
{
  void *function = dlsym(RTLD_NEXT, name);
  if (function) return (uintptr_t)function;
  fprintf(stderr, "fault: no function %s in the program\n", name);
  _exit(2);
}

/* The function of that name behind this library. */
#define REAL(name) ((__typeof__(&name))real_function(#name))

/* ---- the calls that can fail, hang or kill ------------------------------------------------------
 * X(error, name, (parameters), (arguments)); one line more for one call more. */
#define CALLS(NCCL, CUDA)                                                                    \
  NCCL(ncclGetVersion, (int *version), (version))                                            \
  NCCL(ncclMemAlloc, (void **pointer, size_t bytes), (pointer, bytes))                       \
  NCCL(ncclMemFree, (void *pointer), (pointer))                                              \
  NCCL(ncclCommRegister, (const ncclComm_t comm, void *buffer, size_t bytes, void **handle), \
       (comm, buffer, bytes, handle))                                                        \
  NCCL(ncclCommDeregister, (const ncclComm_t comm, void *handle), (comm, handle))            \
  NCCL(ncclCommWindowRegister,                                                               \
       (ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags),       \
       (comm, buffer, bytes, window, flags))                                                 \
  NCCL(ncclCommDestroy, (ncclComm_t comm), (comm))                                           \
  CUDA(cudaDeviceGetPCIBusId, (char *text, int length, int device), (text, length, device))  \
  CUDA(cudaMalloc, (void **pointer, size_t bytes), (pointer, bytes))                         \
  CUDA(cudaStreamCreate, (cudaStream_t * stream), (stream))                                  \
  CUDA(cudaDeviceSynchronize, (void), ())                                                    \
  CUDA(cudaStreamSynchronize, (cudaStream_t stream), (stream))

#define DEFINE(result, failure, name, parameters, arguments) \
  result name parameters                                     \
  {                                                          \
    if (is_faulty(#name)) return failure;                    \
    return REAL(name) arguments;                             \
  }
#define DEFINE_NCCL(...) DEFINE(ncclResult_t, ncclSystemError, __VA_ARGS__)
#define DEFINE_CUDA(...) DEFINE(cudaError_t, cudaErrorMemoryAllocation, __VA_ARGS__)
CALLS(DEFINE_NCCL, DEFINE_CUDA)

/* The end of MPI, of which no more is needed than that. */
int MPI_Finalize(void);
int MPI_Finalize(void)
{
  return is_faulty("MPI_Finalize") ? 1 : REAL(MPI_Finalize)();
}

/* ---- the calls that tell the rank ---------------------------------------------------------------
 */

cudaError_t cudaSetDevice(int device)
{
  if (thread_rank < 0) thread_rank = device;
  return REAL(cudaSetDevice)(device);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  thread_rank = rank;
  if (is_faulty("ncclCommInitRank")) return ncclSystemError;
  return REAL(ncclCommInitRank)(comm, nranks, id, rank);
}

/* ---- the calls whose result can be corrupted ----------------------------------------------------
 */

static size_t size_of(ncclDataType_t type)
{
  switch (type) {
  case ncclHalf:
  case ncclBfloat16:
    return 2;
  case ncclInt64:
  case ncclUint64:
  case ncclDouble:
    return 8;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat:
    return 4;
  default:
    return 1;
  }
}

/* The highest byte becomes 0xA5: negative in the signed types, and no whole number in the floating
 * ones. In the stream, behind the call, or behind the group that it belongs to. */
static _Thread_local int groups; /* open ones */
static _Thread_local struct {
  char *byte;
  cudaStream_t stream;
} pending;

static ncclResult_t corrupt_pending(void)
{
  if (groups > 0 || !pending.byte) return ncclSuccess;
  cudaError_t result = REAL(cudaMemsetAsync)(pending.byte, 0xA5, 1, pending.stream);
  pending.byte = NULL;
  return result == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t corrupt(void *buffer, size_t count, ncclDataType_t type, cudaStream_t stream)
{
  if (count == 0) return ncclSuccess;
  const size_t i = fault.element == LAST_ELEMENT ? count - 1 : fault.element; /* or behind it */
  pending.byte = (char *)buffer + (i + 1) * size_of(type) - 1;
  pending.stream = stream;
  return corrupt_pending();
}

ncclResult_t ncclGroupStart(void)
{
  groups++;
  return REAL(ncclGroupStart)();
}

ncclResult_t ncclGroupEnd(void)
{
  if (is_faulty("ncclGroupEnd")) return ncclSystemError;
  ncclResult_t result = REAL(ncclGroupEnd)();
  groups--;
  return result == ncclSuccess ? corrupt_pending() : result;
}

#define DEFINE_CORRUPTIBLE(name, buffer, count, type, stream, parameters, arguments)    \
  ncclResult_t name parameters                                                          \
  {                                                                                     \
    const bool faulty = is_faulty(#name);                                               \
    if (faulty && fault.kind == FAIL) return ncclSystemError;                           \
    ncclResult_t result = REAL(name) arguments;                                         \
    if (faulty && result == ncclSuccess) result = corrupt(buffer, count, type, stream); \
    return result;                                                                      \
  }

DEFINE_CORRUPTIBLE(ncclAllReduce, recvbuff, count, type, stream,
                   (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream),
                   (sendbuff, recvbuff, count, type, op, comm, stream))
DEFINE_CORRUPTIBLE(ncclAllGather, recvbuff, count, type, stream, /* what came from rank 0 */
                   (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                    ncclComm_t comm, cudaStream_t stream),
                   (sendbuff, recvbuff, count, type, comm, stream))
DEFINE_CORRUPTIBLE(ncclBroadcast, recvbuff, count, type, stream,
                   (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                    int root, ncclComm_t comm, cudaStream_t stream),
                   (sendbuff, recvbuff, count, type, root, comm, stream))
DEFINE_CORRUPTIBLE(ncclRecv, buffer, count, type, stream,
                   (void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                    cudaStream_t stream),
                   (buffer, count, type, peer, comm, stream))

/* Of what comes to the host the last byte; of cudaMemcpy the given one. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
  static const unsigned char wrong = 0xA5;
  const bool faulty = is_faulty("cudaMemcpyAsync");
  if (faulty && fault.kind == FAIL) return cudaErrorMemoryAllocation;
  cudaError_t result = REAL(cudaMemcpyAsync)(to, from, bytes, kind, stream);
  if (faulty && result == cudaSuccess && kind == cudaMemcpyDeviceToHost && bytes > 0)
    result = REAL(cudaMemcpyAsync)((char *)to + bytes - 1, &wrong, 1, cudaMemcpyHostToHost, stream);
  return result;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
  const bool faulty = is_faulty("cudaMemcpy");
  if (faulty && fault.kind == FAIL) return cudaErrorMemoryAllocation;
  cudaError_t result = REAL(cudaMemcpy)(to, from, bytes, kind);
  if (faulty && result == cudaSuccess && kind == cudaMemcpyDeviceToHost && bytes > 0)
    ((unsigned char *)to)[fault.element < bytes ? fault.element : bytes - 1] = 0xA5;
  return result;
}

/* ---- FAULT --------------------------------------------------------------------------------------
 */

#define NAME(name, parameters, arguments) #name,
static const char *const corruptible[] = {"ncclAllReduce", "ncclAllGather",   "ncclBroadcast",
                                          "ncclRecv",      "cudaMemcpyAsync", "cudaMemcpy"};
static const char *const others[] = {CALLS(NAME, NAME) "MPI_Finalize", "ncclCommInitRank",
                                     "ncclGroupEnd"};

static bool listed(const char *name, const char *const *list, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (strcmp(name, list[i]) == 0) return true;
  return false;
}

__attribute__((constructor)) static void read_fault(void)
{
  static const char *const kinds[] = {"none", "corrupt", "fail", "hang", "kill"};
  const char *text = getenv("FAULT");
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  char kind[16], rest = '\0';
  if (!rank) rank = getenv("PMI_RANK");
  if (rank) process_rank = atoi(rank);
  if (!text) return;

  fault.element = LAST_ELEMENT;
  int fields = sscanf(text, "%15[a-z]:%63[A-Za-z0-9_]:%ld:%ld%c%zu%c", kind, fault.call, &fault.n,
                      &fault.rank, &rest, &fault.element, &(char){0});
  const bool form = fields == 4 || (fields == 6 && rest == ':');
  for (size_t i = CORRUPT; form && i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(kind, kinds[i]) == 0) fault.kind = (enum kind)i;
  const bool can_corrupt =
      listed(fault.call, corruptible, sizeof corruptible / sizeof *corruptible);
  const bool known = can_corrupt || listed(fault.call, others, sizeof others / sizeof *others);
  if (fault.kind != NONE && fault.n >= 1 && fault.rank >= 0 && known &&
      (fault.kind != CORRUPT || can_corrupt))
    return;
  fprintf(stderr,
          "fault: FAULT='%s'; allowed: "
          "<corrupt|fail|hang|kill>:<call>:<n>:<rank>[:<element>], with "
          "a call that tests/fault.c knows\n",
          text);
  _exit(2);
}
