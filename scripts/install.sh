#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what one build made; `make install` calls it:
#
#   scripts/install.sh gpu-pthread|gpu-mpi|cpu-pthread|cpu-mpi PREFIX [DESTDIR]
#
# The programs, and of the parts that are there to be used in other programs: headers, a static library
# and its pkg-config file, nccl-examples (nccl-examples-cpu for the CPU stand-in, which comes along). For
# PyTorch, side by side in lib/: the sparse AllReduce as a shared library, and the module that loads it.
# Programs of MPI=1 and CPU=1 end in _mpi and _cpu, so all builds fit into one PREFIX.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"
case ${1:-} in -h | --help) show_help ;; esac
unset MAKEFLAGS MAKELEVEL MFLAGS # of the make that calls this: `make -w` would talk in between

# ---- the reusable parts --------------------------------------------------------------------------
# Folder with its sources.mk, prefix of the lists in there, header.
PARTS='
02_allreduce_sm/own OWN allreduce.h
03_alltoallv_sm/lib ALLTOALLV alltoallv.h
04_sparse_allreduce/lib SPARSE sparse_allreduce.h
'
listed() { # listed FOLDER VARIABLE...: the files of these lists, with their folder
  # shellcheck disable=SC2016 # for make
  printf 'include sources.mk\nall: ; @echo $(addprefix %s/,%s)\n' "$1" "$(printf ' $(%s)' "${@:2}")" |
    make -s -C "$TOP/$1" -f -
}

# ---- where to ------------------------------------------------------------------------------------
variant=${1:-} prefix=${2:-}
case $variant in gpu-pthread | gpu-mpi | cpu-pthread | cpu-mpi) ;; *) die "unknown build '$variant'; allowed: gpu-pthread gpu-mpi cpu-pthread cpu-mpi" ;; esac
[ -n "$prefix" ] || die "PREFIX is empty; allowed: PREFIX=/usr/local, for example"
prefix=$(realpath -ms -- "$prefix")
target=${3:-}$prefix
cpu=
[[ $variant = gpu-* ]] || cpu=_cpu
ending=$cpu
[[ $variant = *-pthread ]] || ending=_mpi$cpu

# What stands in the pkg-config file has to get through an unquoted $(pkg-config ...), and through -Wl,
check_path() { # check_path NAME PATH
  local LC_ALL=C
  [[ ! $2 =~ [^A-Za-z0-9/._+=@~-] ]] ||
    die "$1='$2' would not reach compilers whole by pkg-config; allowed: letters, digits and / . _ + = @ ~ - in it"
}
check_path PREFIX "$prefix"
if [ -z "$cpu" ]; then
  check_path NCCL_HOME "$(nccl_home)"
  check_path CUDA_HOME "$(cuda_home)"
fi

built() { [ -f "$1" ] || die "no ${1#"$TOP"/}; \`make\` with the same switches makes it"; }
put() { # put MODE FILE TARGET
  built "$2"
  begin_file "$target/$3"
  install -D -m "$1" -- "$2" "$new"
}

# ---- programs, headers, library ------------------------------------------------------------------
for example in $(examples); do
  for program in $(programs_of "$example"); do
    put 755 "$TOP/$example/build/$variant/$program" "bin/$program$ending"
  done
done
sources=()
kind=$([ -n "$cpu" ] && echo CPU || echo GPU)
while read -r folder list header; do
  [ -n "$folder" ] || continue
  put 644 "$TOP/$folder/$header" "include/$header"
  files=$(listed "$folder" "${list}_SOURCES" "${list}_${kind}_SOURCES")
  read -ra more <<<"$files"
  sources+=("${more[@]}")
done <<<"$PARTS"

objects=()
for file in "${sources[@]}"; do
  folder=$variant
  [[ $file != *.cu ]] || folder=gpu-device # for both launchers
  objects+=("$TOP/${file%%/*}/build/$folder/$file.o")
  built "${objects[-1]}"
done
mkdir -p -- "$target/lib/pkgconfig"
begin_file "$target/lib/libnccl_examples$cpu.a"
rm -f -- "$new" # ar would add to it
ar rcs "$new" "${objects[@]}"
chmod 644 -- "$new"

# ---- for PyTorch -----------------------------------------------------------------------------------
put 755 "$TOP/04_sparse_allreduce/build/$variant/libsparse_allreduce.so" "lib/libsparse_allreduce$cpu.so"
put 644 "$TOP/04_sparse_allreduce/pytorch/sparse_allreduce_torch.py" lib/sparse_allreduce_torch.py

# ---- what pkg-config says ------------------------------------------------------------------------
if [ -n "$cpu" ]; then
  cflags="-DCPU_STANDIN -isystem \${includedir}/cpu_standin"
  libs="-lcpu_standin -Wl,-rpath,\${libdir} -pthread -lm"
  put 755 "$TOP/03_alltoallv_sm/build/$variant/libcpu_standin.so" lib/libcpu_standin.so
  for file in cuda_runtime.h nccl.h; do put 644 "$TOP/common/cpu/include/$file" "include/cpu_standin/$file"; done
else
  # NCCL's folder before CUDA's, which may have another nccl.h; the compiler knows /usr/include itself
  cflags="-isystem $(nccl_home)/include -isystem $(cuda_home)/include"
  cflags=${cflags/-isystem \/usr\/include /}
  nccl=$(nccl_library_folder)
  libs="-L$nccl -L$(cuda_home)/lib64 -l:libnccl.so.2 -lcudart -lstdc++ -lm -ldl"
  libs+=" -Wl,-rpath,$nccl -Wl,-rpath,$(cuda_home)/lib64"
fi
begin_file "$target/lib/pkgconfig/nccl-examples${cpu:+-cpu}.pc"
write_file <<PC
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: nccl-examples${cpu:+-cpu}
Description: AllReduce, AlltoAllV and sparse AllReduce for NCCL${cpu:+, on the CPU stand-in for CUDA and NCCL}
Version: $(suite_version)
Cflags: -I\${includedir} $cflags
Libs: -L\${libdir} -lnccl_examples$cpu $libs
PC
chmod 644 -- "$new"
keep_files
echo "installed in $target: bin/*$ending, lib/libnccl_examples$cpu.a, lib/pkgconfig/nccl-examples${cpu:+-cpu}.pc"
