#!/usr/bin/env bash
# train_gpt in several processes on CUDA devices, over NCCL; both are fakes (tests/fake_cuda, tests/fake_nccl). The losses
# are those of one process with the whole batch, all ranks have the same parameters after every step, and the order in
# which devices do what streams and events leave open changes no bit.
#   cuda_ranks.sh RONDORUN TRAIN_GPT FAKE_FOLDER short
#   cuda_ranks.sh RONDORUN TRAIN_GPT FAKE_FOLDER long FINETUNE MAKE_MODEL     # every mode on 2, 3 and 4 ranks, in 8 orders
set -euo pipefail
rondorun=$1 train_gpt=$2 fake=$3 length=$4 finetune=${5-} make_model=${6-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$1"; shift; cat "$@"; exit 1; }
for i in $(seq 300); do echo "the $((i * i % 17)) of $((i % 23)) went on."; done >"$folder/text"
steps=3 batch=12
[ "$length" = short ] || steps=6

# run OUT_DIR SEED RANKS OPTION...   With `launcher`: options of rondorun. With `wrapper`: a command before the program.
launcher=() wrapper=()
run() {
  local out=$1 seed=$2 n=$3
  shift 3
  start "$out" "$seed" "$n" "$train_gpt" --data="$folder/text" --out_dir="$folder/$out" --n_layer=2 --n_head=2 --n_embd=64 \
    --block_size=8 --batch_size=$((batch / n)) --max_iters=$steps --warmup_iters=2 --eval_interval=1000 --eval_iters=1 \
    --checkpoint_interval=1000 --log_interval=1 --sample_tokens=0 --compile=regions --check_ranks --threads=1 "$@"
}
# The same with LoRA: finetune, whose ranks share the batches of a step.
run_lora() {
  local out=$1 seed=$2 n=$3
  shift 3
  start "$out" "$seed" "$n" "$finetune" --model_name_or_path="$folder/model" --train_file="$folder/text" --output_dir="$folder/$out" \
    --block_size=8 --per_device_train_batch_size=1 --gradient_accumulation_steps=$((batch / n)) --max_steps=$steps \
    --logging_steps=1 --save_steps=1000 --eval_steps=1000 --max_new_tokens=0 --validation_split_percentage=2 --lora_r=4 \
    --learning_rate=1e-2 --compile=regions --check_ranks=true "$@"
}
# start OUT_DIR SEED RANKS PROGRAM OPTION...
start() {
  local out=$1 seed=$2 n=$3
  shift 3
  local launch=()
  [ "$n" = 1 ] || launch=("$rondorun" --nproc-per-node "$n" "${launcher[@]}")
  RONDO_CUDA_PATH=$fake RONDO_FAKE_CUDA=$seed:$n:256 "${launch[@]}" "${wrapper[@]}" "$@" --device=cuda >"$folder/log" 2>&1 ||
    fail "$out failed ($n ranks, seed $seed)" "$folder/log"
}
# The loss of each step, and of each validation: "7 loss 2.5".
losses() {
  sed -nE 's/.*"step":([0-9]+),"loss":([^,]+),("eval_loss":([^,]+))?.*/\1 loss \2\n\1 eval \4/p' "$folder/$1/metrics.jsonl" |
    awk 'NF == 3 && $3 != "null" && !seen[$1 $2]++'
}
without_timings() { sed -E 's/,"targets_per_s".*//' "$folder/$1/metrics.jsonl"; }
# close A B TOLERANCE
close() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk -v tolerance="$3" -v steps=$steps -v what="$2" '
    { d = $3 - $6; if (d < 0) d = -d; evals += $2 == "eval"
      if (NF != 6 || $1 $2 != $4 $5 || !(d <= tolerance * $3)) { print "differ:", $0; bad = 1 } else if (d / $3 > most) most = d / $3 }
    END { print what ": " NR - evals " losses and " evals " of validation, largest relative difference " most
          exit bad || NR - evals != steps || evals == 0 }' || fail "the losses of $1 and $2 differ"
}

declare -A options=(
  [plain]="" [accumulated]="--gradient_accumulation_steps=2" [clipped]="--grad_clip=0.05" [bf16]="--dtype=bfloat16"
  [at_seams]="--grad_clip=0 --update_at_seams" [sharded]="--shard_optimizer=1"
  [sharded_at_seams]="--grad_clip=0 --update_at_seams --shard_optimizer=1" [lora]="" [sharded_lora]="--shard_optimizer=true")
modes="plain accumulated clipped bf16 at_seams sharded sharded_at_seams"
ranks="2" seeds="2 3" ordered="plain"
if [ "$length" = long ]; then
  modes="$modes lora sharded_lora"
  ranks="2 3 4" seeds="2 3 4 5 6 7 8" ordered=$modes
  "$make_model" "$folder/model" >"$folder/log" || fail "no model" "$folder/log"
fi
# run_mode MODE OUT_DIR SEED RANKS
run_mode() {
  local mode=$1
  shift
  case $mode in
    *lora) run_lora "$@" ${options[$mode]} ;;
    *) run "$@" ${options[$mode]} ;;
  esac
}
for mode in $modes; do
  tolerance=1e-5
  [ $mode != bf16 ] || tolerance=2e-3  # products of other sizes round otherwise
  run_mode $mode $mode-1 1 1
  for n in $ranks; do
    run_mode $mode $mode-$n 1 $n
    close $mode-1 $mode-$n $tolerance
  done
done
# 3 ranks share 12 rows as well; once is enough for the short form.
[ "$length" != short ] || { run plain-3 1 3; close plain-1 plain-3 1e-5; }

# ---- Other legal orders.
for mode in $ordered; do
  for seed in $seeds; do
    rm -rf "$folder/order"
    run_mode $mode order $seed 2
    diff <(without_timings $mode-2) <(without_timings order) || fail "$mode: seed $seed has other losses"
  done
  echo "$mode: orders of seeds 1 $seeds: the same losses"
done

# ---- Rank 1 is killed after the first checkpoint; all start again from there, to the same losses.
cat >"$folder/rank.sh" <<'end'
checkpoint=$1
shift
[ $TORCHELASTIC_RESTART_COUNT.$RANK != 0.1 ] || { until [ -f "$checkpoint" ]; do sleep 0.01; done && kill -9 $$ & }
exec "$@"
end
began=$(date +%s)
launcher=(--max-restarts 2) wrapper=(sh "$folder/rank.sh" "$folder/killed/ckpt-00000001.safetensors")
run killed 1 2 --checkpoint_interval=1
launcher=() wrapper=()
grep -q 'was killed by signal 9 (SIGKILL); all ranks start again' "$folder/log" || fail "nothing was killed" "$folder/log"
diff <(without_timings plain-2) <(without_timings killed) || fail "the losses differ after a restart" "$folder/log"
echo "a rank was killed, and the job started again: the same losses, after $(($(date +%s) - began)) s"
