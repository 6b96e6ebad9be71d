# SPDX-License-Identifier: Apache-2.0
# setup.sh and run_all.sh as their users see them.
# shellcheck disable=SC2016,SC2034 # code for other shells; the variable code is read by the helper
load helper

# A PATH with everything but the given commands, and those of earlier calls.
path_without() {
  local name
  if [ ! -d "$WORK/bin" ]; then
    mkdir "$WORK/bin"
    ln -s -t "$WORK/bin" /usr/bin/* /bin/* 2>/dev/null || true # some twice
  fi
  for name in sudo "$@"; do rm -f "$WORK/bin/$name"; done # tests write a sudo of their own, not through a link
  echo "$WORK/bin"
}

script() { # script NAME [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  "$TOP/scripts/$1" "${@:2}" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

@test "setup.sh says what is missing and installs nothing when told so" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  script setup.sh --no-install
  exits_with 0
  prints_nothing
  PATH=$(path_without make mpirun bats shellcheck g++) CUDA_HOME=/nowhere script setup.sh --no-install
  exits_with 1
  prints_nothing
  one_line '^setup.sh: missing: make, MPI; allowed, as root: apt-get install make openmpi-bin libopenmpi-dev$'
  PATH=$(path_without make mpirun bats shellcheck g++) CUDA_HOME=/nowhere script setup.sh --no-install --tests
  exits_with 1
  one_line '^setup.sh: missing: make, MPI, g\+\+, bats, shellcheck; allowed, as root: apt-get install make openmpi'
  PATH=$(path_without make gnuplot) script setup.sh --no-install --plots
  exits_with 1
  one_line '^setup.sh: missing: gnuplot; allowed, as root: apt-get install gnuplot-nox$' # nothing that plot.sh does not use
  script setup.sh --no-install --tests --plots
  exits_with 2
  one_line "^setup.sh: '--plots' after '--tests'; allowed: one of --tests and --plots$"
}

# Commands in front of PATH that make a user of root who may not use sudo.
user_without_rights() {
  path_without "$@" >/dev/null
  rm -f "$WORK/bin/id"
  printf '#!/bin/sh\necho 1000\n' >"$WORK/bin/id"
  printf '#!/bin/sh\nexit 1\n' >"$WORK/bin/sudo"
  chmod +x "$WORK/bin/id" "$WORK/bin/sudo"
  echo "$WORK/bin"
}

@test "without compiler and rights every script that builds says in one line what to ask for, and stops" {
  for arguments in "run_all.sh" "test.sh" "run_all.sh --no-install" "test.sh --no-install" "gpu_check.sh" \
    "bench.sh --out $WORK/results"; do
    # shellcheck disable=SC2046,SC2086 # words
    PATH=$(user_without_rights gcc make g++ mpirun bats) script $arguments
    exits_with 1
    prints_nothing
    one_line '^setup.sh: missing: gcc, make, MPI.*; allowed, as root: apt-get install gcc libc6-dev make openmpi-bin'
  done
  PATH=$(user_without_rights gnuplot) script plot.sh "$TOP/results/2xH200-nccl2.28"
  exits_with 1
  one_line '^setup.sh: missing: gnuplot; neither root nor sudo; allowed, as root: apt-get install gnuplot-nox$'
  rm -r "${WORK:?}/bin"
  PATH=$(user_without_rights mpirun) script run_all.sh --cpu 01_allreduce_ub # MPI can be done without
  exits_with 0
  one_line '^setup.sh: missing: MPI; neither root nor sudo; allowed, as root: apt-get install openmpi-bin'
  prints '^01_allreduce_ub +mpi +-  skipped: no mpirun$'
}

@test "gpu_check.sh without a GPU: one line, and nothing passed" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  CUDA_VISIBLE_DEVICES='' script gpu_check.sh quick
  exits_with 1
  one_line '^gpu_check.sh: nvidia-smi shows no GPU; scripts/test.sh is for '
  [ "$(tail -n 1 "$WORK/out")" = "0 passed, 0 failed, 1 skipped" ] || show
}

@test "temporary files that cannot be made, CDPATH: one line, or no matter" {
  for arguments in "run_all.sh --cpu --no-install" "test.sh --no-install spdx"; do
    # shellcheck disable=SC2086 # words
    TMPDIR=/no_such script $arguments
    exits_with 2
    one_line "^${arguments%% *}: no temporary files can be made in /no_such; allowed: TMPDIR="
  done
  mkdir -p "$WORK/scripts"
  cd "$TOP"
  code=0
  CDPATH=.:$WORK scripts/run_all.sh --no-install --cpu 01_allreduce_ub >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  CDPATH=$WORK:/tmp scripts/test.sh --no-install links >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  prints '^1 passed, 0 failed, 0 skipped$'
}

@test "setup.sh without apt-get, and with one that fails: one line, exit code 1" {
  PATH=$(path_without make apt-get) script setup.sh
  exits_with 1
  one_line '^setup.sh: missing: make; no apt-get here'
  printf '#!/bin/sh\necho "apt-get $*" >>%q\necho it broke\nexit 100\n' "$WORK/calls" >"$WORK/bin/apt-get"
  printf '#!/bin/sh\nexec "$@"\n' >"$WORK/bin/sudo"
  chmod +x "$WORK/bin/apt-get" "$WORK/bin/sudo"
  PATH=$WORK/bin script setup.sh
  exits_with 1
  says '^it broke'
  says '^setup.sh: apt-get install failed'
  grep -q 'install -y --no-install-recommends make$' "$WORK/calls" # only what is missing
}

@test "unknown arguments: one line, exit code 2" {
  for name in setup.sh run_all.sh test.sh; do
    script $name --nonsense
    exits_with 2
    prints_nothing
    one_line "^$name: unknown .*'--nonsense'; allowed: "
    script $name --help
    exits_with 0
    prints "scripts/$name"
  done
  script test.sh '' --nonsense # an empty word would be a part of all names
  exits_with 2
  one_line "^test.sh: unknown argument ''; allowed: "
  for name in nonsense 'full 05_nothing' 'quick tests/unit' --nonsense; do
    # shellcheck disable=SC2086 # words
    script gpu_check.sh $name
    exits_with 2
    prints_nothing
    one_line "^gpu_check.sh: (unknown option|no example) '${name##* }'; allowed: "
  done
}

@test "--help: the head of each script, and nothing after it" {
  for name in hosts.sh multihost_sim.sh timeline.sh run_all.sh test.sh setup.sh gpu_check.sh gpu_of_rank.sh \
    bench.sh plot.sh report.sh compare.sh install.sh slurm.sbatch polaris.pbs; do
    script $name --help
    exits_with 0
    prints "scripts/$name"
    prints_not '^(#|set |case |shellcheck|SBATCH|PBS )'
    prints_not 'shellcheck'
    [ ! -s "$WORK/err" ] || show
  done
}

@test "scripts are called through a link, by a relative path" {
  cd "$WORK"
  for name in hosts.sh multihost_sim.sh timeline.sh run_all.sh test.sh setup.sh gpu_check.sh gpu_of_rank.sh \
    maintain/nccl_releases.sh maintain/nccl_tests.sh bench.sh plot.sh report.sh compare.sh install.sh slurm.sbatch polaris.pbs; do
    ln -s "$TOP/scripts/$name" .
    code=0
    "./${name##*/}" --help >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 0
    prints "scripts/$name"
    [ ! -s "$WORK/err" ] || show
  done
}

@test "run_all.sh: every example under both launchers, a table, exit code 0" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  script run_all.sh --cpu --no-install
  exits_with 0
  for example in $(examples); do
    prints "^$example +pthread +4  verified$"
    prints "^$example +mpi +4  verified$"
    prints "^$example, mpi: verified, [0-9]+ s$"
  done
  prints '^sparse_training +pthread +4  verified$'
  prints '^sparse_training +mpi +4  verified$'
  prints "^building $(examples | wc -l) examples, [0-9]+ files at a time$"
  prints '^built after [0-9]+ s$'
}

@test "run_all.sh with names: these examples only; a name that is none: one line, exit code 2" {
  MPICC=no-such-mpicc script run_all.sh --cpu --no-install 02_allreduce_sm/ 01_allreduce_ub
  exits_with 0
  [ "$(sed -n '/^example/,$p' "$WORK/out" | sed 's/ .*//' | xargs)" = \
    "example 02_allreduce_sm 02_allreduce_sm 01_allreduce_ub 01_allreduce_ub (on" ] || show
  prints '^01_allreduce_ub +pthread +4  verified$'
  prints '^01_allreduce_ub +mpi +-  skipped: no no-such-mpicc$'
  for name in 05_nothing common ''; do
    script run_all.sh --cpu --no-install 01_allreduce_ub "$name"
    exits_with 2
    prints_nothing
    one_line "^run_all.sh: no example '$name'; allowed: $(examples | xargs)$"
  done
}

@test "run_all.sh says once why it runs on the stand-in" {
  CUDA_HOME=/nowhere script run_all.sh --no-install 01_allreduce_ub 02_allreduce_sm
  exits_with 0
  [ "$(grep -c 'no nvcc at /nowhere/bin/nvcc: running on the CPU stand-in' "$WORK/out")" = 1 ] || show
}

@test "run_all.sh: a failing example is shown, exit code 1" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  LD_PRELOAD=$FAULT_FOLDER/fault.so FAULT=fail:ncclCommRegister:1:1 \
    script run_all.sh --cpu --no-install 01_allreduce_ub 02_allreduce_sm
  exits_with 1
  prints '^ +\[rank 1\] main.c:[0-9]+: ncclCommRegister'
  prints '^01_allreduce_ub +pthread +4  failed: exit code 3$'
  prints '^01_allreduce_ub +mpi +4  failed: exit code 3$'
  prints '^02_allreduce_sm +pthread +4  verified$'
}

@test "run_all.sh: a job that mpirun ends is not taken for wrong data" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  printf '#!/bin/sh\necho "Results verified correctly"\nexit 1\n' >"$WORK/mpirun"
  chmod +x "$WORK/mpirun"
  MPIRUN=$WORK/mpirun script run_all.sh --cpu --no-install 01_allreduce_ub
  exits_with 1
  prints '^01_allreduce_ub +pthread +4  verified$'
  prints '^01_allreduce_ub +mpi +4  failed: mpirun ended with 1, no rank reported an error$'
}

# A copy of what run_all.sh and test.sh need, to be spoilt.
suite() {
  mkdir -p "$WORK/suite/tests/cli"
  cp -r "$TOP"/{scripts,common,Makefile,01_allreduce_ub} "$WORK/suite"
}

@test "run_all.sh: what does not build is shown with its reason, the rest runs" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  suite
  code=0
  MPICC=false "$WORK/suite/scripts/run_all.sh" --cpu --no-install >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
  exits_with 1
  prints '^01_allreduce_ub +pthread +4  verified$'
  prints '^01_allreduce_ub +mpi +4  failed: does not build$'
  prints '^ +make.*Error'
}

@test "test.sh: how many checks, each of them begins and ends; what failed and was skipped stands at the end" {
  suite
  for file in readme_snippets links; do cp "$TOP/tests/$file.sh" "$WORK/suite/tests"; done
  printf '@test "%s" { %s; }\n' good true bad false left 'skip "no luck"' >"$WORK/suite/tests/cli/try.bats"
  rm -f "$WORK"/suite/[0-9]*/README.md # links to pages that are not there
  printf '[here](nothing.md)\n' >"$WORK/suite/x.md"
  code=0
  "$WORK/suite/scripts/test.sh" --no-install cli-try links >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
  exits_with 1
  head -n 1 "$WORK/out" | grep -qE '^2 checks, [0-9]+ at a time$' || show
  prints '^ +cli-try +begins, [12] of 2$'
  prints '^FAIL +cli-try '
  prints '^FAIL +links '
  sed -n '/^skipped:$/,$p' "$WORK/out" >"$WORK/end"
  diff "$WORK/end" - <<END || show
skipped:
  cli-try, left: no luck
failed:
  cli-try, bad
  links: 1 links followed
1 passed, 2 failed, 1 skipped
END
}

@test "test.sh: a file that is tracked although it is ignored is named; without git the check is skipped" {
  suite
  cd "$WORK/suite"
  printf 'build/\n/01_allreduce_ub/allreduce_ub\n' >.gitignore
  rm -rf 01_allreduce_ub/build
  tracked() { code=0 && scripts/test.sh --no-install tracked >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?; }
  tracked
  prints '^skip +tracked +no git checkout$'
  git init -q
  git add .
  git -c user.name=x -c user.email=x@example.org commit -q -m first
  tracked
  exits_with 0
  ln -sfn build/cpu-pthread/allreduce_ub 01_allreduce_ub/allreduce_ub
  git add -f 01_allreduce_ub/allreduce_ub
  tracked
  exits_with 1
  prints '^ +tracked, and ignored by .gitignore: 01_allreduce_ub/allreduce_ub$'
}

@test "run_all.sh: nothing but skipped rows is exit code 1" {
  CPU_STANDIN_DEVICES=0 script run_all.sh --cpu --no-install 01_allreduce_ub
  exits_with 1
  prints '^01_allreduce_ub +pthread +4  skipped: allreduce_ub: no GPU'
}

@test "blocks of commands in pages: where they run is said, what fails is an error, what cannot run here is left out" {
  page=$WORK/page.md
  block() { printf '%s\n```shell\n%s\n```\n\n' "$@" >>"$page"; } # block COMMENT COMMANDS
  block '<!-- run: anywhere, in 01_allreduce_ub, as s/long/short/ -->' '[ "$(basename "$PWD")" = 01_allreduce_ub ]; echo long >x'
  block '<!-- run: anywhere, in . -->' '[ "$(cat 01_allreduce_ub/x)" = short ]' # in the same copy
  block '<!-- run: GPUs or CPU=1, in . -->' '[ -n "${CPU-}" ] || nvidia-smi -L'
  block '<!-- run: anywhere, needs no-such-tool -->' false
  code=0
  "$TOP/tests/readme_commands.sh" "$page" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  prints '^3 blocks of commands ran, 0 failed$'
  prints 'left out, no no-such-tool$'
  [ ! -e "$TOP/01_allreduce_ub/x" ]
  : >"$page"
  block '<!-- run: anywhere, in . -->' 'false; true'
  block '' true
  block '<!-- run: somewhere -->' true
  code=0
  "$TOP/tests/readme_commands.sh" "$page" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  prints ':2: exit code 1$'
  prints ':7: where does this block run[?] allowed: '
  prints ':12: where does this block run[?] allowed: '
  prints '^0 blocks of commands ran, 3 failed$'
}
