/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators. The unique id names the process and the file descriptor of a control block. With
 * the id, a rank in any thread or process can map the block, and waits there until all ranks have
 * joined. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct place) <= NCCL_UNIQUE_ID_BYTES, "the id has to fit");

static _Thread_local char last_error[SENTENCE];

/* ---- errors -------------------------------------------------------------------------------- */

ncclResult_t cpu_nccl_error(ncclResult_t result, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  cpu_mistake(last_error);
  return result;
}

const char *cpu_nccl_sentence(void)
{
  return last_error;
}

const char *ncclGetLastError(ncclComm_t comm)
{
  (void)comm;
  cpu_mistake("");
  return last_error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  cpu_mistake("");
  return (unsigned)result <= ncclInProgress ? texts[result] : "unknown result code";
}

static ncclResult_t cuda_error(const char *call, cudaError_t error)
{
  if (error == cudaSuccess) return ncclSuccess;
  return cpu_nccl_error(ncclUnhandledCudaError, "%s: %s", call, cpu_error_string(error));
}

/* ---- joining ------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
  *version = cpu_settings()->nccl_version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *unique_id)
{
  memset(unique_id, 0, sizeof(*unique_id));
  memcpy(unique_id, &cpu_control_create()->file, sizeof(struct place));
  return ncclSuccess;
}

void cpu_comm_release(ncclComm_t comm)
{
  if (--comm->references > 0) return;
  cpu_region_release(comm->region);
  for (int r = 0; r < comm->nranks; r++)
    for (enum which b = SENDBUFF; b < BUFFERS; b++)
      if (comm->peers[r][b] != NULL) cpu_region_release(comm->peers[r][b]);
  free(comm);
}

struct init {
  ncclComm_t *comm;
  int nranks, rank, device;
  struct place id;
};

static ncclResult_t join(const void *args)
{
  const struct init *init = args;
  const int rank = init->rank, nranks = init->nranks;
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (rank == 0 && !cpu_settings()->quiet && !atomic_flag_test_and_set(&said))
    fputs("note: CPU stand-in: no GPU is used; for reading, learning and CI; timings mean "
          "nothing\n",
          stderr);
  struct region *region = cpu_region_open(&init->id, NULL, 0);
  if (region == NULL)
    return cpu_nccl_error(ncclInvalidArgument,
                          "the unique id is not one of this host's, or its process has ended");
  ncclComm_t comm = cpu_allocate(sizeof(*comm));
  comm->references = 1;
  comm->rank = rank;
  comm->nranks = nranks;
  comm->device = init->device;
  comm->region = region;
  comm->control = (struct control *)region->base;
  ncclResult_t joined = ncclSuccess;
  if (!cpu_control_join(comm->control, rank, nranks)) {
    cpu_control_fail(comm->control, ncclInvalidUsage,
                     "a rank does not match the ranks that have joined");
    joined = cpu_nccl_error(
        ncclInvalidUsage, "rank %d of %d does not match the ranks that have joined", rank, nranks);
  } else if (!cpu_meet(comm, HOSTS, NULL, NULL, 0)) {
    joined = cpu_nccl_error(ncclRemoteError, "another rank failed to join");
  }
  if (joined == ncclSuccess) {
    if (rank == 0 && region->owned) cpu_region_release(region); /* that of cpu_control_create */
    *init->comm = comm;
  } else {
    cpu_comm_release(comm);
  }
  return joined;
}

/* `id` is what ncclGetUniqueId has written, or the place of a control block. */
static ncclResult_t init_rank(ncclComm_t *comm, int nranks, const void *id, int rank, int device)
{
  struct init init = {comm, nranks, rank, device, {0}};
  *comm = NULL;
  if (nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
    return cpu_nccl_error(ncclInvalidArgument, "rank %d of %d; the stand-in has at most %d ranks",
                          rank, nranks, MAX_RANKS);
  if (cpu_device_check(device) != cudaSuccess)
    return cuda_error("ncclCommInitRank", cudaErrorInvalidDevice);
  memcpy(&init.id, id, sizeof(init.id));
  return cpu_group_run(comm, join, &init, sizeof(init));
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
  return init_rank(comm, nranks, &id, rank, cpu_current_device());
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
  (void)config; /* its fields tune NCCL only */
  return init_rank(comm, nranks, &id, rank, cpu_current_device());
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int nranks, const int *devices)
{
  for (int r = 0; r < nranks; r++) {
    comms[r] = NULL;
    if (cpu_device_check(devices != NULL ? devices[r] : r) != cudaSuccess)
      return cuda_error("ncclCommInitAll", cudaErrorInvalidDevice);
  }
  const struct place id = cpu_control_create()->file;
  cpu_group_start();
  for (int r = 0; r < nranks; r++)
    init_rank(&comms[r], nranks, &id, r, devices != NULL ? devices[r] : r);
  return cpu_group_end();
}

/* ---- splitting ----------------------------------------------------------------------------- */

struct wish {
  int color, key;
  struct place id;
};

struct split {
  ncclComm_t comm, *result;
  struct wish wish;
};

/* Each rank makes an id; the id of the first rank of each color is used. */
static ncclResult_t run_split(const void *args)
{
  const struct split *split = args;
  ncclComm_t comm = split->comm;
  ncclResult_t result = ncclSuccess;
  struct region *region = cpu_control_create();
  struct wish mine = split->wish, wishes[MAX_RANKS], *first = NULL;
  const int color = mine.color, key = mine.key;
  mine.id = region->file;
  if (!cpu_meet(comm, HOSTS, &mine, wishes, sizeof(mine))) {
    result = cpu_comm_check(comm);
  } else if (color != NCCL_SPLIT_NOCOLOR) {
    int members = 0, rank = 0;
    for (int r = 0; r < comm->nranks; r++) {
      if (wishes[r].color != color) continue;
      members++;
      if (first == NULL || wishes[r].key < first->key) first = &wishes[r];
      if (wishes[r].key < key || (wishes[r].key == key && r < comm->rank)) rank++;
    }
    const struct init init = {split->result, members, rank, comm->device, first->id};
    result = join(&init);
  }
  if (first == NULL || first->id.inode != mine.id.inode) cpu_region_release(region);
  return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
  (void)config;
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  *newcomm = NULL;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return cpu_nccl_error(ncclInvalidArgument, "ncclCommSplit: color %d", color);
  const struct split split = {comm, newcomm, {.color = color, .key = key}};
  return cpu_group_run(comm, run_split, &split, sizeof(split));
}

/* ---- leaving ------------------------------------------------------------------------------- */

/* This does not wait for other ranks: each has its own mapping of the control block, and the block
 * exists as long as any mapping. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
  comm->finalized = true;
  if (comm->stream != NULL) cpu_stream_wait(comm->stream);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
  if (comm == NULL) return ncclSuccess;
  if (comm->stream != NULL) cpu_stream_wait(comm->stream);
  cpu_registrations_end(comm);
  cpu_comm_release(comm);
  return ncclSuccess;
}

/* Ends what this rank has queued, even if other ranks never take part in it. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
  if (comm != NULL && comm->stream != NULL &&
      !cpu_stream_reached(comm->stream, cpu_stream_queued(comm->stream))) {
    comm->aborted = true;
    cpu_control_fail(comm->control, ncclRemoteError, "rank %d has called ncclCommAbort",
                     comm->rank);
  }
  return ncclCommDestroy(comm);
}

/* ---- queries ------------------------------------------------------------------------------- */

/* The first failure on any rank, with a text for ncclGetLastError. */
static ncclResult_t async_error(ncclComm_t comm)
{
  const ncclResult_t result = cpu_control_result(comm->control);
  if (result == ncclSuccess) return result;
  return cpu_nccl_error(result, "%s", cpu_control_failure(comm->control));
}

ncclResult_t cpu_comm_check(ncclComm_t comm)
{
  if (comm == NULL) return cpu_nccl_error(ncclInvalidArgument, "comm is NULL");
  if (comm->finalized) return cpu_nccl_error(ncclInvalidArgument, "comm is finalized");
  return async_error(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
  *error = async_error(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
  *count = comm->nranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
  *device = comm->device;
  return ncclSuccess;
}

/* ---- memory -------------------------------------------------------------------------------- */

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes)
{
  return cuda_error("ncclMemAlloc", cpu_memory_allocate(REGION_DEVICE, true, pointer, bytes));
}

ncclResult_t ncclMemFree(void *pointer)
{
  cudaError_t error = cpu_memory_free(REGION_DEVICE, pointer);
  ncclResult_t result = cuda_error("ncclMemFree", error);
  return error == cudaErrorNotPermitted ? ncclInvalidUsage : result;
}
