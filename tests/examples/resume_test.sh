#!/usr/bin/env bash
# Kills train_gpt -9 at random moments and resumes until it is done; metrics and the last checkpoint must be those of an
# undisturbed run, bit for bit.   resume_test.sh TRAIN_GPT none|regions [SEED]
set -euo pipefail
train_gpt=$1 compile=$2
RANDOM=${3:-$$}
echo "random seed ${3:-$$}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A text of its own: words of a made-up language, always the same.
awk 'BEGIN { srand(7); for (i = 0; i < 6000; ++i) { w = ""; n = 1 + int(rand() * 6);
             for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
             printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$folder/text"

run() {  # run OUT_DIR INIT_FROM
  exec "$train_gpt" --data="$folder/text" --out_dir="$1" --init_from="$2" --compile="$compile" --threads=1 --n_layer=2 \
    --n_head=2 --n_embd=32 --block_size=16 --batch_size=4 --dropout=0.1 --gradient_accumulation_steps=2 --max_iters=200 \
    --warmup_iters=20 --eval_interval=60 --checkpoint_interval=17 --log_interval=1 --sample_tokens=20
}
lines() { { wc -l <"$folder/b/metrics.jsonl"; } 2>/dev/null || echo 0; }
without_timings() { sed -E 's/,"targets_per_s".*//' "$1/metrics.jsonl"; }

(run "$folder/a" scratch) >"$folder/a.log" || { cat "$folder/a.log"; exit 1; }

kills=0 resumed=0
while :; do
  (run "$folder/b" resume) >"$folder/b.log" 2>&1 &
  process=$!
  if [ $kills -lt 8 ]; then
    # The first kill comes while the program starts, later ones some steps further on.
    if [ $kills = 0 ]; then sleep 0.03; fi
    goal=$(($(lines) + RANDOM % 50 + 1))
    while [ $kills != 0 ] && [ "$(lines)" -lt $goal ] && kill -0 $process 2>/dev/null; do sleep 0.01; done
    if kill -9 $process 2>/dev/null; then kills=$((kills + 1)); fi
  fi
  status=0
  wait $process 2>/dev/null || status=$?
  if grep -q '^Resuming' "$folder/b.log"; then resumed=$((resumed + 1)); fi
  [ $status != 0 ] || break
  [ $status = 137 ] || { cat "$folder/b.log"; echo "train_gpt failed: $status"; exit 1; }
done

echo "compile=$compile: $kills kills, $resumed resumes, $(wc -l <"$folder/b/metrics.jsonl") lines"
[ "$resumed" -gt 0 ] || { echo "no run was resumed"; exit 1; }
diff <(without_timings "$folder/a") <(without_timings "$folder/b") || { echo "the losses differ"; exit 1; }
cmp "$folder/a/ckpt-00000200.safetensors" "$folder/b/ckpt-00000200.safetensors" || { echo "the checkpoints differ"; exit 1; }
[ "$(sed -n '/^$/,$p' "$folder/a.log" | sed '$d')" = "$(sed -n '/^$/,$p' "$folder/b.log" | sed '$d')" ] || { echo "the samples differ"; exit 1; }

# ---- As many rows a step, cut otherwise: the same rows, and the same losses but for the order of sums.
cut() {  # cut OUT_DIR BATCH_SIZE ACCUMULATION STEPS
  "$train_gpt" --data="$folder/text" --out_dir="$1" --init_from=resume --compile="$compile" --threads=1 --n_layer=1 --n_head=2 --n_embd=16 \
    --block_size=16 --batch_size="$2" --gradient_accumulation_steps="$3" --max_iters="$4" --lr_decay_iters=12 --warmup_iters=2 --log_interval=1 \
    --eval_interval=20 --eval_iters=1 --sample_tokens=0 >"$1.log" 2>&1 || { cat "$1.log"; exit 1; }
}
losses() { sed -E 's/.*"loss":([0-9.e+-]+).*/\1/' "$1/metrics.jsonl"; }
cut "$folder/whole" 4 1 12
cut "$folder/parts" 4 1 5
cut "$folder/parts" 2 2 9
cut "$folder/parts" 1 4 12
paste <(losses "$folder/whole") <(losses "$folder/parts") |
  awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-4) bad = 1 } END { exit bad || NR < 12 }' ||
  { paste <(losses "$folder/whole") <(losses "$folder/parts"); echo "batches cut otherwise have other rows"; exit 1; }

# ---- A run that diverges saves nothing: neither where every step is skipped from there on, nor where NaN reaches the parameters.
diverge() {  # diverge OUT_DIR GRAD_CLIP
  "$train_gpt" --data="$folder/text" --out_dir="$1" --compile="$compile" --threads=1 --n_layer=1 --n_head=2 --n_embd=32 --block_size=16 \
    --batch_size=4 --max_iters=6 --warmup_iters=0 --learning_rate=3e38 --min_lr=3e38 --grad_clip="$2" --eval_iters=1 --sample_tokens=0 \
    --checkpoint_interval=6 >"$1.log" 2>&1
}
if diverge "$folder/nan" 0; then cat "$folder/nan.log"; echo "a model of NaN was saved"; exit 1; fi
grep -q "ckpt-00000006.safetensors is not written: .* are NaN or infinite" "$folder/nan.log" || { cat "$folder/nan.log"; exit 1; }
! ls "$folder/nan/"ckpt-* >"$folder/nan.log" 2>&1 || { cat "$folder/nan.log"; exit 1; }
diverge "$folder/skipped" 1 || true
grep -q "a gradient is not finite; no parameter was changed" "$folder/skipped.log" || { cat "$folder/skipped.log"; exit 1; }

# ---- Two runs on one folder: the second one names the first, which is not disturbed.
(run "$folder/locked" scratch) >"$folder/locked.log" 2>&1 &
first=$!
while [ ! -s "$folder/locked/metrics.jsonl" ] && kill -0 $first 2>/dev/null; do sleep 0.01; done
if (run "$folder/locked" scratch) >"$folder/second.log" 2>&1; then cat "$folder/second.log"; echo "two runs wrote to one folder"; exit 1; fi
grep -q "another run writes to $folder/locked (process $first)" "$folder/second.log" || { cat "$folder/second.log"; exit 1; }
wait $first || { cat "$folder/locked.log"; echo "the first run was disturbed"; exit 1; }
diff <(without_timings "$folder/a") <(without_timings "$folder/locked") || { echo "the losses beside a second run differ"; exit 1; }

# ---- A file size limit is an error with a message, not the end of the process by a signal.
status=0
(ulimit -f 16; run "$folder/limited" scratch) >"$folder/limited.log" 2>&1 || status=$?
[ $status = 1 ] && grep -q "^train_gpt: .*File too large" "$folder/limited.log" || { cat "$folder/limited.log"; echo "a full file: status $status"; exit 1; }
