/* SPDX-License-Identifier: Apache-2.0 */
/* The communication calls. A call only checks its arguments and is written down; at the end of the
 * group (a call outside of a group is a group of one) the calls on one communicator become one
 * operation of a stream. That operation carries out the collectives, in the order of the calls, and
 * then all sends and receives of the group at the same time.
 *
 * In a collective the ranks meet and say where their buffers are; each does its share, straight in
 * the memory of the others; then they meet again, and the buffers belong to the program again. For
 * a message the sender says where it is and the receiver copies it. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND, RECEIVE };

static const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                    "ncclBroadcast", "ncclAlltoAll",      "ncclSend",
                                    "ncclRecv"};
static const char *const buffer_names[BUFFERS] = {"sendbuff", "recvbuff"};

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
  struct place places[BUFFERS];
  struct registration *registered[BUFFERS];
};

struct batch {
  struct operation base;
  ncclComm_t comm;
  size_t n;
  struct call calls[];
};

/* ---- the memory of peers ------------------------------------------------------------------- */

/* Where this rank sees a buffer of a peer; NULL if that is gone. To map memory of another process
 * takes longer than most copies, so it stays mapped until the peer comes with another buffer. */
static char *peer_memory(ncclComm_t comm, int peer, enum which b, const struct place *place)
{
  struct region **region = &comm->peers[peer][b];
  if (*region == NULL || (*region)->file.inode != place->inode) {
    if (*region != NULL) cpu_region_release(*region);
    *region = cpu_region_open(REGION_PEER, place);
  }
  return *region != NULL ? (*region)->base + place->offset : NULL;
}

/* Memory of this process is there anyway, and must go when its owner frees it. */
static void let_go(ncclComm_t comm, int peer)
{
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    struct region **region = &comm->peers[peer][b];
    if (*region == NULL || !(*region)->owned) continue;
    cpu_region_release(*region);
    *region = NULL;
  }
}

/* ---- collectives --------------------------------------------------------------------------- */

/* What a rank tells the others about a call. */
struct note {
  struct claim claim;
  struct place places[BUFFERS];
};
_Static_assert(sizeof(struct note) <= MEETING_BYTES, "a note has to fit");

/* A call, and the buffers of all ranks. */
struct shared {
  const struct call *call;
  char *buffers[BUFFERS][MAX_RANKS];
};

static struct note note_of(const struct call *call)
{
  /* The buffers that peers may reach through a window; the other one may be a part of them. */
  static const bool symmetric[][BUFFERS] = {
      [ALL_REDUCE] = {true, true},
      [REDUCE_SCATTER] = {true, false},
      [ALL_GATHER] = {false, true},
      [ALL_TO_ALL] = {false, true},
  };
  struct note note;
  memset(&note, 0, sizeof(note));
  int64_t *claims = note.claim.values;
  for (enum aspect a = 0; a < ASPECTS; a++) claims[a] = NO_CLAIM;
  claims[CALL] = call->kind;
  claims[COUNT] = (int64_t)call->count;
  claims[TYPE] = (int64_t)call->type;
  claims[OPERATION] = (int64_t)call->op;
  claims[ROOT] = call->peer;
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    if (call->blocks[b] == 0) continue;
    const struct registration *registered = call->registered[b];
    note.places[b] = call->places[b];
    claims[SENDBUFF_KIND + b] = registered != NULL ? (int64_t)registered->kind : HOLDS;
    if (registered != NULL && registered->symmetric && symmetric[call->kind][b])
      claims[SENDBUFF_OFFSET + b] = call->buffers[b] - registered->start;
  }
  return note;
}

/* Reduces the `count` elements at byte `from` of all sendbuffs to byte `to` of this rank's
 * recvbuff, and gives the result to all others if they want it. In pieces that stay in the cache.
 */
static void reduce(const struct shared *shared, size_t from, size_t to, size_t count, bool give)
{
  enum { PIECE = 4096 };
  const struct call *call = shared->call;
  int me = call->comm->rank, n = call->comm->nranks;
  for (size_t done = 0; done < count; done += PIECE) {
    size_t piece = count - done < PIECE ? count - done : PIECE, at = done * call->size;
    const char *in[MAX_RANKS];
    for (int r = 0; r < n; r++) in[r] = shared->buffers[SENDBUFF][r] + from + at;
    char *result = shared->buffers[RECVBUFF][me] + to + at;
    cpu_reduce(result, in, n, piece, call->type, call->op);
    for (int r = 0; r < n && give; r++)
      if (r != me) memcpy(shared->buffers[RECVBUFF][r] + to + at, result, piece * call->size);
  }
}

/* This rank's share. In place, no rank reads what another one writes: in an AllReduce a slice of
 * all buffers belongs to one rank alone. */
static void move(const struct shared *shared)
{
  const struct call *call = shared->call;
  size_t me = (size_t)call->comm->rank, n = (size_t)call->comm->nranks;
  size_t bytes = call->count * call->size;
  char *const *in = shared->buffers[SENDBUFF], *out = shared->buffers[RECVBUFF][me];
  size_t start = call->count * me / n, end = call->count * (me + 1) / n;
  switch (call->kind) {
  case ALL_REDUCE:
    reduce(shared, start * call->size, start * call->size, end - start, true);
    break;
  case REDUCE_SCATTER:
    reduce(shared, me * bytes, 0, call->count, false);
    break;
  case BROADCAST:
    if (out != in[call->peer]) memcpy(out, in[call->peer], bytes);
    break;
  default: /* in an AllGather all get the same block, in an AlltoAll each its own */
    for (size_t r = 0; r < n; r++) {
      const char *from = in[r] + (call->kind == ALL_TO_ALL ? me * bytes : 0);
      if (out + r * bytes != from) memcpy(out + r * bytes, from, bytes);
    }
  }
}

static bool run_collective(ncclComm_t comm, const struct call *call)
{
  struct note mine = note_of(call), notes[MAX_RANKS];
  struct claim claims[MAX_RANKS];
  if (!cpu_meet(comm, STREAMS, &mine, notes, sizeof(mine))) return false;
  for (int r = 0; r < comm->nranks; r++) claims[r] = notes[r].claim;
  if (!cpu_claims_agree(comm, names, claims)) return false;
  if (call->count == 0) return true;
  struct shared shared = {.call = call};
  bool all_there = true;
  for (int r = 0; r < comm->nranks; r++)
    for (enum which b = SENDBUFF; b < BUFFERS; b++) {
      if (notes[r].claim.values[SENDBUFF_KIND + b] == NO_CLAIM) continue; /* has none */
      shared.buffers[b][r] = peer_memory(comm, r, b, &notes[r].places[b]);
      if (shared.buffers[b][r] != NULL) continue;
      cpu_control_fail(comm->control, "%s: the memory of rank %d is gone", names[call->kind], r);
      all_there = false;
    }
  if (all_there) move(&shared);
  for (int r = 0; r < comm->nranks; r++) let_go(comm, r);
  return all_there && cpu_meet(comm, STREAMS, NULL, NULL, 0);
}

/* ---- messages ------------------------------------------------------------------------------ */

/* The sends and receives of a group. */
struct transfer {
  const struct call *call;
  bool posted, done;
};

struct transfers {
  ncclComm_t comm;
  size_t n;
  struct transfer *list;
};

static void copy_letter(ncclComm_t comm, const struct call *call, const struct letter *letter)
{
  if (letter->bytes != call->count * call->size) {
    cpu_control_fail(comm->control,
                     "ncclRecv: rank %d receives %zu elements of %s from rank %d, whose ncclSend "
                     "has %zu of %s; allowed: the same on both sides",
                     comm->rank, call->count, cpu_type_name(call->type), call->peer,
                     letter->bytes / cpu_type_size(letter->type), cpu_type_name(letter->type));
    return;
  }
  const char *from = peer_memory(comm, call->peer, SENDBUFF, &letter->from);
  if (from != NULL)
    memmove(call->buffers[RECVBUFF], from, letter->bytes);
  else
    cpu_control_fail(comm->control, "ncclRecv: the memory of rank %d is gone", call->peer);
  let_go(comm, call->peer);
}

/* Does what can be done for a transfer now: post or copy the letter, or see that it was copied. */
static void advance(ncclComm_t comm, struct transfer *t)
{
  const struct call *call = t->call;
  const bool send = call->kind == SEND;
  struct letter *letter = send ? cpu_letter(comm->control, comm->rank, call->peer)
                               : cpu_letter(comm->control, call->peer, comm->rank);
  if (atomic_load(&letter->full) == send) return;
  if (send && t->posted) {
    t->done = true;
    return;
  }
  if (send) {
    letter->type = call->type;
    letter->bytes = call->count * call->size;
    letter->from = call->places[SENDBUFF];
    t->posted = true;
  } else {
    copy_letter(comm, call, letter);
    if (cpu_control_failure(comm->control) != NULL) return;
    t->done = true;
  }
  atomic_store(&letter->full, send);
  cpu_notify(comm, call->peer);
}

/* Have all transfers been done? Those of one direction and peer keep their order. */
static bool all_done(const void *argument)
{
  const struct transfers *transfers = argument;
  uint64_t busy[2] = {0, 0}; /* peers, by direction */
  for (size_t i = 0; i < transfers->n; i++) {
    struct transfer *t = &transfers->list[i];
    uint64_t bit = UINT64_C(1) << t->call->peer, *before = &busy[t->call->kind == SEND];
    if (!t->done && (*before & bit) == 0) advance(transfers->comm, t);
    if (!t->done) *before |= bit;
  }
  return (busy[0] | busy[1]) == 0;
}

static void run_messages(const struct batch *batch)
{
  struct transfers transfers = {.comm = batch->comm};
  transfers.list = cpu_allocate(batch->n * sizeof(transfers.list[0]));
  for (size_t i = 0; i < batch->n; i++)
    if (batch->calls[i].kind >= SEND && batch->calls[i].count > 0)
      transfers.list[transfers.n++].call = &batch->calls[i];
  if (transfers.n > 0) cpu_wait(batch->comm, all_done, &transfers, HUGE_VAL);
  free(transfers.list);
}

/* ---- running a batch ----------------------------------------------------------------------- */

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
  for (size_t i = 0; i < batch->n && ok; i++)
    if (batch->calls[i].kind < SEND) ok = run_collective(batch->comm, &batch->calls[i]);
  if (ok) run_messages(batch);
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
static ncclResult_t check_buffer(struct call *call, enum which b)
{
  const char *name = names[call->kind], *which = buffer_names[b];
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
  call->places[b] = cpu_memory_place(call->buffers[b]);
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
  if (result != ncclSuccess) return result;
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    size_t bytes = call->count * call->size * call->blocks[b];
    if (bytes == 0) continue;
    call->registered[b] = cpu_registration_find(comm, call->buffers[b], bytes);
    cpu_registration_judge(comm, buffer_names[b], call->buffers[b], bytes, call->registered[b]);
  }
  if (call->blocks[SENDBUFF] > 0 && call->blocks[RECVBUFF] > 0)
    cpu_registration_judge_pair(comm, call->registered[SENDBUFF], call->registered[RECVBUFF]);
  return ncclSuccess;
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
