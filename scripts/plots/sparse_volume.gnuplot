# SPDX-License-Identifier: Apache-2.0
# Sparse AllReduce: what a rank sends against the number of ranks, beside the closed forms of the paper.
# data: columns 04_sparse_allreduce.*.ranks*.csv path ranks+k+words_sent+paper_words_low+paper_words_high
# caption: Words that a rank sends in a step, the mean over ranks and steps, divided by k, the number of elements that are to be selected (points); and the closed forms of the paper (lines; where it gives a lower and an upper bound, the area between them).
# size: 800,540
all = "dense topkA gaussiank gtopk topkSA oktopk"
eval those_of(all, "")
stats data using 1 name "ranks" nooutput
stats data using ($3 > $5 ? $3/$2 : $5/$2) name "top" nooutput
stats data using ($3 < $4 ? $3/$2 : $4/$2) name "bottom" nooutput
words_of(name) = real(system(sprintf("awk '/^#/ { on = $0 == \"# %s\" } on && $1 == %d { print $3 / $2; exit }' \"$DATA\"", name, ranks_max)))
message = sprintf("Words that one of %d ranks sends per element to be selected: ", ranks_max)
do for [name in present] {
  if (place(name, "oktopk topkA dense")) { message = message . sprintf("%s %.0f, ", name, words_of(name)) }
}
set multiplot title heading(message[1:strlen(message)-2], "words sent / k, against the number of ranks, and the paper's closed forms; all axes are the same") font ",15"
eval key_at(0.88)
plot NaN with points linetype 1 pointsize 1.1 title "sent", NaN with lines linetype 7 title "paper", \
  NaN with filledcurves x1 fillcolor rgb "#D8D8D8" title "its bounds"
eval panels
set logscale y
set logscale x 2
set xtics 2
set xrange [ranks_min / 1.3:ranks_max * 1.3]
set yrange [bottom_min / 1.2:top_max * 1.5]
do for [i = 1:words(present)] {
  path = word(present, i)
  set title path noenhanced font ",13"
  eval column_of((i - 1) % 3 + 1, 3, i > 3 ? 0.06 : 0.49, i > 3 ? 0.345 : 0.76)
  plot data index path using 1:($4/$2):($5/$2) with filledcurves fillcolor rgb "#D8D8D8", \
    "" index path using 1:($4/$2) with lines linetype 7 linewidth 1, "" index path using 1:($5/$2) with lines linetype 7 linewidth 1, \
    "" index path using 1:($3/$2) with points linetype 1 pointsize 1.1
}
unset multiplot
