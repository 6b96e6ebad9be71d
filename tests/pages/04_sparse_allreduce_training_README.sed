s,\./sparse_training,& --epochs 2,
s/NP=2/& ARGS="--epochs 2"/
s/^\.\/digits.sh.*/[ -x digits.sh ]/
