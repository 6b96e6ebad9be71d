# SPDX-License-Identifier: Apache-2.0
# What a user sees who changes nothing, and all types and edge sizes.
load helper

golden() { # golden EXAMPLE LAUNCHER
  local ranks
  for ranks in 1 2 3 4 7; do
    start "$2" $ranks "$1"
    exits_with 0
    diff <("$TOP/tests/golden.sh" "$1" $ranks) "$WORK/out" || show
    says_not '^[^n]|^n[^o]' # notes only
  done
}

@test "01 pthread: golden output on 1, 2, 3, 4 and 7 ranks" { golden 01_allreduce_ub pthread; }
@test "02 pthread: golden output on 1, 2, 3, 4 and 7 ranks" { golden 02_allreduce_sm pthread; }
@test "MPI: golden output on 1, 2, 3, 4 and 7 ranks" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  for example in $EXAMPLES; do golden "$example" mpi; done
}

verified() { # verified LAUNCHER EXAMPLE RANKS TYPE COUNT
  start "$1" "$3" "$2" --datatype "$4" --count "$5"
  exits_with 0
  prints '^Results verified correctly$'
  prints "AllReduce .*with $5 elements "
}

types_and_counts() { # types_and_counts EXAMPLE LAUNCHER: everything on 4 ranks, corners elsewhere
  local type count ranks
  for type in float double half bfloat16 int32; do
    for count in 1 3 1048577; do verified "$2" "$1" 4 $type $count; done
  done
  verified "$2" "$1" 4 double 1048576
  verified "$2" "$1" 3 int64 1048577
  for ranks in 1 2 3 7; do
    verified "$2" "$1" $ranks bfloat16 3
    verified "$2" "$1" $ranks half 65537
    verified "$2" "$1" $ranks int32 1
  done
}

@test "01: all types, counts 1, 3, 2^20 and 2^20 + 1" { types_and_counts 01_allreduce_ub pthread; }
@test "02: all types, counts 1, 3, 2^20 and 2^20 + 1" { types_and_counts 02_allreduce_sm pthread; }

# What an element is does not depend on the launcher: there a type of each size will do.
@test "MPI: types of 2, 4 and 8 bytes, a count above 2^20, one below the number of ranks" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  for example in $EXAMPLES; do
    verified mpi "$example" 4 double 1048577
    verified mpi "$example" 7 half 3
    verified mpi "$example" 3 int32 1
    verified mpi "$example" 2 bfloat16 65537
  done
}

@test "the digest depends on type and ranks, not on launcher or example" {
  local type ranks example launcher seen=
  for type in float half int32; do
    for ranks in 2 4; do
      rm -f "$WORK/digests"
      for example in $EXAMPLES; do
        for launcher in $LAUNCHERS; do
          start "$launcher" $ranks "$example" --digest -d $type --count 1000
          exits_with 0
          grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
        done
      done
      cat "$WORK/digests"
      [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
      seen+=$(head -n 1 "$WORK/digests")$'\n'
    done
  done
  [ "$(sort -u <<<"$seen" | grep -c Digest)" = 6 ]
}
