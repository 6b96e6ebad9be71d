# SPDX-License-Identifier: Apache-2.0
# The files of the reference, for the programs that compare with it.
REFERENCE_SOURCES := parallel.c reference.c reference_steps.c reference_select.c reference_exchange.c
REFERENCE_SOURCES += invariants.c invariants_elements.c
