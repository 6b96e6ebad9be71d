/* SPDX-License-Identifier: Apache-2.0 */
/* The data types of NCCL that the programs take, under the names that nccl-tests gives them. */
#ifndef COMMON_DATATYPE_H
#define COMMON_DATATYPE_H

#include <stddef.h>
#include <stdint.h>

#include <nccl.h>

struct datatype {
  const char *name;    /* "float" */
  ncclDataType_t nccl; /* ncclFloat */
  size_t size;         /* bytes per element */
  int exact_bits;      /* every integer below 2^exact_bits has an exact value in this type */
};

/* The type of that name, or NULL. */
const struct datatype *datatype_find(const char *name);

/* The number with this bit pattern; long double, because it holds integers of 64 bits. */
long double datatype_value(const struct datatype *type, uint64_t bits);

#endif
