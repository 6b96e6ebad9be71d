# SPDX-License-Identifier: Apache-2.0
# Rewrites a preprocessed .cu file to C++: see kernel.c. Line numbers stay.
undef $/;
$_ = <STDIN>;
my $n = 0;

# kernel<<<grid>>>(  ->  cpu_kernel(CPU_FUNCTION(kernel), grid)(
s/([A-Za-z_]\w*(?:<[^<>;{}]*>)?)\s*<<<(.*?)>>>\s*\(/cpu_kernel([](auto... cpu_arguments) { $1(cpu_arguments...); }, $2)(/gs;

# NULL keeps the type of a pointer on its way through a launch
s/\b__null\b/nullptr/g;

# extern __shared__ T name[];  and  __shared__ T name[N];
s/\bextern\s+__shared__\s+([^;()]*?)\b(\w+)\s*\[\s*\]\s*;/$1*$2 = ($1*)cpu_dynamic_shared;/g;
s/\b__shared__\s+([^;]*?)\b(\w+)((?:\s*\[[^;]*\])?)\s*;/$n++; "struct cpu_shared_$n { $1$2$3; }; static char cpu_key_$n; auto &$2 = ((cpu_shared_$n *)cpu_shared(&cpu_key_$n, sizeof(cpu_shared_$n)))->$2;"/ge;

# while (...) continue;  waits: others have to run
s/\b(while\s*\([^;{}]*\))(\s*)continue\s*;/$1$2cpu_loop();/g;

# asm volatile("instruction" : outputs : inputs : clobbers);  ->  ptx_instruction(outputs, inputs);
sub ptx {
  my ($text, $rest) = @_;
  my $lines = ($text . $rest) =~ tr/\n//;
  s/^#.*\n//mg for $text, $rest;
  $text =~ s/"\s*"//g;
  $text =~ s/\\[nt]/ /g;
  my ($name) = $text =~ /((?:st|ld|red|atom|griddepcontrol|fence|bar|prefetch|createpolicy|cp)\.[\w.:]+|mov\.u64[^;]*%%\w+)/;
  $name =~ s/ %\d, %%/__/;
  $name =~ s/[.:]+/_/g;
  my @operands = $rest =~ /"[^"]*"\s*(\((?:[^()]++|(?1))*\))/g; # "=l"(x)
  s/^\((.*)\)$/$1/s for @operands;
  return "ptx_$name(" . join(', ', map { s/\n/ /gr } @operands) . ");" . "\n" x $lines;
}
s/\basm\s+volatile\s*\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)([^;]*)\)\s*;/ptx($1, $2)/ge;
print;
