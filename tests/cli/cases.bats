# SPDX-License-Identifier: Apache-2.0
# Refusals, exit codes and messages as rows of tables, cases/AREA.tsv: one start of a program each. Columns, with a tab
# between them; lines that begin with # are left out:
#
#   name         what is shown when the row fails
#   launcher     pthread, mpi, or both; rows of mpi are left out where there is no MPI
#   ranks        a number, or - where the program itself shall choose (no NTHREADS, no mpirun)
#   environment  NAME=VALUE words, FAULT=... of tests/fault.c among them; - for none
#   program      an example's folder, tests/gpu/FOLDER, or the name of another program: sparse_training
#   options      words; WORK is an empty folder; - for none
#   exit code
#   stderr       an extended regular expression that a line matches; - where there are only notes
#   stdout       the same; - for whatever is there
#
# With exit code 2 or 77 the line on stderr is the only one beside notes (unless ^note: is wanted), and stdout is empty
# where no line of it is wanted. What needs more than a row is a test of its own in another file.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

setup_file() {
  make_both both-tests >&2
  build_fault
}

# run_row LAUNCHER RANKS ENVIRONMENT PROGRAM OPTIONS CODE STDERR STDOUT
run_row() {
  local environment=() options=() word
  [ "$3" = - ] || read -ra environment <<<"$3"
  [ "$5" = - ] || read -ra options <<<"$5"
  rm -rf "$WORK" && mkdir -p "$WORK/tmp"
  options=("${options[@]//WORK/$WORK}")
  for word in "${environment[@]}"; do local -x "${word?}"; done
  start "$1" "$2" "$4" "${options[@]}"
  exits_with "$6" || return
  [ "$6" != 1 ] || prints_not 'successfully|verified correctly' || return
  case $6 in
  2 | 77) if [[ $7 = '^note: '* ]]; then says "$7"; else one_line "$7"; fi || return ;;
  *) if [ "$7" = - ]; then says_not '^(|[^n].*|n[^o].*)$'; else says "$7"; fi || return ;;
  esac
  if [ "$8" != - ]; then
    prints "$8"
  elif [ "$6" = 2 ] || [ "$6" = 77 ]; then
    prints_nothing
  fi
}

# cases AREA: runs all rows, then says which have failed
cases() {
  local name launcher ranks environment program options want err out one failed=0 rows=0
  while IFS=$'\t' read -r name launcher ranks environment program options want err out <&8; do
    case $name in '' | '#'*) continue ;; esac
    [ -n "$out" ] || { echo "row '$name' has not nine columns" && return 1; }
    for one in ${launcher/both/pthread mpi}; do
      [[ " $LAUNCHERS " = *" $one "* ]] || continue
      rows=$((rows + 1))
      run_row "$one" "$ranks" "$environment" "$program" "$options" "$want" "$err" "$out" && continue
      echo "^ row '$name', $one: $options"
      failed=$((failed + 1))
    done
  done 8<"$BATS_TEST_DIRNAME/cases/$1.tsv"
  echo "$rows rows, $failed failed"
  [ "$failed" = 0 ]
  [ "$rows" -gt 0 ]
}

@test "the launcher and the options of all programs" { cases common; }
@test "02's other methods, and the direct AllReduce" { cases direct; }
@test "04's training job" { cases training; }
@test "03: options, links between GPUs, faults" { cases alltoallv; }
@test "04: options, sizes, gradients, and that verification verifies" { cases sparse; }
