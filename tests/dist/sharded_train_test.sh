#!/usr/bin/env bash
# train_gpt --shard_optimizer: the losses of whole states, and checkpoints for any number of processes.
#   sharded_train_test.sh RONDORUN TRAIN_GPT none|regions
set -euo pipefail
rondorun=$1 train_gpt=$2 compile=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$1"; shift; cat "$@"; exit 1; }

awk 'BEGIN { srand(11); for (i = 0; i < 3000; ++i) { w = ""; n = 1 + int(rand() * 6);
             for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
             printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$folder/text"

# train OUT_DIR PROCESSES [OPTION...]: 12 windows in a batch, of all processes together.
train() {
  local out=$1 n=$2
  shift 2
  "$rondorun" --nproc-per-node "$n" "$train_gpt" --data="$folder/text" --out_dir="$folder/$out" --batch_size=$((12 / n)) \
    --compile="$compile" --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --gradient_accumulation_steps=2 --lr_decay_iters=40 \
    --warmup_iters=10 --eval_interval=20 --checkpoint_interval=20 --log_interval=1 --sample_tokens=10 --threads=1 "$@" \
    >"$folder/log" 2>&1 || fail "$out failed" "$folder/log"
}
losses() { sed -E 's/.*"step":([0-9]+),"loss":([^,]+).*/\1 \2/' "$folder/$1/metrics.jsonl"; }
# same OUT_DIR OTHER TOLERANCE
same() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk -v tolerance="$3" -v what="$1 and $2" '
    { d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || !(d <= tolerance * $2)) { print "differ:", $0; bad = 1 }
      if (d / $2 > most) most = d / $2 }
    END { print what ": " NR " losses, largest relative difference " most + 0; exit bad || NR == 0 }' || fail "the losses differ"
}

# ---- The losses of whole states, and the same parameters on all ranks. The whole run is two halves, as all below.
for n in 2 4; do
  train plain$n $n --max_iters=40
  train sharded$n $n --max_iters=20 --shard_optimizer=1 --check_ranks
  grep -q "$n processes, optimizer states in shards" "$folder/log" || fail "nothing is sharded" "$folder/log"
  cp -r "$folder/sharded$n" "$folder/half$n"
  train sharded$n $n --max_iters=40 --shard_optimizer=1 --check_ranks --init_from=resume
  grep -q "Resuming from" "$folder/log" || fail "not resumed" "$folder/log"
  same sharded$n plain$n 1e-6
done

# ---- Products in bf16, from copies of the weights.
for shards in 0 1; do train bf16_$shards 2 --max_iters=20 --dtype=bfloat16 --shard_optimizer=$shards --check_ranks; done
same bf16_1 bf16_0 1e-6

# ---- From the checkpoint of shards: whole states in one and two processes, shards in three.
for resumed in "1 0" "2 0" "3 1"; do
  read -r n shards <<<"$resumed"
  cp -r "$folder/half4" "$folder/from4_on$n"
  train from4_on$n "$n" --max_iters=40 --init_from=resume --shard_optimizer="$shards"
  grep -q "Resuming from" "$folder/log" || fail "not resumed on $n" "$folder/log"
  same from4_on$n plain4 1e-5
done
# ---- And from that of whole states: shards.
train plain_half 2 --max_iters=20
train plain_half 4 --max_iters=40 --init_from=resume --shard_optimizer=1
same plain_half plain4 1e-5

# ---- Shards that are updated at seams: the very losses of those that are updated after backward.
for n in 2 3; do
  for at_seams in false true; do
    train seams_$at_seams $n --max_iters=20 --grad_clip=0 --shard_optimizer=1 --update_at_seams=$at_seams --check_ranks
  done
  diff <(losses seams_false) <(losses seams_true) || fail "the losses at seams differ on $n ranks"
done
