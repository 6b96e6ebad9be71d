# SPDX-License-Identifier: Apache-2.0
# Training with sparse gradients: loss and held-out accuracy after each epoch, the mean over the seeds.
# data: columns 04_training.density0.01.ranks4.csv trained epoch+loss+accuracy
# size: 960,440
eval footer
paths = "dense oktopk topkA oktopk-no-residual"
set xlabel "epoch"
set xrange [0:*]
set multiplot layout 1,2 title "Sending 1 % of the gradient trains as well as sending all of it, if the rest is kept" font ",15"
set tmargin 3
set bmargin 5
set title "loss of the images to learn from: mean of 10 seeds, 4 ranks"
set logscale y
set format y "%g"
set yrange [0.01:3]
set key bottom left
plot for [i=1:words(paths)] data index word(paths, i) using 1:2 smooth unique \
  with linespoints linetype i title word(paths, i)
unset label 1
unset key
unset logscale y
set title "accuracy on 360 other images: likewise"
set format y "%g %%"
set yrange [50:95]
plot for [i=1:words(paths)] data index word(paths, i) using 1:(100*$3) smooth unique \
  with linespoints linetype i notitle
unset multiplot
