#!/usr/bin/env bash
# Jobs of train_gpt whose ranks are killed at random times start again and end with the losses and the checkpoint of a job
# that nobody disturbed, bit for bit.   restarts.sh RONDORUN TRAIN_GPT [DEVICE=cpu] [JOBS=40] [RANKS=2]
#   DEVICE: cpu, or the folder of the fakes of CUDA and NCCL
set -euo pipefail
rondorun=$1 train_gpt=$2 device=${3:-cpu} jobs=${4:-40} ranks=${5:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk 'BEGIN { srand(3); for (i = 0; i < 20000; ++i) printf "%s%s", substr("the sea and its ships went by", 1 + int(rand() * 24), 5), i % 9 == 8 ? ".\n" : " " }' >"$folder/text"
shape="--batch_size=4 --compile=none --n_embd=64 --block_size=32"
if [ "$device" != cpu ]; then
  export RONDO_CUDA_PATH=$device RONDO_FAKE_CUDA=$ranks:$ranks:256
  shape="--device=cuda --batch_size=2 --compile=regions --n_embd=32 --block_size=8 --eval_iters=1"  # kernels run a thread at a time
fi
options() {
  echo --data="$folder/text" --out_dir="$folder/$1" $shape --n_layer=2 --n_head=2 --max_iters=60 --warmup_iters=10 \
    --eval_interval=30 --checkpoint_interval=7 --log_interval=1 --sample_tokens=10 --threads=1
}
result() { sed -E 's/,"targets_per_s".*//' "$folder/$1/metrics.jsonl"; sha256sum <"$folder/$1/ckpt-00000060.safetensors"; }

# Kills itself when as many lines are in the run's metrics as the plan says for this attempt and rank, and some time later:
# anywhere between the start of a process and the last steps.
cat >"$folder/rank.sh" <<'end'
plan=$1 metrics=$2
shift 2
awk -v at="$TORCHELASTIC_RESTART_COUNT.$RANK" '$1 == at { print $2, $3 }' "$plan" | while read -r lines delay; do
  until [ "$(cat "$metrics" 2>/dev/null | wc -l)" -ge "$lines" ]; do
    kill -0 $$ || exit
    sleep 0.005
  done
  sleep "$delay"
  kill -9 $$
done 2>/dev/null &
exec "$@"
end

"$rondorun" --nproc-per-node "$ranks" "$train_gpt" $(options calm) >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
result calm >"$folder/expected"

killed=0
for job in $(seq "$jobs"); do
  # None, one or two kills, in the first attempts.
  awk -v seed="$job" -v kills=$((job % 3)) -v ranks="$ranks" 'BEGIN {
    srand(seed); rand()
    for (a = 0; a < kills; ++a) printf "%d.%d %d %.3f\n", a, int(rand() * ranks), int(rand() * 58), rand() * 0.03 }' >"$folder/plan"
  rm -rf "$folder/run"
  code=0
  "$rondorun" --nproc-per-node "$ranks" --max-restarts 2 sh "$folder/rank.sh" "$folder/plan" "$folder/run/metrics.jsonl" "$train_gpt" $(options run) >"$folder/log" 2>&1 || code=$?
  if [ $code != 0 ] || ! diff <(result run) "$folder/expected" >"$folder/diff"; then
    echo "job $job, exit code $code, kills at:"
    cat "$folder/plan" "$folder/log" "$folder/diff"
    exit 1
  fi
  killed=$((killed + $(grep -c 'all ranks start again' "$folder/log" || true)))
  ! pgrep -f "$folder/run" >/dev/null || { echo "job $job left processes behind:"; pgrep -af "$folder/run"; exit 1; }
done
[ "$device" = cpu ] || device=cuda
echo "$jobs jobs of $ranks ranks on $device, started again $killed times: every one ended with the same losses and checkpoint, bit for bit"
# A kill may come when its process has ended: not often.
[ "$killed" -ge $((jobs / 2)) ] || { echo "too few were killed"; exit 1; }
