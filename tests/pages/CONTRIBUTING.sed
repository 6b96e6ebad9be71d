s/test.sh/& --no-install spdx/
s/cli-bench unit/links/
s/^bats/& --count/
s/gpu_check.sh/& --help/
s,./scripts/bench.sh --out,cp -r results/2xH200-nccl2.28,
