s,\./sparse_training,& --epochs 2,
s/NP=2/& ARGS="--epochs 2"/
# tests/cli/training.bats runs it
/^gzip -cdf digits/,/digits.inc$/d
