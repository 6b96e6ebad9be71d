/* SPDX-License-Identifier: Apache-2.0 */
/* Registration. For a buffer there is nothing to do, but handles are checked. For a window the
 * ranks tell each other where their memory is, and a rank maps that of a peer when it first asks
 * for an address in it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* What a rank tells the others. */
struct place {
  ncclResult_t result; /* whether its arguments were right */
  size_t bytes, offset;
  struct region_name name;
  int device;
};

struct ncclWindow_vidmem {
  ncclComm_t comm;
  struct place places[MAX_RANKS];
  pthread_mutex_t lock; /* guards regions */
  struct region *regions[MAX_RANKS];
};

struct registration {
  ncclComm_t comm;
};

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  if (handle == NULL || buffer == NULL || bytes == 0)
    return cpu_nccl_error(ncclInvalidArgument, "ncclCommRegister: nothing to register");
  *handle = NULL;
  if (cpu_memory_extent(buffer, NULL) < bytes)
    return cpu_nccl_error(ncclInvalidArgument,
                          "ncclCommRegister: %zu bytes reach beyond the device memory at %p", bytes,
                          buffer);
  struct registration *registration = cpu_allocate(sizeof(*registration));
  registration->comm = comm;
  *handle = registration;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
  struct registration *registration = handle;
  if (comm == NULL || (registration != NULL && registration->comm != comm))
    return cpu_nccl_error(ncclInvalidArgument, "ncclCommDeregister: not a handle of this comm");
  free(registration);
  return ncclSuccess;
}

/* Describes this rank's part; *region gets a reference if the result is ncclSuccess. */
static struct place describe(void *buffer, size_t bytes, struct region **region)
{
  struct place place;
  memset(&place, 0, sizeof(place));
  place.bytes = bytes;
  size_t extent = cpu_memory_extent(buffer, region);
  if (*region == NULL) {
    place.result =
        cpu_nccl_error(ncclInvalidUsage, "ncclCommWindowRegister: %p is not device memory", buffer);
    return place;
  }
  place.offset = (size_t)((char *)buffer - (*region)->base);
  place.name = cpu_region_name(*region);
  place.device = (*region)->device;
  if (bytes == 0 || bytes > extent)
    place.result =
        cpu_nccl_error(ncclInvalidArgument,
                       "ncclCommWindowRegister: %zu bytes in memory of %zu bytes", bytes, extent);
  else if (place.offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    place.result = cpu_nccl_error(ncclInvalidArgument,
                                  "ncclCommWindowRegister: offset %zu in the allocation is not a "
                                  "multiple of %d",
                                  place.offset, NCCL_WIN_REQUIRED_ALIGNMENT);
  return place;
}

/* All ranks see the same places and so come to the same verdict. */
static ncclResult_t judge(const struct place *places, int rank, int nranks)
{
  if (places[rank].result != ncclSuccess) return places[rank].result; /* its text is set */
  for (int r = 0; r < nranks; r++)
    if (places[r].result != ncclSuccess)
      return cpu_nccl_error(places[r].result, "ncclCommWindowRegister: failed on rank %d", r);
  for (int r = 0; r < nranks; r++)
    if (places[r].bytes != places[0].bytes)
      return cpu_nccl_error(ncclInvalidUsage,
                            "ncclCommWindowRegister: %zu bytes on rank 0, %zu bytes on rank %d",
                            places[0].bytes, places[r].bytes, r);
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
  struct place mine = describe(buffer, bytes, &region);
  if (!cpu_meet(comm, &mine, new->places, sizeof(mine)))
    result = cpu_comm_check(comm);
  else
    result = judge(new->places, comm->rank, comm->nranks);
  if (result != ncclSuccess) {
    if (region != NULL) cpu_region_release(region);
    free(new);
    return result;
  }
  pthread_mutex_init(&new->lock, NULL);
  new->regions[comm->rank] = region;
  new->comm = comm;
  cpu_comm_retain(comm);
  *window = new;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
  if (window == NULL) return ncclSuccess;
  if (comm != window->comm)
    return cpu_nccl_error(ncclInvalidArgument,
                          "ncclCommWindowDeregister: not a window of this communicator");
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
  const struct place *place = &window->places[peer];
  if (offset > place->bytes) return NULL;
  pthread_mutex_lock(&window->lock);
  if (window->regions[peer] == NULL)
    window->regions[peer] = cpu_region_open(REGION_PEER, place->device, &place->name);
  struct region *region = window->regions[peer];
  pthread_mutex_unlock(&window->lock);
  return region != NULL ? region->base + place->offset + offset : NULL;
}
