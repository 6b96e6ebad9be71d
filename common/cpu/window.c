/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: the ranks tell each other where their memory is, and a rank maps that of a peer when it
 * first asks for an address in it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* What a rank tells the others. */
struct part {
  size_t bytes;  /* as registered */
  size_t extent; /* what there is from there on */
  bool shareable;
  struct place place;
};

struct ncclWindow_vidmem {
  ncclComm_t comm;
  struct part parts[MAX_RANKS];
  char *mine;                        /* this rank's memory; its registration has the reference */
  pthread_mutex_t lock;              /* guards regions */
  struct region *regions[MAX_RANKS]; /* of peers */
};

/* Describes this rank's part. *region gets a reference where the memory has a region. */
static struct part describe(const void *buffer, size_t bytes, struct region **region)
{
  struct part part;
  memset(&part, 0, sizeof(part));
  part.bytes = bytes;
  part.extent = cpu_memory_find(buffer, &part.place, region);
  part.shareable = *region != NULL && (*region)->shareable;
  return part;
}

/* All ranks see the same places and so come to the same verdict, which names the rank. */
static ncclResult_t judge(const struct part *parts, int nranks)
{
  for (int r = 0; r < nranks; r++) {
    const struct part *part = &parts[r];
    if (!part->shareable)
      return cpu_nccl_error(ncclInvalidUsage,
                            "ncclCommWindowRegister: the memory of rank %d is not from "
                            "ncclMemAlloc; allowed: memory that is, on all ranks",
                            r);
    if (part->bytes == 0 || part->bytes > part->extent)
      return cpu_nccl_error(ncclInvalidArgument,
                            "ncclCommWindowRegister: rank %d registers %zu bytes; allowed: 1 to "
                            "%zu, what its memory has",
                            r, part->bytes, part->extent);
    if (part->place.offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
      return cpu_nccl_error(ncclInvalidArgument,
                            "ncclCommWindowRegister: rank %d begins %zu bytes into its allocation; "
                            "allowed: a multiple of %d",
                            r, part->place.offset, NCCL_WIN_REQUIRED_ALIGNMENT);
    if (part->bytes != parts[0].bytes)
      return cpu_nccl_error(ncclInvalidUsage,
                            "ncclCommWindowRegister: rank %d registers %zu bytes and rank 0 %zu; "
                            "allowed: the same on all ranks",
                            r, part->bytes, parts[0].bytes);
  }
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes,
                                    ncclWindow_t *window, int flags)
{
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  if (window == NULL || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0)
    return cpu_nccl_error(ncclInvalidArgument, "ncclCommWindowRegister: no window, or flags %d",
                          flags);
  ncclWindow_t new = cpu_allocate(sizeof(*new));
  struct region *region = NULL;
  struct part mine = describe(buffer, bytes, &region);
  if (!cpu_meet(comm, HOSTS, &mine, new->parts, sizeof(mine)))
    result = cpu_comm_check(comm);
  else
    result = judge(new->parts, comm->nranks);
  if (result != ncclSuccess) {
    if (region != NULL) cpu_region_release(region);
    free(new);
    return result;
  }
  pthread_mutex_init(&new->lock, NULL);
  new->comm = comm;
  cpu_comm_retain(comm);
  new->mine = region->base;
  cpu_registration_add(comm, HELD_WINDOW, region, buffer, bytes, new)->symmetric =
      flags == NCCL_WIN_COLL_SYMMETRIC;
  *window = new;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
  if (window == NULL) return ncclSuccess;
  ncclResult_t result = cpu_registration_remove(__func__, comm, window);
  if (result != ncclSuccess) return result;
  for (int r = 0; r < MAX_RANKS; r++)
    if (window->regions[r] != NULL) cpu_region_release(window->regions[r]);
  pthread_mutex_destroy(&window->lock);
  cpu_comm_release(comm);
  free(window);
  return ncclSuccess;
}

void *cpu_window_pointer(ncclWindow_t window, size_t offset, int peer)
{
  if (window == NULL || peer < 0 || peer >= window->comm->nranks) return NULL;
  const struct place *place = &window->parts[peer].place;
  if (offset > window->parts[peer].bytes) return NULL;
  if (peer == window->comm->rank) return window->mine + place->offset + offset;
  pthread_mutex_lock(&window->lock);
  if (window->regions[peer] == NULL) window->regions[peer] = cpu_region_open(REGION_PEER, place);
  struct region *region = window->regions[peer];
  pthread_mutex_unlock(&window->lock);
  return region != NULL ? region->base + place->offset + offset : NULL;
}
