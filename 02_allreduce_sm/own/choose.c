/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.h"

#define MIB ((size_t)1 << 20)

static size_t least(size_t a, size_t b)
{
  return a < b ? a : b;
}

/* As many threads as there are pieces of work, in blocks as small as `blocks` of them allow; but
 * not more than `most` blocks. */
static struct allreduce_shape shape(enum allreduce_method method, size_t pieces, size_t blocks,
                                    size_t most)
{
  size_t threads = 128;
  while (threads < 512 && pieces > threads * blocks) threads *= 2;
  const size_t enough = (pieces + threads - 1) / threads;
  return (struct allreduce_shape){method, (int)least(enough, most), (int)threads};
}

/* Up to how many bytes that a rank sends a one-shot method is faster than two-shot. On 2 x H200
 * two-shot takes 2.4 us longer to begin with, and 3 us for each MiB that a rank moves, which is
 * 2 (n - 1) / n of the vector; one-shot moves n - 1 times the vector, at 3.5 us for each MiB in
 * wide lines and 6.8 in others (here in hundredths). That was measured with 2 ranks, where it means
 * 4.8 MiB and more than lines have room for; for more ranks it is only calculated. */
static size_t one_shot_pays(size_t n, size_t hundredths)
{
  return MIB * 240 * n / (hundredths * n - 600);
}

struct allreduce_shape allreduce_choose(size_t bytes, int n, struct allreduce_limits limits)
{
  const size_t ranks = (size_t)n, sent = bytes * (ranks - 1), words = (bytes + 7) / 8;
  if (sent <= least(limits.lines, one_shot_pays(ranks, 680)))
    return shape(ALLREDUCE_LINES, words, 64, limits.blocks[ALLREDUCE_LINES]);
  if (sent <= least(limits.wide, one_shot_pays(ranks, 350)))
    return shape(ALLREDUCE_WIDE, (words + 14) / 15 * 8, 140, limits.blocks[ALLREDUCE_WIDE]);
  const size_t blocks = bytes / ranks / 32768 + 1; /* one for each 32 KiB of a slice */
  return (struct allreduce_shape){ALLREDUCE_TWOSHOT,
                                  (int)least(blocks, limits.blocks[ALLREDUCE_TWOSHOT]), 512};
}
