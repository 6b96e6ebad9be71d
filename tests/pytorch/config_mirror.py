# SPDX-License-Identifier: Apache-2.0
"""Prints C that compiles if the structure and the numbers that sparse_update_optimizer.py has copied by hand
are those of sparse_allreduce.h and nccl.h."""

import ctypes
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../04_sparse_allreduce/pytorch"))
import sparse_update_optimizer as mirror  # noqa: E402

STRUCT = "sparse_allreduce_config_t"


def equal(c, number):
    print('_Static_assert((%s) == %d, "%s is not %d");' % (c, number, c, number))


def fields(structure, path="", at=0):
    for name, kind in structure._fields_:
        field = getattr(structure, name)
        equal("offsetof(%s, %s%s)" % (STRUCT, path, name), at + field.offset)
        equal("sizeof(((%s *)0)->%s%s)" % (STRUCT, path, name), field.size)
        if issubclass(kind, ctypes.Structure):
            fields(kind, path + name + ".", at + field.offset)


print('#include <stddef.h>\n#include "sparse_allreduce.h"')
equal("sizeof(%s)" % STRUCT, ctypes.sizeof(mirror.Config))
fields(mirror.Config)
equal("SPARSE_PRESET_BERT", mirror.PRESET_BERT)
equal("SPARSE_RESULT_ENTRIES", mirror.RESULT_ENTRIES)
equal("sizeof(ncclUniqueId)", ctypes.sizeof(mirror._UniqueId))
