/* SPDX-License-Identifier: Apache-2.0 */
/* The communication calls. A call only checks its arguments and is written down; at the end of the
 * group (a call outside of a group is a group of one) the calls on one communicator become one
 * operation of a stream. That operation carries out the collectives, in the order of the calls,
 * as patterns of transfers, and then all sends and receives of the group at the same time. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND, RECEIVE };

static const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                    "ncclBroadcast", "ncclAlltoAll",      "ncclSend",
                                    "ncclRecv"};

/* The buffers of a call. */
enum which { SENDBUFF, RECVBUFF, BUFFERS };

struct call {
  enum kind kind;
  ncclComm_t comm;
  struct CUstream_st *stream;
  size_t count, size; /* elements, bytes per element */
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer; /* or root */
  char *buffers[BUFFERS];
  size_t blocks[BUFFERS]; /* how often they hold the count; 0: not used on this rank */
  struct registration *registered[BUFFERS];
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
  struct message message; /* kind and type of the call */
  size_t n;
  struct transfer list[2 * MAX_RANKS];
};

static void add(struct step *step, bool send, const char *data, size_t bytes, int peer)
{
  struct message message = {bytes, step->message.kind, step->message.type};
  step->list[step->n++] = (struct transfer){
      .data = (char *)(uintptr_t)data, .message = message, .peer = peer, .send = send};
}

/* Carries out the list. Where ranks do not mean the same, the sentence says what each meant. */
static bool carry_out(ncclComm_t comm, struct transfer *list, size_t n)
{
  const struct transfer *odd;
  struct message theirs;
  bool ok = cpu_transfer(comm, list, n, &odd, &theirs);
  if (odd == NULL) return ok;
  const struct message *ours = &odd->message;
  if (theirs.kind != ours->kind)
    cpu_control_fail(comm->control,
                     "rank %d calls %s where rank %d calls %s; allowed: the same calls in the same "
                     "order on all ranks",
                     comm->rank, names[ours->kind == SEND ? RECEIVE : ours->kind], odd->peer,
                     names[theirs.kind]);
  else
    cpu_control_fail(comm->control,
                     "ncclRecv: rank %d receives %zu elements of %s from rank %d, whose ncclSend "
                     "has %zu of %s; allowed: the same on both sides",
                     comm->rank, ours->bytes / cpu_type_size((ncclDataType_t)ours->type),
                     cpu_type_name((ncclDataType_t)ours->type), odd->peer,
                     theirs.bytes / cpu_type_size((ncclDataType_t)theirs.type),
                     cpu_type_name((ncclDataType_t)theirs.type));
  return false;
}

static bool go(struct step *step)
{
  bool ok = carry_out(step->comm, step->list, step->n);
  step->n = 0;
  return ok;
}

static bool broadcast(struct step *step, const struct call *call)
{
  int me = step->comm->rank;
  size_t bytes = call->count * call->size;
  if (me != call->peer) {
    add(step, false, call->buffers[RECVBUFF], bytes, call->peer);
    return go(step);
  }
  for (int r = 0; r < step->comm->nranks; r++)
    if (r != me) add(step, true, call->buffers[SENDBUFF], bytes, r);
  if (call->buffers[RECVBUFF] != call->buffers[SENDBUFF])
    memmove(call->buffers[RECVBUFF], call->buffers[SENDBUFF], bytes);
  return go(step);
}

/* AllGather and AlltoAll: the one sends the same block to everyone, the other to each its own. */
static bool exchange(struct step *step, const struct call *call)
{
  int me = step->comm->rank;
  size_t bytes = call->count * call->size;
  bool same = call->kind == ALL_GATHER;
  for (int r = 0; r < step->comm->nranks; r++) {
    const char *from = call->buffers[SENDBUFF] + (same ? 0 : (size_t)r * bytes);
    char *to = call->buffers[RECVBUFF] + (size_t)r * bytes;
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
      from[r] = call->buffers[SENDBUFF] + ((size_t)r * call->count + done) * call->size;
      count[r] = piece;
    }
    ok = reduce_to_owners(step, call, from, count, call->buffers[RECVBUFF] + done * call->size);
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
      from[r] = call->buffers[SENDBUFF] + (done + start) * call->size;
      to[r] = call->buffers[RECVBUFF] + (done + start) * call->size;
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

/* ---- do the ranks mean the same? ----------------------------------------------------------- */

static struct claim claim_of(const struct call *call)
{
  /* The buffers that peers may reach through a window; the other one may be a part of them. */
  static const bool symmetric[][BUFFERS] = {
      [ALL_REDUCE] = {true, true},
      [REDUCE_SCATTER] = {true, false},
      [ALL_GATHER] = {false, true},
      [ALL_TO_ALL] = {false, true},
  };
  struct claim claim;
  for (enum aspect a = 0; a < ASPECTS; a++) claim.values[a] = NO_CLAIM;
  claim.values[COUNT] = (int64_t)call->count;
  claim.values[TYPE] = (int64_t)call->type;
  claim.values[OPERATION] = (int64_t)call->op;
  claim.values[ROOT] = call->peer;
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    const struct registration *registered = call->registered[b];
    if (call->blocks[b] > 0)
      claim.values[SENDBUFF_KIND + b] = registered != NULL ? (int64_t)registered->kind : HOLDS;
    if (registered != NULL && registered->symmetric && symmetric[call->kind][b])
      claim.values[SENDBUFF_OFFSET + b] = call->buffers[b] - registered->start;
  }
  return claim;
}

/* Every rank tells every other what it means, and all come to the same verdict. */
static bool agree(struct step *step, const struct call *call)
{
  int me = step->comm->rank;
  struct claim claims[MAX_RANKS];
  claims[me] = claim_of(call);
  for (int r = 0; r < step->comm->nranks; r++) {
    if (r == me) continue;
    add(step, true, (const char *)&claims[me], sizeof(claims[me]), r);
    add(step, false, (const char *)&claims[r], sizeof(claims[r]), r);
  }
  return go(step) && cpu_claims_agree(step->comm, names[call->kind], claims);
}

/* ---- running a batch ----------------------------------------------------------------------- */

static bool run_collective(ncclComm_t comm, const struct call *call)
{
  if (call->kind == SEND || call->kind == RECEIVE) return true; /* later, together */
  struct step step;
  step.comm = comm;
  step.message = (struct message){.kind = call->kind, .type = call->type};
  step.n = 0;
  if (!agree(&step, call)) return false;
  if (call->count == 0) return true;
  switch (call->kind) {
  case BROADCAST:
    return broadcast(&step, call);
  case ALL_GATHER:
  case ALL_TO_ALL:
    return exchange(&step, call);
  case REDUCE_SCATTER:
    return reduce_scatter(&step, call);
  case ALL_REDUCE:
    return all_reduce(&step, call);
  default:
    return false;
  }
}

static void use(const struct batch *batch, int change)
{
  for (size_t i = 0; i < batch->n; i++)
    for (enum which b = SENDBUFF; b < BUFFERS; b++)
      if (batch->calls[i].registered[b] != NULL)
        cpu_registration_use(batch->calls[i].registered[b], change);
}

static void queued_batch(struct operation *operation)
{
  use((const struct batch *)operation, 1);
}

static void run_batch(struct operation *operation)
{
  const struct batch *batch = (const struct batch *)operation;
  int delay = cpu_settings()->delay;
  bool ok = true;
  if (delay > 0) nanosleep(&(struct timespec){delay / 1000, delay % 1000 * 1000000L}, NULL);
  for (size_t i = 0; i < batch->n && ok; i++) ok = run_collective(batch->comm, &batch->calls[i]);
  struct transfer *transfers = cpu_allocate(batch->n * sizeof(*transfers));
  size_t n = 0;
  for (size_t i = 0; i < batch->n; i++) {
    const struct call *call = &batch->calls[i];
    if (call->kind != SEND && call->kind != RECEIVE) continue;
    bool send = call->kind == SEND;
    transfers[n++] = (struct transfer){.data = call->buffers[send ? SENDBUFF : RECVBUFF],
                                       .message = {call->count * call->size, SEND, call->type},
                                       .peer = call->peer,
                                       .send = send};
  }
  if (ok) carry_out(batch->comm, transfers, n);
  free(transfers);
  const char *failure = cpu_control_failure(batch->comm->control);
  if (failure != NULL) cpu_worker_fail(failure);
  use(batch, -1);
}

static void release_call(const struct call *call)
{
  for (enum which b = SENDBUFF; b < BUFFERS; b++)
    if (call->registered[b] != NULL) cpu_registration_release(call->registered[b]);
}

static void release_batch(struct operation *operation)
{
  const struct batch *batch = (const struct batch *)operation;
  for (size_t i = 0; i < batch->n; i++) release_call(&batch->calls[i]);
  cpu_comm_release(batch->comm);
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
    batch->base.queued = queued_batch;
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
  if (result == ncclSuccess)
    result = queue_calls(group.calls, group.n);
  else
    for (size_t i = 0; i < group.n; i++) release_call(&group.calls[i]);
  free(group.calls);
  memset(&group, 0, sizeof(group));
  return result;
}

/* ---- checking calls ------------------------------------------------------------------------ */

/* Is what the call needs at its buffer? */
static ncclResult_t check_buffer(const struct call *call, enum which b)
{
  const char *name = names[call->kind], *which = b == SENDBUFF ? "sendbuff" : "recvbuff";
  if (call->count == 0 || call->blocks[b] == 0) return ncclSuccess;
  if (call->count > SIZE_MAX / call->size / call->blocks[b])
    return cpu_nccl_error(ncclInvalidArgument, "%s: count %zu is too large", name, call->count);
  size_t needed = call->count * call->size * call->blocks[b];
  size_t extent = cpu_memory_extent(call->buffers[b], NULL);
  if (extent == 0)
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s %p is not device memory", name, which,
                          (void *)call->buffers[b]);
  if (extent < needed)
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s needs %zu bytes and its memory has %zu",
                          name, which, needed, extent);
  return ncclSuccess;
}

/* Fills in what the call does with its buffers, if it can be made. */
static ncclResult_t check(struct call *call)
{
  ncclComm_t comm = call->comm;
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  bool reduces = call->kind <= REDUCE_SCATTER;
  if (call->size == 0 || (reduces && call->type > ncclBfloat16))
    return cpu_nccl_error(ncclInvalidArgument, "%s: data type %d", names[call->kind],
                          (int)call->type);
  if ((unsigned)call->op >= ncclNumOps)
    return cpu_nccl_error(ncclInvalidArgument, "%s: operation %d", names[call->kind],
                          (int)call->op);
  if (call->peer < 0 || call->peer >= comm->nranks)
    return cpu_nccl_error(ncclInvalidArgument, "%s: rank %d of %d ranks", names[call->kind],
                          call->peer, comm->nranks);
  if (call->stream == NULL || call->stream->device != cpu_device(comm->device))
    return cpu_nccl_error(ncclUnhandledCudaError,
                          "%s: the stream is not one of the communicator's device %d",
                          names[call->kind], comm->device);
  /* Which buffers count, and how many blocks they hold. */
  size_t n = (size_t)comm->nranks;
  if (call->kind != RECEIVE && (call->kind != BROADCAST || comm->rank == call->peer))
    call->blocks[SENDBUFF] = call->kind == REDUCE_SCATTER || call->kind == ALL_TO_ALL ? n : 1;
  if (call->kind != SEND)
    call->blocks[RECVBUFF] = call->kind == ALL_GATHER || call->kind == ALL_TO_ALL ? n : 1;
  result = check_buffer(call, SENDBUFF);
  if (result == ncclSuccess) result = check_buffer(call, RECVBUFF);
  for (enum which b = SENDBUFF; b < BUFFERS && result == ncclSuccess; b++)
    if (call->blocks[b] > 0)
      call->registered[b] =
          cpu_registration_find(comm, call->buffers[b], call->count * call->size * call->blocks[b]);
  return result;
}

static ncclResult_t submit(enum kind kind, const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm,
                           cudaStream_t stream)
{
  struct call call = {.kind = kind,
                      .comm = comm,
                      .count = count,
                      .size = cpu_type_size(type),
                      .type = type,
                      .op = op,
                      .peer = peer,
                      .buffers = {(char *)(uintptr_t)from, to}};
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
  return submit(ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
  return submit(REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  return submit(ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(BROADCAST, sendbuff, recvbuff, count, datatype, ncclSum, root, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  return submit(ALL_TO_ALL, sendbuff, recvbuff, count, datatype, ncclSum, 0, comm, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
  return submit(SEND, sendbuff, NULL, count, datatype, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
  return submit(RECEIVE, NULL, recvbuff, count, datatype, ncclSum, peer, comm, stream);
}
