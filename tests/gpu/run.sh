#!/usr/bin/env bash
# One report of what Rondo does on this machine's GPU, in under ten minutes: tests/gpu/README.md.
#
#   tests/gpu/run.sh [--out FOLDER] [--budget SECONDS] [--bin FOLDER] [--only SECTION,...] [--short] [--fake SEED]
#
# Writes FOLDER/report.md, FOLDER/report.json and FOLDER/logs/ (default: rondo-gpu-report). A section has its share of the time that is
# left; one that fails, hangs or runs out of time says so, and the next one begins. --fake runs all of it on
# tests/fake_cuda, without a GPU: a test of this script, whose report holds no figure of a GPU.
# Exit code: 0 all passed, 1 something failed or ran out of time, 2 wrong arguments, 3 there is no CUDA device.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=rondo-gpu-report budget=540 bin='' only=machine,conformance,suite,train,sanitizer,steps short=0 fake=''
while [ $# -gt 0 ]; do
  case $1 in
    --short) short=1 && shift && continue ;;
    --out | --budget | --bin | --only | --fake)
      [ $# -ge 2 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2" && shift 2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
case $budget in '' | *[!0-9]*) echo "run.sh: --budget is a number of seconds, not $budget" >&2; exit 2 ;; esac
case $fake in *[!0-9]*) echo "run.sh: --fake is the number of an order of work, not $fake" >&2; exit 2 ;; esac

# ---- Where things are: in a bundle (bundle.sh), or in a source tree that was built.
if [ -x "$here/bin/test_gpu" ]; then
  bin=${bin:-$here/bin} peers=$here/peers
  cd "$here" || exit 2 # its tests look for their data from here
else
  bin=${bin:-$here/../../build/release/bin} peers=$here/../bench/peers
fi
[ -x "$bin/test_gpu" ] || { echo "run.sh: no test_gpu in $bin; build it, or say --bin FOLDER" >&2; exit 2; }
bin=$(cd "$bin" && pwd)
case $out in /*) ;; *) out=${OLDPWD:-$PWD}/$out ;; esac
mkdir -p "$out/logs" || exit 2
out=$(cd "$out" && pwd)
rm -rf "$out/report.md" "$out/report.json" "$out"/logs/*

export RONDO_CACHE_DIR=${RONDO_CACHE_DIR:-$out/cache}
export RONDO_TEST_CUDA=real # tests/fake_cuda/fake_cuda.h: tests use the driver that is found
unset RONDO_TEST_DEVICE RONDO_FAKE_CUDA
if [ -n "$fake" ]; then
  export RONDO_CUDA_PATH=${RONDO_FAKE_CUDA_FOLDER:-$bin/../fake_cuda} RONDO_FAKE_CUDA=$fake:1:2048
  [ -e "$RONDO_CUDA_PATH/libcuda.so.1" ] || { echo "run.sh: no fake in $RONDO_CUDA_PATH" >&2; exit 2; }
fi

# ---- Is there a device?
find_device() {
  timeout -k 5 60 "$bin/test_gpu" --gtest_filter=Device.IsHere >"$out/logs/device.log" 2>&1
  device=$(grep -m1 -E '^(device: |no CUDA device: )' "$out/logs/device.log")
}
find_device
# PyTorch brings NVRTC and cuBLASLt in wheels.
if [ -z "${RONDO_CUDA_PATH:-}" ] && [[ $device = *' missing'* ]] && command -v python3 >/dev/null; then
  RONDO_CUDA_PATH=$(timeout 20 python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)
  export RONDO_CUDA_PATH
  find_device
fi
case $device in
  'device: '*) device=${device#device: } ;;
  'no CUDA device: '*) echo "$device"; exit 3 ;;
  *) echo "no CUDA device: test_gpu says: $(tail -n1 "$out/logs/device.log")"; exit 3 ;;
esac

# ---- Time, and what the report says
started=$SECONDS
left() { echo $((budget - (SECONDS - started))); }
declare -A share=([machine]=2 [conformance]=10 [suite]=32 [train]=7 [sanitizer]=14 [steps]=43)
names=() statuses=() seconds=() notes=() failed_tests=() endless_tests=() raw_steps=()
status='' note=''

# The seconds that a section may take: its share of what is left, among those that are still to come, or the few seconds
# that any section needs.
allowance() {
  local total=0 seen=0 seconds name
  for name in ${only//,/ }; do
    [ "$name" = "$1" ] && seen=1
    [ $seen = 1 ] && total=$((total + ${share[$name]:-1}))
  done
  seconds=$(($(left) * ${share[$1]:-1} / (total > 0 ? total : 1)))
  [ "$seconds" -ge 5 ] || seconds=5
  echo $((seconds < $(left) ? seconds : $(left)))
}
worse() { # worse passed|skipped|incomplete|failed: a section is as good as its worst part
  case $1/$status in
    failed/* | incomplete/passed | incomplete/skipped | incomplete/ | passed/skipped | passed/ | skipped/) status=$1 ;;
  esac
}
say() { note="$note${note:+; }$*"; }

# A command under a limit, alone in its process group: what it leaves running ends with it. limited SECONDS LOG COMMAND...
limited() {
  local limit=$1 log=$2
  shift 2
  : >>"$log"
  [ "$limit" -ge 1 ] || return 124
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  ends_with_us $!
  wait $!
}
# shellcheck disable=SC2064 # which processes: now
ends_with_us() { trap "kill $* 2>/dev/null; exit 130" INT TERM; }

# The same for tests, which write a line now and then: 125 if they hang, which is to write nothing for long.
watched() {
  local limit=$1 log=$2 process size=0 now since=$SECONDS hangs=0 quiet
  shift 2
  [ "$limit" -ge 1 ] || return 124
  quiet=$((limit < 130 ? limit * 2 / 3 + 1 : 90))
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  process=$!
  ends_with_us $process
  while kill -0 $process 2>/dev/null; do
    sleep 0.2
    now=$(stat -c %s "$log")
    if [ "$now" != "$size" ]; then size=$now since=$SECONDS
    elif [ $((SECONDS - since)) -ge $quiet ] && [ $hangs = 0 ]; then hangs=1 && kill $process; fi
  done
  wait $process 2>/dev/null || { local rc=$? && [ $hangs = 1 ] && return 125 || return $rc; }
}

# Tests of one program, in several processes at a time. A test that crashes, hangs or is slow is named, and the others go on.
#   tests NAME SECONDS SHARDS FILTER PROGRAM [VARIABLE=VALUE...]
tests() {
  local name=$1 end=$((SECONDS + $2)) shards=$3 filter=$4 program=$5 shard log processes=()
  shift 5
  if [ ! -x "$bin/$program" ]; then say "$name: $program is not here" && worse skipped && return; fi
  for ((shard = 0; shard < shards; ++shard)); do
    shard_of_tests "$out/logs/$name.$shard.log" "$end" "$filter" "$program" \
      GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX="$shard" RONDO_NUM_THREADS=$((($(nproc) + shards - 1) / shards)) "$@" &
    processes+=($!)
  done
  ends_with_us "${processes[@]}"
  wait
  local ok=0 skipped=0 bad endless stopped
  for log in "$out/logs/$name".*.log; do
    ok=$((ok + $(grep -c '^\[       OK \]' "$log")))
    skipped=$((skipped + $(grep -cE '^\[  SKIPPED \] .* \([0-9]+ ms\)' "$log")))
  done
  mapfile -t bad < <(cat "$out/logs/$name".*.log | sed -nE 's/^\[  FAILED  \] ([^ ,]+)(, .*)? \([0-9]+ ms\)$/\1/p; s/^run.sh: ended in (.*)$/\1/p' | sort -u)
  mapfile -t endless < <(cat "$out/logs/$name".*.log | sed -nE 's/^run.sh: no end of (.*)$/\1/p')
  stopped=$(cat "$out/logs/$name".*.log | grep -c '^run.sh: out of time')
  say "$name: $ok passed, $skipped skipped, ${#bad[@]} failed$([ ${#endless[@]} -gt 0 ] && echo ", ${#endless[@]} did not end")$([ "$stopped" -gt 0 ] && echo ', out of time')"
  endless_tests+=("${endless[@]/#/$name: }")
  if [ $((ok + skipped + ${#bad[@]} + ${#endless[@]} + stopped)) = 0 ]; then say "$name ran nothing" && worse failed; fi
  if [ ${#bad[@]} -gt 0 ]; then
    failed_tests+=("${bad[@]/#/$name: }")
    worse failed
  elif [ $((stopped + ${#endless[@]})) -gt 0 ]; then worse incomplete; else worse passed; fi
}
shard_of_tests() {
  local log=$1 end=$2 filter=$3 program=$4 rc done_tests last
  shift 4
  : >"$log"
  for _ in 1 2 3 4 5 6; do
    watched $((end - SECONDS)) "$log" env "$@" "$bin/$program" --gtest_color=no "--gtest_filter=$filter"
    rc=$?
    if [ $rc -le 1 ] && grep -q '^\[==========\] .* ran\.' "$log"; then return; fi
    last=$(sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log" | tail -n1)
    case $rc in
      124 | 137) printf '\nrun.sh: out of time\n' >>"$log" && return ;;
      125) printf '\nrun.sh: no end of %s\n' "${last:-$program, before its first test}" >>"$log" ;;
      *) printf '\nrun.sh: ended in %s (exit code %s)\n' "${last:-$program, before its first test}" $rc >>"$log" ;;
    esac
    [ -n "$last" ] || return
    done_tests=$(sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log" | sort -u | paste -sd:)
    case $filter in *-*) filter=$filter:$done_tests ;; *) filter=$filter:-$done_tests ;; esac
  done
}
# How many processes share the device: kernels are compiled on the host, each process on one core.
shards() { local n; n=$(nproc); echo $((n >= 16 ? 6 : n >= 8 ? 3 : 1)); }

# ---- The sections

section_machine() {
  worse passed
  say "$(uname -m), $(nproc) cores, $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n1)"
  if command -v nvidia-smi >/dev/null; then
    say "$(limited 20 "$out/logs/nvidia-smi.log" nvidia-smi && timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null | head -n1)"
  else say 'nvidia-smi: missing'; fi
  if command -v nvcc >/dev/null; then say "nvcc $(nvcc --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')"; else say 'nvcc: missing (not needed)'; fi
  command -v compute-sanitizer >/dev/null || say 'compute-sanitizer: missing'
  torch_is_here
  say "PyTorch: $torch"
}

section_conformance() {
  if [ -z "$fake" ]; then tests conformance "$1" 1 'Conformance*' test_gpu
  else # it answers misuse, as a driver does; a kernel's stray access ends its process
    tests conformance "$1" 1 'Conformance*:-*AnErrorThatStays:*EveryType*:*OddSizes*:*Vectors*:*Epilogues*' test_gpu \
      RONDO_FAKE_CUDA="$RONDO_FAKE_CUDA:answers"
  fi
}

# What needs nothing of the fake's Control, or skips where it does. Tests of the fake itself and of how libraries are
# found are left out, and those that compile for devices that are not here.
section_suite() {
  local n end=$((SECONDS + $1)) answers=() cuda='*:-*Death*:Planted*:CudaLibraries.*:RealNvrtc.*:*WithoutNvrtc*:CublasLtFake.*:CudaHeaders.*:*TheRealNvrtc*:*Damaged*:CudaErrors.AForkedChildIsRefused:*Gates*:StepLaunches.*:CompileFor.*:ByHandOnDisk.*:JitAvailable.*'
  n=$(shards)
  # A test of what a driver refuses is misuse to the fake.
  [ -z "$fake" ] || answers=(RONDO_FAKE_CUDA="$RONDO_FAKE_CUDA:answers")
  if [ $short = 1 ]; then
    tests cuda "$1" 1 'CudaCopies.*:CudaErrors.ALaunchThatIsRefused:CudaProduct.Batches:CudaKernels.SortsLongLines:CudaEager.SizesDecideTheSchedule' \
      test_cuda "${answers[@]}"
    return
  fi
  tests cuda $(((end - SECONDS) / 3)) "$n" "$cuda" test_cuda "${answers[@]}"
  tests ops $(((end - SECONDS) / 3)) "$n" 'OpSweep.*' test_runtime RONDO_TEST_DEVICE=cuda
  tests modules $(((end - SECONDS) / 2)) "$n" '-Lora.FrozenOperandsTakeNoMemory:Lora.AFrozenWeightKeepsNoInput:PretrainedMemory.*:KVCache.GPT2AtEveryLength:KVCache.StaleSlotsAreNeverRead:KVCache.DecodingIsTheSameForAnyThreadsAndBatch' \
    test_modules RONDO_TEST_DEVICE=cuda
  tests optim $((end - SECONDS)) "$n" '-*DeviceStep.*:CApi*:Guest.*:*TwoModels*:MemoryLimit.*:ThreadCap.*:TrainerKill.*:TrainerFullDisk.*:*Fake*:Compiled.TheInterpreterAgrees' \
    test_optim RONDO_TEST_DEVICE=cuda
}

# train_gpt on the device beside the CPU: the same losses.
section_train() {
  local end=$((SECONDS + $1)) size=(--n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12) steps=50 run log worst
  [ $short = 1 ] && size=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2) && steps=4
  [ -n "$fake" ] && [ $short = 0 ] && size=(--n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --batch_size=4) && steps=20
  if [ ! -x "$bin/train_gpt" ]; then say 'train_gpt is not here' && worse skipped && return; fi
  local text=$out/logs/text
  awk 'BEGIN { srand(7); for (i = 0; i < 6000; ++i) { w = ""; n = 1 + int(rand() * 6);
               for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
               printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$text"
  for run in cpu,none,float32 cuda,regions,float32 cuda,regions,bfloat16 cuda,none,float32; do
    [ $short = 1 ] && [ $run = cuda,regions,bfloat16 ] && break
    IFS=, read -r on compile dtype <<<"$run"
    log=$out/logs/train.$on.$compile.$dtype.log
    limited $(((end - SECONDS) / 2)) "$log" "$bin/train_gpt" --data="$text" --out_dir="$out/logs/train.$on.$compile.$dtype" \
      --device="$on" --compile="$compile" --dtype="$dtype" "${size[@]}" --max_iters=$steps --eval_interval=$steps --eval_iters=2 \
      --warmup_iters=2 --log_interval=1 --sample_tokens=0
    case $? in
      0) ;;
      124 | 137) say "$on $compile $dtype: out of time" && worse incomplete && continue ;;
      *) say "$on $compile $dtype: $(tail -n1 "$log" | cut -c1-160)" && worse failed && continue ;;
    esac
    [ "$on" = cpu ] && continue
    worst=$(paste <(losses cpu.none.float32) <(losses "$on.$compile.$dtype") |
      awk 'NF == 2 { d = $1 - $2; d = (d < 0 ? -d : d) / $1; if (d > w) w = d; ++n } END { if (n) printf "%.1e %d", w, n }')
    [ -n "$worst" ] || { say "$compile $dtype: no losses" && worse failed && continue; }
    say "$compile $dtype: within ${worst% *} of the CPU over ${worst#* } steps"
    if awk -v w="${worst% *}" -v t="$([ "$dtype" = float32 ] && echo 1e-4 || echo 3e-2)" 'BEGIN { exit !(w > t) }'; then
      say "that is too much" && worse failed
    else worse passed; fi
  done
}
losses() { sed -nE 's/.*"loss": ?([0-9.eE+-]+).*/\1/p' "$out/logs/train.$1/metrics.jsonl" 2>/dev/null; }

section_sanitizer() {
  local tool rest=4 end=$((SECONDS + $1)) log summary rc
  local filter='CudaCopies.ThereAndBack:CudaKernels.SortsLongLines:CudaKernels.AProgramOfOps:CudaEager.SizesDecideTheSchedule:CudaRegions.ForwardAndBackward:CudaProduct.Batches:CudaAttention.Masks:CudaTables.ALaunchForAllItems'
  if [ -n "$fake" ]; then say 'needs a GPU' && worse skipped && return; fi
  if ! command -v compute-sanitizer >/dev/null; then say 'compute-sanitizer is not installed' && worse skipped && return; fi
  for tool in memcheck racecheck synccheck initcheck; do
    log=$out/logs/$tool.log
    : >"$log"
    limited $(((end - SECONDS) / rest)) "$log" env RONDO_CUDA_CACHE=0 compute-sanitizer --tool $tool --error-exitcode 99 \
      "$bin/test_cuda" --gtest_color=no "--gtest_filter=$filter"
    rc=$?
    rest=$((rest - 1))
    summary=$(sed -nE 's/^=+ ((ERROR|RACECHECK) SUMMARY: .*)$/\1/p' "$log" | tail -n1)
    say "$tool: ${summary:-no summary}, $(grep -c '^\[       OK \]' "$log") tests passed"
    case $rc in
      0) worse passed ;;
      124 | 137) say "$tool ran out of time" && worse incomplete ;;
      *) grep -m3 -E '^=+ (Error|Invalid|Race|Barrier|Uninitialized|Device not supported)' "$log" | cut -c1-150 >>"$out/logs/sanitizer.words"
        failed_tests+=("$tool: exit code $rc, logs/$tool.log") && worse failed ;;
    esac
  done
}

torch='' # its version, or why there is none; asked once, as to import it takes seconds
torch_is_here() {
  if [ -z "$torch" ]; then
    if [ -n "$fake" ]; then torch='not asked on the fake'
    elif ! command -v python3 >/dev/null; then torch='no python3'
    else torch=$(timeout -k 5 90 python3 -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "it sees no GPU")' 2>&1 | tail -n1); fi
    torch=${torch:-python3 did not answer}
  fi
  case $torch in [0-9]*) return 0 ;; *) return 1 ;; esac
}

# A step of GPT-2 124M: B 4, T 1024. One row for each dtype; in a row all contenders take turns.
section_steps() {
  local end=$((SECONDS + $1)) rest=3 row dtype log json limit rc peer
  local model=(--n_layer=12 --n_head=12 --n_embd=768 --block_size=1024 --batch_size=4 --vocab_size=50257) count=(--rounds=5 --steps=10) alone=(5 20)
  if [ -n "$fake" ]; then
    model=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2 --vocab_size=65)
    alone=(1 1)
  fi
  [ -x "$bin/bench_gpt" ] || { say 'bench_gpt is not here' && worse skipped && return; }
  for row in bf16 tf32 f32; do
    [ $short = 1 ] && [ $row != bf16 ] && continue
    dtype=$row flags=()
    [ $row = tf32 ] && dtype=f32 && flags=(--tf32)
    log=$out/logs/steps.$row.log json=$out/logs/steps.$row.json
    : >"$log"
    limit=$(((end - SECONDS) / (rest > 1 ? 2 : 1))) # the first row pays for PyTorch's compiler
    rest=$((rest - 1))
    if torch_is_here && [ -f "$peers/paired_gpt.py" ]; then
      limited $limit "$log" env TORCHINDUCTOR_CACHE_DIR="$out/cache/inductor" python3 "$peers/paired_gpt.py" \
        --rondo-bin "$bin/bench_gpt" --device=cuda --python "$(command -v python3)" --pytorch-compile whole \
        --pytorch-args=--warm_cache --threads="$(nproc)" --timeout="$limit" --warmup=5 --dtype=$dtype "${flags[@]}" "${model[@]}" \
        "${count[@]}" --json "$json"
      rc=$?
      peer=1
    else peer=0; fi
    if [ $peer = 0 ] || [ $rc != 0 ]; then # alone
      [ $peer = 1 ] && say "$row beside PyTorch: $([ $rc = 124 ] && echo out of time || tail -n1 "$log" | cut -c1-100)" && worse incomplete
      local mode rows=''
      for mode in none regions; do
        limit=$(((end - SECONDS) / (2 * rest + 2)))
        if limited $limit "$log.$mode" "$bin/bench_gpt" --device=cuda --compile=$mode --dtype=$dtype "${flags[@]}" "${model[@]}" \
          --warmup="${alone[0]}" --steps="${alone[1]}"; then
          rows="$rows${rows:+,}$(grep -m1 '^{' "$log.$mode")"
          worse passed
        elif [ $? = 124 ]; then say "$row $mode: out of time" && worse incomplete
        else say "$row $mode: $(tail -n1 "$log.$mode" | cut -c1-120)" && worse failed; fi
        cat "$log.$mode" >>"$log"
      done
      echo "{\"dtype\":\"$row\",\"rondo\":[$rows]}" >"$json"
      if [ -n "$fake" ]; then echo "$row: $(grep -o '"peer":"rondo"' "$json" | wc -l) of 2 ran (the fake: no figures)" >"$log.table"
      else
        sed 's/"peer"/\n&/g' "$json" | sed -nE "s/.*\"mode\":\"([a-z]+)\".*\"step_ms_median\":([0-9.]+).*\"tokens_per_s\":([0-9.]+).*\"host_ms\":([0-9.]+).*\"peak_device_mib\":([0-9.]+).*/$row rondo \1: \2 ms a step, \3 tokens\/s, host \4 ms, \5 MiB/p" >"$log.table"
      fi
    else
      worse passed
      { echo "$row"; grep -vE '^warning|^\{' "$log" | cut -c1-118; } >"$log.table"
    fi
    raw_steps+=("$json")
  done
  [ -n "$fake" ] || say "GPT-2 124M, B 4, T 1024, dropout 0, AdamW, clipping"
  torch_is_here || say "beside PyTorch: not run: $torch"
}

# ---- Run
for name in ${only//,/ }; do
  if [ -z "${share[$name]:-}" ]; then echo "run.sh: no section $name" >&2; exit 2; fi
done
for name in ${only//,/ }; do
  status='' note=''
  begin=$SECONDS
  limit=$(allowance "$name")
  if [ "$limit" -lt 2 ]; then
    say 'no time was left' && status=incomplete
  else
    echo "$name: at most $limit s"
    section_"$name" "$limit"
  fi
  names+=("$name") statuses+=("${status:-failed}") seconds+=($((SECONDS - begin))) notes+=("$note")
  echo "$name: ${status:-failed}: $note"
done

# ---- Write
version=$(cat "$here/VERSION" 2>/dev/null || git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)
# Google Test's words about a failed test: the first lines behind its name.
words_of() { # words_of NAME TEST
  cat "$out/logs/$1".*.log 2>/dev/null | awk -v test="${2%% (*}" '
    $0 == "[ RUN      ] " test { on = 1; n = 0; next }
    on && (/^\[/ || n >= 5) { exit }
    on && NF { print "      " substr($0, 1, 150); ++n }'
}
{
  echo "# Rondo on $device"
  echo
  if [ -n "$fake" ]; then
    echo "**This ran on the fake driver of tests/fake_cuda (seed $fake), not on a GPU. It holds no figure of a GPU.**"
    echo
  fi
  echo "$(date -u +%Y-%m-%dT%H:%MZ), commit $version, $((SECONDS - started)) of $budget seconds."
  echo
  echo '| section | result | seconds | what |'
  echo '|---|---|---|---|'
  for i in "${!names[@]}"; do echo "| ${names[i]} | ${statuses[i]} | ${seconds[i]} | ${notes[i]//|/,} |"; done
  if ls "$out"/logs/steps.*.table >/dev/null 2>&1; then
    printf '\n## Steps\n\n```\n'
    for row in bf16 tf32 f32; do cat "$out/logs/steps.$row.log.table" 2>/dev/null; done
    printf '```\n'
  fi
  if [ -s "$out/logs/sanitizer.words" ]; then printf '\n## compute-sanitizer\n\n```\n%s\n```\n' "$(head -n 20 "$out/logs/sanitizer.words")"; fi
  if [ ${#endless_tests[@]} -gt 0 ]; then
    printf '\n## Did not end: hangs, or slow (%d)\n\n' ${#endless_tests[@]}
    printf -- '- %s\n' "${endless_tests[@]}" | head -n 40
  fi
  if [ ${#failed_tests[@]} -gt 0 ]; then
    printf '\n## Failed (%d)\n\n' ${#failed_tests[@]}
    for test in "${failed_tests[@]}"; do
      echo "- $test"
      words_of "${test%%: *}" "${test#*: }"
    done
  fi
} >"$out/report.whole"
if [ "$(wc -l <"$out/report.whole")" -le 200 ]; then mv "$out/report.whole" "$out/report.md"
else
  { head -n 198 "$out/report.whole"; printf '\n(more than 200 lines; the rest is in logs/)\n'; } >"$out/report.md"
  rm "$out/report.whole"
fi

string() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013\014\016-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g; s/\r/\\r/g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }')"; }
{
  printf '{"rondo": %s, "device": %s, "fake": %s, "seconds": %d, "budget": %d,\n "sections": [' \
    "$(string "$version")" "$(string "$device")" "$([ -n "$fake" ] && echo true || echo false)" $((SECONDS - started)) "$budget"
  for i in "${!names[@]}"; do
    printf '%s\n  {"name": %s, "result": %s, "seconds": %d, "what": %s}' "$([ "$i" -gt 0 ] && echo ,)" "$(string "${names[i]}")" \
      "$(string "${statuses[i]}")" "${seconds[i]}" "$(string "${notes[i]}")"
  done
  printf '],\n "failed": ['
  for i in "${!failed_tests[@]}"; do printf '%s%s' "$([ "$i" -gt 0 ] && echo ', ')" "$(string "${failed_tests[i]}")"; done
  printf '],\n "endless": ['
  for i in "${!endless_tests[@]}"; do printf '%s%s' "$([ "$i" -gt 0 ] && echo ', ')" "$(string "${endless_tests[i]}")"; done
  printf '],\n "steps": ['
  first=1
  if [ -z "$fake" ]; then
    for json in "${raw_steps[@]}"; do
      [ -s "$json" ] || continue
      [ $first = 1 ] || printf ','
      first=0
      cat "$json"
    done
  fi
  printf ']}\n'
} >"$out/report.json"

echo "$out/report.md"
for result in "${statuses[@]}"; do case $result in failed | incomplete) exit 1 ;; esac; done
exit 0
