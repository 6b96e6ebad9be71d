/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: exchanges whose counts repeat. The ranks tell each other their counts and displacements
 * once; a start is then the kernel with the arguments kept, or, for large exchanges, the copy
 * engines of the GPUs. Those need no multiprocessor and reach the full rate of the link, and the
 * two things that a rank still has to know are flags which the streams themselves set and await:
 *
 *   ready    "my receive buffer is free": the receiver's stream has reached the start
 *   arrived  "your data are there": after the copy, in the sender's stream
 *
 * Both carry the number of the start, so they need no reset. */
#include "alltoallv_internal.h"

#include <stdlib.h>
#include <string.h>

struct alltoallv_plan_state {
  struct alltoallv_handle *h;
  struct alltoallv_exchange ex; /* with pairs of its own */
  bool copy_engines;
  uint64_t windows;                  /* bit w: a rank receives in window w, */
  uint64_t made;                     /* which was there after so many registrations */
  char *to[ALLTOALLV_MAX_LSA_RANKS]; /* where my data for an LSA rank go */
};

/* From how many bytes on, sent to other ranks or received from them by the busiest rank, the copy
 * engines win: measured, see PERFORMANCE.md. */
static const uint64_t copy_engine_bytes = 128 << 20;

/* A rank's message: result of its own checks, 1 + number of its window (0: none), then per rank p:
 * bytes sent to p, bytes expected from p, offset in the window for what comes from p. */
enum { ROW_RESULT, ROW_WINDOW, ROW_PAIRS };

static const uint64_t *row_pair(const struct alltoallv_handle *h, int rank, int p)
{
  return h->stage + (size_t)rank * (ROW_PAIRS + 3 * (size_t)h->n) + ROW_PAIRS + 3 * (size_t)p;
}

/* Exchanges the rows and comes to a verdict, the same on all ranks. A rank whose own part has
 * failed (then there may be no plan) takes part, so that the others do not wait for it. */
static ncclResult_t share_rows(struct alltoallv_handle *h, struct alltoallv_plan_state *plan,
                               ncclResult_t own_result)
{
  size_t words = ROW_PAIRS + 3 * (size_t)h->n;
  h->stage[ROW_RESULT] = own_result;
  for (int p = 0; p < h->n && own_result == ncclSuccess; p++) {
    h->stage[ROW_WINDOW] = plan->ex.registered ? plan->ex.window + 1 : 0;
    uint64_t *words_p = h->stage + ROW_PAIRS + 3 * p;
    words_p[0] = plan->ex.pairs[p].send_bytes;
    words_p[1] = plan->ex.pairs[p].recv_bytes;
    words_p[2] = plan->ex.window_offset + plan->ex.pairs[p].recv_offset;
  }
  ALLTOALLV_TRY(alltoallv_agree(h, words));
  if (own_result != ncclSuccess) return own_result;

  for (int p = 0; p < h->n; p++) { /* first: a rank that failed has not filled its row */
    const ncclResult_t theirs = (ncclResult_t)h->stage[(size_t)p * words + ROW_RESULT];
    if (theirs != ncclSuccess)
      return alltoallv_fail(theirs, "rank %d has wrong arguments or no memory", p);
  }
  uint64_t most = 0;
  for (int s = 0; s < h->n; s++) {
    uint64_t sends = 0, receives = 0;
    for (int d = 0; d < h->n; d++) {
      uint64_t sent = row_pair(h, s, d)[0], expected = row_pair(h, d, s)[1];
      if (!alltoallv_counts_agree(sent, expected)) {
        const struct alltoallv_error e = {
            ALLTOALLV_ERROR_MISMATCH, s, d, sent, expected, plan->ex.unit};
        int source, destination; /* the sentence says it */
        return alltoallv_describe(&e, 0, &source, &destination);
      }
      if (s == d) continue;
      sends += sent;
      receives += row_pair(h, d, s)[0];
    }
    if (sends > most) most = sends;
    if (receives > most) most = receives;
  }

  for (int p = 0; p < h->n; p++) {
    const uint64_t number = h->stage[(size_t)p * words + ROW_WINDOW];
    if (number == 0) continue; /* a rank that receives nothing need not have registered anything */
    const struct alltoallv_window *w = &h->windows[number - 1];
    plan->windows |= (uint64_t)1 << (number - 1);
    if (alltoallv_is_local(h, p))
      plan->to[p - h->lsa_first] = (char *)w->peers[p - h->lsa_first] + row_pair(h, p, h->rank)[2];
  }
  plan->made = h->registrations;
  if (h->lsa != NULL && h->lsa_n == h->n)
    plan->copy_engines = h->config.method == ALLTOALLV_COPY_ENGINE ||
                         (h->config.method == ALLTOALLV_AUTO && most >= copy_engine_bytes);
  return ncclSuccess;
}

ncclResult_t alltoallv_plan_rows(const void *sendbuff, const size_t sendcounts[],
                                 const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                 const size_t rdispls[], size_t row_elements,
                                 ncclDataType_t datatype, alltoallv_t handle,
                                 alltoallv_plan_t *plan)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_plan_state *new_plan = calloc(1, sizeof(*new_plan));
  struct alltoallv_pair *pairs = calloc((size_t)handle->n, sizeof(*pairs));
  ncclResult_t result;
  if (plan == NULL) {
    result = alltoallv_fail(ncclInvalidArgument, "NULL plan");
  } else if (new_plan == NULL || pairs == NULL) {
    result = alltoallv_fail(ncclSystemError, "out of memory");
  } else {
    new_plan->h = handle;
    new_plan->ex.pairs = pairs;
    result = alltoallv_make_exchange(handle, sendbuff, sendcounts, sdispls, recvbuff, recvcounts,
                                     rdispls, row_elements, datatype, &new_plan->ex);
  }
  result = share_rows(handle, new_plan, result);
  if (result != ncclSuccess) {
    free(pairs);
    free(new_plan);
    new_plan = NULL;
  }
  if (plan != NULL) *plan = new_plan;
  return result;
}

ncclResult_t alltoallv_plan(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                            void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                            ncclDataType_t datatype, alltoallv_t handle, alltoallv_plan_t *plan)
{
  return alltoallv_plan_rows(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, 1,
                             datatype, handle, plan);
}

ncclResult_t alltoallv_plan_destroy(alltoallv_plan_t plan)
{
  if (plan == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL plan");
  free(plan->ex.pairs);
  free(plan);
  return ncclSuccess;
}

/* My own part, beside the copies to the others: to be joined. */
static ncclResult_t start_own_copy(struct alltoallv_plan_state *plan, cudaStream_t stream)
{
  struct alltoallv_handle *h = plan->h;
  const struct alltoallv_pair *own = &plan->ex.pairs[h->rank];
  ALLTOALLV_TRY(alltoallv_fork(h, stream));
  ALLTOALLV_CUDATRY(cudaMemcpyAsync(plan->to[h->rank], plan->ex.send + own->send_offset,
                                    own->send_bytes, cudaMemcpyDeviceToDevice, h->side_stream));
  return ncclSuccess;
}

/* The copies of a rank run one after the other, to rank + 1 first, then to rank + 2 and so on: each
 * alone fills the link, and while all ranks are at the same distance no two of them send to the
 * same rank. (Side by side in streams of their own, the copies collide at the receivers and reach
 * 60 % of the rate.) */
static ncclResult_t copy_to_peers(struct alltoallv_plan_state *plan, const bool *to,
                                  const bool *from, uint32_t number, cudaStream_t stream)
{
  struct alltoallv_handle *h = plan->h;
  const struct alltoallv_pair *pairs = plan->ex.pairs;
  int n = h->n;
  for (int i = 1; i < n; i++) {
    int p = (h->rank + i) % n;
    if (to[p])
      ALLTOALLV_CUDATRY(cudaMemcpyAsync(plan->to[p], plan->ex.send + pairs[p].send_offset,
                                        pairs[p].send_bytes, cudaMemcpyDeviceToDevice, stream));
  }
  ALLTOALLV_TRY(alltoallv_lsa_flags(h->lsa, ALLTOALLV_FLAG_ARRIVED, to, from, number, stream));
  return ncclSuccess;
}

static ncclResult_t start_copies(struct alltoallv_plan_state *plan, cudaStream_t stream)
{
  struct alltoallv_handle *h = plan->h;
  const struct alltoallv_pair *pairs = plan->ex.pairs;
  uint32_t number = ++h->copy_starts;
  bool own = pairs[h->rank].send_bytes > 0;
  bool to[ALLTOALLV_MAX_LSA_RANKS], from[ALLTOALLV_MAX_LSA_RANKS];
  for (int p = 0; p < h->n; p++) { /* copy engines are used only where all ranks are LSA ranks */
    to[p] = p != h->rank && pairs[p].send_bytes > 0;
    from[p] = p != h->rank && pairs[p].recv_bytes > 0;
  }
  ALLTOALLV_TRY(alltoallv_lsa_flags(h->lsa, ALLTOALLV_FLAG_READY, from, to, number, stream));
  /* My own part not before the flags: it would take the engine of the first copy (2 % slower). */
  ncclResult_t result = own ? start_own_copy(plan, stream) : ncclSuccess;
  if (result == ncclSuccess) result = copy_to_peers(plan, to, from, number, stream);
  if (own) ALLTOALLV_TRY(alltoallv_join(h, stream));
  return result;
}

/* Are all receive buffers still registered? Ranks unregister together, so all see the same. */
static ncclResult_t check_windows(const struct alltoallv_plan_state *plan)
{
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS; id++) {
    const struct alltoallv_window *w = &plan->h->windows[id];
    const bool used = (plan->windows >> id & 1) != 0;
    if (used && (w->base == NULL || w->since > plan->made))
      return alltoallv_fail(ncclInvalidUsage,
                            "a receive buffer of the plan is not registered any more");
  }
  return ncclSuccess;
}

ncclResult_t alltoallv_start(alltoallv_plan_t plan, cudaStream_t stream)
{
  bool capturing;
  if (plan == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL plan");
  ALLTOALLV_TRY(check_windows(plan));
  ALLTOALLV_TRY(alltoallv_order(plan->h, stream, &capturing));
  /* A graph would freeze the number of the start. */
  if (plan->copy_engines && !capturing) return start_copies(plan, stream);
  return alltoallv_run_exchange(plan->h, &plan->ex, capturing, stream);
}

ncclResult_t alltoallv_start_bare(alltoallv_plan_t plan, cudaStream_t stream)
{
  struct alltoallv_request request;
  if (plan == NULL || plan->h->lsa == NULL || plan->h->lsa_n < plan->h->n)
    return alltoallv_fail(ncclInvalidUsage, "no kernel for all ranks");
  alltoallv_fill_request(plan->h, &plan->ex, &request);
  ALLTOALLV_TRY(alltoallv_lsa_bare_push(plan->h->lsa, &request, (void *const *)plan->to, stream));
  return ncclSuccess;
}
