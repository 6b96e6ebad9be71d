/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL's device interface that the examples use: memory that a kernel can load and
 * store on all ranks, and barriers between blocks of the same number. C++. */
#ifndef COMMON_CPU_NCCL_DEVICE_H
#define COMMON_CPU_NCCL_DEVICE_H

#include <cpu_threads.h>
#include <nccl.h>

namespace cuda {
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel
};
}

struct ncclTeam {
  int nRanks, rank, stride;
};
struct ncclTeamTagLsa {};
struct ncclCoopCta {
  void sync() { cpu_barrier(false); }
  int thread_rank() const { return (int)threadIdx.x; }
  int size() const { return (int)blockDim.x; }
};

struct ncclDevCommRequirements {
  int lsaBarrierCount;
};
struct ncclDevComm {
  int rank, nRanks, lsaRank, lsaSize;
  int barriers;
  void *memory; /* of this rank: flags [barrier][source], then the number of each barrier's last use */
  ncclWindow_t window;
};

extern "C" {
ncclTeam ncclTeamLsa(ncclComm_t comm);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements *requirements,
                               ncclDevComm *made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm *made);
}

static inline void *ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer)
{
  return *(char **)window + (size_t)peer * CPU_LSA_STRIDE + offset;
}

template <typename Coop>
class ncclLsaBarrierSession
{
  const ncclDevComm &c;
  const unsigned index;
  uint64_t epoch;
  uint64_t *used() { return (uint64_t *)c.memory + (size_t)c.barriers * c.lsaSize + index; }
  size_t flag(int source) { return ((size_t)index * c.lsaSize + source) * sizeof(uint64_t); }

public:
  ncclLsaBarrierSession(Coop, const ncclDevComm &comm, ncclTeamTagLsa, unsigned index)
      : c(comm), index(index), epoch(*used())
  {
  }
  ~ncclLsaBarrierSession()
  {
    cpu_barrier(false); /* all threads have read it */
    if (threadIdx.x == 0) *used() = epoch;
  }
  void sync(Coop coop, cuda::memory_order order)
  {
    coop.sync();
    epoch++;
    for (int p = coop.thread_rank(); p < c.lsaSize; p += coop.size())
      cpu_store_u64(ncclGetLsaPointer(c.window, flag(c.lsaRank), p), epoch,
                    order == cuda::memory_order_release || order == cuda::memory_order_acq_rel);
    for (int p = coop.thread_rank(); p < c.lsaSize; p += coop.size())
      while (cpu_load_u64((char *)c.memory + flag(p)) < epoch) continue;
    coop.sync();
  }
};
#endif
