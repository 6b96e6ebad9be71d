s/oktopk/& --count 64K/
