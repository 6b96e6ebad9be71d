/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.h"

/* As many threads as there are pieces of work, but not more than `most` blocks of them. */
static struct allreduce_shape shape(enum allreduce_method method, size_t pieces, int threads,
                                    size_t most)
{
  const size_t blocks = (pieces + (size_t)threads - 1) / (size_t)threads;
  return (struct allreduce_shape){method, (int)(blocks < most ? blocks : most), threads};
}

static size_t least(size_t a, size_t b)
{
  return a < b ? a : b;
}

/* Lines send the vector to each of the other ranks; two-shot sends 2 (n - 1) / n of it, but waits
 * twice. The figures are those that were fastest on 2 x H200, see README.md. */
struct allreduce_shape allreduce_choose(size_t bytes, int n, struct allreduce_limits limits)
{
  const size_t sent = bytes * (size_t)(n - 1), words = (bytes + 7) / 8;
  if (sent <= limits.lines)
    return shape(ALLREDUCE_LINES, words, sent <= 65536 ? 128 : 512, least(limits.blocks, 132));
  if (sent <= limits.wide) return shape(ALLREDUCE_WIDE, (words + 14) / 15 * 8, 512, limits.blocks);
  /* two-shot: 8 words of 16 bytes of its slice for each thread */
  return shape(ALLREDUCE_TWOSHOT, bytes / (128 * (size_t)n) + 1, 512, limits.blocks);
}
