#!/usr/bin/env bash
# Two processes train as one with twice the batch; a killed rank ends the job, and the job goes on from its checkpoint.
#   train_test.sh RONDORUN TRAIN_GPT none|regions
set -euo pipefail
rondorun=$1 train_gpt=$2 compile=$3
folder=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true; rm -rf "$folder"' EXIT
fail() { echo "$1"; shift; cat "$@"; exit 1; }

# A text of its own: words of a made-up language, always the same.
awk 'BEGIN { srand(7); for (i = 0; i < 3000; ++i) { w = ""; n = 1 + int(rand() * 6);
             for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
             printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$folder/text"

# options OUT_DIR BATCH_SIZE
options() {
  echo --data="$folder/text" --out_dir="$folder/$1" --batch_size="$2" --compile="$compile" --n_layer=2 --n_head=2 --n_embd=32 \
    --block_size=16 --gradient_accumulation_steps=2 --max_iters=40 --warmup_iters=10 --eval_interval=20 --checkpoint_interval=10 \
    --log_interval=1 --sample_tokens=10
}
without_timings() { sed -E 's/,"targets_per_s".*//' "$1/metrics.jsonl"; }

# ---- The same losses. The ranks compare their parameters after every step.
"$train_gpt" $(options one 8) --threads=1 >"$folder/log" 2>&1 || fail "one process failed" "$folder/log"
"$rondorun" --nproc-per-node 2 "$train_gpt" $(options two 4) --check_ranks >"$folder/log" 2>&1 ||
  fail "two processes failed" "$folder/log"
grep -q "2 processes" "$folder/log" || fail "these were not two processes" "$folder/log"
! grep -q "^\[rank 1\]" "$folder/log" || fail "rank 1 printed" "$folder/log"
numbers() { sed -E 's/.*"step":([0-9]+),"loss":([^,]+)(,"eval_loss":([^,]+))?.*/\1\n\2\n\4/' "$folder/$1/metrics.jsonl" | sed '/^$/d'; }
near_one() {
  paste -d' ' <(numbers one) <(numbers "$1") | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || !(d <= 1e-5 * $1)) { print "differ:", $0; bad = 1 } else if (d / $1 > most) most = d / $1 }
    END { print NR " numbers, largest relative difference " most; exit bad || NR != 40 + 40 + 2 }' || fail "the losses of $1 differ"
}
near_one two
[ -f "$folder/two/ckpt-00000040.safetensors" ] || fail "no checkpoint"

# ---- On another number of ranks, with as many windows a step: the run goes on where it was in the data.
"$rondorun" --nproc-per-node 2 "$train_gpt" $(options part 4) --max_iters=20 --lr_decay_iters=40 >"$folder/log" 2>&1 || fail "the first part failed" "$folder/log"
for ranks in 1 4; do
  cp -r "$folder/part" "$folder/on_$ranks"
  "$rondorun" --nproc-per-node $ranks "$train_gpt" $(options on_$ranks $((8 / ranks))) --init_from=resume --check_ranks >"$folder/log" 2>&1 ||
    fail "$ranks ranks cannot go on" "$folder/log"
  near_one on_$ranks
done

# ---- Blocks that are updated during backward: the very losses of steps after it, in one process and in two.
"$train_gpt" $(options clipped 8) --threads=1 --update_at_seams >"$folder/log" 2>&1 && fail "clipping at seams" "$folder/log"
grep -q -- "--update_at_seams: --grad_clip=1 needs the norm of all gradients" "$folder/log" || fail "clipping is not refused" "$folder/log"
for launch in "" "$rondorun --nproc-per-node 2"; do
  for at_seams in false true; do
    $launch "$train_gpt" $(options seams_$at_seams 4) --grad_clip=0 --update_at_seams=$at_seams --threads=1 --check_ranks >"$folder/log" 2>&1 ||
      fail "update_at_seams=$at_seams failed" "$folder/log"
  done
  diff <(without_timings "$folder/seams_false") <(without_timings "$folder/seams_true") || fail "the losses at seams differ: '$launch'"
done

# ---- Started again by the launcher: the bits of the undisturbed run. A rank is killed before the folder is cleared of an
# earlier run, which nothing may go on from; when it is cleared and there is no checkpoint; and after a checkpoint.
"$train_gpt" $(options again 8) --seed=99 --threads=1 >"$folder/log" 2>&1 || fail "an earlier run failed" "$folder/log"
cat >"$folder/rank.sh" <<'end'
out=$1
shift
case $TORCHELASTIC_RESTART_COUNT.$RANK in
  0.1) kill -9 $$ ;;
  1.0) until [ "$(cat "$out/run_id")" = "$TORCHELASTIC_RUN_ID" ]; do sleep 0.01; done 2>/dev/null && kill -9 $$ & ;;
  2.1) until [ -f "$out/ckpt-00000010.safetensors" ]; do sleep 0.01; done && kill -9 $$ & ;;
esac
exec "$@"
end
"$rondorun" --nproc-per-node 2 --max-restarts 5 sh "$folder/rank.sh" "$folder/again" "$train_gpt" $(options again 4) >"$folder/log" 2>&1 ||
  fail "the job did not survive its kills" "$folder/log"
restarts=$(grep -c 'was killed by signal 9 (SIGKILL); all ranks start again' "$folder/log" || true)
echo "killed and started again $restarts times"
[ "$restarts" -ge 2 ] || fail "nothing was killed" "$folder/log"  # the third kill may come too late
diff <(without_timings "$folder/two") <(without_timings "$folder/again") || fail "the losses differ after restarts" "$folder/log"
cmp "$folder/two/ckpt-00000040.safetensors" "$folder/again/ckpt-00000040.safetensors" || fail "the checkpoints differ after restarts"

# ---- Rank 1 is killed in the middle.
for attempt in 1 2 3 4 5; do
  rm -rf "$folder/killed"
  "$rondorun" --nproc-per-node 2 sh -c 'echo $$ >"$0.$RANK"; exec "$@"' "$folder/pid" "$train_gpt" $(options killed 4) >"$folder/log" 2>&1 &
  job=$!
  for _ in $(seq 6000); do
    [ "$(cat "$folder/killed/metrics.jsonl" 2>/dev/null | wc -l)" -lt 12 ] || break
    kill -0 $job 2>/dev/null || break
    sleep 0.02
  done
  killed=$(cat "$folder/pid.1")
  began=$(date +%s%N)
  kill -9 "$killed" 2>/dev/null || true
  code=0
  wait $job || code=$?
  took=$((($(date +%s%N) - began) / 1000000))
  [ $code = 0 ] || break
  echo "attempt $attempt: the job was done before the kill"
done
job=
echo "the job ended $took ms after rank 1 was killed: $(grep '^rondorun' "$folder/log" | head -1)"
[ $code = 137 ] || fail "exit code $code" "$folder/log"
[ $took -lt 10000 ] || fail "that is too long" "$folder/log"
grep -q "^rondorun: rank 1 (pid $killed) was killed by signal 9 (SIGKILL)" "$folder/log" || fail "rank 1 is not named" "$folder/log"
! kill -0 "$(cat "$folder/pid.0")" 2>/dev/null || fail "rank 0 is still there" "$folder/log"

# ---- And goes on, with the same bits as the undisturbed run.
"$rondorun" --nproc-per-node 2 "$train_gpt" $(options killed 4) --init_from=resume >"$folder/log" 2>&1 || fail "resuming failed" "$folder/log"
grep -q "Resuming from" "$folder/log" || fail "not resumed" "$folder/log"
diff <(without_timings "$folder/two") <(without_timings "$folder/killed") || fail "the losses differ after resuming"
cmp "$folder/two/ckpt-00000040.safetensors" "$folder/killed/ckpt-00000040.safetensors" || fail "the checkpoints differ"
