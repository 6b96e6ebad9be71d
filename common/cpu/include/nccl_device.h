/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL's device interface for ranks that share memory (LSA, load/store accessible):
 * memory of all ranks that a kernel can load and store, and barriers between blocks of the same
 * number. Names are NCCL's. */
#ifndef COMMON_CPU_NCCL_DEVICE_H
#define COMMON_CPU_NCCL_DEVICE_H

#include <cpu_kernel.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;

typedef struct ncclDevCommRequirements {
  int lsaBarrierCount;
} ncclDevCommRequirements_t;
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
  {                                            \
    0                                          \
  }

typedef struct ncclLsaBarrierHandle {
  uint64_t *flags; /* of this rank, [barrier][source]: how often it was used */
  ncclWindow_t window;
} ncclLsaBarrierHandle_t;

typedef struct ncclDevComm {
  int rank, nRanks, lsaRank, lsaSize;
  ncclLsaBarrierHandle_t lsaBarrier;
} ncclDevComm_t;

typedef struct ncclCommProperties {
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  int nLsaTeams;
} ncclCommProperties_t;
#define NCCL_COMM_PROPERTIES_INITIALIZER \
  {                                      \
    0                                    \
  }

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *requirements,
                               ncclDevComm_t *made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *made);

#ifdef __cplusplus
}

namespace cuda
{
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
}

struct ncclTeamTagLsa {
};

static inline ncclTeam ncclTeamLsa(const ncclDevComm &comm)
{
  return {comm.lsaSize, comm.lsaRank, 1};
}

/* All threads of a block. */
struct ncclCoopCta {
  void sync(CPU_HERE) { cpu_barrier(false, 0, {"a barrier of the block", file, line}); }
  int thread_rank() const { return (int)cpu_thread_number(); }
  int size() const { return (int)(blockDim.x * blockDim.y * blockDim.z); }
};

/* NULL beyond the window, where NCCL gives an address of something else. */
static inline void *ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer)
{
  const cpu_window *w = (const cpu_window *)window;
  if (offset > w->bytes || peer < 0 || peer >= w->nranks) return NULL;
  return w->base + (size_t)peer * CPU_LSA_STRIDE + offset;
}

template <typename Coop>
class ncclLsaBarrierSession
{
  const ncclLsaBarrierHandle b;
  const ncclTeam team;
  const unsigned index;
  uint64_t epoch;
  size_t flag(int source) { return (size_t)index * team.nRanks + source; }

public:
  ncclLsaBarrierSession(Coop, const ncclDevComm &, ncclTeam team, ncclLsaBarrierHandle handle,
                        unsigned index, bool = false)
      : b(handle), team(team), index(index), epoch(b.flags[flag(team.rank)])
  {
  }
  ncclLsaBarrierSession(Coop coop, const ncclDevComm &comm, ncclTeamTagLsa, unsigned index,
                        bool = false)
      : ncclLsaBarrierSession(coop, comm, ncclTeamLsa(comm), comm.lsaBarrier, index)
  {
  }
  void sync(Coop coop, cuda::memory_order order, CPU_HERE)
  {
    const bool release = order >= cuda::memory_order_release;
    coop.sync(file, line);
    epoch++;
    for (int p = coop.thread_rank(); p < team.nRanks; p += coop.size())
      cpu_store_u64(ncclGetLsaPointer(b.window, flag(team.rank) * sizeof(uint64_t), p), epoch,
                    release);
    for (int p = coop.thread_rank(); p < team.nRanks; p += coop.size())
      while (cpu_load_u64(&b.flags[flag(p)], {"a barrier of ranks", file, line}) < epoch) continue;
    coop.sync(file, line);
  }
};
#endif
#endif
