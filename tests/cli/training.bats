# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce/training: what a user sees, what is verified, and that the model learns.
# shellcheck disable=SC2034 # variables for the helper
load helper

EXAMPLES="04_sparse_allreduce"
training() { start "$1" "$2" sparse_training "${@:3}"; } # training LAUNCHER RANKS [OPTIONS]

trained() {
  training "$@"
  exits_with 0
  [ "$(tail -n 1 "$WORK/out")" = "All ranks had the same weights after every epoch" ] || show
}

# column NAME PATH: of epochs.csv, a line for each seed, its last epoch
column() {
  awk -F, -v name="$1" -v path="$2" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $1 == path { value[$column["seed"]] = $column[name] }
    END { for (seed in value) print value[seed] }' "$WORK/epochs.csv"
}
mean() { awk '{ sum += $1 } END { print sum / NR }'; }
holds() { awk "BEGIN { exit !($1) }" || { echo "not so: $1" && show; }; }

# ---- output ----------------------------------------------------------------------------------------

@test "without options: four ways to train" {
  trained pthread 4
  diff <(sed -E '/^[a-zA-Z2-]+ +[0-9]\.[0-9]{4} +[0-9]+\.[0-9]{2}% +[0-9]+ +[0-9]+$/s/ .*/ #/' "$WORK/out") - <<'OUT'
Perceptron 64-128-64-10: 17226 weights; k = 172 (density 0.01)
1437 images in batches of 64, 20 epochs, rate 0.4, 1 seed; 360 held out
path                            loss  accuracy    of 360   words/step
dense #
oktopk #
topkA #
oktopk-no-residual #
All ranks had the same weights after every epoch
OUT
  says_not '^[^n]|^n[^o]' # notes only
}

@test "-J: a row for each epoch; the table has the means over seeds" {
  trained pthread 2 --epochs 3 --seeds 2 --algorithm dense,oktopk -J "$WORK/epochs.csv"
  [ "$(wc -l <"$WORK/epochs.csv")" = 13 ]
  [ "$(column words_sent dense)" = $'17226\n17226' ]
  [ "$(cut -d, -f 4-5 "$WORK/epochs.csv" | sed -n '2,7p' | xargs)" = "1,1 1,2 1,3 2,1 2,2 2,3" ]
  prints "^dense +$(column loss dense | mean | cut -c 1-5)[0-9]* +$(column accuracy dense | mean | awk '{ printf "%.2f", 100 * $1 }')% +$(column right dense | mean) +17226$"
}

@test "a rate that is too large: the old file of -J stays" {
  echo old >"$WORK/epochs.csv"
  training pthread 3 --rate 1000 --epochs 2 --algorithm topkA -J "$WORK/epochs.csv"
  exits_with 1
  one_line "^\[rank 0\] topkA: .*: choose a smaller --rate$"
  prints '^Stopped, see standard error$'
  [ "$(cat "$WORK/epochs.csv")" = old ]
}

# ---- the same on all ranks -------------------------------------------------------------------------

@test "weights do not depend on the launcher; they do on rate, density and ranks" {
  local small=(--epochs 1 --algorithm "dense,topkA,oktopk,gaussiank,oktopk-no-residual" --digest)
  for launcher in $LAUNCHERS; do
    trained "$launcher" 3 "${small[@]}"
    grep '^Digest: ' "$WORK/out" >>"$WORK/same"
  done
  [ "$(sort -u "$WORK/same" | wc -l)" = 1 ]
  for other in "3 --rate 0.1" "3 --density 0.02" 2; do
    # shellcheck disable=SC2086 # words
    trained pthread $other "${small[@]}"
    grep '^Digest: ' "$WORK/out" >>"$WORK/same"
  done
  [ "$(sort -u "$WORK/same" | wc -l)" = 4 ]
}

@test "another average on one rank: exit code 1, the path and the epoch are named" {
  for launcher in $LAUNCHERS; do
    FAULT=corrupt:ncclAllReduce:31:0 training "$launcher" 3 --algorithm dense --epochs 3
    exits_with 1
    for rank in 1 2; do says "^\[rank $rank\] dense, epoch 2: weights differ from those of rank 0$"; done
    prints '^Stopped, see standard error$'
  done
}

# ---- what is computed ------------------------------------------------------------------------------

# like_one_rank SHARE RANKS [OPTIONS]: the dense losses of each epoch differ from those of one rank by less than that share
like_one_rank() {
  local ranks
  for ranks in 1 $2; do
    trained pthread "$ranks" --algorithm dense "${@:3}" -J "$WORK/epochs.csv"
    cut -d, -f6 "$WORK/epochs.csv" | tail -n +2 >"$WORK/loss.$ranks"
    paste "$WORK/loss.1" "$WORK/loss.$ranks" | awk -v share="$1" '($1 - $2) ^ 2 >= (share * $1) ^ 2 { exit 1 }' || show
  done
}

# All images are one batch, so each epoch is a step. Ranks add in another order than one rank alone.
@test "the first five dense steps of 1, 2, 4 and 7 ranks" {
  like_one_rank 1e-5 "2 4 7" --batch 1437 --epochs 5
  holds "$(tail -n 1 "$WORK/loss.1") < 0.9 * $(head -n 1 "$WORK/loss.1")"
}

# 480 steps: the difference grows
@test "a batch that does not divide, and ranks without images, learn what one rank learns" {
  like_one_rank 0.01 "2 5" --batch 3 --epochs 1 --rate 0.02
}

@test "oktopk at 1 % learns as dense does, within 4 of 360 images; without residual it learns less" {
  trained pthread 4 --seeds 5 --algorithm dense,oktopk,oktopk-no-residual -J "$WORK/epochs.csv"
  local dense sparse forgets
  dense=$(column right dense | mean) sparse=$(column right oktopk | mean) forgets=$(column right oktopk-no-residual | mean)
  holds "$dense > 320"
  holds "$sparse > $dense - 4"
  holds "$forgets < $dense - 10"
  holds "$(column words_sent oktopk | mean) * 40 < $(column words_sent dense | mean)"
}

# ---- images ----------------------------------------------------------------------------------------

@test "digits.inc is made from a CSV file as the page says" {
  local made=$TOP/04_sparse_allreduce/training
  awk -F'"' '/^"/ {
    for (i = 2; i <= 65; i++) printf "%d,", index(".abcdefghijklmnop", substr($2, i, 1)) - 1
    print substr($2, 1, 1)
  }' "$made/digits.inc" | gzip >"$WORK/digits.csv.gz"
  awk '/^gzip/ { in_code = 1 } /^```/ { in_code = 0 } in_code' "$made/README.md" >"$WORK/recipe.sh"
  grep '^/\?\* \| \* ' "$made/digits.inc" >"$WORK/digits.inc"
  cd "$WORK" && bash recipe.sh
  cmp "$made/digits.inc" digits.inc
}

# ---- the page --------------------------------------------------------------------------------------

@test "the tables of the page are those of the raw files" {
  local page=$TOP/04_sparse_allreduce/training/README.md row
  awk '$3 ~ /%$/ { print "| " $1 " | " $2 " | " $3 " | " $5 " |" }' \
    "$TOP"/results/training-standin/*.txt >"$WORK/rows"
  [ "$(wc -l <"$WORK/rows")" = 20 ]
  while read -r row; do grep -qF -e "$row" "$page" || { echo "not in the page: $row" && false; }; done <"$WORK/rows"
  [ "$(grep -cE '^\| .*% \| [0-9]+ \|$' "$page")" = 20 ]
}
