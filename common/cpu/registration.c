/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory the program has registered, as buffer or as window. NCCL trusts the program: if it
 * frees memory that is still in use, it crashes or gets wrong data, later and elsewhere. The
 * stand-in refuses the wrong call itself. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and its contents */
static struct registration *registrations;

struct registration *cpu_registration_add(ncclComm_t comm, enum hold kind, struct region *region,
                                          const void *start, size_t bytes, const void *handle)
{
  struct registration *new = cpu_allocate(sizeof(*new));
  *new = (struct registration){.comm = comm,
                               .handle = handle != NULL ? handle : new,
                               .kind = kind,
                               .region = region,
                               .start = start,
                               .bytes = bytes};
  pthread_mutex_lock(&lock);
  new->next = registrations;
  registrations = new;
  pthread_mutex_unlock(&lock);
  return new;
}

/* Called with the lock. The memory may be freed afterwards. */
static void end(struct registration *registration)
{
  registration->comm = NULL;
  cpu_region_release(registration->region);
  registration->region = NULL;
}

ncclResult_t cpu_registration_remove(const char *call, ncclComm_t comm, const void *handle)
{
  const char *wrong = NULL;
  pthread_mutex_lock(&lock);
  struct registration **link = &registrations, *found;
  while (*link != NULL && (*link)->handle != handle) link = &(*link)->next;
  found = *link;
  if (found != NULL && found->comm == NULL)
    wrong = "the communicator is gone; call this before ncclCommDestroy";
  else if (found == NULL || found->comm != comm)
    wrong = "the handle is not of this communicator, or was deregistered before";
  else if (found->queued > 0)
    wrong = "a call that uses the memory is queued or running; wait for its stream first";
  if (wrong == NULL) {
    *link = found->next;
    end(found);
    free(found);
  }
  pthread_mutex_unlock(&lock);
  if (wrong == NULL) return ncclSuccess;
  return cpu_nccl_error(ncclInvalidUsage, "%s: %s", call, wrong);
}

/* Handles of a destroyed communicator stay in the list, for the message above. */
void cpu_registrations_end(ncclComm_t comm)
{
  pthread_mutex_lock(&lock);
  for (struct registration *each = registrations; each != NULL; each = each->next)
    if (each->comm == comm) end(each);
  pthread_mutex_unlock(&lock);
}

/* Prefers a window to a registered buffer, as NCCL does. */
bool cpu_registration_find(ncclComm_t comm, const void *pointer, size_t bytes,
                           struct registration *found)
{
  const char *start = pointer;
  bool any = false;
  pthread_mutex_lock(&lock);
  for (struct registration *each = registrations; each != NULL; each = each->next)
    if (each->comm == comm && start >= each->start && bytes <= each->bytes &&
        start - each->start <= (ptrdiff_t)(each->bytes - bytes) &&
        (!any || each->kind == HELD_WINDOW)) {
      any = true;
      *found = *each;
    }
  pthread_mutex_unlock(&lock);
  return any;
}

enum hold cpu_registration_of(const void *memory)
{
  enum hold hold = HOLDS;
  pthread_mutex_lock(&lock);
  for (struct registration *each = registrations; each != NULL; each = each->next)
    if (each->comm != NULL && each->region->base == memory && hold != HELD_WINDOW)
      hold = each->kind;
  pthread_mutex_unlock(&lock);
  return hold;
}

void cpu_registration_use(ncclComm_t comm, const void *pointer, size_t bytes, int change)
{
  const char *start = pointer;
  pthread_mutex_lock(&lock);
  for (struct registration *each = registrations; each != NULL; each = each->next)
    if (each->comm == comm && start < each->start + each->bytes && each->start < start + bytes &&
        each->queued + change >= 0) /* it may have been registered while the call was running */
      each->queued += change;
  pthread_mutex_unlock(&lock);
}

/* If a registration is of no use, NCCL works without it and prints nothing. The stand-in prints one
 * note per communicator, on rank 0. (If another rank does otherwise, cpu_claims_agree fails.) */
static bool first_note(ncclComm_t comm)
{
  return comm->rank == 0 && !atomic_flag_test_and_set(&comm->noted);
}

void cpu_registration_note(ncclComm_t comm, char *const *buffers, const size_t *bytes)
{
  static const char *const names[BUFFERS] = {"sendbuff", "recvbuff"};
  struct registration found[BUFFERS];
  bool whole[BUFFERS];
  for (enum which b = SENDBUFF; b < BUFFERS; b++) {
    whole[b] = cpu_registration_find(comm, buffers[b], bytes[b], &found[b]);
    if (!whole[b] && cpu_registration_find(comm, buffers[b], 1, &found[b]) && first_note(comm))
      fprintf(stderr, "note: %s is registered for %zu of %zu bytes: NCCL will not use it\n",
              names[b], found[b].bytes - (size_t)(buffers[b] - found[b].start), bytes[b]);
  }
  for (enum which b = SENDBUFF; b < BUFFERS; b++)
    if (bytes[b] > 0 && bytes[!b] > 0 && whole[b] && !whole[!b] &&
        found[b].kind == HELD_REGISTERED && first_note(comm))
      fprintf(stderr, "note: %s is registered and %s is not: NCCL will not use it\n", names[b],
              names[!b]);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  *handle = NULL;
  struct region *region = NULL;
  size_t extent = cpu_memory_find(buffer, NULL, &region);
  if (region != NULL && extent >= bytes) {
    if (!region->shareable && first_note(comm))
      fputs("note: ncclCommRegister: the memory is not from ncclMemAlloc: NCCL will not use it\n",
            stderr);
    *handle = cpu_registration_add(comm, HELD_REGISTERED, region, buffer, bytes, NULL);
    return ncclSuccess;
  }
  if (region != NULL) cpu_region_release(region);
  return cpu_nccl_error(ncclInvalidArgument,
                        "ncclCommRegister: %zu bytes reach beyond the device memory at %p", bytes,
                        buffer);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
  return handle == NULL ? ncclSuccess : cpu_registration_remove(__func__, comm, handle);
}
