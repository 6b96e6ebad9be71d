/* SPDX-License-Identifier: Apache-2.0 */
/* Moving bytes: between memory and registers for the low-latency protocol, and from the send buffer
 * straight into a (remote) receive buffer, at any alignment.
 *
 * Two rules. Loads never touch a byte outside the segment. Stores never touch a byte outside the
 * segment either, not even to write back what was there: the byte beside it belongs to another
 * source, which may be writing it at this moment. */
#ifndef ALLTOALLV_COPY_CUH
#define ALLTOALLV_COPY_CUH

#include <stdint.h>

/* ---- 16 bytes at a time ------------------------------------------------------------------- */

/* Elements of type T make up 16 bytes. */
template <typename T>
static __device__ __forceinline__ uint4 gather(const char *from)
{
  union {
    T part[16 / sizeof(T)];
    uint4 all;
  } u;
#pragma unroll
  for (int i = 0; i < (int)(16 / sizeof(T)); i++) u.part[i] = reinterpret_cast<const T *>(from)[i];
  return u.all;
}

template <typename T>
static __device__ __forceinline__ void scatter(char *to, uint4 value)
{
  union {
    T part[16 / sizeof(T)];
    uint4 all;
  } u;
  u.all = value;
#pragma unroll
  for (int i = 0; i < (int)(16 / sizeof(T)); i++) reinterpret_cast<T *>(to)[i] = u.part[i];
}

/* 16 bytes at `from`, of which the first `left` belong to the segment (none if left <= 0). */
static __device__ __forceinline__ uint4 load16(const char *from, int64_t left)
{
  uintptr_t address = reinterpret_cast<uintptr_t>(from);
  if (left >= 16) {
    if (address % 16 == 0) return *reinterpret_cast<const uint4 *>(from);
    if (address % 4 == 0) return gather<uint32_t>(from);
    if (address % 2 == 0) return gather<uint16_t>(from);
    return gather<uint8_t>(from);
  }
  uint64_t low = 0, high = 0;
  for (int i = 0; i < 8 && i < left; i++) low |= (uint64_t)(uint8_t)from[i] << (8 * i);
  for (int i = 8; i < left; i++) high |= (uint64_t)(uint8_t)from[i] << (8 * (i - 8));
  return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

static __device__ __forceinline__ void store16(char *to, uint4 value, int64_t left)
{
  uintptr_t address = reinterpret_cast<uintptr_t>(to);
  if (left >= 16) {
    if (address % 16 == 0)
      *reinterpret_cast<uint4 *>(to) = value;
    else if (address % 4 == 0)
      scatter<uint32_t>(to, value);
    else if (address % 2 == 0)
      scatter<uint16_t>(to, value);
    else
      scatter<uint8_t>(to, value);
    return;
  }
  uint64_t low = (uint64_t)value.y << 32 | value.x, high = (uint64_t)value.w << 32 | value.z;
  for (int i = 0; i < 8 && i < left; i++) to[i] = (char)(low >> (8 * i));
  for (int i = 8; i < left; i++) to[i] = (char)(high >> (8 * (i - 8)));
}

/* ---- tiles -------------------------------------------------------------------------------- */

/* A warp moves a tile of 4 KiB at a time: 8 loads of 16 bytes in flight per lane before the first
 * store, and 4 KiB that lie side by side for the link. */
#define ALLTOALLV_TILE_BYTES 4096
#define TILE_WORDS (ALLTOALLV_TILE_BYTES / 16)
#define TILE_DEPTH (TILE_WORDS / 32)

/* Read once: do not keep it in the first-level cache. */
static __device__ __forceinline__ uint4 load_stream(const uint4 *from)
{
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/* The 16 bytes that start `shift` bytes into the 32 bytes (low, high); 0 < shift < 16. */
static __device__ __forceinline__ uint4 funnel(uint4 low, uint4 high, int shift)
{
  uint64_t a = (uint64_t)low.y << 32 | low.x, b = (uint64_t)low.w << 32 | low.z;
  uint64_t c = (uint64_t)high.y << 32 | high.x, d = (uint64_t)high.w << 32 | high.z;
  if (shift >= 8) {
    a = b;
    b = c;
    c = d;
  }
  int bits = shift % 8 * 8;
  /* << 1 << (63 - bits): a shift by 64 is undefined */
  uint64_t x = a >> bits | b << 1 << (63 - bits), y = b >> bits | c << 1 << (63 - bits);
  return make_uint4((uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32));
}

/* One warp copies tile number `tile` of the segment of `bytes` > 0 bytes; ceil(bytes / 4096) tiles
 * make up the segment, whatever its alignment.
 *
 *   to:   |..head..|====16====|====16====| ... |====16====|..tail..|
 *
 * The words in the middle are aligned at the destination. The first tile also copies the bytes
 * before them, the last tile those behind. Where the source is aligned differently, a word is put
 * together from two aligned words; then the middle begins and ends a little further inside, so that
 * both lie in the segment. */
static __device__ __forceinline__ void copy_tile(char *to, const char *from, uint64_t bytes,
                                                 uint64_t tile, int lane)
{
  uint64_t head = (0 - reinterpret_cast<uintptr_t>(to)) & 15;
  int shift = (int)((reinterpret_cast<uintptr_t>(from) + head) & 15);
  if (head < (uint64_t)shift) head += 16; /* the aligned word before it would begin too early */
  uint64_t words = bytes > head ? (bytes - head) / 16 : 0;
  if (shift > 0 && words > 0 && head + words * 16 + 16 - shift > bytes) words--;
  if (words == 0) head = bytes;

  uint64_t first = tile * TILE_WORDS;
  uint64_t end = first + TILE_WORDS < words ? first + TILE_WORDS : words;
  uint4 *out = reinterpret_cast<uint4 *>(to + head);
  const uint4 *in = reinterpret_cast<const uint4 *>(from + head - shift);

  if (shift == 0 && end == first + TILE_WORDS) { /* the common case, without a branch inside */
    uint4 v[TILE_DEPTH];
#pragma unroll
    for (int u = 0; u < TILE_DEPTH; u++) v[u] = load_stream(in + first + lane + 32 * u);
#pragma unroll
    for (int u = 0; u < TILE_DEPTH; u++) out[first + lane + 32 * u] = v[u];
  } else if (shift == 0) {
    for (uint64_t w = first + lane; w < end; w += 32) out[w] = in[w];
  } else {
#pragma unroll 4
    for (uint64_t w = first + lane; w < end; w += 32) out[w] = funnel(in[w], in[w + 1], shift);
  }

  if (tile == 0)
    for (uint64_t i = lane; i < head; i += 32) to[i] = from[i];
  if (tile == (bytes - 1) / ALLTOALLV_TILE_BYTES)
    for (uint64_t i = head + words * 16 + lane; i < bytes; i += 32) to[i] = from[i];
}

#endif
