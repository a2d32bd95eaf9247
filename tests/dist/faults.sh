#!/usr/bin/env bash
# One rank of a training job fails. The job ends in bounded time and names the rank, or goes on where that is documented.
# No process is left, every checkpoint is whole, and the job goes on from the last one to the bits of an undisturbed run.
#   faults.sh RONDORUN DIST_FAULTS [DEVICE=cpu] [RANKS=2] [STEPS=6]
#     DEVICE: cpu, or the folder of the fakes of CUDA and NCCL; STEPS: when, such as "2 5 6 9"
set -euo pipefail
rondorun=$1 program=$2 device=${3:-cpu} ranks=${4:-2} steps=${5:-6}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RONDO_NUM_THREADS=1
if [ "$device" != cpu ]; then
  export RONDO_CUDA_PATH=$device RONDO_FAKE_CUDA=$ranks:$ranks:256
  device=cuda
fi
log=$folder/log
fail() { echo "$what: $1"; cat "$log"; exit 1; }

# job FAULT...: sets code and took (ms).
job() {
  local began
  began=$(date +%s%N)
  code=0
  "$rondorun" --nproc-per-node "$ranks" "${options[@]}" "$program" train "$device" "$folder/run" "$@" >"$log" 2>&1 || code=$?
  took=$((($(date +%s%N) - began) / 1000000))
}
no_orphan() { ! pgrep -f "$folder/run" >/dev/null || { pgrep -af "$folder/run"; fail "it left processes behind"; }; }
# The last lines of all ranks that came to the end, without their rank.
endings() { sed -n 's/^\[rank [0-9]*\] done: //p' "$log" | sort | uniq -c | sed 's/^ *//'; }
undisturbed_end() {
  [ $code = 0 ] || fail "exit code $code"
  [ "$(endings)" = "$expected" ] || fail "it ends with \"$(endings)\", not \"$expected\""
}

options=() what="no fault"
job none
[ $code = 0 ] || fail "exit code $code"
expected=$(endings) calm=$took
[[ $expected = "$ranks 12 steps, 0 skipped, loss 0x"* ]] || fail "that is no training run: $expected"
rm -rf "$folder/run"

# ends HOW RANK STEP MOST_MS CODE "what the launcher says of the rank" "what a rank says"
#   Then the same job again, without the fault, and with --max-restarts from the start.
ends() {
  local how=$1 rank=$2 step=$3 most=$4 expected_code=$5 blame=$6 said=$7
  what="$how of rank $rank in step $((step + 1)), $ranks ranks"
  options=()
  job "$how" "$rank" "$step"
  no_orphan
  [ "$code" = "$expected_code" ] || fail "exit code $code, not $expected_code"
  # A run without a fault shows how busy the machine is.
  [ "$took" -le $((most + 3 * calm)) ] || fail "it took $took ms"
  grep -qE "^rondorun: rank $blame" "$log" || fail "the launcher does not say: rank $blame"
  [ "$(grep -c '; the job ends$' "$log")" = 1 ] || fail "not one rank is blamed"
  [ -z "$said" ] || grep -qE "$said" "$log" || fail "nobody says: $said"
  longest=$((took > longest ? took : longest))
  if [ -d "$folder/run" ]; then
    checked=$("$program" check "$folder/run" 2>&1) || fail "$checked"
    # Nothing that was reported as saved is missing.
    saved=$(sed -n 's/^\[rank 0\] saved step //p' "$log" | tail -1)
    [ "${checked##*of step }" -ge "${saved:-0}" ] || fail "$checked, and step $saved was saved"
    [[ "$how" = full_disk || "$how" = nccl_* || ${checked##*of step } = $((step / 2 * 2)) ]] || fail "$checked"
  fi
  job none
  undisturbed_end
  rm -rf "$folder/run"
  count=$((count + 1))
}
restarts() {
  what="$1 of rank $2 in step $(($3 + 1)), $ranks ranks, with restarts"
  options=(--max-restarts 2)
  job "$@"
  no_orphan
  undisturbed_end
  grep -q "all ranks start again" "$log" || fail "nothing started again"
  rm -rf "$folder/run"
  count=$((count + 1))
}

count=0 longest=0
killed='was killed by signal 9 \(SIGKILL\); the job ends'
for step in $steps; do
  for bad in $(printf '%s\n' 0 1 $((ranks - 1)) | sort -u); do
    for how in kill_forward kill_collective kill_optimizer; do ends $how $bad $step 10000 137 "$bad \(pid [0-9]+\) $killed" ""; done
  done
  for bad in 0 $((ranks - 1)); do
    ends throw $bad $step 10000 9 "$bad \(pid [0-9]+\) exited with code 9; the job ends" "rank $bad\] dist_faults: the data are gone"
    ends exit $bad $step 10000 9 "$bad \(pid [0-9]+\) exited with code 0 while other ranks needed it; the job ends" ""
    ends stop $bad $step 20000 9 "$bad \(pid [0-9]+\) is stopped \(SIGSTOP or SIGTSTP\); the job ends" ""
  done
  ends late $bad $step 20000 9 "$bad \(pid [0-9]+\) does not take part any more; the job ends" ""
  ends other_collective $bad $step 10000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" "rank $bad.*something else"
  others="kill_forward kill_collective kill_optimizer throw stop"
  if [ "$device" = cuda ]; then
    bad=1
    ends other_device_collective $bad $step 10000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" \
      "the ranks do not call the same collectives on their devices: .*rank $bad (is )?at all_reduce [0-9]+ \(something else; 8 f32\)"
    ends nccl_kill $bad $step 10000 137 "$bad \(pid [0-9]+\) $killed" ""
    ends nccl_stall $bad $step 20000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" "did not complete within 3000 ms"
    ends nccl_error $bad $step 10000 9 "$bad \(pid [0-9]+\) exited with code 9; the job ends" "rank $bad: .* failed: "
    what="a collective of NCCL that is late" options=()
    job nccl_late $bad $step
    undisturbed_end
    rm -rf "$folder/run"
    count=$((count + 1)) others+=" nccl_kill nccl_stall"
  fi
  for how in $others; do restarts $how $bad $step; done
done
# Other models are found before the first step.
for how in other_model other_order other_dtype other_trainable; do
  ends $how $((ranks - 1)) 0 10000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" \
    "rank [0-9]+\] dist_faults: DistributedDataParallel: rank $((ranks - 1)) has another plan than rank 0"
done
# A checkpoint that cannot be written ends the job, unless a callback wants to go on.
ends full_disk 0 1 10000 9 "0 \(pid [0-9]+\) exited with code 9; the job ends" "rank 0\] dist_faults: .*ckpt-00000002"
what="a full disk, and the job goes on" options=()
job full_disk_goes_on 0 1
no_orphan
undisturbed_end
[ "$(grep -c 'no checkpoint' "$log")" = 6 ] || fail "not 6 checkpoints are missing"
rm -rf "$folder/run"
# A gradient that is not finite, on one rank: all skip the same step, and the parameters stay equal.
what="a gradient that is not finite"
job nan $((ranks - 1)) 6
no_orphan
[ $code = 0 ] || fail "exit code $code"
[[ "$(endings)" = "$ranks 12 steps, 1 skipped, loss 0x"* ]] || fail "it ends with $(endings)"
rm -rf "$folder/run"
count=$((count + 2))
echo "$count faults of $ranks ranks on $device: each ended or went on as documented; the longest took $longest ms"
