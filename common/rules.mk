# SPDX-License-Identifier: Apache-2.0
# Build rules of all examples. An example's Makefile names its program and sources and includes
# this file:
#
#   PROGRAM     := allreduce_ub
#   SOURCES     := main.c bench.c    C files of every build
#   GPU_SOURCES := kernels.cu        only where there is a GPU ...
#   CPU_SOURCES := kernels_cpu.c     ... and their twins for the CPU stand-in
#   SHARED      := 03_x/y.c          sources from elsewhere, relative to the top ...
#   GPU_SHARED, CPU_SHARED           ... and those of one kind of build
#   SECOND      := sparse_training   a second program that shares the sources from elsewhere,
#   SECOND_SOURCES, SECOND_GPU_SOURCES, SECOND_CPU_SOURCES      ... and has these of its own
#   LIBRARY := sparse_allreduce      a shared library, libsparse_allreduce.so, beside the programs: ...
#   LIBRARY_FILES                    ... of those sources above, with their folders, ...
#   LIBRARY_EXPORTS                  ... which offers the symbols that this version script names
#   BUILT_IN    := 03_x              for tests: what is not below tests/ is compiled in that example's folder,
#                                    so that a test links what the example links, and nothing is made twice
#   include ../common/rules.mk
#
# Switches, on make's command line:
#   MPI=1        one process per GPU (default: one thread per GPU)
#   CPU=1        without GPU, on the CPU stand-in in common/cpu
#   SANITIZE=address,undefined or thread    (with CPU=1)
#   CUDA_HOME, NCCL_HOME, MPI_HOME, MPICC, NVCC_GENCODE, CC, CFLAGS
#
# Every combination of switches has a folder of its own, build/<variant>/, and the link PROGRAM (and
# SECOND) is set to the one built last. Device code knows nothing of launchers: what nvcc makes is in
# build/gpu-device/, for both. So one GPU build at a time in a folder: `make both` makes both in the
# right order, and leaves the link alone.

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# for a folder elsewhere, both are set before this file is included
ifneq ($(origin TOP),file)
TOP := ..
endif
ifneq ($(origin EXAMPLE),file)
EXAMPLE := $(lastword $(subst /, ,$(CURDIR)))
endif
comma := ,
empty :=
space := $(empty) $(empty)

# Blanks separate words for make, and quotes end words for the shell.
PATHS := CUDA_HOME NCCL_HOME MPI_HOME
$(foreach name,$(PATHS),$(if $(word 2,$($(name)))$(strip $(foreach c,' " ` \ [ ] * ? & ; |,$(findstring $c,$($(name))))),\
  $(error $(name)='$($(name))' is a path that make cannot take; allowed: one without blanks, quotes, brackets and the like)))

# MPI=0 and CPU=0 are what they say.
override MPI := $(filter-out 0,$(MPI))
override CPU := $(filter-out 0,$(CPU))

VARIANT := $(if $(CPU),cpu,gpu)-$(if $(MPI),mpi,pthread)$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
BUILD := build/$(VARIANT)
DEVICE_BUILD := build/gpu-device

COMMON := datatype.c shown.c
COMMON += $(addprefix launch/,options.c file_options.c output_file.c launcher.c watchdog.c)
COMMON += launch/$(if $(MPI),launcher_mpi.c,launcher_pthread.c)
COMMON += verify/verify.c verify/$(if $(CPU),verify_cpu.c,verify.cu)
COMMON += bench/bench.c bench/bench_output.c
COMMON_INCLUDES := -I$(TOP)/common $(addprefix -I$(TOP)/common/,launch verify bench)
ALL_SHARED := $(SHARED) $(if $(CPU),$(CPU_SHARED),$(GPU_SHARED)) $(addprefix common/,$(COMMON))
FIRST_FILES := $(addprefix $(EXAMPLE)/,$(SOURCES) $(if $(CPU),$(CPU_SOURCES),$(GPU_SOURCES))) $(ALL_SHARED)
SECOND_FILES := $(addprefix $(EXAMPLE)/,$(SECOND_SOURCES) $(if $(CPU),$(SECOND_CPU_SOURCES),$(SECOND_GPU_SOURCES)))
SECOND_FILES += $(if $(SECOND),$(ALL_SHARED))
PROGRAMS := $(PROGRAM) $(SECOND)
SHARED_LIBRARY := $(if $(LIBRARY),$(BUILD)/lib$(LIBRARY).so)
LENDER := $(if $(BUILT_IN),$(TOP)/$(BUILT_IN)/)
objects_in = $(foreach file,$(2),$(if $(filter tests/%,$(file)),,$(LENDER))$(1)/$(file).o)
host_objects = $(call objects_in,$(BUILD),$(filter %.c,$(1)))
# first what nvcc makes, which takes longest
objects = $(call objects_in,$(DEVICE_BUILD),$(filter %.cu,$(1))) $(host_objects)
HOST_OBJECTS := $(sort $(call host_objects,$(FIRST_FILES) $(SECOND_FILES)))
OBJECTS := $(call objects,$(FIRST_FILES))
SECOND_OBJECTS := $(call objects,$(SECOND_FILES))
LIBRARY_OBJECTS := $(call objects,$(LIBRARY_FILES))

ifeq ($(origin CC),default)
CC := gcc
endif
MPICC ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/mpicc,mpicc)
COMPILER := $(if $(MPI),$(MPICC),$(CC))
CFLAGS ?= -O2 -g
WARNINGS := -Wall -Wextra -Wpedantic -Werror
C_FLAGS = -std=c11 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS) -pthread $(COMMON_INCLUDES) $(if $(MPI),-DLAUNCHER_MPI)
C_FLAGS += $(addprefix -I$(TOP)/,$(INCLUDES)) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
# one compilation for programs and shared library
$(LIBRARY_OBJECTS): PIC := -fPIC
LINK_FLAGS = -pthread -lm $(if $(SANITIZE),-fsanitize=$(SANITIZE))

NEEDS_TOOLS := $(filter-out clean help,$(or $(MAKECMDGOALS),all))

ifneq ($(NEEDS_TOOLS),)
ifeq ($(shell command -v $(COMPILER)),)
$(error no $(COMPILER); allowed: scripts/setup.sh to install it, \
  $(if $(MPI),MPI_HOME=<folder of MPI>$(comma) MPICC=<its C compiler>$(comma) or no MPI=1,or CC=<C compiler>))
endif
endif

ifneq ($(CPU),)
# ---- the CPU stand-in: a shared library with the names of CUDA and NCCL ----------------------
STANDIN := $(LENDER)$(BUILD)/libcpu_standin.so
STANDIN_OBJECTS := $(if $(LENDER),,$(patsubst $(TOP)/%,$(BUILD)/%.o,$(wildcard $(TOP)/common/cpu/*.c)))
C_FLAGS += -DCPU_STANDIN -isystem $(TOP)/common/cpu/include -I$(TOP)/common/cpu
# beside the program, or in lib/ where it is installed; of a test in the example's folder
LINK_FLAGS += -Wl,-rpath,'$$ORIGIN$(if $(LENDER),/../../$(LENDER)$(BUILD),:$$ORIGIN/../lib)' -L$(LENDER)$(BUILD) -lcpu_standin
$(STANDIN_OBJECTS): C_FLAGS += -fPIC
else
# ---- CUDA and NCCL -----------------------------------------------------------------------------
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)),/usr/local/cuda)
NVCC := $(CUDA_HOME)/bin/nvcc
NCCL_HOME ?= $(if $(wildcard /usr/include/nccl.h),/usr,$(CUDA_HOME))
NCCL_LIBRARY := $(firstword $(wildcard $(addsuffix /libnccl.so.2,$(addprefix $(NCCL_HOME)/, \
                  lib64 lib lib/$(shell uname -m)-linux-gnu))))
ifneq ($(NEEDS_TOOLS),)
ifeq ($(wildcard $(NVCC)),)
$(error no nvcc at $(NVCC); allowed: CUDA_HOME=<folder of CUDA>, or CPU=1 to do without a GPU)
endif
ifeq ($(wildcard $(NCCL_HOME)/include/nccl.h),)
$(error no nccl.h in $(NCCL_HOME)/include; allowed: NCCL_HOME=<folder of NCCL>, or CPU=1)
endif
ifeq ($(NCCL_LIBRARY),)
$(error no libnccl.so.2 below $(NCCL_HOME); allowed: NCCL_HOME=<folder of NCCL>, or CPU=1)
endif
# The GPUs present; without one, a list that nvcc can make, and PTX for newer ones.
ifndef NVCC_GENCODE
PRESENT := $(sort $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9.]+$$')))
PORTABLE := $(filter $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)),70 80 90 100 120)
ARCHS := $(or $(PRESENT),$(PORTABLE))
NVCC_GENCODE := $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch))
NVCC_GENCODE += -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
endif
endif
# CUDA's include folder may hold an nccl.h of its own, and NCCL_HOME may be /usr, whose include
# folder cannot be put in front of others. Links in the build folder to NCCL_HOME's headers alone
# come first for both compilers.
NCCL_INCLUDE := nccl_include
$(BUILD)/nccl_include $(DEVICE_BUILD)/nccl_include: %/nccl_include: %/flags
	@rm -rf $@ && mkdir $@ && ln -s $(abspath $(NCCL_HOME))/include/nccl* $@/

C_FLAGS += -isystem $(BUILD)/nccl_include -isystem $(CUDA_HOME)/include
NVCC_FLAGS = -std=c++17 -O3 -lineinfo $(NVCC_GENCODE) -Werror all-warnings
NVCC_FLAGS += -Xcompiler -Wall,-Wextra,-Wno-unused-parameter -I$(DEVICE_BUILD)/nccl_include $(COMMON_INCLUDES)
NVCC_FLAGS += $(addprefix -I$(TOP)/,$(INCLUDES))
# lazy: a runtime that is too old for a call must get as far as our message
LINK_FLAGS += -Wl,-z,lazy -L$(dir $(NCCL_LIBRARY)) -L$(CUDA_HOME)/lib64
LINK_FLAGS += -Wl,-rpath,$(patsubst %/,%,$(dir $(NCCL_LIBRARY))) -Wl,-rpath,$(CUDA_HOME)/lib64
LINK_FLAGS += -l:libnccl.so.2 -lcudart -lstdc++ -ldl
endif

# ---- rules -------------------------------------------------------------------------------------
.PHONY: all program host both both-pthread both-mpi-host lent-host lent-device run clean help FORCE
all: program # the links, unless they are right: a checkout that was built may be read-only
	@for name in $(PROGRAMS); do \
	  [ "$$(readlink $$name)" = $(BUILD)/$$name ] || ln -sfn $(BUILD)/$$name $$name || exit; \
	done

program: $(addprefix $(BUILD)/,$(PROGRAMS)) $(SHARED_LIBRARY)
host: $(HOST_OBJECTS) $(STANDIN_OBJECTS)

# One make makes the device code, and beside it another one the host code of the other launcher.
both: both-pthread both-mpi-host
	+@$(MAKE) MPI=1 program
both-pthread:
	+@$(MAKE) MPI= program
both-mpi-host:
	+@$(MAKE) MPI=1 host

$(BUILD)/$(PROGRAM): $(OBJECTS) $(STANDIN)
	$(COMPILER) -o $@ $(OBJECTS) $(LINK_FLAGS)

ifneq ($(SECOND),)
$(BUILD)/$(SECOND): $(SECOND_OBJECTS) $(STANDIN)
	$(COMPILER) -o $@ $(SECOND_OBJECTS) $(LINK_FLAGS)
endif

# by the plain compiler: it knows nothing of launchers, so nothing of MPI
$(SHARED_LIBRARY): $(LIBRARY_OBJECTS) $(LIBRARY_EXPORTS) $(STANDIN)
	$(CC) -shared -o $@ $(LIBRARY_OBJECTS) -Wl,-soname,$(@F) -Wl,--version-script=$(LIBRARY_EXPORTS) $(LINK_FLAGS)

$(BUILD)/%.c.o: $(TOP)/%.c $(BUILD)/flags | $(addprefix $(BUILD)/,$(NCCL_INCLUDE))
	@mkdir -p $(@D)
	$(COMPILER) $(C_FLAGS) $(PIC) -MMD -MP -c -o $@ $<

$(DEVICE_BUILD)/%.cu.o: $(TOP)/%.cu $(DEVICE_BUILD)/flags | $(DEVICE_BUILD)/nccl_include
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(addprefix -Xcompiler ,$(PIC)) -MMD -MP -c -o $@ $<

ifeq ($(LENDER),)
$(STANDIN): $(STANDIN_OBJECTS)
	$(CC) -shared -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) -o $@ $^ -lm
else
# Recipes that do nothing let make look at the files again. One test at a time has objects made.
LENT := $(sort $(filter $(LENDER)%,$(OBJECTS) $(STANDIN)))
LENT_DEVICE := $(filter $(LENDER)$(DEVICE_BUILD)/%,$(LENT))
LENT_HOST := $(filter $(LENDER)$(BUILD)/%,$(LENT))
make_there = mkdir -p $(LENDER)$(1) && flock $(LENDER)$(1) \
               $(MAKE) -s --no-print-directory -C $(LENDER) $(patsubst $(LENDER)%,%,$(2))
$(LENT_DEVICE): lent-device
	@:
$(LENT_HOST): lent-host
	@:
lent-device:
	+@$(call make_there,$(DEVICE_BUILD),$(LENT_DEVICE))
lent-host:
	+@$(call make_there,$(BUILD),$(LENT_HOST))
endif

# What every object depends on beside its sources: compilers, paths and flags. A file changes only
# when one of these does.
$(BUILD)/flags: TEXT = $(COMPILER) | $(C_FLAGS) | $(LINK_FLAGS) | $(NCCL_HOME) | $(LIBRARY)
$(DEVICE_BUILD)/flags: TEXT = $(NVCC) $(NVCC_FLAGS) | $(NCCL_HOME) | $(LIBRARY)
$(BUILD)/flags $(DEVICE_BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(call quote,$(TEXT)) | cmp -s - $@ || printf '%s\n' $(call quote,$(TEXT)) > $@
quote = '$(subst ','\'',$(1))'

# `make run MPI=1` takes all GPUs; ARGS are the program's options, in words for the shell.
RUN := $(PROGRAM)
run: all
	@$(if $(MPI),bash -c '. "$(TOP)/scripts/lib/lib.sh" && mpi_run $(or $(NP),$(if $(CPU),4,$$(gpu_count))) "$$@"' make) \
	  ./$(RUN) $(ARGS)

clean:
	rm -rf build $(PROGRAMS)

help:
	@echo "make [MPI=1] [CPU=1]      build $(PROGRAMS)"
	@echo "make run [MPI=1] [CPU=1]  build and run it ([NP=ranks] under MPI, NTHREADS=ranks else; [ARGS='--bench'])"
	$(if $(SECOND),@echo "make run RUN=$(SECOND)  ... the second program")
	@echo "make both [CPU=1]         build it for both launchers at once, in build/"
	@echo "make clean                remove all that was built"
	@echo "Variables: CUDA_HOME NCCL_HOME MPI_HOME MPICC NVCC_GENCODE CC CFLAGS SANITIZE"

-include $(patsubst %.o,%.d,$(filter-out $(LENT),$(sort $(OBJECTS) $(SECOND_OBJECTS)) $(STANDIN_OBJECTS)))
