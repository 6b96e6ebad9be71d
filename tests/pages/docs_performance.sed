s,./scripts/bench.sh --out,cp -r results/2xH200-nccl2.28,
