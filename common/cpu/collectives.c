/* SPDX-License-Identifier: Apache-2.0 */
/* The communication calls. A call only checks its arguments and is stored. At the end of the group
 * (a call outside of a group is a group of one) the calls on one communicator become one operation
 * of a stream. That operation does the collectives, in the order of the calls, and then all sends
 * and receives of the group at the same time.
 *
 * In a collective the ranks meet and exchange the places of their buffers. Each does its share,
 * directly in the memory of the others. Then they meet again, and the program may use the buffers.
 * For a message the sender publishes the place of the data, and the receiver copies them. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind {
  ALL_REDUCE,
  REDUCE_SCATTER,
  ALL_GATHER,
  BROADCAST,
  REDUCE,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  SEND,
  RECEIVE,
  KINDS
};

/* The buffers of a call: how many times `count` elements; if it reaches peers through a window, the
 * offset there must agree. (The other buffer may be a part of the peers' ones.) */
enum { NONE, ONE, RANKS, SIZES = 3, ONLY_ROOT = 4, SYMMETRIC = 8 };
static const struct {
  const char *name;
  int buffers[BUFFERS];
} calls[KINDS] = {
    [ALL_REDUCE] = {"ncclAllReduce", {ONE | SYMMETRIC, ONE | SYMMETRIC}},
    [REDUCE_SCATTER] = {"ncclReduceScatter", {RANKS | SYMMETRIC, ONE}},
    [ALL_GATHER] = {"ncclAllGather", {ONE, RANKS | SYMMETRIC}},
    [BROADCAST] = {"ncclBroadcast", {ONE | ONLY_ROOT, ONE}},
    [REDUCE] = {"ncclReduce", {ONE, ONE | ONLY_ROOT}},
    [ALL_TO_ALL] = {"ncclAlltoAll", {RANKS, RANKS}},
    [GATHER] = {"ncclGather", {ONE, RANKS | ONLY_ROOT}},
    [SCATTER] = {"ncclScatter", {RANKS | ONLY_ROOT, ONE}},
    [SEND] = {"ncclSend", {ONE, NONE}},
    [RECEIVE] = {"ncclRecv", {NONE, ONE}},
};

struct call {
  struct call *next; /* of its batch */
  enum kind kind;
  ncclComm_t comm;
  struct CUstream_st *stream;
  size_t count, size; /* elements, bytes per element */
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer; /* or root */
  char *buffers[BUFFERS];
  size_t bytes[BUFFERS]; /* 0: not used on this rank */
  struct place places[BUFFERS];
  bool posted, done; /* for messages */
};

/* The calls of a group on one communicator. */
struct batch {
  struct batch *next; /* of the group */
  ncclComm_t comm;
  struct CUstream_st *stream;
  struct call *calls, **end;
};

/* ---- the memory of peers ------------------------------------------------------------------- */

/* The address of a peer's buffer in this process; NULL if the peer has freed it, which ends the
 * communicator. Mapping takes longer than most copies, so memory stays mapped until the peer uses
 * another buffer. */
static char *peer_memory(ncclComm_t comm, int peer, enum which b, const struct place *place)
{
  struct region **region = &comm->peers[peer][b];
  if (*region == NULL || (*region)->file.inode != place->inode) {
    if (*region != NULL) cpu_region_release(*region);
    *region = cpu_region_open(place, NULL, 0);
  }
  if (*region != NULL) return (*region)->base + place->offset;
  cpu_control_fail(comm->control, ncclInvalidUsage, "the memory of rank %d is gone", peer);
  return NULL;
}

/* ---- collectives --------------------------------------------------------------------------- */

_Static_assert(sizeof(struct claim) <= MEETING_BYTES, "a claim has to fit");

/* A call, and the buffers of all ranks. */
struct shared {
  const struct call *call;
  char *buffers[BUFFERS][MAX_RANKS];
};

static struct claim claim_of(const struct call *call)
{
  static const char *const operations[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
  static const char *const kinds[] = {"registered", "in a window", "not registered"};
  struct claim claim;
  memset(&claim, 0, sizeof(claim));
#define CLAIM(ASPECT, ...) snprintf(claim.is[ASPECT], sizeof(claim.is[ASPECT]), __VA_ARGS__)
  CLAIM(CALL, "%s", calls[call->kind].name);
  CLAIM(COUNT, "%zu elements", call->count);
  CLAIM(TYPE, "%s", cpu_type_name(call->type));
  CLAIM(OPERATION, "%s", operations[call->op]);
  CLAIM(ROOT, "%d", call->peer);
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    struct registration found = {.kind = HOLDS};
    if (call->bytes[b] == 0) continue;
    claim.places[b] = call->places[b];
    cpu_registration_find(call->comm, call->buffers[b], call->bytes[b], &found);
    CLAIM(SENDBUFF_KIND + b, "%s", kinds[found.kind]);
    if (found.symmetric && (calls[call->kind].buffers[b] & SYMMETRIC) != 0)
      CLAIM(SENDBUFF_OFFSET + b, "%td", call->buffers[b] - found.start);
  }
#undef CLAIM
  return claim;
}

/* Reduces the `count` elements at byte `from` of all sendbuffs to byte `to` of this rank's
 * recvbuff, in pieces that stay in the cache. If `give`, also copies the result to all other ranks.
 */
static void reduce(const struct shared *shared, size_t from, size_t to, size_t count, bool give)
{
  enum { PIECE = 4096 };
  const struct call *call = shared->call;
  const int n = call->comm->nranks, me = call->comm->rank;
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

static void copy(char *to, const char *from, size_t bytes)
{
  if (to != from) memcpy(to, from, bytes);
}

/* Does this rank's share. In place, no rank reads what another one writes: in an AllReduce each
 * slice of all buffers belongs to one rank. */
static void move(const struct shared *shared)
{
  const struct call *call = shared->call;
  size_t me = (size_t)call->comm->rank, n = (size_t)call->comm->nranks;
  size_t bytes = call->count * call->size, root = (size_t)call->peer;
  char *const *in = shared->buffers[SENDBUFF], *out = shared->buffers[RECVBUFF][me];
  const size_t start = call->count * me / n, end = call->count * (me + 1) / n;
  switch (call->kind) {
  case ALL_REDUCE:
    reduce(shared, start * call->size, start * call->size, end - start, true);
    break;
  case REDUCE:
    if (me == root) reduce(shared, 0, 0, call->count, false);
    break;
  case REDUCE_SCATTER:
    reduce(shared, me * bytes, 0, call->count, false);
    break;
  case BROADCAST:
    copy(out, in[root], bytes);
    break;
  case SCATTER:
    copy(out, in[root] + me * bytes, bytes);
    break;
  case ALL_TO_ALL:
    for (size_t r = 0; r < n; r++) copy(out + r * bytes, in[r] + me * bytes, bytes);
    break;
  default: /* ALL_GATHER, GATHER */
    for (size_t r = 0; r < n && out != NULL; r++) copy(out + r * bytes, in[r], bytes);
  }
}

static bool run_collective(ncclComm_t comm, const struct call *call)
{
  struct claim mine = claim_of(call), claims[MAX_RANKS];
  if (!cpu_meet(comm, STREAMS, &mine, claims, sizeof(mine))) return false;
  if (!cpu_claims_agree(comm, claims)) return false;
  if (call->count == 0) return true;
  struct shared shared = {.call = call};
  for (int r = 0; r < comm->nranks; r++)
    for (enum which b = SENDBUFF; b < BUFFERS; b++) {
      if (claims[r].places[b].inode == 0) continue;
      shared.buffers[b][r] = peer_memory(comm, r, b, &claims[r].places[b]);
      if (shared.buffers[b][r] == NULL) return false;
    }
  move(&shared);
  return cpu_meet(comm, STREAMS, NULL, NULL, 0);
}

/* ---- messages ------------------------------------------------------------------------------ */

static void copy_letter(ncclComm_t comm, const struct call *call, const struct letter *letter)
{
  if (letter->bytes != call->bytes[RECVBUFF]) {
    cpu_control_fail(comm->control, ncclInvalidUsage,
                     "ncclRecv: rank %d receives %zu elements of %s from rank %d, whose ncclSend "
                     "has %zu of %s; both sides must agree",
                     comm->rank, call->count, cpu_type_name(call->type), call->peer,
                     letter->bytes / cpu_type_size(letter->type), cpu_type_name(letter->type));
    return;
  }
  const char *from = peer_memory(comm, call->peer, SENDBUFF, &letter->from);
  if (from != NULL) memmove(call->buffers[RECVBUFF], from, letter->bytes);
}

/* Does the next step of a transfer if possible: posts or copies the letter, or sees it copied. */
static void advance(ncclComm_t comm, struct call *call)
{
  const bool send = call->kind == SEND;
  struct letter *letter = send ? cpu_letter(comm->control, comm->rank, call->peer)
                               : cpu_letter(comm->control, call->peer, comm->rank);
  if (letter->full == send) return;
  if (send && call->posted) {
    call->done = true;
    return;
  }
  if (send) {
    letter->type = call->type;
    letter->bytes = call->bytes[SENDBUFF];
    letter->from = call->places[SENDBUFF];
    call->posted = true;
  } else {
    copy_letter(comm, call, letter);
    if (cpu_control_result(comm->control) != ncclSuccess) return;
    call->done = true;
  }
  letter->full = send;
  cpu_notify(comm, call->peer);
}

/* Are all messages done? Messages of one direction and peer keep their order. */
static bool all_done(const void *argument)
{
  const struct batch *batch = argument;
  uint64_t busy[2] = {0, 0}; /* peers, by direction */
  for (struct call *call = batch->calls; call != NULL; call = call->next) {
    uint64_t bit = UINT64_C(1) << call->peer, *before = &busy[call->kind == SEND];
    if (!call->done && (*before & bit) == 0) advance(batch->comm, call);
    if (!call->done) *before |= bit;
  }
  return (busy[0] | busy[1]) == 0;
}

/* ---- running a batch ----------------------------------------------------------------------- */

static void use(const struct batch *batch, int change)
{
  for (const struct call *call = batch->calls; call != NULL; call = call->next)
    for (enum which b = SENDBUFF; b < BUFFERS; b++)
      cpu_registration_use(batch->comm, call->buffers[b], call->bytes[b], change);
}

/* The operations of a communicator run one after the other, in the order in which the host queues
 * them, in any streams. */
static void queued_batch(const void *args, struct CUstream_st *stream)
{
  const struct batch *batch = *(struct batch *const *)args;
  struct CUstream_st *last = batch->comm->stream;
  use(batch, 1);
  if (last == stream) return;
  batch->comm->stream = stream;
  if (last != NULL) cpu_stream_after(stream, last, cpu_stream_queued(last));
}

static void run_batch(const void *args)
{
  const struct batch *batch = *(struct batch *const *)args;
  int delay = cpu_settings()->delay;
  bool ok = true;
  if (delay > 0) nanosleep(&(struct timespec){delay / 1000, delay % 1000 * 1000000L}, NULL);
  for (struct call *call = batch->calls; call != NULL; call = call->next) {
    call->posted = false;
    call->done = call->kind < SEND || call->count == 0;
    if (call->kind < SEND && ok) ok = run_collective(batch->comm, call);
  }
  if (ok) cpu_wait(batch->comm, all_done, batch);
  const struct control *control = batch->comm->control;
  if (cpu_control_result(control) != ncclSuccess && !batch->comm->aborted)
    cpu_worker_fail(cpu_control_failure(control));
  use(batch, -1);
}

static void release_batch(const void *args)
{
  struct batch *batch = *(struct batch *const *)args;
  while (batch->calls != NULL) {
    struct call *call = batch->calls;
    batch->calls = call->next;
    free(call);
  }
  cpu_comm_release(batch->comm);
  free(batch);
}

/* ---- groups -------------------------------------------------------------------------------- */

/* A call that waits for other ranks, such as ncclCommInitRank. */
struct waiting {
  struct waiting *next;
  const void *order;
  struct waiting *before; /* the last one with the same order, or NULL */
  ncclResult_t (*run)(const void *args);
  pthread_t thread;
  bool awaited; /* by the next one with the same order */
  ncclResult_t result;
  char sentence[SENTENCE]; /* why it failed */
  _Alignas(max_align_t) char args[];
};

static _Thread_local struct {
  int depth;
  ncclResult_t error;    /* of the first call of the group that failed */
  struct batch *batches; /* one per communicator, in the order of its first call */
  struct waiting *calls;
} group;

static void *run_waiting(void *argument)
{
  struct waiting *call = argument;
  if (call->before != NULL) pthread_join(call->before->thread, NULL);
  call->result = call->run(call->args);
  snprintf(call->sentence, sizeof(call->sentence), "%s", cpu_nccl_sentence());
  return NULL;
}

/* The ranks of several calls may wait for each other, so each has a thread. */
static ncclResult_t end_waiting(void)
{
  ncclResult_t result = ncclSuccess;
  struct waiting *first = group.calls, *next;
  for (struct waiting *call = first; call != NULL; call = call->next)
    if (pthread_create(&call->thread, NULL, run_waiting, call) != 0)
      cpu_out_of_memory("a thread of a group");
  for (struct waiting *call = first; call != NULL; call = call->next)
    if (!call->awaited) pthread_join(call->thread, NULL);
  for (struct waiting *call = first; call != NULL; call = next) {
    next = call->next;
    if (result == ncclSuccess && call->result != ncclSuccess)
      result = cpu_nccl_error(call->result, "%s", call->sentence);
    free(call);
  }
  group.calls = NULL;
  return result;
}

ncclResult_t cpu_group_run(const void *order, ncclResult_t (*run)(const void *args),
                           const void *args, size_t bytes)
{
  if (group.depth == 0) return run(args);
  struct waiting *call = cpu_allocate(sizeof(*call) + bytes);
  call->order = order;
  call->run = run;
  memcpy(call->args, args, bytes);
  struct waiting **end = &group.calls;
  for (; *end != NULL; end = &(*end)->next)
    if ((*end)->order == order) call->before = *end;
  if (call->before != NULL) call->before->awaited = true;
  *end = call;
  return ncclSuccess;
}

static ncclResult_t add_to_group(struct call *call)
{
  struct batch **link = &group.batches;
  while (*link != NULL && (*link)->comm != call->comm) link = &(*link)->next;
  struct batch *batch = *link;
  if (batch == NULL) {
    batch = *link = cpu_allocate(sizeof(*batch));
    batch->comm = call->comm;
    batch->stream = call->stream;
    batch->end = &batch->calls;
    batch->comm->references++;
  }
  if (batch->stream != call->stream)
    return cpu_nccl_error(ncclInvalidUsage,
                          "%s: calls of a group on one communicator are in "
                          "several streams; the stand-in allows one",
                          calls[call->kind].name);
  *batch->end = call;
  batch->end = &call->next;
  return ncclSuccess;
}

ncclResult_t cpu_group_start(void)
{
  group.depth++;
  return ncclSuccess;
}

ncclResult_t cpu_group_end(void)
{
  if (group.depth == 0)
    return cpu_nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  ncclResult_t result = end_waiting();
  if (group.error != ncclSuccess) result = group.error;
  while (group.batches != NULL) {
    struct batch *batch = group.batches;
    group.batches = batch->next;
    if (result != ncclSuccess) {
      release_batch(&batch);
      continue;
    }
    struct operation *operation = cpu_operation(run_batch, release_batch, &batch, sizeof(batch));
    operation->queued = queued_batch;
    cpu_stream_queue(batch->stream, operation);
  }
  group.error = ncclSuccess;
  return result;
}

ncclResult_t ncclGroupStart(void) __attribute__((alias("cpu_group_start")));
ncclResult_t ncclGroupEnd(void) __attribute__((alias("cpu_group_end")));

/* ---- checking calls ------------------------------------------------------------------------ */

/* Is the buffer in device memory and large enough? */
static ncclResult_t check_buffer(struct call *call, enum which b)
{
  const char *name = calls[call->kind].name, *which = b == SENDBUFF ? "sendbuff" : "recvbuff";
  if (call->bytes[b] == 0) return ncclSuccess;
  size_t extent = cpu_memory_find(call->buffers[b], &call->places[b], NULL);
  if (extent == 0)
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s %p is not device memory", name, which,
                          (void *)call->buffers[b]);
  if (extent < call->bytes[b])
    return cpu_nccl_error(ncclInvalidArgument, "%s: %s needs %zu bytes and its memory has %zu",
                          name, which, call->bytes[b], extent);
  return ncclSuccess;
}

/* Checks the call and fills in the bytes and places of its buffers. */
static ncclResult_t check(struct call *call)
{
  const char *name = calls[call->kind].name;
  ncclComm_t comm = call->comm;
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  size_t n = (size_t)comm->nranks;
  if (call->size == 0)
    return cpu_nccl_error(ncclInvalidArgument, "%s: unknown data type %d", name, (int)call->type);
  if ((unsigned)call->op >= ncclNumOps)
    return cpu_nccl_error(ncclInvalidArgument, "%s: unknown operation %d", name, (int)call->op);
  if (call->peer < 0 || call->peer >= comm->nranks)
    return cpu_nccl_error(ncclInvalidArgument, "%s: no rank %d among %d ranks", name, call->peer,
                          comm->nranks);
  if (call->stream->device != cpu_device(comm->device))
    return cpu_nccl_error(ncclUnhandledCudaError,
                          "%s: the stream is not one of the communicator's device %d", name,
                          comm->device);
  if (call->count > SIZE_MAX / call->size / n)
    return cpu_nccl_error(ncclInvalidArgument, "%s: count %zu is too large", name, call->count);
  const size_t times[] = {0, 1, n}; /* NONE, ONE, RANKS */
  for (enum which b = SENDBUFF; b < BUFFERS && result == ncclSuccess; b++) {
    const int shape = calls[call->kind].buffers[b];
    if ((shape & ONLY_ROOT) == 0 || comm->rank == call->peer)
      call->bytes[b] = times[shape & SIZES] * call->count * call->size;
    result = check_buffer(call, b);
  }
  if (result == ncclSuccess) cpu_registration_note(comm, call->buffers, call->bytes);
  return result;
}

static ncclResult_t submit(enum kind kind, const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm,
                           cudaStream_t stream)
{
  struct call *call = cpu_allocate(sizeof(*call));
  *call = (struct call){.kind = kind,
                        .comm = comm,
                        .stream = comm != NULL ? cpu_stream(stream, comm->device) : NULL,
                        .count = count,
                        .size = cpu_type_size(type),
                        .type = type,
                        .op = op,
                        .peer = peer,
                        .buffers = {(char *)(uintptr_t)from, to}};
  cpu_group_start(); /* a call outside of a group is a group of one */
  ncclResult_t result = check(call);
  if (result == ncclSuccess) result = add_to_group(call);
  if (result != ncclSuccess) free(call);
  if (group.error == ncclSuccess) group.error = result;
  ncclResult_t ended = cpu_group_end();
  return result != ncclSuccess ? result : ended;
}

/* ---- the calls ----------------------------------------------------------------------------- */
/* A call without an operation or a peer passes a value that the check accepts. */

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

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t datatype, int root,
                       ncclComm_t comm, cudaStream_t stream)
{
  return submit(BROADCAST, buffer, buffer, count, datatype, ncclSum, root, comm, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(REDUCE, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
  return submit(ALL_TO_ALL, sendbuff, recvbuff, count, datatype, ncclSum, 0, comm, stream);
}

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(GATHER, sendbuff, recvbuff, count, datatype, ncclSum, root, comm, stream);
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
  return submit(SCATTER, sendbuff, recvbuff, count, datatype, ncclSum, root, comm, stream);
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
