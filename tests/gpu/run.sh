#!/usr/bin/env bash
# One report of what Rondo does on this machine's GPU, in under ten minutes: tests/gpu/README.md.
#
#   tests/gpu/run.sh [--out FOLDER] [--budget SECONDS] [--bin FOLDER] [--only SECTION,...] [--short] [--fake SEED]
#
# Writes FOLDER/report.md, FOLDER/report.json and FOLDER/logs/ (default: rondo-gpu-report), anew after each section: what ends the script
# leaves a report of what ran before. A section has its share of the time that is left, what it took to find the device
# included; one that fails, hangs or runs out of time says so, and the next one begins. --fake runs all of it on tests/fake_cuda, without a
# GPU: a test of this script. A report of the fake holds no figure.
# Exit code: 0 all passed, 1 something failed or ran out of time, 2 wrong arguments or the wrong machine, 3 there is no CUDA device.
set -u
started=$SECONDS
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=rondo-gpu-report budget=540 bin='' only=machine,conformance,steps,figures,train,networks,suite,sanitizer short=0 fake=''
test_limit=${RONDO_GPU_TEST_LIMIT:-60} # seconds of one test
while [ $# -gt 0 ]; do
  case $1 in
    --short) short=1 && shift && continue ;;
    --out | --budget | --bin | --only | --fake)
      [ $# -ge 2 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2" && shift 2 ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
case $budget in '' | *[!0-9]*) echo "run.sh: --budget is a number of seconds, not $budget" >&2; exit 2 ;; esac
case $fake in *[!0-9]*) echo "run.sh: --fake is the number of an order of work, not $fake" >&2; exit 2 ;; esac
declare -A share=([machine]=2 [conformance]=8 [suite]=32 [train]=6 [networks]=10 [sanitizer]=12 [steps]=32 [figures]=8)
for name in ${only//,/ }; do
  if [ -z "${share[$name]:-}" ]; then echo "run.sh: no section $name; there are: ${!share[*]}" >&2; exit 2; fi
done

# ---- Can this machine run the programs?
if [ -f "$here/NEEDS_GLIBC" ]; then
  needs=$(cat "$here/NEEDS_GLIBC")
  has=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
  if [ "$(printf '%s\n%s\n' "$needs" "${has:-0}" | sort -V | head -n1)" != "$needs" ]; then
    echo "run.sh: the programs need glibc $needs or later, and this machine has ${has:-another C library}; run it in a container of a newer system (README.md)" >&2
    exit 2
  fi
  if ! grep -qm1 -w avx2 /proc/cpuinfo || [ "$(uname -m)" != x86_64 ]; then
    echo "run.sh: the programs need an x86-64 processor with AVX2, and this one is $(uname -m) without it" >&2
    exit 2
  fi
fi

# ---- Where things are: in a bundle (bundle.sh), or in a source tree that was built.
if [ -x "$here/bin/test_gpu" ]; then
  bin=${bin:-$here/bin} peers=$here/peers
else
  bin=${bin:-$here/../../build/release/bin} peers=$here/../bench/peers
fi
[ -x "$bin/test_gpu" ] || { echo "run.sh: no test_gpu in $bin; build it, or say --bin FOLDER" >&2; exit 2; }
bin=$(cd "$bin" && pwd)
mkdir -p "$out/logs" && [ -w "$out/logs" ] || { echo "run.sh: cannot write to $out; say --out FOLDER" >&2; exit 2; }
out=$(cd "$out" && pwd)
rm -rf "$out/report.md" "$out/report.json" "$out"/logs/*
[ ! -f "$here/VERSION" ] || cd "$here" || exit 2 # a bundle's tests look for their data from there

export RONDO_CACHE_DIR=${RONDO_CACHE_DIR:-$out/cache}
export RONDO_TEST_CUDA=real # tests/fake_cuda/fake_cuda.h: tests use the driver that is found
unset RONDO_TEST_DEVICE
for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do [ -d $folder ] && PATH=$PATH:$folder; done
if [ -n "$fake" ]; then # as a real driver is found: by the system's loader
  folder=${RONDO_FAKE_CUDA_FOLDER:-$bin/../fake_cuda}
  [ -e "$folder/libcuda.so.1" ] || { echo "run.sh: no fake in $folder" >&2; exit 2; }
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} RONDO_FAKE_CUDA=${RONDO_FAKE_CUDA:-$fake:2:2048}
fi

# A command under a limit, with what it leaves running. One that cannot even be killed (a driver that hangs) is left behind.
limited() { # limited SECONDS LOG COMMAND...
  local limit=$1 log=$2 process end=$((SECONDS + $1 + 12))
  shift 2
  : >>"$log"
  [ "$limit" -ge 1 ] || return 124
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  process=$!
  ends_with_us $process
  while kill -0 $process 2>/dev/null; do
    [ $SECONDS -lt $end ] || return 124
    sleep 0.1
  done
  wait $process
}
# shellcheck disable=SC2064 # which processes: now
ends_with_us() { trap "kill $* 2>/dev/null; exit 130" INT TERM; }

# ---- Is there a device?
find_device() {
  : >"$out/logs/device.log"
  limited 60 "$out/logs/device.log" "$bin/test_gpu" --gtest_filter=Device.IsHere
  device=$(grep -m1 -E '^(device: |no CUDA device: )' "$out/logs/device.log")
}
find_device
# NVRTC and cuBLASLt of a later CUDA than the driver's do not work with it.
too_new() {
  local library
  for library in NVRTC cuBLASLt; do
    if [[ $device =~ driver\ ([0-9]+)\..*$library\ ([0-9][0-9]) ]] && [ "${BASH_REMATCH[2]}" -gt "${BASH_REMATCH[1]}" ]; then return 0; fi
  done
  return 1
}
# PyTorch brings both in wheels.
if [ -z "${RONDO_CUDA_PATH:-}" ] && { [[ $device = *' missing'* ]] || too_new; } && command -v python3 >/dev/null; then
  RONDO_CUDA_PATH=$(timeout 20 python3 -c '
import os, sys
try:
    import nvidia
    print(":".join(os.path.dirname(path) for path in nvidia.__path__))
except ImportError:
    print(sys.prefix)' 2>/dev/null)
  export RONDO_CUDA_PATH
  find_device
fi
case $device in
  'device: '*) device=${device#device: } ;;
  'no CUDA device: '*) echo "$device"; exit 3 ;;
  *) echo "no CUDA device: test_gpu says: $(tail -n1 "$out/logs/device.log")"; exit 3 ;;
esac
case $device in 'fake GPU'*) is_fake=1 ;; *) is_fake=0 ;; esac
# What the fake needs beside its seed and memory: it answers misuse, as a driver does.
answering=() stray=()
if [ $is_fake = 1 ]; then
  base=${RONDO_FAKE_CUDA:-0}
  [[ $base = *:*:* ]] || base=${base%%:*}:2:2048
  answering=(RONDO_FAKE_CUDA="$base:answers") stray=(RONDO_FAKE_CUDA="$base:answers:faulty=stray")
fi
# Figures of the fake say nothing: "#" stands for each.
figures_of() { # figures_of FILE...
  if [ $is_fake = 0 ]; then cat "$@"; else sed -E ':a; s/(^|[^A-Za-z0-9_#.])[0-9]+(\.[0-9]+)?(e-?[0-9]+)?(x?([^A-Za-z0-9_.]|$))/\1#\4/; ta' "$@"; fi
}

# ---- Time, and what the report says
left() { echo $((budget - (SECONDS - started))); }
names=() statuses=() seconds=() notes=() failed_tests=() endless_tests=() unreached=() raw_steps=()
status='' note=''

# The seconds that a section may take: its share of what is left, among those that are still to come, or the few seconds
# that any section needs.
allowance() {
  local total=0 seen=0 seconds name
  for name in ${only//,/ }; do
    [ "$name" = "$1" ] && seen=1
    [ $seen = 1 ] && total=$((total + ${share[$name]}))
  done
  seconds=$(($(left) * ${share[$1]} / (total > 0 ? total : 1)))
  [ "$seconds" -ge 5 ] || seconds=5
  echo $((seconds < $(left) ? seconds : $(left)))
}
worse() { # worse passed|skipped|incomplete|failed: a section is as good as its worst part
  case $1/$status in
    failed/* | incomplete/passed | incomplete/skipped | incomplete/ | passed/skipped | passed/ | skipped/) status=$1 ;;
  esac
}
say() { note="$note${note:+; }$*"; }
short_of() { tail -n1 "$1" | tr -d '\r' | cut -c1-"${2:-120}"; }

# ---- Tests of one program, in several processes at a time. A test that crashes, hangs or loses the device is named, and the
# others go on in a new process. Those that were not begun when the time was over are counted.
#   tests NAME SECONDS SHARDS FILTER PROGRAM [VARIABLE=VALUE...]
# With of_samples=1 each process runs all tests, on its own share of their samples.
tests() {
  local name=$1 end=$((SECONDS + $2)) shards=$3 filter=$4 program=$5 shard processes=() logs=$out/logs/$1 all=$out/logs/$1.all
  shift 5
  if [ ! -x "$bin/$program" ]; then say "$name: $program is not here" && worse skipped && return; fi
  : >"$all"
  limited $((end - SECONDS > 60 ? 60 : end - SECONDS)) "$all" env "$@" "$bin/$program" --gtest_list_tests "--gtest_filter=$filter"
  # "Suite.", and its tests below it, each with "# a comment".
  awk '/^[A-Za-z_][^ ]*\./ { suite = $1 } /^  [A-Za-z_0-9]/ && $1 !~ /DISABLED/ { print suite $1 }' "$all" >"$all.names"
  if [ ! -s "$all.names" ]; then
    say "$name: $program does not list its tests: $(short_of "$all")" && failed_tests+=("$name: $program does not start, logs/$name.all") && worse failed
    return
  fi
  for ((shard = 0; shard < shards; ++shard)); do
    awk -v n="$shards" -v i=$shard -v all="${of_samples:-0}" 'all || NR % n == i' "$all.names" >"$logs.$shard.left"
    shard_of_tests "$logs.$shard" "$end" "$program" RONDO_TEST_SAMPLES=$shard:"$shards" RONDO_NUM_THREADS=$((($(nproc) + shards - 1) / shards)) "$@" &
    processes+=($!)
  done
  ends_with_us "${processes[@]}"
  wait "${processes[@]}"
  local bad endless unseen ok skipped
  cat "$logs".[0-9]*.log >"$logs.log"
  ok=$(grep -c '^\[       OK \]' "$logs.log")
  skipped=$(grep -cE '^\[  SKIPPED \] .* \([0-9]+ ms\)' "$logs.log")
  mapfile -t bad < <(sed -nE 's/^\[  FAILED  \] ([^ ,]+)(, .*)? \([0-9]+ ms\)$/\1/p; s/^run.sh: ended in (.*)$/\1/p' "$logs.log" | sort -u)
  mapfile -t endless < <(sed -nE 's/^run.sh: no end of (.*)$/\1/p' "$logs.log")
  mapfile -t unseen < <(cat "$logs".[0-9]*.left | sort)
  note="$note${note:+; }$name: $ok passed, $skipped skipped, ${#bad[@]} failed"
  [ ${#endless[@]} = 0 ] || note="$note, ${#endless[@]} did not end"
  [ ${#unseen[@]} = 0 ] || note="$note, ${#unseen[@]} not reached"
  endless_tests+=("${endless[@]/#/$name: }")
  unreached+=("${unseen[@]/#/$name: }")
  failed_tests+=("${bad[@]/#/$name: }")
  if [ ${#bad[@]} -gt 0 ]; then worse failed
  elif [ $((${#endless[@]} + ${#unseen[@]})) -gt 0 ]; then worse incomplete
  else worse passed; fi
  name_the_launches "$name" "$program" "$@"
}

# Runs the tests of LOGS.left. Each time a process ends, what it began is taken off that list.
shard_of_tests() {
  local logs=$1 log=$1.log end=$2 program=$3 rc last restarts
  shift 3
  : >"$log"
  for ((restarts = 0; restarts < 40; ++restarts)); do
    [ -s "$logs.left" ] || return
    printf -- '--gtest_filter=%s\n' "$(paste -sd: "$logs.left")" >"$logs.flags"
    : >"$log.part"
    watched $((end - SECONDS)) "$log.part" env "$@" "$bin/$program" --gtest_color=no "--gtest_flagfile=$logs.flags"
    rc=$?
    last=$(sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log.part" | tail -n1)
    cat "$log.part" >>"$log"
    sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log.part" | sort -u >"$logs.begun"
    grep -vxFf "$logs.begun" "$logs.left" >"$logs.rest"
    mv "$logs.rest" "$logs.left"
    if [ $rc -le 1 ] && grep -q '^\[==========\] .* ran\.' "$log.part"; then return; fi
    case $rc in
      70) continue ;; # a test has lost the device (tests/fake_device/main.cc)
      124 | 137) if [ $SECONDS -ge $((end - 1)) ]; then
        # What ran out of the section's time goes back to those that were not reached.
        [ -z "$last" ] || grep -qE "^\[ .*(OK|FAILED|SKIPPED)  ?\] $last " "$log.part" || echo "$last" >>"$logs.left"
        return
      fi ;;
    esac
    if [ $rc = 125 ]; then printf '\nrun.sh: no end of %s\n' "${last:-$program, before its first test}" >>"$log"
    else printf '\nrun.sh: ended in %s (exit code %s)\n' "${last:-$program, before its first test}" $rc >>"$log"; fi
    [ -n "$last" ] || return
  done
}

# Under a limit, and 125 if one test takes longer than a test may.
watched() { # watched SECONDS LOG COMMAND...
  local limit=$1 log=$2 process size=0 begun=0 now since=$SECONDS hangs=0 end=$((SECONDS + $1 + 12))
  shift 2
  [ "$limit" -ge 1 ] || return 124
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  process=$!
  ends_with_us $process
  while kill -0 $process 2>/dev/null; do
    sleep 0.2
    now=$(stat -c %s "$log")
    if [ "$now" != "$size" ]; then
      size=$now now=$(grep -c '^\[ RUN      \]' "$log")
      [ "$now" = $begun ] || { begun=$now since=$SECONDS; }
    fi
    if [ $((SECONDS - since)) -ge "$test_limit" ] && [ $hangs = 0 ]; then hangs=1 end=$((SECONDS + 12)) && kill $process 2>/dev/null; fi
    [ $SECONDS -lt $end ] || break
  done
  [ $hangs = 1 ] && return 125
  [ $SECONDS -lt $end ] || return 124
  wait $process
}

# A test that lost the device runs once more, alone, in a mode in which the error names the launch.
name_the_launches() { # name_the_launches NAME PROGRAM [VARIABLE=VALUE...]
  local name=$1 program=$2 test lost
  shift 2
  mapfile -t lost < <(grep -B1 '^The device is lost: this process ends' "$out/logs/$name.log" | sed -nE 's/^\[  FAILED  \] ([^ ]+) .*/\1/p' | head -n 3)
  for test in "${lost[@]}"; do
    limited 30 "$out/logs/$name.launch.log" env RONDO_CUDA_SYNC=1 "$@" "$bin/$program" --gtest_color=no "--gtest_filter=$test"
  done
}

# How many processes share the device: kernels are compiled on the host, each process on one core. A context takes memory, and
# a device may be set to allow only one.
shards() {
  local n memory
  n=$(nproc)
  n=$((n >= 16 ? 6 : n >= 8 ? 3 : 1))
  [[ ! $device =~ ([0-9]+)\ MiB ]] || { memory=$((BASH_REMATCH[1] / 4000)) && n=$((memory < n ? memory : n)); }
  case $(timeout 20 nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null) in *Exclusive*) n=1 ;; esac
  echo $((n > 1 ? n : 1))
}

# ---- The sections

section_machine() {
  worse passed
  say "$(uname -m), $(nproc) cores, $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n1), glibc $(getconf GNU_LIBC_VERSION | sed 's/.* //')"
  if command -v nvidia-smi >/dev/null; then
    limited 20 "$out/logs/nvidia-smi.log" nvidia-smi
    say "nvidia-smi: $(timeout 20 nvidia-smi -L 2>/dev/null | sed 's/ *(UUID.*//; s/^ *//' | paste -sd, | cut -c1-160)"
    say "$(timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader 2>/dev/null | head -n1)"
  else say 'nvidia-smi: missing'; fi
  [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || say "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
  [ -z "${RONDO_CUDA_PATH:-}" ] || say "RONDO_CUDA_PATH=$RONDO_CUDA_PATH"
  [[ $device != *' missing'* ]] || say 'NVRTC and cuBLASLt are both needed: name their folders in RONDO_CUDA_PATH'
  too_new && say 'NVRTC or cuBLASLt is of a later CUDA than the driver: expect failures, and name older ones in RONDO_CUDA_PATH'
  if command -v nvcc >/dev/null; then say "nvcc $(nvcc --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')"; else say 'nvcc: missing (not needed)'; fi
  command -v compute-sanitizer >/dev/null || say 'compute-sanitizer: missing'
  torch_is_here
  say "PyTorch: $torch"
}

section_conformance() { tests conformance "$1" 1 'Conformance*' test_gpu "${stray[@]}"; }

# What needs nothing of the fake's Control, or skips where it does. Tests of the fake itself and of how libraries are
# found are left out, and those that compile for devices that are not here. The tests that say most come first.
section_suite() {
  local n end=$((SECONDS + $1)) first='CudaCopies.*:CudaErrors.ALaunchThatIsRefused:CudaKernels.AProgramOfOps:CudaKernels.SortsLongLines:CudaProduct.*:CudaAttention.ShapesAndDTypes:CudaHead.*:CudaModules.*:CudaRegions.*:CudaTraining.*:CudaTables.*:OutOfMemoryOfABatch.*:TwoDevices.*:CompileFor.TheFirstStepCompilesNothing'
  local host_only='*Death*:Planted*:CudaLibraries.*:RealNvrtc.*:*WithoutNvrtc*:CublasLtFake.*:CudaHeaders.*:*TheRealNvrtc*:*Damaged*:CudaErrors.AForkedChildIsRefused:*Gates*:StepLaunches.*:ByHandOnDisk.*:JitAvailable.*'
  n=$(shards)
  if [ $short = 1 ]; then
    tests first "$1" 1 'CudaCopies.*:CudaErrors.ALaunchThatIsRefused:CudaProduct.Batches:CudaKernels.SortsLongLines:CudaEager.SizesDecideTheSchedule' \
      test_cuda "${answering[@]}"
    return
  fi
  tests first $(((end - SECONDS) / 2)) "$n" "$first:-$host_only" test_cuda "${answering[@]}"
  of_samples=1 test_limit=$((end - SECONDS)) tests ops $(((end - SECONDS) / 2)) "$n" 'OpSweep.*:-OpSweep.*Strided*:OpSweep.OneThread*' \
    test_runtime RONDO_TEST_DEVICE=cuda
  tests cuda $(((end - SECONDS) / 2)) "$n" "*:-$first:$host_only" test_cuda "${answering[@]}"
  tests modules $(((end - SECONDS) / 2)) "$n" '-Lora.FrozenOperandsTakeNoMemory:Lora.AFrozenWeightKeepsNoInput:PretrainedMemory.*:KVCache.GPT2AtEveryLength:KVCache.StaleSlotsAreNeverRead:KVCache.DecodingIsTheSameForAnyThreadsAndBatch' \
    test_modules RONDO_TEST_DEVICE=cuda
  tests optim $(((end - SECONDS) * 2 / 3)) "$n" '-*DeviceStep.*:CApi*:Guest.*:*TwoModels*:MemoryLimit.*:ThreadCap.*:TrainerKill.*:TrainerFullDisk.*:*Fake*:Compiled.TheInterpreterAgrees' \
    test_optim RONDO_TEST_DEVICE=cuda
  # The longest: each layout of each operand is another kernel.
  of_samples=1 test_limit=$((end - SECONDS)) tests layouts $((end - SECONDS)) "$n" 'OpSweep.*Strided*' test_runtime RONDO_TEST_DEVICE=cuda
}

# train_gpt on the device beside the CPU: losses as near to those of f64 as the CPU's; and a second run: the same bits.
section_train() {
  local end=$((SECONDS + $1)) size=(--n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12) steps=50 rest=7 run log name
  local on compile dtype again
  [ $is_fake = 1 ] && size=(--n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --batch_size=4) && steps=20
  [ $short = 1 ] && size=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2) && steps=4
  if [ ! -x "$bin/train_gpt" ]; then say 'train_gpt is not here' && worse skipped && return; fi
  local text=$out/logs/text
  awk 'BEGIN { srand(7); for (i = 0; i < 6000; ++i) { w = ""; n = 1 + int(rand() * 6);
               for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
               printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$text"
  for run in cpu,none,float64 cpu,none,float32 cuda,regions,float32 cuda,regions,float32,again cpu,none,bfloat16 cuda,regions,bfloat16 cuda,none,float32; do
    [ $short = 1 ] && [ $run = cpu,none,bfloat16 ] && break
    IFS=, read -r on compile dtype again <<<"$run"
    name=$on.$compile.$dtype${again:+.$again}
    log=$out/logs/train.$name.log
    limited $(((end - SECONDS) * 2 / (rest-- + 1))) "$log" "$bin/train_gpt" --data="$text" --out_dir="$out/logs/train.$name" \
      --device="$on" --compile="$compile" --dtype="$dtype" "${size[@]}" --max_iters=$steps --eval_interval=$steps --eval_iters=2 \
      --warmup_iters=2 --log_interval=1 --sample_tokens=0
    case $? in
      0) ;;
      124 | 137) say "$name: out of time" && worse incomplete && continue ;;
      *) say "$name: $(short_of "$log" 160)" && failed_tests+=("train: $name, logs/train.$name.log") && worse failed && continue ;;
    esac
    [ "$on" = cpu ] && continue
    if [ -n "$again" ]; then
      if [ "$(losses "$name")" = "$(losses "${name%.again}")" ]; then say 'a second run: the same losses' && worse passed
      else say 'a second run has other losses' && failed_tests+=("train: two runs differ, logs/train.$name") && worse failed; fi
      continue
    fi
    near_f64 "$name" "$compile" "$dtype"
  done
}
# The CPU in the same dtype says how far rounding leads from f64 in so many steps: other orders of sums lead as far, give or take. What
# is 8 times as far off, and more than some last bits of f32, is no rounding.
near_f64() { # near_f64 NAME COMPILE DTYPE
  local far cpu
  far=$(distance "$1") cpu=$(distance "cpu.none.$3")
  if [ -z "$far" ] || [ -z "$cpu" ]; then say "$2 $3: no losses to compare" && worse failed && return; fi
  say "$2 $3: within ${far% *} of f64 over ${far#* } steps (the CPU: ${cpu% *})"
  if awk -v far="${far% *}" -v cpu="${cpu% *}" 'BEGIN { exit !(far > 8 * cpu + 1e-6) }'; then
    say "that is too much" && failed_tests+=("train: $2 $3 is ${far% *} off, and the CPU ${cpu% *}") && worse failed
  else worse passed; fi
}
# "1.2e-06 50": the largest relative difference to the losses of f64, and of how many steps.
distance() {
  paste <(losses cpu.none.float64) <(losses "$1") |
    awk 'NF == 2 { d = $1 - $2; d = (d < 0 ? -d : d) / $1; if (d > w) w = d; ++n } END { if (n) printf "%.1e %d", w, n }'
}
losses() { sed -nE 's/.*"loss": ?([0-9.eE+-]+).*/\1/p' "$out/logs/train.$1/metrics.jsonl" 2>/dev/null; }

section_sanitizer() {
  local tool rest=4 end=$((SECONDS + $1)) log summary rc
  local filter='CudaCopies.ThereAndBack:CudaKernels.SortsLongLines:CudaKernels.AProgramOfOps:CudaEager.SizesDecideTheSchedule:CudaRegions.ForwardAndBackward:CudaProduct.Batches:CudaAttention.Masks:CudaTables.ALaunchForAllItems'
  [ $short = 1 ] && filter='CudaCopies.ThereAndBack:CudaProduct.Batches'
  if ! command -v compute-sanitizer >/dev/null; then say 'compute-sanitizer is not installed' && worse skipped && return; fi
  for tool in memcheck racecheck synccheck initcheck; do
    log=$out/logs/$tool.log
    : >"$log"
    limited $(((end - SECONDS) / rest)) "$log" env RONDO_CUDA_CACHE=0 "${answering[@]}" compute-sanitizer --tool $tool --error-exitcode 99 \
      "$bin/test_cuda" --gtest_color=no "--gtest_filter=$filter"
    rc=$?
    rest=$((rest - 1))
    summary=$(sed -nE 's/^=+ ((ERROR|RACECHECK) SUMMARY: .*)$/\1/p' "$log" | tail -n1)
    say "$tool: ${summary:-no summary}, $(grep -c '^\[       OK \]' "$log") tests passed"
    case $rc in
      0) if [ -n "$summary" ]; then worse passed; else worse incomplete; fi ;;
      124 | 137) say "$tool ran out of time" && worse incomplete ;;
      *)
        # "========= Invalid __global__ read of size 4 bytes", and the line behind it: at which kernel.
        { echo "$tool:"; grep -A1 -E '^=+ +(Error|Invalid|Race|Potential|Barrier|Divergent|Uninitialized|Program hit|Device not|Unable|Internal)' "$log" |
          grep -v '^--' | sed -E 's/^=+ +//' | cut -c1-150 | head -n 6; } >>"$out/logs/sanitizer.words"
        failed_tests+=("$tool: exit code $rc, logs/$tool.log") && worse failed ;;
    esac
  done
}

torch='' # its version, or why there is none; asked once, as to import it takes seconds
torch_is_here() {
  if [ -z "$torch" ]; then
    if ! command -v python3 >/dev/null; then torch='no python3'
    else torch=$(timeout -k 5 90 python3 -c '
try: import torch
except ImportError: print("python3 has no torch")
else: print(torch.__version__ if torch.cuda.is_available() else "torch sees no GPU")' 2>&1 </dev/null | tail -n1); fi
    torch=${torch:-python3 did not answer}
  fi
  case $torch in [0-9]*) return 0 ;; *) return 1 ;; esac
}

# A step of GPT-2 124M: B 4, T 1024, or fewer sequences where memory is short. One row for each dtype; in a row all contenders take turns.
section_steps() {
  local end=$((SECONDS + $1)) rest=3 row dtype log json limit rc batch peer_note model flags compiled torch_compiles=1
  local size=(--n_layer=12 --n_head=12 --n_embd=768 --block_size=1024 --vocab_size=50257) count=(--rounds=5 --steps=10) alone=(5 20)
  if [ $is_fake = 1 ]; then
    size=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --vocab_size=65)
    count=(--rounds=2 --steps=1) alone=(1 1)
  fi
  [ -x "$bin/bench_gpt" ] || { say 'bench_gpt is not here' && worse skipped && return; }
  for row in bf16 tf32 f32; do
    [ $short = 1 ] && [ $row != bf16 ] && continue
    dtype=$row flags=()
    [ $row = tf32 ] && dtype=f32 && flags=(--tf32)
    log=$out/logs/steps.$row.log json=$out/logs/steps.$row.json
    : >"$log.table"
    batch=4
    while :; do # until a batch fits
      : >"$log"
      model=("${size[@]}" "--batch_size=$batch")
      limit=$(((end - SECONDS) / (rest > 1 ? 2 : 1))) # the first row pays for PyTorch's compiler
      peer_note=''
      if torch_is_here && [ -f "$peers/paired_gpt.py" ]; then
        # To compile PyTorch takes most of a minute: once. If there is no time for that, its eager mode stands alone.
        compiled=()
        [ $row = bf16 ] && [ $torch_compiles = 1 ] && compiled=(--pytorch-compile whole)
        limited $limit "$log" env TORCHINDUCTOR_CACHE_DIR="$out/cache/inductor" python3 "$peers/paired_gpt.py" \
          --rondo-bin "$bin/bench_gpt" --device=cuda --python "$(command -v python3)" "${compiled[@]}" \
          --pytorch-args=--warm_cache --threads="$(nproc)" --timeout="$limit" --warmup=5 --dtype=$dtype "${flags[@]}" "${model[@]}" \
          "${count[@]}" --json "$json"
        rc=$?
        if [ $rc = 0 ]; then
          worse passed
          # No compiler of C for Triton, a GPU that it does not know: its eager mode was measured all the same.
          if grep -q '^left out: ' "$log"; then say "$row: $(grep '^left out: ' "$log" | tail -n1), logs/${log##*/}" && torch_compiles=0; fi
          { echo "$row"; grep -vE '^warning|^left out|^\{' "$log" | cut -c1-118; } >"$log.table"
          break
        fi
        if [ $rc = 124 ] && [ ${#compiled[@]} -gt 0 ]; then
          say "$row: no time to compile PyTorch" && worse incomplete && torch_compiles=0
          continue
        fi
        if grep -qi 'out of memory' "$log" && [ $batch -gt 1 ]; then say "$row: out of memory with B $batch" && batch=$((batch / 2)) && continue; fi
        peer_note="$row beside PyTorch: $([ $rc = 124 ] && echo out of time || short_of "$log" 100)"
      fi
      steps_alone $row $dtype
      rc=$?
      if [ $rc = 3 ] && [ $batch -gt 1 ]; then say "$row: out of memory with B $batch" && batch=$((batch / 2)) && continue; fi
      [ -z "$peer_note" ] || { say "$peer_note" && worse incomplete; }
      break
    done
    rest=$((rest - 1))
    raw_steps+=("$json")
  done
  say "GPT-2 124M, B $batch, T 1024, dropout 0, AdamW, clipping$([ $is_fake = 0 ] || echo ' (a tiny model: the fake)')"
  torch_is_here || say "beside PyTorch: not run: $torch"
}
# Rondo alone; 3: out of memory.
steps_alone() {
  local row=$1 dtype=$2 mode rows='' memory=0
  for mode in none regions; do
    limit=$(((end - SECONDS) / (2 * rest)))
    : >"$log.$mode"
    limited $limit "$log.$mode" "$bin/bench_gpt" --device=cuda --compile=$mode --dtype="$dtype" "${flags[@]}" "${model[@]}" \
      --warmup="${alone[0]}" --steps="${alone[1]}"
    case $? in
      0) rows="$rows${rows:+,}$(grep -m1 '^{' "$log.$mode")" && worse passed ;;
      124 | 137) say "$row $mode: out of time" && worse incomplete ;;
      *) if grep -q 'out of memory' "$log.$mode"; then memory=1
        else say "$row $mode: $(short_of "$log.$mode")" && failed_tests+=("steps: $row $mode, logs/${log##*/}.$mode") && worse failed; fi ;;
    esac
    cat "$log.$mode" >>"$log"
  done
  echo "{\"dtype\":\"$row\",\"rondo\":[$rows]}" >"$json"
  sed 's/"peer"/\n&/g' "$json" | sed -nE "s/.*\"mode\":\"([a-z]+)\".*\"step_ms_median\":([0-9.]+).*\"tokens_per_s\":([0-9.]+).*\"host_ms\":([0-9.]+).*\"peak_device_mib\":([0-9.]+).*/$row rondo \1: \2 ms a step, \3 tokens\/s, host \4 ms, \5 MiB/p" >"$log.table"
  [ $memory = 0 ] || [ -n "$rows" ] || { [ "$batch" -gt 1 ] || { say "$row: out of memory with B 1" && worse failed; } && return 3; }
}

# What kernels reach, beside a copy of the device and PyTorch's attention; the kernels of a step by name.
section_figures() {
  local end=$((SECONDS + $1)) part small=() log rest=5
  [ $is_fake = 0 ] || small=(--small)
  [ -x "$bin/bench_device" ] || { say 'bench_device is not here' && worse skipped && return; }
  for part in step memory products attention compile; do
    [ $short = 1 ] && [ $part != memory ] && [ $part != step ] && continue
    log=$out/logs/figures.$part.log
    : >"$log"
    limited $(((end - SECONDS) / (rest > 1 ? 2 : 1))) "$log" env "RONDO_CACHE=$([ $part = compile ] && echo off || echo on)" \
      "$bin/bench_device" --only=$part "${small[@]}" --json="$out/logs/figures.$part.json"
    case $? in
      0) worse passed ;;
      124 | 137) say "$part: out of time" && worse incomplete ;;
      *) say "$part: $(short_of "$log" 160)" && failed_tests+=("figures: $part, logs/figures.$part.log") && worse failed ;;
    esac
    rest=$((rest - 1))
  done
  if [ -f "$peers/sdpa.py" ] && [ $short = 0 ]; then
    if torch_is_here; then
      log=$out/logs/figures.attention.log
      limited $((end - SECONDS)) "$log" python3 "$peers/sdpa.py" --device cuda --json "$out/logs/figures.sdpa.json" ||
        { say "PyTorch's attention: $(short_of "$log" 100)" && worse incomplete; }
    else say "PyTorch's attention: not run: $torch"; fi
  fi
  say "$(grep -h -m1 '^launches a step' "$out/logs/figures.step.log")"
}

# Training steps of six networks for images at the sizes of their recipes, in bf16 and channels last; on the fake, a small one.
section_networks() {
  local end=$((SECONDS + $1)) model log limit models=(resnet50 segformer stdc pp_liteseg regseg ddrnet) rest
  if [ ! -x "$bin/bench_cnn" ]; then say 'bench_cnn is not here' && worse skipped && return; fi
  [ $is_fake = 0 ] || models=(regseg)
  rest=${#models[@]}
  for model in "${models[@]}"; do
    log=$out/logs/networks.$model.log
    limit=$(((end - SECONDS) / rest))
    rest=$((rest - 1))
    : >"$log"
    if [ $is_fake = 0 ] && [ $short = 0 ] && [ -f "$peers/cnn_study.py" ] && torch_is_here; then
      limited $limit "$log" python3 "$peers/cnn_study.py" --rondo-bin "$bin/bench_cnn" --python "$(command -v python3)" --device cuda --full \
        --models $model --dtypes bf16 --layouts last --rounds 3 --steps 10 --json "$out/logs/networks.$model.json"
    else
      network_alone "$model" $limit "$log"
    fi
    case $? in
      0) worse passed ;;
      124 | 137) say "$model: out of time" && worse incomplete ;;
      *) say "$model: $(short_of "$log" 160)" && failed_tests+=("networks: $model, logs/networks.$model.log") && worse failed ;;
    esac
  done
  say "${#models[@]} networks, bf16, channels last$([ $is_fake = 0 ] || echo ' (small images: the fake)')"
  torch_is_here || say "beside PyTorch: not run: $torch"
}
network_alone() { # network_alone MODEL SECONDS LOG
  local mode modes=(none regions) size=(--full --warmup=5 --steps=20) part
  [ $is_fake = 0 ] || { modes=(regions) && size=(--batch=2 --height=32 --width=32 --warmup=0 --steps=1); }
  for mode in "${modes[@]}"; do
    part=$3.$mode
    : >"$part"
    limited $(($2 / ${#modes[@]})) "$part" "$bin/bench_cnn" --device=cuda --model="$1" --dtype=bf16 --layout=last --compile="$mode" "${size[@]}"
    local rc=$?
    [ $rc = 0 ] || { cat "$part" >>"$3" && return $rc; }
    sed -nE 's/.*"model":"([a-z0-9_]+)","mode":"([a-z]+)","step_ms_median":([0-9.]+).*"host_ms":([0-9.]+),"peak_device_mib":([0-9.]+).*/\1 rondo \2: \3 ms a step, host \4 ms, \5 MiB/p' "$part" >>"$3"
  done
  [ -s "$3" ]
}

# ---- What is written, after each section
version=$(cat "$here/VERSION" 2>/dev/null || git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)
# Google Test's words about a failed test: the first lines behind its name; and the launch that lost the device.
words_of() { # words_of NAME TEST
  cat "$out/logs/$1.log" 2>/dev/null | awk -v test="${2%% (*}" '
    $0 == "[ RUN      ] " test { on = 1; n = 0; next }
    on && (/^\[/ || n >= 4) { exit }
    on && NF { print "      " substr($0, 1, 150); ++n }'
  awk -v test="${2%% (*}" '$0 == "[ RUN      ] " test { on = 1 }
    on && match($0, /reported by the wait for [^(;]*/) { print "      " substr($0, RSTART, RLENGTH); exit }' "$out/logs/$1.launch.log" 2>/dev/null
}
# What the tests with these names said.
result_of() { # result_of REGEX [PROGRAM...]
  local name=$1
  shift
  [ $# -gt 0 ] || set -- conformance first ops cuda modules optim layouts
  (for log; do cat "$out/logs/$log.log"; done) 2>/dev/null | awk -v name="^($name)" '
    /^\[       OK \]/ && $4 ~ name { ++ok } /^\[  SKIPPED \] .* ms\)/ && $4 ~ name { ++skipped } /^\[  FAILED  \] .* ms\)/ && $4 ~ name { ++bad }
    END { if (ok + skipped + bad == 0) print "not run"; else printf "%d passed, %d skipped, %d failed\n", ok, skipped, bad }'
}
note_of() { local i; for i in "${!names[@]}"; do [ "${names[i]}" != "$1" ] || echo "${notes[i]}"; done; }
note_or_none() { local text; text=$(note_of "$1"); echo "${text:-not run}"; }
find_claims() { claims=(
  "every refusal of the fake driver is the driver's|$(result_of 'Conformance')"
  "every op computes what the CPU does: kernels by hand, generated ones, products, attention|$(result_of 'OpSweep|CudaKernels|ByHand|CudaEager|CudaProduct|CudaAttention|CudaHead')"
  "compiled modules and regions have eager's bits|$(result_of 'CudaRegions|CudaModules|CudaTraining|CudaTables')"
  "training has the CPU's losses, and the same bits twice|$(note_or_none train)"
  "modules, optimizers, checkpoints and resuming work on the device|$(result_of . modules optim)"
  "a step of GPT-2 124M in bf16 is at most 310 launches|$(figures_of <(grep -h -m1 '^launches a step' "$out/logs/figures.step.log" 2>/dev/null || echo 'not run'))"
  "two devices work beside each other|$(result_of 'TwoDevices|Modes/TwoModels|ConformanceDevices')"
  "out of memory is a typed error, and training goes on|$(result_of 'OutOfMemory|CudaAllocator')"
  "the first step with artifacts compiles nothing|$(result_of 'CompileFor')"
  "compute-sanitizer finds nothing|$(note_or_none sanitizer)"
); }
list() { # list TITLE MOST LINE...
  local title=$1 most=$2
  shift 2
  [ $# -gt 0 ] || return
  printf '\n## %s (%d)\n\n' "$title" $#
  printf -- '- %s\n' "$@" | head -n "$most"
  [ $# -le "$most" ] || printf -- '- and %d more\n' $(($# - most))
}
string() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013\014\016-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g; s/\r/\\r/g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }')"; }
strings() { local first=1 text; for text in "$@"; do [ $first = 1 ] || printf ', '; first=0; string "$text"; done; }
whole() { # the JSON files that have something in them; none of the fake
  local first=1 file
  [ $is_fake = 0 ] || return
  for file in "$@"; do
    [ -s "$file" ] || continue
    [ $first = 1 ] || printf ','
    first=0
    cat "$file"
  done
}
# Whole files, by renaming: what reads one while the script runs, or when something has ended it, finds a report.
write_markdown() { # write_markdown SECTIONS-TO-COME...
  local claim test name i suites
  {
    echo "# Rondo on $device"
    echo
    if [ $is_fake = 1 ]; then
      echo "**This ran on the fake driver of tests/fake_cuda, not on a GPU. It holds no figure of a GPU.**"
      echo
    fi
    echo "$(date -u +%Y-%m-%dT%H:%MZ), commit $version, $((SECONDS - started)) of $budget seconds."
    echo
    echo '| section | result | seconds | what |'
    echo '|---|---|---|---|'
    for i in "${!names[@]}"; do echo "| ${names[i]} | ${statuses[i]} | ${seconds[i]} | ${notes[i]//|/,} |"; done
    for name in "$@"; do echo "| $name | not yet | | |"; done
    printf '\n## What was claimed without a GPU, and what was seen here\n\n| claim | seen |\n|---|---|\n'
    for claim in "${claims[@]}"; do echo "| ${claim%%|*} | ${claim#*|} |"; done
    if [ ${#failed_tests[@]} -gt 0 ]; then
      printf '\n## Failed (%d)\n\n' ${#failed_tests[@]}
      for test in "${failed_tests[@]}"; do
        echo "- $test"
        words_of "${test%%: *}" "${test#*: }"
      done | head -n 60
    fi
    list 'Did not end: hangs, or slow' 10 "${endless_tests[@]}"
    # By suite: names would fill the report.
    mapfile -t suites < <(printf '%s\n' "${unreached[@]}" | sed -nE 's/^(.+: [^.]+)\..*/\1/p' | sort | uniq -c | sed -E 's/^ *([0-9]+) (.*)/\2: \1/')
    list 'Not reached: the time was over' 10 "${suites[@]}"
    if [ -s "$out/logs/sanitizer.words" ]; then printf '\n## compute-sanitizer\n\n```\n%s\n```\n' "$(head -n 16 "$out/logs/sanitizer.words")"; fi
    if ls "$out"/logs/steps.*.table >/dev/null 2>&1; then
      printf '\n## Steps\n\n```\n'
      for row in bf16 tf32 f32; do figures_of <(cat "$out/logs/steps.$row.log.table" 2>/dev/null); done
      printf '```\n'
    fi
    if ls "$out"/logs/networks.*.log >/dev/null 2>&1; then
      printf '\n## Networks\n\n```\n'
      figures_of <(cut -c1-118 "$out"/logs/networks.*.log 2>/dev/null)
      printf '```\n'
    fi
    if ls "$out"/logs/figures.*.log >/dev/null 2>&1; then
      printf '\n## Figures\n\n```\n'
      for part in memory products attention compile step; do figures_of <(cut -c1-118 "$out/logs/figures.$part.log" 2>/dev/null); done
      printf '```\n'
    fi
  } >"$out/report.whole"
  if [ "$(wc -l <"$out/report.whole")" -gt 200 ]; then
    { head -n 198 "$out/report.whole"; printf '\n(more than 200 lines; the rest is in logs/)\n'; } >"$out/report.part"
    mv "$out/report.part" "$out/report.whole"
  fi
  mv "$out/report.whole" "$out/report.md"

}
write_json() {
  local i
  {
    printf '{"rondo": %s, "device": %s, "fake": %s, "seconds": %d, "budget": %d,\n "sections": [' \
      "$(string "$version")" "$(string "$device")" "$([ $is_fake = 1 ] && echo true || echo false)" $((SECONDS - started)) "$budget"
    for i in "${!names[@]}"; do
      printf '%s\n  {"name": %s, "result": %s, "seconds": %d, "what": %s}' "$([ "$i" -gt 0 ] && echo ,)" "$(string "${names[i]}")" \
        "$(string "${statuses[i]}")" "${seconds[i]}" "$(string "${notes[i]}")"
    done
    printf '],\n "claims": ['
    for i in "${!claims[@]}"; do
      printf '%s\n  {"claim": %s, "seen": %s}' "$([ "$i" -gt 0 ] && echo ,)" "$(string "${claims[i]%%|*}")" "$(string "${claims[i]#*|}")"
    done
    printf '],\n "failed": [%s],\n "endless": [%s],\n "not_reached": [%s],\n' "$(strings "${failed_tests[@]}")" \
      "$(strings "${endless_tests[@]}")" "$(strings "${unreached[@]}")"
    printf ' "steps": [%s],\n "figures": [%s]}\n' "$(whole "${raw_steps[@]}")" "$(whole "$out"/logs/figures.*.json)"
  } >"$out/report.part"
  mv "$out/report.part" "$out/report.json"

}
# In a process of its own, so that signals find the script waiting: bash 5.2 cannot read a trap's text while it expands a
# $(command), and would go on.
write_report() {
  { find_claims; write_markdown "$@"; write_json; } &
  wait $!
}

# ---- Run
read -ra to_come <<<"${only//,/ }"
write_report "${to_come[@]}"
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
  to_come=("${to_come[@]:1}")
  echo "$name: ${status:-failed}: $note"
  write_report "${to_come[@]}"
done

echo "$out/report.md"
for result in "${statuses[@]}"; do case $result in failed | incomplete) exit 1 ;; esac; done
exit 0
