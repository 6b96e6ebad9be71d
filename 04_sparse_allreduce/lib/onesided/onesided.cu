/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that only the one-sided oktopk has; the others are forms of those in kernels/.
 *
 * Sending the parts of a list to the owners of their regions. And the largest of all ranks' sums,
 * without moving them: ranks send each other how many they have of which size
 * (kernels/selection.cuh), so that each knows what to keep of its own. */
#include "kernels/selection.cuh"

namespace
{

enum {
  SEND_THREADS = 1024,
  THREADS = OPS_SELECTING_MOST,
  BLOCKS = OPS_SELECTING_BLOCKS,
};

/* By many blocks, which copy. */
__global__ void OPS_BOUNDS(SEND_THREADS, 1) send_parts(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ uint32_t begins[SPARSE_MAX_RANKS + 1];
  ops_store_at_owners(m, begins);
}

/* Where units begin in what is kept of this region's sums: entry i begins those after entry i - 1
 * up to its own; the end of the list begins the rest. By all threads of a grid. */
__device__ inline void note_units(const sparse_memory &m, const sparse_list &sums)
{
  const uint64_t begin = m.state->kept.boundaries[m.rank],
                 end = m.state->kept.boundaries[m.rank + 1];
  const uint32_t count = (uint32_t)*sums.counts, threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i <= count; i += threads) {
    uint64_t unit = (begin + SPARSE_UNIT - 1) / SPARSE_UNIT;
    if (i > 0) unit = sums.pairs[i - 1].index / SPARSE_UNIT + 1;
    const uint64_t until = i < count ? sums.pairs[i].index + (uint64_t)1 : end;
    for (; unit * SPARSE_UNIT < until; unit++) m.unit_begins[unit] = i;
  }
}

/* Whether a rank is late, all blocks find the same: only the last block at a barrier waits. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS) choose_sent(const __grid_constant__ sparse_memory m)
{
  ops_let_next_begin();
  ops_begin();
  __shared__ selection_shared s;
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  if (ops_late(m)) return;
  const sparse_list sums = sparse_reduced(&m);
  const sparse_list chosen = {m.reduced, &state->chosen_count, 1};
  const input in = input_from(m, sums, SPARSE_FROM_LIST);
  search<true, sparse_sums_found>(s.search, m, in, &state->global);
  if (ops_late(m)) return;
  keep(s.keep, m, in, &state->global, chosen);
  ops_grid_sync(scratch, [] {});
  note_units(m, chosen);
  if (!ops_last_block(scratch)) return;
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
    const ops_peer peer = ops_peer_of(m, p);
    ops_write_flag(m, peer, &m.flags->reduced[m.rank], (uint32_t)state->reduced_count);
    ops_fence_system();
    ops_signal_sums(m, peer, (uint32_t)state->chosen_count, (uint32_t)state->received_counts[p]);
  }
}

ncclResult_t launch_send_parts(const sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(send_parts, ops_blocks(m->k, 2 * SEND_THREADS, 1), SEND_THREADS, OPS_NEXT,
                    stream, *m);
}

ncclResult_t launch_choose_sent(const sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(choose_sent, (unsigned)ops_multiprocessors() * BLOCKS, THREADS, OPS_COOPERATIVE,
                    stream, *m);
}

const sparse_onesided operators = {launch_send_parts, ops_pass_and_send, ops_reduce_sent,
                                   launch_choose_sent, ops_apply_sent};

} // namespace

const sparse_onesided *const ops_onesided = &operators;

static const ops_load_kernels load(send_parts, choose_sent);
