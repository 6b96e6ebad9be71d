# SPDX-License-Identifier: Apache-2.0
# 01 and 02 as something to learn from: the order in which main.c tells its story, what differs between the
# two, and how little has to be changed to make another collective of it.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

program_path() { echo "$WORK/program"; }

# The body of the function run, from its first line to the brace in column 1 that ends it.
story() { sed -n '/^static int run(/,/^}/p' "$TOP/$1/main.c"; }

@test "STEPs 1 to 8 stand in order in one function, each with its banner and its name for the watchdog" {
  for example in $EXAMPLES; do
    diff <(story "$example" | sed -n 's,^  /\* =* \(STEP [0-9]*\):.*,\1,p') <(printf 'STEP %d\n' {1..8})
    diff <(story "$example" | sed -n 's,^  launcher_step("\(STEP [0-9]*\): .*,\1,p') <(printf 'STEP %d\n' {1..8})
    [ "$(grep -c STEP "$TOP/$example/main.c")" = 16 ]
    for header in cuda_runtime.h nccl.h; do grep -qx "#include <$header>" "$TOP/$example/main.c"; done
  done
}

@test "01 and 02 differ in 75 lines at most" {
  diff "$TOP/01_allreduce_ub/main.c" "$TOP/02_allreduce_sm/main.c" >"$WORK/diff" || true
  cat "$WORK/diff"
  [ -s "$WORK/diff" ]
  [ "$(wc -l <"$WORK/diff")" -le 75 ]
}

# another LINES SED-SCRIPT RANKS...: 01 with that change, of so many lines as its page says, verifies, with both
# launchers.
another() {
  local launcher ranks
  for launcher in $LAUNCHERS; do
    build_changed "$launcher" 01_allreduce_ub "$2"
    diff "$TOP/01_allreduce_ub/main.c" "$WORK/main.c" >"$WORK/diff" || true
    cat "$WORK/diff"
    [ "$(grep -c '^>' "$WORK/diff")" = "$1" ]
    [ "$(grep -c '^<' "$WORK/diff")" -le "$1" ]
    for ranks in "${@:3}"; do
      start "$launcher" "$ranks" 01_allreduce_ub --count 1001
      exits_with 0
      prints '^Results verified correctly$'
    done
  done
}

# wrong SED-SCRIPT: the same, and it does not verify.
wrong() {
  build_changed pthread 01_allreduce_ub "$1"
  start pthread 4 01_allreduce_ub --count 1001
  exits_with 1
  says "^\[rank $2\] indexed data: element 0 is .*, expected "
  prints '^Results are WRONG'
}

@test "01 becomes a ReduceScatter by nine lines" {
  # rank r gets part r of the sum; in place it stands where this rank's part of the input was
  local change='
    s/ncclAllReduce\(/ncclReduceScatter(/
    s/^( *)const size_t bytes =.*/&\n\1const size_t part = count \/ me->nranks, first = part * me->rank;/
    s/^( *)verifier_init.*/&\n\1verifier_expect(\&verifier, first, VERIFY_SUM);/
    s/all_reduce\(sendbuff, recvbuff, count/all_reduce(sendbuff, recvbuff, part/
    s/(verifier_check.* data", recvbuff, )count/\1part/
    s/((all_reduce\(|"in place", )(sendbuff, )?)sendbuff, count/\1(char *)sendbuff + first * opt->type->size, part/'
  another 9 "$change" 1 4 7
  wrong "${change/first, VERIFY_SUM/first + 1, VERIFY_SUM}" '[0-3]'
  wrong "${change/first, VERIFY_SUM/0, VERIFY_SUM}" '[1-3]'
}

@test "01 becomes a Broadcast by two lines" {
  local change='
    s/ncclAllReduce\((.*)ncclSum/ncclBroadcast(\11/
    s/^( *)verifier_init.*/&\n\1verifier_expect(\&verifier, 0, 1);/'
  another 2 "$change" 2 4 7
  wrong "${change/0, 1)/0, 2)}" '[0-3]'
  wrong "${change/0, 1)/1, 1)}" '[0-3]'
  wrong "${change/0, 1)/0, VERIFY_SUM)}" '[0-3]'
}
