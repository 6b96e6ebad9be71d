/* SPDX-License-Identifier: Apache-2.0 */
/* Words of the user's vectors, and their sums, in the order and with the rounding that allreduce.h
 * promises. */
#ifndef ALLREDUCE_SUM_CUH
#define ALLREDUCE_SUM_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Loads or stores those elements of a word, at an address that is aligned to an element, that lie
 * in the vector from `begin` to `end`. What is not loaded is 0. */
template <typename T, typename Word>
static __device__ __noinline__ Word load_elements(const char *from, const char *begin,
                                                  const char *end)
{
  union {
    Word all;
    T element[sizeof(Word) / sizeof(T)];
  } u;
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Word) / sizeof(T)); i++) {
    const T *at = (const T *)from + i;
    u.element[i] = (const char *)at >= begin && (const char *)at < end ? *at : T(0);
  }
  return u.all;
}

template <typename T, typename Word>
static __device__ __noinline__ void store_elements(char *to, Word word, const char *begin,
                                                   const char *end)
{
  union {
    Word all;
    T element[sizeof(Word) / sizeof(T)];
  } u;
  u.all = word;
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Word) / sizeof(T)); i++) {
    T *at = (T *)to + i;
    if ((char *)at >= begin && (char *)at < end) *at = u.element[i];
  }
}

/* A word of the vector, if it can be had at once, or its elements. WHOLE: the kernel is for vectors
 * of whole and aligned words, has no code for other ones, and is faster for that: on H200 by 2 to
 * 10 % up to 1 MiB. */
template <typename T, typename Word, bool WHOLE>
static __device__ __forceinline__ Word load_word(const char *from, const char *begin,
                                                 const char *end)
{
  if (WHOLE) return *(const Word *)from;
  return (uintptr_t)from % sizeof(Word) == 0 && from >= begin && from + sizeof(Word) <= end
             ? *(const Word *)from
             : load_elements<T, Word>(from, begin, end);
}

template <typename T, bool WHOLE, typename Word>
static __device__ __forceinline__ void store_word(char *to, Word word, const char *begin,
                                                  const char *end)
{
  if (WHOLE || ((uintptr_t)to % sizeof(Word) == 0 && to >= begin && to + sizeof(Word) <= end))
    *(Word *)to = word;
  else
    store_elements<T>(to, word, begin, end);
}

/* How an element is read, added and written. Integers wrap. */
template <typename T>
struct same_width {
  typedef T element;
  typedef T wide;
  static __device__ wide read(element e) { return e; }
  static __device__ element write(wide w) { return w; }
};
typedef same_width<float> sum_float;
typedef same_width<double> sum_double;
typedef same_width<uint32_t> sum_int32;
typedef same_width<uint64_t> sum_int64;

struct sum_half {
  typedef uint16_t element;
  typedef float wide;
  static __device__ wide read(element e) { return __half2float(__ushort_as_half(e)); }
  static __device__ element write(wide w) { return __half_as_ushort(__float2half_rn(w)); }
};

struct sum_bfloat16 {
  typedef uint16_t element;
  typedef float wide;
  static __device__ wide read(element e) { return __bfloat162float(__ushort_as_bfloat16(e)); }
  static __device__ element write(wide w) { return __bfloat16_as_ushort(__float2bfloat16_rn(w)); }
};

/* The sum so far of words, of 8 or 16 bytes, or of single elements. */
template <typename S, typename Word>
struct running_sum {
  enum { LANES = sizeof(Word) / sizeof(typename S::element) };
  typename S::wide lane[LANES];

  union bits {
    Word word;
    typename S::element element[LANES];
    __device__ bits() {}
  };

  __device__ __forceinline__ void add(Word word, bool first)
  {
    bits b;
    b.word = word;
#pragma unroll
    for (int i = 0; i < LANES; i++)
      lane[i] = first ? S::read(b.element[i]) : lane[i] + S::read(b.element[i]);
  }
  __device__ __forceinline__ Word word() const
  {
    bits b;
#pragma unroll
    for (int i = 0; i < LANES; i++) b.element[i] = S::write(lane[i]);
    return b.word;
  }
};

#endif
