# SPDX-License-Identifier: Apache-2.0
# A transformer trained with PyTorch: the loss on the way, and what a step takes.
# data: columns 04_pytorch.csv way step+loss+step_ms
# caption: A transformer that learns bytes of Python's sources, 2 GPUs, density 1 %, AdamW: loss of the texts to learn from, means of ten steps, and the median time of steps 21 to 40. oktopk-warmup begins with 50 dense steps, local exchanges nothing, the host of oktopk-drop does not wait for gradients to be finite.
# size: 800,420
ways = "'dense' 'oktopk-warmup' 'oktopk'"
eval those_of(ways, "")
line(name) = name eq "dense" ? 8 : place(name, "oktopk oktopk-warmup")
set multiplot title heading("With Adam, a transformer learns more slowly from 1 % of its gradient, also after 50 dense steps", \
  "86 million weights, AdamW, 2 GPUs on NVLink") font ",15"
eval key_at(0.822)
plot for [name in present] NaN with lines linetype line(name) title name
eval panels

eval column_of(1, 2, 0.14, 0.675)
set title "loss, means of ten steps" font ",13"
set xrange [0:*]
set yrange [1.5:6]
set xlabel "step"
plot for [name in present] data index name using (10 * int(($1 - 1) / 10) + 5):2 smooth unique with lines linetype line(name)

eval column_of(2, 2, 0.14, 0.675)
set title "a step, ms" font ",13"
all = "'local' 'dense' 'oktopk' 'oktopk-drop'"
eval those_of(all, "")
unset xlabel
set xtics ()
set autoscale
set style fill solid noborder
set boxwidth 0.6
do for [i = 1:words(present)] {
  set xtics add (word(present, i) i)
  stats data index word(present, i) using ($1 > 20 && $1 <= 40 ? $3 : NaN) nooutput
  eval sprintf("median%d = STATS_median", i)
  largest = i == 1 || STATS_median > largest ? STATS_median : largest
  set label i sprintf("%.1f", STATS_median) at i, STATS_median center offset 0, 0.6
}
set xrange [0.4:words(present) + 0.6]
set yrange [0:1.15 * largest]
plot for [i = 1:words(present)] '+' using (i):(value(sprintf("median%d", i))) every ::0::0 with boxes linetype (word(present, i) eq "oktopk" ? 1 : 8)
unset multiplot
