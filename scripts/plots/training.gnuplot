# SPDX-License-Identifier: Apache-2.0
# Training with sparse gradients: loss and held-out accuracy after each epoch, the mean over the seeds.
# data: columns 04_training.density0.01.ranks4.csv trained epoch+loss+accuracy
# caption: A network of 17226 weights that learns digits, four ranks, density 1 %: loss of the images to learn from and accuracy on 360 others after each epoch, means of 10 seeds. oktopk-no-residual drops what is not sent; its accuracy begins below the axis.
# size: 800,420
paths = "'dense' 'topkA' 'oktopk-no-residual' 'oktopk'"
eval those_of(paths, "")
line(name) = name eq "dense" ? 8 : place(name, "oktopk topkA oktopk-no-residual")
set multiplot title heading("Sending 1 % of the gradient trains as well as sending all of it, if the rest is kept", \
  "after each epoch, means of 10 seeds, 4 ranks") font ",15"
eval key_at(0.822)
plot for [name in present] NaN with linespoints linetype line(name) title name
eval panels
set xrange [0:*]
set xlabel "epoch"

eval column_of(1, 2, 0.14, 0.675)
set title "loss of the images to learn from" font ",13"
set logscale y
set format y "%g"
set yrange [0.01:3]
plot for [name in present] data index name using 1:2 smooth unique with linespoints linetype line(name)

eval column_of(2, 2, 0.14, 0.675)
set title "accuracy on 360 other images, %" font ",13"
unset logscale y
set yrange [50:95]
plot for [name in present] data index name using 1:(100*$3) smooth unique with linespoints linetype line(name)
unset multiplot
