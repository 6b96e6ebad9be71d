/* SPDX-License-Identifier: Apache-2.0 */
/* The data types of NCCL that the programs take, under the names that nccl-tests gives them. */
#ifndef COMMON_DATATYPE_H
#define COMMON_DATATYPE_H

#include <stddef.h>
#include <stdint.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

struct datatype {
  const char *name;    /* "float" */
  ncclDataType_t nccl; /* ncclFloat */
  size_t size;         /* bytes per element */
  int exact_bits;      /* every integer below 2^exact_bits has an exact value in this type */
};

/* The type of that name, or NULL. */
const struct datatype *datatype_find(const char *name);

/* The number that the element of this bit pattern stands for; of 64-bit integers the nearest that a
 * double can hold. */
double datatype_value(const struct datatype *type, uint64_t bits);

/* The same as text that differs where the bits differ (but for kinds of NaN). Returns `text`. */
const char *datatype_text(const struct datatype *type, uint64_t bits, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
