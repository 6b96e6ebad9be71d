# SPDX-License-Identifier: Apache-2.0
# scripts/timeline.sh: what it makes of records, and a run on a machine that only looks as if it had GPUs.
# shellcheck disable=SC2016,SC2034 # code for other shells; the variable code is read by the helper
load helper

setup_file() { :; } # needs no program

timeline() { # timeline [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  "${SCRIPT:-$TOP/scripts/timeline.sh}" "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

setup() { WORK=$(mktemp -d); }

# Ten steps of a pass and a result, the third and the ninth with a search in between; as CUPTI gives
# them, not in order.
records() {
  for step in 0 1 2 3 4 5 6 7 8 9; do
    local at=$((1000000 + step * 100000))
    echo "$((at + 60000)) $((at + 80000 + step * 1000)) 0 7 _ZN12_GLOBAL__N_15applyILb1EEEvi"
    [[ $step != [28] ]] || echo "$((at + 51000)) $((at + 55000)) 0 7 _ZN12_GLOBAL__N_16searchEi"
    echo "$at $((at + 50000)) 0 7 _ZN12_GLOBAL__N_110local_passIfLb0EEEvi"
  done
}

@test "the kernels of a step, in order, of the kind that comes most often" {
  command -v c++filt || skip "no c++filt"
  records >"$WORK/records"
  timeline --first local_pass --from "$WORK/records"
  exits_with 0
  diff "$WORK/out" - <<'TABLE'
7 steps of this kind, of 9; one takes 100.0 us (10 %: 100.0, 90 %: 100.0)
    begin       end        us      10 %      90 %  kernel
      0.0      50.0      50.0      50.0      50.0  local_pass<float, false>
     60.0      84.0      24.0      21.0      26.0  apply<true>
TABLE
}

@test "kernels by themselves" {
  command -v c++filt || skip "no c++filt"
  records >"$WORK/records"
  timeline --from "$WORK/records"
  exits_with 0
  diff "$WORK/out" - <<'TABLE'
    times        us      10 %      90 %  kernel
       10      25.0      21.0      28.0  apply<true>
       10      50.0      50.0      50.0  local_pass<float, false>
        2       4.0       4.0       4.0  search
TABLE
}

@test "no such step, wrong arguments" {
  records >"$WORK/records"
  timeline --first undo --from "$WORK/records"
  exits_with 1
  one_line '^timeline.sh: no step that begins with undo in '
  : >"$WORK/empty"
  timeline --from "$WORK/empty"
  exits_with 1
  for arguments in "" "--nonsense" "--from" "--first" "--from $WORK/none" "--from $WORK" "--from $TOP/README.md" "--from $TOP/results/2xH200-nccl2.28/01_allreduce_ub.mpi.graph.csv" \
    "--from $WORK/records more" "99_none"; do
    # shellcheck disable=SC2086 # several words
    timeline $arguments
    exits_with 2
    prints_nothing
    one_line '^timeline.sh: '
  done
}

# A suite with an example whose program does what $WORK/do says; gcc makes a library of nothing.
suite() {
  mkdir -p "$WORK/suite/scripts" "$WORK/suite/04_x/build/gpu-mpi" "$WORK/bin" "$WORK/cuda"
  cp -r "$TOP"/scripts/{timeline.sh,lib} "$WORK/suite/scripts"
  echo 'PROGRAM := x' >"$WORK/suite/04_x/Makefile"
  printf '#!/bin/bash\n. "$WORK/do"\n' >"$WORK/suite/04_x/build/gpu-mpi/x"
  printf '#!/bin/bash\n[ ! -e "$WORK/no_cupti" ]\n' >"$WORK/bin/gcc"
  printf '#!/bin/bash\nfor r in $(seq 0 $(($2 - 1))); do R=$r "${@:3}" || exit; done\n' >"$WORK/bin/mpirun"
  printf '#!/bin/bash\nprintf "GPU 0: X\\nGPU 1: X\\n"\n' >"$WORK/bin/nvidia-smi"
  chmod +x "$WORK"/bin/* "$WORK/suite/04_x/build/gpu-mpi/x"
  records >"$WORK/records"
  echo '[[ $CUDA_INJECTION64_PATH = */build/timeline.so ]] && cp "$WORK/records" "$TIMELINE_OUT.$R"; echo "$@"' >"$WORK/do"
  export WORK PATH=$WORK/bin:$PATH CUDA_HOME=$WORK/cuda
  unset CUDA_VISIBLE_DEVICES NP
  SCRIPT=$WORK/suite/scripts/timeline.sh
}

@test "a table for each rank; 04 begins with its local pass; options go to the program" {
  suite
  timeline 04_x --bench -G 1
  exits_with 0
  [ "$(grep -c '^7 steps of this kind, of 9' "$WORK/out")" = 2 ] || show
  prints '^rank 1$'
  grep -qx -- '--bench -G 1' "$WORK/suite/build/timeline/04_x.log"
  NP=1 timeline --first apply 04_x
  exits_with 0
  [ "$(grep -c '^rank' "$WORK/out")" = 1 ] || show
}

@test "a program that fails, or records nothing; no CUPTI" {
  suite
  echo 'echo it broke >&2; exit 3' >"$WORK/do"
  timeline 04_x
  exits_with 1
  says '^it broke$'
  says '^timeline.sh: exit code 3, see .*04_x.log$'
  echo true >"$WORK/do"
  timeline 04_x
  exits_with 1
  one_line '^timeline.sh: rank 0 recorded nothing, '
  touch "$WORK/no_cupti"
  timeline 04_x
  exits_with 2
  one_line '^timeline.sh: scripts/timeline.c does not build, .* it needs CUPTI'
  NP=x timeline 04_x
  exits_with 2
}
