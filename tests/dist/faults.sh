#!/usr/bin/env bash
# One rank of a training job fails. The job ends in bounded time and names the rank, or goes on where that is documented.
# No process is left, every checkpoint is whole, and the job goes on from the last one to the bits of an undisturbed run.
#   faults.sh RONDORUN DIST_FAULTS [RANKS=2] [STEPS=6] [ATTEMPTS=1]     STEPS: when, such as "2 5 6 9"
set -euo pipefail
rondorun=$1 program=$2 ranks=${3:-2} steps=${4:-6} attempts=${5:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RONDO_NUM_THREADS=1
log=$folder/log
fail() { echo "$what: $1"; cat "$log"; exit 1; }

# job FAULT...: sets code and took (ms).
job() {
  local began
  began=$(date +%s%N)
  code=0
  "$rondorun" --nproc-per-node "$ranks" "${options[@]}" "$program" train "$folder/run" "$@" >"$log" 2>&1 || code=$?
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
[ $code = 0 ] || { grep -q "built without Gloo" "$log" && { echo "skipped: built without Gloo"; exit 77; }; fail "exit code $code"; }
expected=$(endings)
[[ $expected = "$ranks 12 steps, 0 skipped, loss 0x"* ]] || fail "that is no training run: $expected"
rm -rf "$folder/run"

# ends HOW RANK STEP: MOST_MS CODE "what the launcher says of the rank" "what a rank says" CHECKPOINTED
#   Then the same job again, without the fault, and with --max-restarts from the start.
ends() {
  local how=$1 rank=$2 step=$3 most=$4 expected_code=$5 blame=$6 said=$7
  what="$how of rank $rank in step $((step + 1)), $ranks ranks"
  options=()
  job "$how" "$rank" "$step"
  no_orphan
  [ "$code" = "$expected_code" ] || fail "exit code $code, not $expected_code"
  [ "$took" -le "$most" ] || fail "it took $took ms"
  grep -qE "^rondorun: rank $blame" "$log" || fail "the launcher does not say: rank $blame"
  [ "$(grep -c '; the job ends$' "$log")" = 1 ] || fail "not one rank is blamed"
  [ -z "$said" ] || grep -qE "$said" "$log" || fail "nobody says: $said"
  longest=$((took > longest ? took : longest))
  if [ -d "$folder/run" ]; then
    checked=$("$program" check "$folder/run" 2>&1) || fail "$checked"
    # Steps 2, 4 ... are saved: nothing that was reported as saved is missing.
    [[ "$how" = full_disk || "$checked" = *"of step $((step / 2 * 2))" ]] || fail "$checked"
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
for attempt in $(seq "$attempts"); do
  for step in $steps; do
    for bad in $(printf '%s\n' 0 1 $((ranks - 1)) | sort -u); do
      for how in kill_forward kill_collective kill_optimizer; do ends $how $bad $step 10000 137 "$bad \(pid [0-9]+\) $killed" ""; done
    done
    bad=$((ranks - 1))
    ends throw $bad $step 10000 9 "$bad \(pid [0-9]+\) exited with code 9; the job ends" "rank $bad\] dist_faults: the data are gone"
    ends exit $bad $step 10000 9 "$bad \(pid [0-9]+\) exited with code 0 while other ranks needed it; the job ends" ""
    ends stop $bad $step 20000 9 "$bad \(pid [0-9]+\) is stopped \(SIGSTOP or SIGTSTP\); the job ends" ""
    ends late $bad $step 20000 9 "$bad \(pid [0-9]+\) does not take part any more; the job ends" ""
    ends other_collective $bad $step 10000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" "rank $bad.*something else"
    for how in kill_forward kill_collective kill_optimizer throw; do restarts $how $bad $step; done
  done
  # Other models are found before the first step.
  for how in other_model other_order other_dtype other_trainable; do
    ends $how $((ranks - 1)) 0 10000 9 "[0-9]+ \(pid [0-9]+\) exited with code 9; the job ends" \
      "rank [0-9]+\] dist_faults: DistributedDataParallel: rank $((ranks - 1)) has another plan than rank 0"
  done
  # A checkpoint that cannot be written ends the job, unless a callback wants to go on.
  ends full_disk 0 0 10000 9 "0 \(pid [0-9]+\) exited with code 9; the job ends" "rank 0\] dist_faults: .*ckpt-00000002"
  what="a full disk, and the job goes on" options=()
  job full_disk_goes_on 0
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
done
echo "$count faults of $ranks ranks: each ended or went on as documented; the longest took $longest ms"
