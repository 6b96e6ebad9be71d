# SPDX-License-Identifier: Apache-2.0
# What a user sees who changes nothing, and all types and edge sizes.
load helper

@test "golden output on 1, 2, 3, 4 and 7 ranks" {
  local launcher example ranks
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      for ranks in 1 2 3 4 7; do
        start "$launcher" $ranks "$example"
        exits_with 0
        diff <("$TOP/tests/golden.sh" "$example" $ranks) "$WORK/out" || show
        # notes only
        says_not '^[^n]|^n[^o]'
      done
    done
  done
}

@test "types, counts from 1 to 2^20 + 1: verified; the digest depends on these and on ranks, not on launcher or example" {
  local launcher example ranks type count digest seen=
  while read -r ranks type count; do
    digest='Digest: [0-9a-f]{16}'
    for example in $EXAMPLES; do
      for launcher in $LAUNCHERS; do
        start "$launcher" "$ranks" "$example" --digest -d "$type" --count "$count"
        exits_with 0
        prints "AllReduce .*with $count elements "
        prints '^Results verified correctly$'
        prints "^$digest$"
        digest=$(grep '^Digest' "$WORK/out")
      done
    done
    seen+=$digest$'\n'
  done <<'ROWS'
4 double 1048577
4 float 1048576
3 float 1048576
3 int64 1048577
7 half 3
7 half 65537
3 int32 1
2 bfloat16 65537
1 bfloat16 65537
ROWS
  [ "$(sort -u <<<"$seen" | grep -c Digest)" = 9 ]
}
