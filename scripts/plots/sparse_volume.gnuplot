# SPDX-License-Identifier: Apache-2.0
# Sparse AllReduce: what a rank sends against the number of ranks, beside the closed forms of the paper.
# data: columns 04_sparse_allreduce.*.ranks*.csv path ranks+k+words_sent+paper_words_low+paper_words_high
# size: 960,620
eval footer
paths = "dense topkA gtopk oktopk topkSA gaussiank"
set logscale y
set logscale x 2
set xtics 2
set xlabel "ranks"
set ylabel "words sent / k"
set offsets graph 0.05, graph 0.05, 0, 0
set multiplot layout 2,3 title "Sparse AllReduce: words that a rank sends in a step, mean over ranks and steps" font ",15"
set tmargin 3
set bmargin 4.5
do for [path in paths] {
  set title path noenhanced
  plot data index path using 1:($5/$2) with lines linetype 2 title "paper, at most", \
    "" index path using 1:($4/$2) with lines linetype 3 title "paper, at least", \
    "" index path using 1:($3/$2) with points linetype 1 pointsize 1.2 title "measured"
  unset label 1
  unset key
}
unset multiplot
