/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI launcher: every rank is a process. The ranks of a host take its GPUs in order, and start
 * again with the first GPU if NCCL lets ranks share one. */
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

static atomic_bool finishing; /* MPI_Abort is not allowed any more */

/* ---- collectives -------------------------------------------------------------------------- */

void launcher_barrier(const struct rank *me)
{
  (void)me;
  MPICHECK(MPI_Barrier(MPI_COMM_WORLD));
}

void launcher_allgather(const struct rank *me, const void *mine, void *all, size_t bytes)
{
  (void)me;
  MPICHECK(MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD));
}

void launcher_broadcast(const struct rank *me, void *data, size_t bytes, int root)
{
  (void)me;
  MPICHECK(MPI_Bcast(data, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD));
}

/* ---- starting ----------------------------------------------------------------------------- */

const char *backend_start(struct rank *me, int *argc, char ***argv)
{
  static char description[MPI_MAX_LIBRARY_VERSION_STRING + 8];
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int level, length;
  /* MULTIPLE, so that the watchdog's thread may call MPI_Abort. With less that mostly works as
   * well; if it does not return, the watchdog's alarm ends this process. */
  MPICHECK(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level));
  MPICHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)); /* MPICHECK reports */
  MPICHECK(MPI_Comm_rank(MPI_COMM_WORLD, &me->rank));
  MPICHECK(MPI_Comm_size(MPI_COMM_WORLD, &me->nranks));
  MPICHECK(MPI_Get_library_version(version, &length));
  snprintf(description, sizeof description, "MPI (%.*s)", (int)strcspn(version, "\n,"), version);
  return description;
}

/* The rank among those of this host. Not from the host name, which containers may share. */
static int local_rank(const struct rank *me)
{
  MPI_Comm host;
  int rank;
  MPICHECK(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, me->rank, MPI_INFO_NULL, &host));
  MPICHECK(MPI_Comm_rank(host, &rank));
  MPICHECK(MPI_Comm_free(&host));
  return rank;
}

/* From 2.30 on NCCL accepts several ranks on a GPU if this variable is 1. */
static bool may_share(void)
{
  const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int runtime = 0;
  NCCLCHECK(ncclGetVersion(&runtime));
  return runtime >= 23000 && enabled && strcmp(enabled, "1") == 0;
}

/* The GPU that a rank takes, for the other ranks. */
struct placement {
  int device;    /* -1: it gets none */
  char uuid[16]; /* of that GPU, unique in the world */
};

const bool launcher_graphs_can_deadlock = false;

#define ALLOWED \
  "allowed: one rank per GPU, or several with NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1"

static struct placement place(const struct rank *me, char error[LAUNCHER_TEXT])
{
  struct placement mine = {.device = -1};
  struct cudaDeviceProp properties;
  int local = local_rank(me);
  int gpus = launcher_visible_gpus(error, LAUNCHER_TEXT);
  if (gpus == 0) return mine;
  if (gpus > 1 && local >= gpus && !may_share()) {
    snprintf(error, LAUNCHER_TEXT,
             "rank %d is number %d on its host, which shows %d GPUs; " ALLOWED, me->rank, local + 1,
             gpus);
    return mine;
  }
  mine.device = local % gpus; /* a scheduler may show each rank its own GPU only */
  CUDACHECK(cudaGetDeviceProperties(&properties, mine.device));
  memcpy(mine.uuid, &properties.uuid, sizeof mine.uuid);
  return mine;
}

/* Counts the other ranks on this rank's GPU. Sets `error` if NCCL does not allow them. */
static void check_placement(struct rank *me, const struct placement *all, char error[LAUNCHER_TEXT])
{
  const struct placement *mine = &all[me->rank];
  for (int i = 0; i < me->nranks && mine->device >= 0; i++) {
    if (i == me->rank || all[i].device < 0) continue;
    if (memcmp(all[i].uuid, mine->uuid, sizeof mine->uuid) != 0) continue;
    me->sharing++;
    if (!*error && !may_share())
      snprintf(error, LAUNCHER_TEXT, "ranks %d and %d have the same GPU; " ALLOWED, me->rank, i);
  }
}

int backend_run(const struct rank *process, int (*rank_main)(const struct rank *me))
{
  struct rank me = *process;
  char error[LAUNCHER_TEXT] = "";
  watchdog_progress(me.rank, "placement");
  struct placement mine = place(&me, error);
  struct placement *all = launcher_allocate((size_t)me.nranks * sizeof *all);
  launcher_allgather(&me, &mine, all, sizeof mine);
  check_placement(&me, all, error);
  free(all);
  if (launcher_refuse(&me, error) != EXIT_VERIFIED) return EXIT_CANNOT_RUN;
  if (launcher_max(&me, me.sharing) > 0)
    launcher_note(&me, "several ranks share a GPU: timings mean nothing");
  if (me.nranks == 1 && !getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMI_SIZE"))
    launcher_note(&me, "built with MPI=1 but started without mpirun: running one rank");

  me.device = mine.device;
  return rank_main(&me);
}

int backend_finish(int code)
{
  finishing = true;
  MPICHECK(MPI_Finalize());
  return code;
}

void backend_abort(int code)
{
  if (!finishing) MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code); /* mpirun ends the others when one process leaves without MPI_Finalize */
}
