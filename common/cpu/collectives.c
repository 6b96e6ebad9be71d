/* SPDX-License-Identifier: Apache-2.0 */
/* The communication calls. A call only checks its arguments and is written down; at the end of the
 * group (a call outside of a group is a group of one) the calls on one communicator become one
 * operation of a stream. That operation carries out the collectives, in the order of the calls,
 * as patterns of transfers, and then all sends and receives of the group at the same time. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND, RECEIVE };

struct call {
  enum kind kind;
  const char *name; /* for messages */
  ncclComm_t comm;
  struct CUstream_st *stream;
  const char *from;
  char *to;
  size_t count, size; /* elements, bytes per element */
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer; /* or root */
};

struct batch {
  struct operation base;
  ncclComm_t comm;
  size_t n;
  struct call calls[];
};

/* ---- collectives as patterns of transfers -------------------------------------------------- */

/* The transfers of one step of a pattern: at most one send and one receive per peer. */
struct step {
  ncclComm_t comm;
  size_t n;
  struct transfer list[2 * MAX_RANKS];
};

static void add(struct step *step, bool send, const char *data, size_t bytes, int peer)
{
  step->list[step->n++] = (struct transfer){
      .data = (char *)(uintptr_t)data, .bytes = bytes, .peer = peer, .send = send};
}

static bool go(struct step *step)
{
  bool ok = cpu_transfer(step->comm, step->list, step->n);
  step->n = 0;
  return ok;
}

static bool broadcast(struct step *step, const struct call *call)
{
  int me = step->comm->rank;
  size_t bytes = call->count * call->size;
  if (me != call->peer) {
    add(step, false, call->to, bytes, call->peer);
    return go(step);
  }
  for (int r = 0; r < step->comm->nranks; r++)
    if (r != me) add(step, true, call->from, bytes, r);
  if (call->to != call->from) memmove(call->to, call->from, bytes);
  return go(step);
}

/* AllGather and AlltoAll: the one sends the same block to everyone, the other to each its own. */
static bool exchange(struct step *step, const struct call *call)
{
  int me = step->comm->rank;
  size_t bytes = call->count * call->size;
  bool same = call->kind == ALL_GATHER;
  for (int r = 0; r < step->comm->nranks; r++) {
    const char *from = call->from + (same ? 0 : (size_t)r * bytes);
    char *to = call->to + (size_t)r * bytes;
    if (r != me) {
      add(step, true, from, bytes, r);
      add(step, false, to, bytes, r);
    } else if (from != to) {
      memmove(to, from, bytes);
    }
  }
  return go(step);
}

/* How many elements a rank can reduce at a time: it holds that many of every rank. */
static size_t piece_elements(const struct step *step, const struct call *call)
{
  return TEMPORARY_BYTES / ((size_t)step->comm->nranks * call->size);
}

/* The heart of the reductions, collective: rank r reduces the `count[r]` elements at `from[r]` of
 * all ranks into `to`. Its own contribution stays where it is, those of the others pass through
 * temporary memory. All contributions have left this rank when it returns, so that the result may
 * take the place of the input. */
static bool reduce_to_owners(struct step *step, const struct call *call, const char *const *from,
                             const size_t *count, char *to)
{
  int me = step->comm->rank, n = step->comm->nranks;
  const char *contributions[MAX_RANKS];
  size_t mine = count[me] * call->size;
  for (int r = 0; r < n; r++) {
    contributions[r] = r == me ? from[me] : step->comm->temporary + (size_t)r * mine;
    if (r == me) continue;
    add(step, true, from[r], count[r] * call->size, r);
    add(step, false, contributions[r], mine, r);
  }
  if (!go(step)) return false;
  if (mine > 0) cpu_reduce(to, contributions, n, count[me], call->type, call->op);
  return true;
}

static bool reduce(struct step *step, const struct call *call)
{
  int n = step->comm->nranks;
  size_t most = piece_elements(step, call);
  bool ok = true;
  for (size_t done = 0; done < call->count && ok; done += most) {
    size_t piece = call->count - done < most ? call->count - done : most;
    const char *from[MAX_RANKS] = {NULL};
    size_t count[MAX_RANKS] = {0};
    for (int r = 0; r < n; r++) {
      from[r] = call->from + done * call->size;
      count[r] = r == call->peer ? piece : 0;
    }
    char *to = step->comm->rank == call->peer ? call->to + done * call->size : NULL;
    ok = reduce_to_owners(step, call, from, count, to);
  }
  return ok;
}

static bool reduce_scatter(struct step *step, const struct call *call)
{
  int n = step->comm->nranks;
  size_t most = piece_elements(step, call);
  bool ok = true;
  for (size_t done = 0; done < call->count && ok; done += most) {
    size_t piece = call->count - done < most ? call->count - done : most;
    const char *from[MAX_RANKS] = {NULL};
    size_t count[MAX_RANKS] = {0};
    for (int r = 0; r < n; r++) {
      from[r] = call->from + ((size_t)r * call->count + done) * call->size;
      count[r] = piece;
    }
    ok = reduce_to_owners(step, call, from, count, call->to + done * call->size);
  }
  return ok;
}

/* A piece is cut into one slice per rank: each reduces its slice and gives the result to all. */
static bool all_reduce(struct step *step, const struct call *call)
{
  int n = step->comm->nranks, me = step->comm->rank;
  size_t most = piece_elements(step, call) * (size_t)n;
  bool ok = true;
  for (size_t done = 0; done < call->count && ok; done += most) {
    size_t piece = call->count - done < most ? call->count - done : most;
    const char *from[MAX_RANKS];
    char *to[MAX_RANKS] = {NULL};
    size_t count[MAX_RANKS];
    for (size_t r = 0; r < (size_t)n; r++) {
      size_t start = piece * r / (size_t)n;
      from[r] = call->from + (done + start) * call->size;
      to[r] = call->to + (done + start) * call->size;
      count[r] = piece * (r + 1) / (size_t)n - start;
    }
    ok = reduce_to_owners(step, call, from, count, to[me]);
    for (int r = 0; r < n; r++) {
      if (r == me) continue;
      add(step, true, to[me], count[me] * call->size, r);
      add(step, false, to[r], count[r] * call->size, r);
    }
    ok = ok && go(step);
  }
  return ok;
}

/* ---- running a batch ----------------------------------------------------------------------- */

static bool run_collective(ncclComm_t comm, const struct call *call)
{
  struct step step;
  step.comm = comm;
  step.n = 0;
  if (call->count == 0) return true;
  switch (call->kind) {
  case BROADCAST:
    return broadcast(&step, call);
  case ALL_GATHER:
  case ALL_TO_ALL:
    return exchange(&step, call);
  case REDUCE:
    return reduce(&step, call);
  case REDUCE_SCATTER:
    return reduce_scatter(&step, call);
  case ALL_REDUCE:
    return all_reduce(&step, call);
  default:
    return true; /* SEND and RECEIVE come later, together */
  }
}

static void run_batch(struct operation *operation)
{
  const struct batch *batch = (const struct batch *)operation;
  bool ok = true;
  for (size_t i = 0; i < batch->n && ok; i++) ok = run_collective(batch->comm, &batch->calls[i]);
  struct transfer *transfers = cpu_allocate(batch->n * sizeof(*transfers));
  size_t n = 0;
  for (size_t i = 0; i < batch->n; i++) {
    const struct call *call = &batch->calls[i];
    if (call->kind != SEND && call->kind != RECEIVE) continue;
    bool send = call->kind == SEND;
    transfers[n++] = (struct transfer){.data = send ? (char *)(uintptr_t)call->from : call->to,
                                       .bytes = call->count * call->size,
                                       .peer = call->peer,
                                       .send = send};
  }
  if (ok) cpu_transfer(batch->comm, transfers, n);
  free(transfers);
}

static void release_batch(struct operation *operation)
{
  cpu_comm_release(((struct batch *)operation)->comm);
}

/* ---- groups -------------------------------------------------------------------------------- */

static _Thread_local struct {
  int depth;
  ncclResult_t error; /* of the first call of the group that failed */
  struct call *calls;
  size_t n, room;
} group;

/* As NCCL does it: the group runs when all its streams have come to it, and none goes on before
 * it is done. `first` makes the others wait and carries the operation. */
static cudaError_t wait_for_stream(struct CUstream_st *waiting, struct CUstream_st *stream)
{
  if (waiting == stream) return cudaSuccess;
  cudaEvent_t event = cpu_event_create(cudaEventDisableTiming);
  cudaError_t error = cpu_event_record(event, stream);
  if (error == cudaSuccess) error = cpu_event_wait(waiting, event);
  cpu_event_release(event);
  return error;
}

static ncclResult_t queue_batch(struct batch *batch)
{
  struct CUstream_st *first = batch->calls[0].stream;
  cudaError_t error = cudaSuccess;
  for (size_t i = 1; i < batch->n && error == cudaSuccess; i++)
    if (batch->calls[i].stream != batch->calls[i - 1].stream)
      error = wait_for_stream(first, batch->calls[i].stream);
  if (error != cudaSuccess) {
    cpu_operation_free(&batch->base);
    return cpu_nccl_error(ncclUnhandledCudaError, "%s", cpu_error_string(error));
  }
  /* The streams to hold back afterwards: the batch may be gone once it is queued. */
  struct CUstream_st **others = cpu_allocate(batch->n * sizeof(struct CUstream_st *));
  size_t n = 0;
  for (size_t i = 1; i < batch->n; i++)
    if (batch->calls[i].stream != batch->calls[i - 1].stream) others[n++] = batch->calls[i].stream;
  cpu_stream_queue(first, &batch->base);
  for (size_t i = 0; i < n; i++) wait_for_stream(others[i], first);
  free(others);
  return ncclSuccess;
}

/* One batch per communicator, in the order of its first call. Takes the calls out of the list. */
static ncclResult_t queue_calls(struct call *calls, size_t n)
{
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < n; i++) {
    ncclComm_t comm = calls[i].comm;
    if (comm == NULL) continue; /* taken */
    struct batch *batch =
        cpu_operation(sizeof(*batch) + (n - i) * sizeof(batch->calls[0]), run_batch, release_batch);
    batch->base.order = &comm->order;
    batch->comm = comm;
    cpu_comm_retain(comm);
    for (size_t j = i; j < n; j++) {
      if (calls[j].comm != comm) continue;
      batch->calls[batch->n++] = calls[j];
      calls[j].comm = NULL;
    }
    ncclResult_t queued = queue_batch(batch);
    if (result == ncclSuccess) result = queued;
  }
  return result;
}

ncclResult_t ncclGroupStart(void)
{
  group.depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
  if (group.depth == 0)
    return cpu_nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  ncclResult_t result = group.error;
  if (result == ncclSuccess) result = queue_calls(group.calls, group.n);
  free(group.calls);
  memset(&group, 0, sizeof(group));
  return result;
}

/* ---- checking calls ------------------------------------------------------------------------ */

/* Is there `blocks` times the call's data at `pointer`? */
static ncclResult_t check_buffer(const struct call *call, const char *which, const void *pointer,
                                 size_t blocks)
{
  if (call->count == 0) return ncclSuccess;
  if (call->count > SIZE_MAX / call->size / blocks)
    return cpu_nccl_error(ncclInvalidArgument, "%s: count %zu is too large", call->name,
                          call->count);
  size_t needed = call->count * call->size * blocks, extent = cpu_memory_extent(pointer, NULL);
  if (extent == 0)
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s %p is not device memory", call->name, which,
                          pointer);
  if (extent < needed)
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s needs %zu bytes and its memory has %zu",
                          call->name, which, needed, extent);
  return ncclSuccess;
}

static ncclResult_t check(const struct call *call)
{
  ncclComm_t comm = call->comm;
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  bool reduces = call->kind <= REDUCE_SCATTER;
  if (call->size == 0 || (reduces && call->type > ncclBfloat16))
    return cpu_nccl_error(ncclInvalidArgument, "%s: data type %d", call->name, (int)call->type);
  if ((unsigned)call->op >= ncclNumOps)
    return cpu_nccl_error(ncclInvalidArgument, "%s: operation %d", call->name, (int)call->op);
  if (call->peer < 0 || call->peer >= comm->nranks)
    return cpu_nccl_error(ncclInvalidArgument, "%s: rank %d of %d ranks", call->name, call->peer,
                          comm->nranks);
  if (call->stream == NULL || call->stream->device != cpu_device(comm->device))
    return cpu_nccl_error(ncclUnhandledCudaError,
                          "%s: the stream is not one of the communicator's device %d", call->name,
                          comm->device);
  /* Which buffers count, and how many blocks they hold. */
  size_t n = (size_t)comm->nranks;
  bool root = comm->rank == call->peer;
  bool sends = call->kind != RECEIVE && (call->kind != BROADCAST || root);
  bool receives = call->kind != SEND && (call->kind != REDUCE || root);
  if (sends)
    result = check_buffer(call, "sendbuff", call->from,
                          call->kind == REDUCE_SCATTER || call->kind == ALL_TO_ALL ? n : 1);
  if (result == ncclSuccess && receives)
    result = check_buffer(call, "recvbuff", call->to,
                          call->kind == ALL_GATHER || call->kind == ALL_TO_ALL ? n : 1);
  return result;
}

static ncclResult_t submit(enum kind kind, const char *name, const void *from, void *to,
                           size_t count, ncclDataType_t type, ncclRedOp_t op, int peer,
                           ncclComm_t comm, cudaStream_t stream)
{
  struct call call = {kind, name, comm, NULL, from, to, count, cpu_type_size(type), type, op, peer};
  if (comm != NULL) call.stream = cpu_stream(stream, comm->device);
  ncclResult_t result = check(&call);
  if (group.depth == 0) return result == ncclSuccess ? queue_calls(&call, 1) : result;
  if (result != ncclSuccess) {
    if (group.error == ncclSuccess) group.error = result;
    return result;
  }
  if (group.n == group.room) {
    size_t room = group.room > 0 ? 2 * group.room : 16;
    struct call *calls = cpu_allocate(room * sizeof(*calls));
    if (group.n > 0) memcpy(calls, group.calls, group.n * sizeof(*calls));
    free(group.calls);
    group.calls = calls;
    group.room = room;
  }
  group.calls[group.n++] = call;
  return ncclSuccess;
}

/* ---- the calls ----------------------------------------------------------------------------- */
/* Where a call has no operation or no peer, the value that passes the check stands for it. */

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
  return submit(ALL_REDUCE, __func__, sendbuff, recvbuff, count, datatype, op, 0, comm, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(REDUCE, __func__, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
  return submit(REDUCE_SCATTER, __func__, sendbuff, recvbuff, recvcount, datatype, op, 0, comm,
                stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  return submit(ALL_GATHER, __func__, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0, comm,
                stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(BROADCAST, __func__, sendbuff, recvbuff, count, datatype, ncclSum, root, comm,
                stream);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  return submit(ALL_TO_ALL, __func__, sendbuff, recvbuff, count, datatype, ncclSum, 0, comm,
                stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
  return submit(SEND, __func__, sendbuff, NULL, count, datatype, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
  return submit(RECEIVE, __func__, NULL, recvbuff, count, datatype, ncclSum, peer, comm, stream);
}
