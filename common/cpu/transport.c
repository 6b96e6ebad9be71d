/* SPDX-License-Identifier: Apache-2.0 */
/* How bytes get from rank to rank. The ranks of a communicator share one control block. It holds a
 * ring buffer for every ordered pair of ranks, through which messages flow as a stream of bytes
 * (a struct message, then the payload), and for every rank a channel: a counter with a condition
 * variable that whoever has changed something for this rank moves on. A rank looks at all its
 * transfers, and if none of them can go on it sleeps until its channel moves. Nobody ever spins. */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The rings of all pairs together: with more ranks a ring is shorter. */
enum { RINGS_BYTES = 16 << 20, RING_BYTES_MAX = 64 << 10 };

struct channel {
  pthread_mutex_t lock;
  pthread_cond_t moved;
  uint64_t count;
};

/* Bytes written and read since the beginning; each has one writer and a cache line of its own. */
struct ring {
  _Alignas(64) _Atomic uint64_t written;
  _Alignas(64) _Atomic uint64_t read;
};

struct control {
  uint64_t nonce;
  atomic_bool failed;
  char failure[SENTENCE]; /* written before `failed` becomes true, then never again */
  struct channel meeting; /* guards the next five, and failing; counts completed meetings */
  int nranks;
  int arrived;
  uint64_t joined; /* one bit per rank */
  /* Two sets in turn: a rank can enter meeting k + 2 only when all have left meeting k. */
  char notes[2][MAX_RANKS][MEETING_BYTES];
  struct channel mail[MAX_RANKS]; /* moved when a ring of this rank has new bytes or new room */
  struct channel bell[MAX_RANKS]; /* moved by cpu_notify */
  struct ring rings[MAX_RANKS * MAX_RANKS];
  char bytes[RINGS_BYTES];
};

/* ---- channels ------------------------------------------------------------------------------ */

static void channel_init(struct channel *channel)
{
  pthread_mutexattr_t mutex;
  pthread_condattr_t cond;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&channel->lock, &mutex);
  pthread_mutexattr_destroy(&mutex);
  pthread_condattr_init(&cond);
  pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
  pthread_cond_init(&channel->moved, &cond);
  pthread_condattr_destroy(&cond);
}

static uint64_t channel_count(struct channel *channel)
{
  pthread_mutex_lock(&channel->lock);
  uint64_t count = channel->count;
  pthread_mutex_unlock(&channel->lock);
  return count;
}

static void channel_move(struct channel *channel)
{
  pthread_mutex_lock(&channel->lock);
  channel->count++;
  pthread_cond_broadcast(&channel->moved);
  pthread_mutex_unlock(&channel->lock);
}

/* Sleeps until the channel has moved on from `seen`. What has to be noticed later than this must
 * move the channel; that is why the count is read before looking at anything. False if the time
 * `until` comes first (NULL: never). */
static bool channel_wait(struct channel *channel, uint64_t seen, const struct timespec *until)
{
  int error = 0;
  pthread_mutex_lock(&channel->lock);
  while (channel->count == seen && error == 0)
    error = until == NULL ? pthread_cond_wait(&channel->moved, &channel->lock)
                          : pthread_cond_timedwait(&channel->moved, &channel->lock, until);
  pthread_mutex_unlock(&channel->lock);
  return error == 0;
}

/* ---- the control block --------------------------------------------------------------------- */

cudaError_t cpu_control_create(struct region **region, uint64_t nonce)
{
  cudaError_t error = cpu_region_create(REGION_CONTROL, 0, sizeof(struct control), region);
  if (error != cudaSuccess) return error;
  struct control *control = (struct control *)(*region)->base;
  control->nonce = nonce;
  channel_init(&control->meeting);
  for (int r = 0; r < MAX_RANKS; r++) {
    channel_init(&control->mail[r]);
    channel_init(&control->bell[r]);
  }
  return cudaSuccess;
}

bool cpu_control_valid(const struct region *region, uint64_t nonce)
{
  return region->bytes >= sizeof(struct control) &&
         ((const struct control *)region->base)->nonce == nonce;
}

bool cpu_control_join(struct control *control, int rank, int nranks)
{
  uint64_t bit = UINT64_C(1) << rank;
  pthread_mutex_lock(&control->meeting.lock);
  if (control->nranks == 0) control->nranks = nranks;
  bool fits = control->nranks == nranks && (control->joined & bit) == 0;
  if (fits) control->joined |= bit;
  pthread_mutex_unlock(&control->meeting.lock);
  return fits;
}

void cpu_control_wake(struct control *control, int rank)
{
  channel_move(&control->mail[rank]);
  channel_move(&control->bell[rank]);
}

void cpu_control_fail(struct control *control, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&control->meeting.lock);
  if (!atomic_load(&control->failed))
    vsnprintf(control->failure, sizeof(control->failure), format, arguments);
  atomic_store(&control->failed, true);
  pthread_cond_broadcast(&control->meeting.moved); /* the count stays: no meeting was completed */
  pthread_mutex_unlock(&control->meeting.lock);
  va_end(arguments);
  for (int r = 0; r < MAX_RANKS; r++) cpu_control_wake(control, r);
}

const char *cpu_control_failure(const struct control *control)
{
  return atomic_load(&control->failed) ? control->failure : NULL;
}

static bool stopped(ncclComm_t comm)
{
  return atomic_load(&comm->aborted) || atomic_load(&comm->control->failed);
}

bool cpu_meet(ncclComm_t comm, const void *mine, void *all, size_t bytes)
{
  struct control *control = comm->control;
  struct channel *meeting = &control->meeting;
  pthread_mutex_lock(&meeting->lock);
  uint64_t number = meeting->count;
  char(*notes)[MEETING_BYTES] = control->notes[number % 2];
  memcpy(notes[comm->rank], mine, bytes);
  if (++control->arrived == comm->nranks) {
    control->arrived = 0;
    meeting->count++;
    pthread_cond_broadcast(&meeting->moved);
  }
  while (meeting->count == number && !atomic_load(&control->failed))
    pthread_cond_wait(&meeting->moved, &meeting->lock);
  bool met = meeting->count != number; /* even if somebody who was faster has failed since */
  for (int r = 0; r < comm->nranks; r++) memcpy((char *)all + (size_t)r * bytes, notes[r], bytes);
  pthread_mutex_unlock(&meeting->lock);
  return met;
}

/* ---- rings --------------------------------------------------------------------------------- */

/* The largest power of two for which all pairs fit. */
static size_t ring_bytes(int nranks)
{
  size_t bytes = RING_BYTES_MAX;
  while (bytes * (size_t)nranks * (size_t)nranks > RINGS_BYTES) bytes /= 2;
  return bytes;
}

/* Copies n bytes between memory and the ring at `position`, which may wrap around. */
static void ring_copy(char *ring, size_t size, uint64_t position, char *data, size_t n, bool in)
{
  while (n > 0) {
    size_t at = position % size;
    size_t part = n < size - at ? n : size - at;
    memcpy(in ? ring + at : data, in ? data : ring + at, part);
    position += part;
    data += part;
    n -= part;
  }
}

enum progress { NOTHING, SOMETHING, MISMATCH };

/* Moves what can be moved of one transfer. */
static enum progress advance(ncclComm_t comm, struct transfer *t, struct message *theirs)
{
  int n = comm->nranks;
  int pair = t->send ? comm->rank * n + t->peer : t->peer * n + comm->rank;
  size_t size = ring_bytes(n);
  struct ring *ring = &comm->control->rings[pair];
  char *bytes = comm->control->bytes + (size_t)pair * size;
  uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);
  uint64_t read = atomic_load_explicit(&ring->read, memory_order_acquire);
  size_t available = t->send ? size - (size_t)(written - read) : (size_t)(written - read);
  uint64_t position = t->send ? written : read;
  uint64_t start = position;

  if (!t->started) {
    *theirs = t->message;
    if (available < sizeof(*theirs)) return NOTHING;
    ring_copy(bytes, size, position, (char *)theirs, sizeof(*theirs), t->send);
    if (theirs->bytes != t->message.bytes || theirs->kind != t->message.kind) return MISMATCH;
    t->started = true;
    position += sizeof(*theirs);
    available -= sizeof(*theirs);
  }
  size_t part = t->message.bytes - t->done < available ? t->message.bytes - t->done : available;
  ring_copy(bytes, size, position, t->data + t->done, part, t->send);
  t->done += part;
  position += part;
  if (position == start) return NOTHING;
  atomic_store_explicit(t->send ? &ring->written : &ring->read, position, memory_order_release);
  return SOMETHING;
}

bool cpu_transfer(ncclComm_t comm, struct transfer *list, size_t n, const struct transfer **odd,
                  struct message *theirs)
{
  *odd = NULL;
  struct channel *mail = &comm->control->mail[comm->rank];
  for (;;) {
    uint64_t seen = channel_count(mail);
    if (stopped(comm)) return false;
    uint64_t busy[2] = {0, 0}; /* peers, by direction, that an earlier message still occupies */
    uint64_t moved = 0;        /* peers to tell */
    size_t open = 0;
    for (size_t i = 0; i < n; i++) {
      struct transfer *t = &list[i];
      if (t->done == t->message.bytes) continue;
      uint64_t bit = UINT64_C(1) << t->peer;
      if ((busy[t->send] & bit) == 0) {
        enum progress progress = advance(comm, t, theirs);
        if (progress == MISMATCH) {
          *odd = t;
          return false;
        }
        if (progress == SOMETHING) moved |= bit;
      }
      if (t->done == t->message.bytes) continue;
      busy[t->send] |= bit;
      open++;
    }
    for (int peer = 0; peer < comm->nranks; peer++)
      if ((moved >> peer & 1) != 0) channel_move(&comm->control->mail[peer]);
    if (open == 0) return true;
    if (moved == 0) channel_wait(mail, seen, NULL);
  }
}

/* ---- bells --------------------------------------------------------------------------------- */

bool cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg, double seconds)
{
  struct channel *bell = &comm->control->bell[comm->rank];
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (seconds < 0) seconds = 0;
  if (seconds > 1e8) seconds = 1e8; /* three years; more might not fit into the deadline */
  until.tv_sec += (time_t)seconds;
  until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  for (bool in_time = true;;) {
    uint64_t seen = channel_count(bell);
    if (ready(arg)) return true;
    if (!in_time || stopped(comm)) return false;
    in_time = channel_wait(bell, seen, &until);
  }
}

void cpu_notify(ncclComm_t comm, int peer)
{
  channel_move(&comm->control->bell[peer]);
}
