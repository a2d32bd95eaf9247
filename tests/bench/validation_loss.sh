#!/usr/bin/env bash
# What a GPT reaches at nanoGPT's CPU setting (which quotes a validation loss of 1.88): train_gpt's defaults, three seeds,
# compiled and eager, over the whole validation split.
#   tests/bench/validation_loss.sh TEXT [build/release/bin/train_gpt] [seeds, default "1337 1338 1339"]
# TEXT: tiny Shakespeare, e.g. build/quickstart/tinyshakespeare.txt. Prints a table; fails if a mean is above 1.90.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0"; exit 2; }
text=$1
train_gpt=${2:-$(dirname "$0")/../../build/release/bin/train_gpt}
seeds=${3:-1337 1338 1339}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

field() { grep -o "\"$1\":[0-9.e+-]*" | cut -d: -f2; }
failed=0
printf '%-8s %5s %9s %9s %11s %12s\n' compile seed val_loss wall_s tokens/s peak_rss_mib
for compile in regions none; do
  losses=""
  for seed in $seeds; do
    start=$(date +%s.%N)
    "$train_gpt" --data="$text" --out_dir="$folder/out" --compile=$compile --seed="$seed" --sample_tokens=0 >"$folder/log" ||
      { cat "$folder/log"; exit 1; }
    wall=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')
    last=$(tail -n 1 "$folder/out/metrics.jsonl")
    loss=$(field eval_loss <<<"$last")
    # The median over the logged lines: the rate without the steps that share the machine with something else.
    rate=$(field targets_per_s <"$folder/out/metrics.jsonl" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    printf '%-8s %5d %9.4f %9.1f %11.0f %12.1f\n' $compile "$seed" "$loss" "$wall" "$rate" "$(field peak_rss_mib <<<"$last")"
    losses="$losses $loss"
  done
  mean=$(tr ' ' '\n' <<<"$losses" | awk 'NF { s += $1; ++n } END { print s / n }')
  verdict=$(awk -v m="$mean" 'BEGIN { print m <= 1.90 ? "<= 1.90" : "ABOVE 1.90" }')
  printf '%-8s  mean %9.4f  %s\n' $compile "$mean" "$verdict"
  [ "$verdict" = "<= 1.90" ] || failed=1
done
exit $failed
