/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: collectives, their results, order of additions, rounding. */
#include "standin.h"

struct buffers {
  char *send, *receive; /* device */
  char *in, *out;       /* host; out is filled with a sentinel before the call */
  size_t bytes;
};

static const struct shape {
  size_t count;
  int types;   /* how many of all_types */
  int all_ops; /* all operations or only the sum */
} shapes[] = {{0, TYPES, 0}, {1, TYPES, 0}, {3, TYPES, 0}, {1021, TYPES, 1}, {BIG, 1, 0}};

void one_collective(struct rank *me, enum collective which, size_t count, int t, ncclRedOp_t op,
                    int root, bool in_place)
{
  ncclDataType_t type = all_types[t];
  size_t size = size_of(type), n = (size_t)me->n, r = (size_t)me->rank;
  size_t in_blocks = which == REDUCESCATTER || which == ALLTOALL ? n : 1;
  size_t out_blocks = which == ALLGATHER || which == ALLTOALL ? n : 1;
  size_t in_bytes = in_blocks * count * size, out_bytes = out_blocks * count * size;
  char *in = host_memory(in_bytes), *out = host_memory(out_bytes);
  if (me->send == NULL) me->send = device_memory(POOL_BYTES);
  if (me->receive == NULL) me->receive = device_memory(POOL_BYTES);
  REQUIRE(in_bytes <= POOL_BYTES && out_bytes <= POOL_BYTES);
  char *receive = me->receive, *send = in_place ? receive : me->send;
  for (size_t b = 0; b < in_blocks; b++) fill(in + b * count * size, count, t, me->rank, (int)b);
  memset(out, 0x5A, out_bytes);
  CUDA(cudaMemcpyAsync(receive, out, out_bytes, cudaMemcpyHostToDevice, me->stream));
  if (in_place && which == ALLGATHER) send = receive + r * count * size;
  CUDA(cudaMemcpyAsync(send, in, in_bytes, cudaMemcpyHostToDevice, me->stream));
  char *result = receive;
  switch (which) {
  case ALLREDUCE:
    NCCL(ncclAllReduce(send, receive, count, type, op, me->comm, me->stream));
    break;
  case REDUCESCATTER:
    if (in_place) result = receive + r * count * size;
    NCCL(ncclReduceScatter(send, result, count, type, op, me->comm, me->stream));
    break;
  case ALLGATHER:
    NCCL(ncclAllGather(send, receive, count, type, me->comm, me->stream));
    break;
  case BROADCAST:
    NCCL(ncclBroadcast(send, receive, count, type, root, me->comm, me->stream));
    break;
  default:
    NCCL(ncclAlltoAll(send, receive, count, type, me->comm, me->stream));
  }
  CUDA(cudaMemcpyAsync(out, result, out_bytes, cudaMemcpyDeviceToHost, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  bool integer = type <= ncclUint64;
  for (size_t i = 0; i < count; i++) {
    for (size_t b = 0; b < out_blocks; b++) {
      double got = get(out, b * count + i, type);
      double want = which == ALLREDUCE       ? reduced(me->n, i, 0, op, integer)
                    : which == REDUCESCATTER ? reduced(me->n, i, me->rank, op, integer)
                    : which == ALLGATHER     ? element((int)b, i, 0)
                    : which == BROADCAST     ? element(root, i, 0)
                                             : element((int)b, i, me->rank);
      if (!close_to(got, want, type, op)) {
        fprintf(stderr, "collective %d rank %d of %d type %d op %d count %zu [%zu]: %g not %g\n",
                which, me->rank, me->n, type, op, count, i, got, want);
        REQUIRE(!"wrong data");
      }
    }
  }
  free(in);
  free(out);
}

static void collectives_body(struct rank *me)
{
  for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
    for (int t = 0; t < shapes[s].types; t++)
      for (int op = ncclSum; op < (shapes[s].all_ops ? ncclNumOps : ncclProd); op++)
        for (int which = 0; which < COLLECTIVES; which++) {
          if (op != ncclSum && which > REDUCESCATTER) continue;
          if (shapes[s].count == BIG && me->n == 7 && which == ALLTOALL) continue;
          int type = shapes[s].count == BIG ? 7 : t;
          one_collective(me, which, shapes[s].count, type, op, (t + op) % me->n, false);
          if (which != ALLTOALL)
            one_collective(me, which, shapes[s].count, type, op, (t + op) % me->n, true);
        }
}

void test_collectives(void **state)
{
  (void)state;
  static const int ranks[] = {1, 2, 3, 4, 7};
  for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
    run_ranks(ranks[i], collectives_body);
}

/* 64 ranks, so that the smallest rings are used too. */
static void many_ranks_body(struct rank *me)
{
  one_collective(me, ALLREDUCE, 5, 7, ncclSum, 0, false);
  one_collective(me, ALLREDUCE, 20011, 2, ncclSum, 0, true);
  one_collective(me, ALLTOALL, 1500, 3, ncclSum, 0, false);
  one_collective(me, BROADCAST, 10007, 4, ncclSum, 33, false);
}

void test_many_ranks(void **state)
{
  (void)state;
  run_ranks(MOST_RANKS, many_ranks_body);
}

/* Sums whose bits depend on the order are the same on all ranks and equal a sum in rank order. */
static float irregular(int rank, size_t i)
{
  return (float)((double)((i * 2654435761u + (size_t)rank * 40503u) % 1000003u) / 1000.0 - 333.3);
}

static void order_body(struct rank *me)
{
  enum { COUNT = 100003 };
  float *host = host_memory(COUNT * sizeof(float));
  float *device = device_memory(COUNT * sizeof(float));
  for (size_t i = 0; i < COUNT; i++) host[i] = irregular(me->rank, i);
  CUDA(cudaMemcpy(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(device, device, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < COUNT; i++) {
    float sum = irregular(0, i);
    for (int r = 1; r < me->n; r++) sum += irregular(r, i);
    REQUIRE(bits_from(sum) == bits_from(host[i]));
  }
  CUDA(cudaFree(device));
  free(host);
}

void test_rank_order(void **state)
{
  (void)state;
  run_ranks(5, order_body);
}

/* Rounding of the 16-bit types: two addends, all bit patterns for one of them. */
static uint16_t nearest(double value, bool half)
{
  uint16_t best = 0;
  double distance = 1e300;
  unsigned last = half ? 0x7bff : 0x7f7f;
  /* binary search for the neighbour below, then compare with the one above */
  unsigned low = 0, high = last;
  double magnitude = value < 0 ? -value : value;
  if (magnitude > 1e39) magnitude = 1e39; /* infinity, too, is beyond all */
  while (low < high) {
    unsigned middle = (low + high + 1) / 2;
    double x = half ? half_value((uint16_t)middle) : (double)float_from(middle << 16);
    if (x <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  for (unsigned x = low; x <= low + 1; x++) {
    double candidate = x > last && half ? 65536.0
                       : half           ? half_value((uint16_t)x)
                                        : (double)float_from(x << 16);
    if (!half && x > last) candidate = 0x1p128;
    double d = candidate < magnitude ? magnitude - candidate : candidate - magnitude;
    if (d < distance || (d == distance && (x & 1) == 0)) {
      distance = d;
      best = (uint16_t)x;
    }
  }
  return (uint16_t)(best | (value < 0 ? 0x8000 : 0));
}

static void rounding_body(struct rank *me)
{
  enum { COUNT = 65536 };
  static const uint16_t addends[2][5] = {{0x0000, 0x3c01, 0x0001, 0x7bff, 0xb555},
                                         {0x0000, 0x3f81, 0x0001, 0x7f7f, 0xbf55}};
  uint16_t *host = host_memory(COUNT * 2), *device = device_memory(COUNT * 2);
  for (int half = 0; half < 2; half++)
    for (int k = 0; k < 5; k++) {
      uint16_t addend = addends[1 - half][k];
      unsigned infinity = half ? 0x7c00 : 0x7f80;
      for (unsigned i = 0; i < COUNT; i++) host[i] = me->rank == 0 ? (uint16_t)i : addend;
      CUDA(cudaMemcpy(device, host, COUNT * 2, cudaMemcpyHostToDevice));
      NCCL(ncclAllReduce(device, device, COUNT, half ? ncclHalf : ncclBfloat16, ncclSum, me->comm,
                         me->stream));
      CUDA(cudaStreamSynchronize(me->stream));
      CUDA(cudaMemcpy(host, device, COUNT * 2, cudaMemcpyDeviceToHost));
      for (unsigned i = 0; i < COUNT; i++) {
        if ((i & 0x7fff) > infinity) {
          REQUIRE((host[i] & 0x7fff) > infinity); /* NaN stays NaN */
        } else if ((i & 0x7fff) == infinity) {
          REQUIRE(host[i] == i);
        } else {
          float sum = half ? (float)half_value((uint16_t)i) + (float)half_value(addend)
                           : float_from(i << 16) + float_from((uint32_t)addend << 16);
          uint16_t want = nearest((double)sum, half != 0);
          bool zero = (want & 0x7fff) == 0 && (host[i] & 0x7fff) == 0;
          bool overflow = (want & 0x7fff) == infinity && host[i] == want;
          if (!(host[i] == want || zero || overflow))
            fprintf(stderr, "%s %04x + %04x = %04x, not %04x\n", half ? "half" : "bfloat16", i,
                    addend, host[i], want);
          REQUIRE(host[i] == want || zero || overflow);
        }
      }
    }
  /* Bytes wrap. */
  uint8_t bytes[2] = {200, 16}, *small = device_memory(2);
  CUDA(cudaMemcpy(small, bytes, 2, cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(small, small, 1, ncclUint8, ncclSum, me->comm, me->stream));
  NCCL(ncclAllReduce(small + 1, small + 1, 1, ncclUint8, ncclProd, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(bytes, small, 2, cudaMemcpyDeviceToHost));
  REQUIRE(bytes[0] == (uint8_t)400 && bytes[1] == 0);
  CUDA(cudaFree(small));
  CUDA(cudaFree(device));
  free(host);
}

void test_rounding(void **state)
{
  (void)state;
  run_ranks(2, rounding_body);
}
