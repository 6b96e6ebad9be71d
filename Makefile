# SPDX-License-Identifier: Apache-2.0
# Builds everything, in the folder build/; `make help` lists the targets. The Makefiles in the examples' folders
# forward to this one.
#
# Sources are found, not listed: every .c and .cu file below an example's folder goes into the archive of that
# example, build/<kind>/01_allreduce_ub.a, and those of common/ into common.a. A program is its main.c and the objects
# that the linker takes from these archives; a test likewise. Of the sources,
#   *.cu                  are kernels, compiled by nvcc, or with CPU=1 by g++; those of 02's simple/ where NCCL and
#                         CUDA can compile them
#   *_cpu.c and cpu/*.c   are for CPU=1 only: plain C versions of some kernels
#   usage.c               are separate programs; their first comments show how to compile them
# Objects, in build/cpu or build/gpu, do not depend on the launcher; programs, in build/<kind>-<launcher>, do.
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
comma := ,
quote = '$(subst ','\'',$(1))'

ALL_EXAMPLES := $(patsubst %/Makefile,%,$(sort $(wildcard [0-9][0-9]_*/Makefile)))
# EXAMPLE=01_allreduce_ub: that one alone
EXAMPLES := $(or $(EXAMPLE),$(ALL_EXAMPLES))
# other examples whose libraries an example uses
USES_04_sparse_allreduce := 03_alltoallv_sm 02_allreduce_sm
# more programs of an example, and the folders of their main.c
MORE_04_sparse_allreduce := sparse_training
MAIN_sparse_training := 04_sparse_allreduce/training
# a shared library for programs that load it, as pytorch/ does
LIBRARY := libsparse_allreduce.so
LIBRARY_OF := 04_sparse_allreduce 03_alltoallv_sm

# ---- switches --------------------------------------------------------------------------------------------
override MPI := $(filter-out 0,$(MPI))
override CPU := $(filter-out 0,$(CPU))
PREFIX ?= /usr/local

KIND := $(if $(CPU),cpu,gpu)
LAUNCHER := $(if $(MPI),mpi,pthread)
# builds of several compilers or NCCLs can be side by side
VARIANT ?= $(subst $(comma),-,$(SANITIZE))
SHARED := build/$(KIND)$(VARIANT:%=-%)
# other kernels, with the same C
KERNELS := $(SHARED)$(RACES:%=-races)
ARCHIVES := $(KERNELS)$(SPARSE_KERNELS:%=-sparse-kernels)
BUILD := $(ARCHIVES:build/$(KIND)%=build/$(KIND)-$(LAUNCHER)%)

ifeq ($(origin CC),default)
CC := gcc
endif
MPICC ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/mpicc,mpicc)
COMPILER := $(if $(MPI),$(MPICC),$(CC))
CFLAGS ?= -O2 -g
# for 04's reference; clang's library is extra
OPENMP := $(if $(findstring clang,$(CC)),-Wno-unknown-pragmas,-fopenmp)
# $(1) is there; or make ends: there is no $(2), and $(3) is allowed
need = $(if $(1),,$(error no $(2); allowed: $(3)))
NAMES = CC=<C compiler>$(if $(MPI),$(comma) MPI_HOME=<folder of MPI>$(comma) MPICC=<its C compiler>$(comma) or no MPI=1)
compiler = $(call need,$(shell command -v $(firstword $(1))),$(1),$(NAMES))
MISSING = $(call compiler,$(CC))$(call compiler,$(COMPILER))

# whatever CFLAGS say, NaN is no number and sums keep their bits: verification relies on both
EXACT := -fno-fast-math -fno-finite-math-only -fno-unsafe-math-optimizations -fno-associative-math \
         -fno-reciprocal-math -fsigned-zeros -ffp-contract=off
# position independent, for the shared libraries; functions may still be inlined within a file
C_FLAGS = -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic $(CFLAGS) $(EXACT) $(OPENMP) -pthread -fPIC \
          -fno-semantic-interposition
C_FLAGS += $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LINK_FLAGS = $(OPENMP) -pthread -lm $(if $(SANITIZE),-fsanitize=$(SANITIZE))

ifneq ($(CPU),)
# ---- the CPU stand-in: a shared library with the names of CUDA and NCCL ----------------------------------
STANDIN := $(BUILD)/libcpu_standin.so
C_FLAGS += -DCPU_STANDIN -isystem common/cpu/include
# next to the program, one folder above a test, or in lib/ after make install
LINK_FLAGS += -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../lib' -L$(BUILD) -lcpu_standin
# Kernels: C++ after some rewriting, by cuda.pl. races.c has the functions that -fsanitize=thread calls.
ifeq ($(origin CXX),default)
CXX := $(subst gcc,g++,$(subst clang,clang++,$(CC)))
endif
CXX_FLAGS = $(CFLAGS) $(EXACT) $(if $(RACES),-DCPU_RACES -fsanitize=thread -fno-threadsafe-statics)
CXX_FLAGS += $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) $(ON_FIBERS)
# Hundreds of kernels, for short runs: with -O2, or with -O1 and UBSan, compiling would take longer than running.
CXX_FLAGS += $(if $(RACES),-O1 -g0)$(if $(findstring undefined,$(SANITIZE)),-O0)
# ThreadSanitizer keeps one stack of calls for a thread of the system, where calls of thousands of fibers have no room.
# AddressSanitizer finds locals that are used after their function returned by a second stack, of megabytes, for every
# fiber: nine tenths of the time of all checks with it. Host code keeps that.
ON_FIBERS := $(if $(SANITIZE),--param=$(if $(filter thread,$(SANITIZE)),tsan-instrument-func-entry-exit,asan-use-after-return)=0)
$(addprefix $(SHARED)/common/cpu/,kernel.c.o fiber.c.o races.c.o): private C_FLAGS += $(ON_FIBERS)
MISSING_FOR_KERNELS = $(call need,$(shell command -v $(firstword $(CXX))),$(CXX) for the kernels of 02 to 04,CXX=<C++ compiler>$(comma) or 01_allreduce_ub alone)
MISSING_FOR_KERNELS += $(call need,$(shell command -v perl),perl for the kernels of 02 to 04,01_allreduce_ub alone)
else
# ---- CUDA and NCCL ---------------------------------------------------------------------------------------
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)),/usr/local/cuda)
NVCC ?= $(CUDA_HOME)/bin/nvcc
NCCL_HOME ?= $(if $(wildcard /usr/include/nccl.h),/usr,$(CUDA_HOME))
NCCL_LIBRARY := $(firstword $(wildcard $(addsuffix /libnccl.so.2,$(addprefix $(NCCL_HOME)/, \
                  lib64 lib lib/$(shell uname -m)-linux-gnu))))
MY_CUDA := CUDA_HOME=<folder of CUDA>$(comma) or CPU=1 to do without a GPU
MY_NCCL := NCCL_HOME=<folder of NCCL>$(comma) or CPU=1 to do without a GPU
MISSING += $(call need,$(wildcard $(CUDA_HOME)/bin/nvcc),nvcc at $(CUDA_HOME)/bin/nvcc,$(MY_CUDA))
MISSING += $(call need,$(wildcard $(NCCL_HOME)/include/nccl.h),nccl.h in $(NCCL_HOME)/include,$(MY_NCCL))
MISSING += $(call need,$(NCCL_LIBRARY),libnccl.so.2 below $(NCCL_HOME),$(MY_NCCL))
# The GPUs present; without one, a list that nvcc can make, and PTX for newer ones.
ifndef NVCC_GENCODE
PRESENT := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9.]+$$')
POSSIBLE = $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null))
ARCHS := $(or $(sort $(subst .,,$(PRESENT))),$(filter $(POSSIBLE),70 80 90 100 120))
NVCC_GENCODE := $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch))
NVCC_GENCODE += -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
endif
# CUDA's include folder may hold an nccl.h of its own, and NCCL_HOME may be /usr, whose include folder cannot be put
# in front of others. A folder of links to NCCL_HOME's headers alone comes first for both compilers.
NCCL_INCLUDE := $(SHARED)/nccl_include
$(NCCL_INCLUDE): $(KERNELS)/cu_flags
	@rm -rf $@ && mkdir $@ && ln -s $(abspath $(NCCL_HOME))/include/nccl* $@/
C_FLAGS += -isystem $(NCCL_INCLUDE) -isystem $(CUDA_HOME)/include
NVCC_FLAGS = -std=c++17 -O3 -lineinfo $(NVCC_GENCODE) -I$(NCCL_INCLUDE) \
             -Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-fPIC
# lazy: even with an NCCL that lacks a call, the program must reach our message
LINK_FLAGS += -Wl,-z,lazy -L$(dir $(NCCL_LIBRARY)) -L$(CUDA_HOME)/lib64
LINK_FLAGS += -Wl,-rpath,$(patsubst %/,%,$(dir $(NCCL_LIBRARY))) -Wl,-rpath,$(CUDA_HOME)/lib64
LINK_FLAGS += -l:libnccl.so.2 -lcudart -ldl
endif

# ---- sources ---------------------------------------------------------------------------------------------
# NCCL 2.28 and CUDA 12.3
ifeq ($(CPU)$(and $(wildcard $(NCCL_HOME)/include/nccl_device.h),$(shell \
       awk '/^.define CUDART_VERSION/ && $$3 >= 12030' $(CUDA_HOME)/include/cuda_runtime_api.h 2>/dev/null)),)
TOO_NEW := 02_allreduce_sm/simple/%
endif
FOUND := $(filter-out %/usage.c $(TOO_NEW),$(sort $(shell find common $(ALL_EXAMPLES) tests/unit tests/gpu \
             \( -name '*.c' -o -name '*.cu' \) ! -path '*/.*' ! -path '*/build/*')))
# With CPU=1, C stands in for the kernels of 04, which would take 20 times as long; but SPARSE_KERNELS=1 runs them.
IN_C := common/verify/verify.cu $(if $(SPARSE_KERNELS),04_sparse_allreduce/simple/%,04_sparse_allreduce/%)
SOURCES := $(filter-out %/main.c common/launch/launcher_pthread.c common/launch/launcher_mpi.c common/cpu/%,\
             $(filter-out $(if $(CPU),$(filter %.cu,$(filter $(IN_C),$(FOUND))) $(if $(SPARSE_KERNELS),04_sparse_allreduce/cpu/%),\
                            %_cpu.c $(ALL_EXAMPLES:=/cpu/%)),$(FOUND)))
# what takes longest first
objects = $(patsubst %,$(KERNELS)/%.o,$(filter %.cu,$(1))) $(patsubst %,$(SHARED)/%.o,$(filter %.c,$(1)))
# where kernels are
CXX_LIBRARY = $(if $(filter %.cu.o $(foreach e,$(filter %.cu,$(SOURCES)),%/$(firstword $(subst /, ,$e)).a),$^),-lstdc++)
archives = $(patsubst %,$(ARCHIVES)/%.a,$(1) $(USES_$(1)) common)
# sources of an example that other examples may use
library_sources = $(filter $(foreach e,$(1),$e/lib/% $e/cpu/%),$(SOURCES))
UNIT_TESTS := $(if $(CPU),$(patsubst tests/unit/%.c,%,$(filter tests/unit/test_%,$(SOURCES))))
GPU_TEST_PROGRAMS := $(sort $(foreach file,$(filter tests/gpu/%,$(SOURCES)),$(word 3,$(subst /, ,$(file)))))
program_of = $(1:$(firstword $(subst _, ,$(1)))_%=%)
programs_of = $(program_of) $(MORE_$(1))
PROGRAMS := $(foreach e,$(EXAMPLES),$(call programs_of,$e))

# One list for every file, since no header name occurs twice.
INCLUDES := $(addprefix -I,$(foreach e,$(ALL_EXAMPLES),$e $e/lib $e/harness) . \
              common $(addprefix common/,launch verify bench $(if $(CPU),cpu)))
# the example whose libraries a test takes
area_of_test = $(or $(if $(findstring alltoallv,$(1)),03_alltoallv_sm),\
                 $(if $(findstring allreduce,$(1)),02_allreduce_sm),04_sparse_allreduce)

# ---- rules -----------------------------------------------------------------------------------------------
.PHONY: all both both-tests tests run install clean help FORCE $(ALL_EXAMPLES)
# `CC file`, unless V=1 or make -s; and the folder of the target
say = $(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),,@printf '  %-5s %s\n' $(1) $(2);) mkdir -p $(@D);

all: $(EXAMPLES)
# makes the links if they are wrong; a built checkout may be read-only
$(ALL_EXAMPLES):
	@for name in $(call programs_of,$@); do \
	  [ "$$(readlink $@/$$name)" = ../$(BUILD)/$$name ] || ln -sfn ../$(BUILD)/$$name $@/$$name || exit; \
	done
$(foreach e,$(ALL_EXAMPLES),$(eval $e: $(addprefix $(BUILD)/,$(call programs_of,$e))))
# as a shell completes the name
$(ALL_EXAMPLES:=/): %/: %
$(firstword $(LIBRARY_OF)): $(BUILD)/$(LIBRARY)

tests: $(addprefix $(BUILD)/tests/,$(UNIT_TESTS) $(GPU_TEST_PROGRAMS))

# one launcher after the other: the second make finds all objects
both both-tests:
	+@code=0; for mpi in 1 ''; do \
	  $(MAKE) --no-print-directory MPI=$$mpi all $(if $(filter %-tests,$@),tests) || code=$$?; \
	done; exit $$code

# $(1) a program, $(2) its sources, $(3) its example, $(4) what tests take in addition
define program
$(BUILD)/$(1): $(call objects,$(2)) $(BUILD)/launcher.o $(4) $(call archives,$(3)) $(STANDIN)
	$$(call say,LINK,$$@)$(COMPILER) -o $$@ $$(filter %.o %.a,$$^) $$(LINK_FLAGS) $$(CXX_LIBRARY) \
	  $(if $(filter tests/test_%,$(1)),-lcmocka)
endef
$(foreach e,$(ALL_EXAMPLES),$(foreach p,$(call programs_of,$e),\
  $(eval $(call program,$p,$(or $(MAIN_$p),$e)/main.c,$e))))
$(foreach t,$(UNIT_TESTS),$(eval $(call program,tests/$t,tests/unit/$t.c,$(call area_of_test,$t),$(ARCHIVES)/tests.a)))
$(foreach t,$(GPU_TEST_PROGRAMS),\
  $(eval $(call program,tests/$t,$(filter tests/gpu/$t/%,$(SOURCES)),$(call area_of_test,$t),$(ARCHIVES)/tests.a)))

# q, not r: files of different folders may have the same name
%.a:
	$(call say,AR,$@)rm -f $@ && ar qcs $@ $^
$(foreach part,common $(ALL_EXAMPLES),$(eval $(ARCHIVES)/$(part).a: $(call objects,$(filter $(part)/%,$(SOURCES)))))
$(ARCHIVES)/tests.a: $(call objects,02_allreduce_sm/cpu/plain.c \
                     $(if $(CPU),$(filter-out tests/unit/test_%,$(filter tests/unit/%,$(SOURCES)))))

# by the plain compiler: it is independent of launchers, so of MPI
$(BUILD)/$(LIBRARY): $(call objects,$(call library_sources,$(LIBRARY_OF))) 04_sparse_allreduce/lib/exports.map \
                     $(STANDIN)
	$(call say,LINK,$@)$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,$(@F) \
	  -Wl,--version-script=$(filter %.map,$^) $(LINK_FLAGS) $(CXX_LIBRARY)
$(STANDIN): $(call objects,$(filter common/cpu/%,$(FOUND)))
	$(call say,LINK,$@)$(CC) -shared -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) -o $@ $^ -lm
$(BUILD)/launcher.o: common/launch/launcher_$(LAUNCHER).c $(BUILD)/flags
	$(call say,CC,$<)$(COMPILER) $(C_FLAGS) $(if $(STRICT),-Werror) $(INCLUDES) -MMD -MP -c -o $@ $<
$(SHARED)/%.c.o: %.c $(SHARED)/flags | $(NCCL_INCLUDE)
	$(call say,CC,$<)$(CC) $(C_FLAGS) $(if $(STRICT),-Werror) $(INCLUDES) -MMD -MP -c -o $@ $<
ifneq ($(CPU),)
$(KERNELS)/%.cu.o: %.cu common/cpu/cuda.pl $(KERNELS)/cu_flags
	$(call say,CXX,$<)perl common/cpu/cuda.pl $(CXX) $(CXX_FLAGS) $(if $(STRICT),-Werror) $(INCLUDES) \
	  -MMD -MP -MT $@ -MF $(@:.o=.d) -c -o $@ $<
else
$(KERNELS)/%.cu.o: %.cu $(KERNELS)/cu_flags | $(NCCL_INCLUDE)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_FLAGS) $(if $(STRICT),-Werror all-warnings) $(INCLUDES) -MMD -MP -c -o $@ $<
endif
# for kernels that are written as loops
$(SHARED)/04_sparse_allreduce/simple/%.cu.o: private NVCC_FLAGS += --extended-lambda

# Objects also depend on compilers, paths and flags. These files change only when one of those does. Missing tools end
# here.
$(SHARED)/flags: TEXT = $(CC) | $(C_FLAGS) | $(NCCL_HOME)
$(BUILD)/flags: TEXT = $(COMPILER) | $(C_FLAGS) | $(LINK_FLAGS) | $(NCCL_HOME)
$(KERNELS)/cu_flags: TEXT = $(if $(CPU),$(CXX) $(CXX_FLAGS)$(MISSING_FOR_KERNELS),$(NVCC) $(NVCC_FLAGS) | $(NCCL_HOME))
$(SHARED)/flags $(BUILD)/flags $(KERNELS)/cu_flags: FORCE
	$(MISSING)@mkdir -p $(@D)
	@printf '%s\n' $(call quote,$(TEXT)) | cmp -s - $@ || printf '%s\n' $(call quote,$(TEXT)) > $@

# ---- run, install, and so on -----------------------------------------------------------------------------
# In the folder of an example: under MPI on all GPUs; without a GPU one rank, which reports that. ARGS are options, in
# words for the shell.
RANKS := $(or $(NP),$(if $(CPU),4,$$(n=$$(gpu_count) && echo $$((n > 0 ? n : 1)))))
run: $(if $(EXAMPLE),all)
	@$(if $(EXAMPLE),$(if $(MPI),bash -c '. scripts/lib.sh && mpi_run $(RANKS) "$$@"' make) \
	  $(BUILD)/$(or $(RUN),$(call program_of,$(EXAMPLE))) $(ARGS),\
	  $(if $(CPU),CUDA_VISIBLE_DEVICES=) ./scripts/run_all.sh --no-install)
clean:
	rm -rf build $(foreach e,$(ALL_EXAMPLES),$(addprefix $e/,$(call programs_of,$e)))

# Programs, headers, a static library of the reusable parts with its pkg-config file, and for PyTorch the sparse
# AllReduce as a shared library next to the module that loads it. Programs of MPI=1 and CPU=1 end in _mpi and _cpu, so
# all builds fit into one PREFIX.
VERSION = $(shell sed -n 's/^\#define SUITE_VERSION "\(.*\)".*/\1/p' common/launch/launcher.c)
TO = $(call quote,$(DESTDIR)$(abspath $(PREFIX)))
ifneq ($(filter install,$(MAKECMDGOALS)),)
ifneq ($(words $(PREFIX))$(shell printf %s $(call quote,$(PREFIX)) | tr -cd '"\\$$`#%:~'"'"),1)
$(error PREFIX='$(PREFIX)' cannot be used; allowed: a folder, without blanks and without " ' \ $$ ` : % ~ and #)
endif
endif
ENDING := $(CPU:%=_cpu)
PC_FILE := nccl-examples$(CPU:%=-cpu).pc
HEADERS := $(filter %/allreduce.h %/alltoallv.h %/sparse_allreduce.h,$(wildcard $(ALL_EXAMPLES:=/lib/*.h)))
# NCCL's folder before CUDA's, which may have another nccl.h; the compiler knows /usr/include itself
PC_CFLAGS = $(if $(CPU),-DCPU_STANDIN -isystem $${includedir}/cpu_standin,\
              $(if $(filter /usr,$(NCCL_HOME)),,-isystem $(NCCL_HOME)/include) -isystem $(CUDA_HOME)/include)
PC_LIBS = $(if $(CPU),-lcpu_standin -Wl$(comma)-rpath$(comma)$${libdir} -pthread -lstdc++ -lm,\
            $(filter -L% -l% -Wl$(comma)-rpath%,$(LINK_FLAGS)) -lstdc++)
define PC
prefix=$(abspath $(PREFIX))
includedir=$${prefix}/include
libdir=$${prefix}/lib

Name: $(PC_FILE:.pc=)
Description: AllReduce, AlltoAllV and sparse AllReduce for NCCL$(if $(CPU),$(comma) on the CPU stand-in)
Version: $(VERSION)
Cflags: -I$${includedir} $(PC_CFLAGS)
Libs: -L$${libdir} -lnccl_examples$(ENDING) $(PC_LIBS)
endef
export PC
install: all $(call objects,$(call library_sources,$(ALL_EXAMPLES)))
	@install -d $(TO)/lib/pkgconfig $(TO)/include
	@for name in $(PROGRAMS); do install -D $(BUILD)/$$name $(TO)/bin/$${name}$(MPI:%=_mpi)$(ENDING) || exit; done
	@install -m 644 $(HEADERS) $(TO)/include
	@rm -f $(TO)/lib/libnccl_examples$(ENDING).a && ar qcs $(TO)/lib/libnccl_examples$(ENDING).a $(filter %.o,$^)
	@install $(BUILD)/$(LIBRARY) $(TO)/lib/$(LIBRARY:.so=$(ENDING).so)
	@install -m 644 04_sparse_allreduce/pytorch/sparse_update_optimizer.py $(TO)/lib
	@$(if $(CPU),install $(STANDIN) $(TO)/lib && install -D -m 644 -t $(TO)/include/cpu_standin common/cpu/include/*.h common/cpu/cuda.pl common/float16.h)
	@printf '%s\n' "$$PC" > $(TO)/lib/pkgconfig/$(PC_FILE)
	@echo installed in $(TO)": bin/*$(MPI:%=_mpi)$(ENDING), the library, lib/pkgconfig/$(PC_FILE)"

# for editors and tools that read C
compile_commands.json: FORCE
	@$(MAKE) --no-print-directory -nB V=1 all tests | sed -n 's/["\\]/\\&/g; s|^ *mkdir [^;]*; *\(.* -c -o .* \(.*\)\)$$|\
	  {"directory": "$(CURDIR)", "command": "\1", "file": "\2"},|p' | sed '1s/^/[/; $$s/,$$/]/' > $@

# for scripts: make -s print-NCCL_HOME
print-%:
	@echo $($*)

# the lines below
help:
	@sed -n 's/^#| \{0,1\}//p' Makefile
#| make [01_allreduce_ub ...]  all examples, or some: one thread per GPU
#| make MPI=1                  ... one process per GPU
#| make CPU=1                  ... without a GPU, on the CPU stand-in (with MPI=1 too)
#| make both                   ... for both launchers, in build/
#| make run                    run every example under both launchers (scripts/run_all.sh); in the folder of an
#|                             example: only that one (NP=ranks with MPI=1, else NTHREADS=ranks; ARGS='--bench')
#| make tests                  the programs of tests/unit (CPU=1) and tests/gpu, in build/<variant>/tests/
#| make compile_commands.json  the commands of the compiler
#| make install                programs, headers, libraries to [DESTDIR]PREFIX
#| make clean                  remove everything that was built
#| Variables: CUDA_HOME NCCL_HOME MPI_HOME MPICC NVCC_GENCODE CC CFLAGS SANITIZE PREFIX DESTDIR;
#| V=1 shows the commands, STRICT=1 makes warnings errors

-include $(shell find $(sort $(SHARED) $(KERNELS) $(BUILD)) -name '*.d' 2>/dev/null)
