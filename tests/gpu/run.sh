#!/usr/bin/env bash
# What Rondo does on this machine's GPU, in calls of a few minutes: tests/gpu/README.md.
#
#   tests/gpu/run.sh [1|2|3|SECTION...] [--out FOLDER] [--budget SECONDS] [--bin FOLDER] [--fake SEED]
#
# Call 1 takes 6 minutes, call 2 takes 4, call 3 takes 5; sections may be named instead. The clock starts when the device is
# found and its libraries are read. A section has its seconds (below), and those that sections before it left over.
#
# FOLDER (default: rondo-gpu-report) gets report.md, report.json and logs.tar.gz. All three are whole at every moment: they are
# replaced before and after each section and every few seconds within it. A call that is killed leaves what it measured until
# then, and names what is missing. A later call with the same FOLDER adds its sections.
# --fake runs on tests/fake_cuda at small sizes, to test this script; such a report holds no figure.
# Exit code: 0 all passed, 1 something failed or is incomplete, 2 wrong arguments or the wrong machine, 3 there is no CUDA device.
set -u
calls=([1]='machine conformance steps figures pytorch' [2]='suite sanitizer ncu' [3]='train networks')
declare -A seconds_of=(
  [machine]=15 [conformance]=90 [steps]=100 [figures]=75 [pytorch]=80 # 360
  [suite]=140 [sanitizer]=70 [ncu]=30                                 # 240
  [train]=60 [networks]=240)                                          # 300
test_limit=${RONDO_GPU_TEST_LIMIT:-60}                                # of one test
refresh_every=${RONDO_GPU_REFRESH:-5}                                # seconds

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=rondo-gpu-report budget='' bin='' fake='' chosen=''
while [ $# -gt 0 ]; do
  case $1 in
    --out | --budget | --bin | --fake)
      [ $# -ge 2 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2" && shift 2 ;;
    [123]) chosen="$chosen ${calls[$1]}" && shift ;;
    -*) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    *) [ -n "${seconds_of[$1]:-}" ] || { echo "run.sh: no section $1; there are: ${calls[*]}" >&2; exit 2; }
      chosen="$chosen $1" && shift ;;
  esac
done
read -ra chosen <<<"${chosen:-${calls[1]}}"
case $budget$fake in *[!0-9]*) echo "run.sh: --budget and --fake are numbers" >&2; exit 2 ;; esac

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
mkdir -p "$out" && [ -w "$out" ] || { echo "run.sh: cannot write to $out; say --out FOLDER" >&2; exit 2; }
out=$(cd "$out" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/rondo-gpu.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
children=''
trap 'kill $children 2>/dev/null; exit 130' INT TERM
# What earlier calls have left: their logs, and each section's result.
logs=$work/logs
[ ! -f "$out/logs.tar.gz" ] || tar -xzf "$out/logs.tar.gz" -C "$work" || { echo "run.sh: $out/logs.tar.gz is damaged; say another --out" >&2; exit 2; }
mkdir -p "$logs"
sed -i '1s/^running$/cut off/' "$logs"/*.section 2>/dev/null
[ ! -f "$here/VERSION" ] || cd "$here" || exit 2 # a bundle's tests look for their data from there

export RONDO_CACHE_DIR=${RONDO_CACHE_DIR:-$work/cache}
export RONDO_TEST_CUDA=real # tests/fake_cuda/fake_cuda.h: tests use the driver that is found
unset RONDO_TEST_DEVICE
for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do [ -d $folder ] && PATH=$PATH:$folder; done
if [ -n "$fake" ]; then # as a real driver is found: by the system's loader
  folder=${RONDO_FAKE_CUDA_FOLDER:-$bin/../fake_cuda}
  [ -e "$folder/libcuda.so.1" ] || { echo "run.sh: no fake in $folder" >&2; exit 2; }
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} RONDO_FAKE_CUDA=${RONDO_FAKE_CUDA:-$fake:2:2048}
fi

# ---- What a section says of itself. Its result is a file: status, seconds, words.
section='' status='' note=''
worse() { # worse passed|skipped|incomplete|failed: a section is as good as its worst part
  case $1/$status in
    failed/* | incomplete/passed | incomplete/skipped | incomplete/ | passed/skipped | passed/ | skipped/) status=$1 ;;
  esac
}
say() { note="$note${note:+; }$*"; }
failed() { echo "$*" >>"$logs/$section.failed" && worse failed; }
lacks() { # lacks PROGRAM: then the section is skipped
  [ ! -x "$bin/$1" ] && say "$1 is not here" && worse skipped
}
short_of() { tail -n1 "$1" | tr -d '\r' | cut -c1-"${2:-120}"; }
left() { echo $((end - SECONDS)); }
keep_result() { printf '%s\n%s\n%s\n' "$1" $((SECONDS - begin)) "$note" >"$logs/$section.section"; } # keep_result STATUS

# ---- Commands under a limit

# Ends with the command's exit code; 124: it was out of time. What cannot even be killed (a driver that hangs) is left behind.
limited() { # limited SECONDS LOG COMMAND...
  local limit=$1 log=$2 process stop
  shift 2
  : >>"$log"
  [ "$limit" -ge 1 ] || return 124
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  process=$! stop=$((SECONDS + limit + 12)) children=$!
  while kill -0 $process 2>/dev/null; do
    [ $SECONDS -lt $stop ] || return 124
    refresh
    sleep 0.1
  done
  wait $process
}
# A part of a section: passes, is out of time, or fails.
part() { # part NAME SECONDS COMMAND...: its log is SECTION.NAME.log
  local name=$1 limit=$2 log=$logs/$section.$1.log rc
  shift 2
  : >"$log"
  limited "$limit" "$log" "$@"
  rc=$?
  case $rc in
    0) worse passed ;;
    124 | 137) say "$name: out of time" && worse incomplete ;;
    *) say "$name: $(short_of "$log" 160)" && failed "$name: exit code $rc, logs/${log##*/}" ;;
  esac
  return $rc
}

# ---- Tests of one program, in several processes at a time. A test that crashes, hangs or loses the device is named, and the
# others go on in a new process. Files: NAME.names, and of each process NAME.SHARD.left (what it still has to run) and
# NAME.SHARD.RESTART.log.
#   tests NAME SECONDS SHARDS FILTER PROGRAM [VARIABLE=VALUE...]
# With of_samples=1 each process runs all tests, on its own share of their samples.
tests() {
  local name=$1 stop=$((SECONDS + $2)) shards=$3 filter=$4 program=$5 shard process
  shift 5
  ! lacks "$program" || return
  rm -f "$logs/$name".[0-9]*
  : >"$logs/$name.all"
  limited $((stop - SECONDS > 60 ? 60 : stop - SECONDS)) "$logs/$name.all" env "$@" "$bin/$program" --gtest_list_tests "--gtest_filter=$filter"
  # "Suite.", and its tests below it, each with "# a comment".
  awk '/^[A-Za-z_][^ ]*\./ { suite = $1 } /^  [A-Za-z_0-9]/ && $1 !~ /DISABLED/ { print suite $1 }' "$logs/$name.all" >"$logs/$name.names"
  if [ ! -s "$logs/$name.names" ]; then
    say "$name: $program does not list its tests: $(short_of "$logs/$name.all")" && failed "$name: $program does not start, logs/$name.all"
    return
  fi
  echo "$name" >>"$logs/$section.tests"
  children=''
  for ((shard = 0; shard < shards; ++shard)); do
    awk -v n="$shards" -v i=$shard -v all="${of_samples:-0}" 'all || NR % n == i' "$logs/$name.names" >"$logs/$name.$shard.left"
    shard_of_tests "$logs/$name.$shard" "$stop" "$program" RONDO_TEST_SAMPLES=$shard:"$shards" RONDO_NUM_THREADS=$((($(nproc) + shards - 1) / shards)) "$@" &
    children="$children $!"
  done
  for process in $children; do
    while kill -0 "$process" 2>/dev/null; do refresh; sleep 0.2; done
  done
  outcomes
  if grep -q "^$name failed " "$work/outcomes"; then worse failed
  elif grep -qE "^$name (endless|unreached) " "$work/outcomes"; then worse incomplete
  else worse passed; fi
  name_the_launches "$name" "$program" "$@"
}

# Runs the tests of SHARD.left. Each time a process ends, what it began is taken off that list.
shard_of_tests() {
  local shard=$1 stop=$2 program=$3 log rc last restart
  shift 3
  for ((restart = 0; restart < 40; ++restart)); do
    [ -s "$shard.left" ] || return
    log=$shard.$restart.log
    printf -- '--gtest_filter=%s\n' "$(paste -sd: "$shard.left")" >"$shard.flags"
    watched $((stop - SECONDS)) "$log" env "$@" "$bin/$program" --gtest_color=no "--gtest_flagfile=$shard.flags"
    rc=$?
    sed -nE 's/^\[ RUN      \] (.*)$/\1/p' "$log" >"$shard.begun"
    last=$(tail -n1 "$shard.begun")
    if [ $rc -le 1 ] && grep -q '^\[==========\] .* ran\.' "$log"; then : >"$shard.left" && return; fi
    # What runs out of the section's time goes on not being reached.
    case $rc in 124 | 137) [ $SECONDS -lt $((stop - 1)) ] || return ;; esac
    grep -vxFf "$shard.begun" "$shard.left" >"$shard.rest"
    mv "$shard.rest" "$shard.left"
    case $rc in
      70) continue ;; # a test has lost the device (tests/fake_device/main.cc)
      125) printf '\nrun.sh: no end of %s\n' "${last:-$program, before its first test}" >>"$log" ;;
      *) printf '\nrun.sh: ended in %s (exit code %s)\n' "${last:-$program, before its first test}" $rc >>"$log" ;;
    esac
    [ -n "$last" ] || return
  done
}
# Under a limit, and 125 if one test takes longer than a test may. It ends with the script.
watched() { # watched SECONDS LOG COMMAND...
  local limit=$1 log=$2 process size=0 begun=0 now since=$SECONDS hangs=0 stop=$((SECONDS + $1 + 12))
  shift 2
  : >"$log"
  [ "$limit" -ge 1 ] || return 124
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  process=$!
  trap 'kill $process 2>/dev/null; exit' TERM
  while kill -0 $process 2>/dev/null; do
    sleep 0.2
    kill -0 $$ 2>/dev/null || { kill $process; exit; }
    now=$(stat -c %s "$log")
    if [ "$now" != "$size" ]; then
      size=$now now=$(grep -c '^\[ RUN      \]' "$log")
      [ "$now" = "$begun" ] || { begun=$now since=$SECONDS; }
    fi
    if [ $((SECONDS - since)) -ge "$test_limit" ] && [ $hangs = 0 ]; then hangs=1 stop=$((SECONDS + 12)) && kill $process 2>/dev/null; fi
    [ $SECONDS -lt $stop ] || break
  done
  [ $hangs = 1 ] && return 125
  [ $SECONDS -lt $stop ] || return 124
  wait $process
}
# A test that lost the device runs once more, alone, in a mode in which the error names the launch.
name_the_launches() { # name_the_launches NAME PROGRAM [VARIABLE=VALUE...]
  local name=$1 program=$2 test lost
  shift 2
  mapfile -t lost < <(log_of "$name" | grep -B1 '^The device is lost: this process ends' | sed -nE 's/^\[  FAILED  \] ([^ ]+) .*/\1/p' | head -n 3)
  for test in "${lost[@]}"; do
    limited 30 "$logs/$name.launch.log" env RONDO_CUDA_SYNC=1 "$@" "$bin/$program" --gtest_color=no "--gtest_filter=$test"
  done
}
# What their logs say, also while they run: lines of "NAME ok|skipped|failed|endless|unreached TEST". What some process has
# neither finished nor given up is not reached.
outcomes() {
  awk 'FNR == 1 { n = split(FILENAME, path, "/"); split(path[n], file, "."); name = file[1]; shard = file[2] }
    FILENAME ~ /left$/ { if (!((name, shard, $1) in done)) print name, "unreached", $1; next }
    /^\[       OK \]/ { print name, "ok", $4; done[name, shard, $4] }
    /^\[  SKIPPED \] .* ms\)/ { print name, "skipped", $4; done[name, shard, $4] }
    /^\[  FAILED  \] .* ms\)/ { sub(/,$/, "", $4); print name, "failed", $4; done[name, shard, $4] }
    /^run.sh: ended in / { print name, "failed", substr($0, 18) }
    /^run.sh: no end of / { print name, "endless", substr($0, 19) }' \
    $(find "$logs" -name '*.[0-9]*.[0-9]*.log') $(find "$logs" -name '*.[0-9]*.left') </dev/null | sort -u >"$work/outcomes"
}
each_test() { sed -nE "s/^([a-z]+) $1 /\1: /p" "$work/outcomes"; } # each_test failed|endless|unreached
count_tests() { # "conformance: 110 passed, 2 skipped, 1 failed, 3 not reached"
  awk -v name="$1" '$1 == name { ++n[$2] }
    END { printf "%s: %d passed, %d skipped, %d failed", name, n["ok"], n["skipped"], n["failed"]
          if (n["endless"]) printf ", %d did not end", n["endless"]
          if (n["unreached"]) printf ", %d not reached", n["unreached"] }' "$work/outcomes"
}
result_of() { # result_of REGEX [NAME...]: what the tests with these names said
  local regex=$1
  shift
  [ $# -gt 0 ] || set -- conformance first ops cuda modules optim layouts
  awk -v regex="^($regex)" -v names=" $* " 'index(names, " " $1 " ") && $3 ~ regex { ++n[$2] }
    END { if (n["ok"] + n["skipped"] + n["failed"] == 0) print "not run"; else printf "%d passed, %d skipped, %d failed\n", n["ok"], n["skipped"], n["failed"] }' "$work/outcomes"
}
log_of() { cat "$logs/$1".[0-9]*.log 2>/dev/null; }
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

# ---- Call 1

section_machine() {
  worse passed
  say "$(uname -m), $(nproc) cores, $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n1), glibc $(getconf GNU_LIBC_VERSION | sed 's/.* //')"
  if command -v nvidia-smi >/dev/null; then
    limited 20 "$logs/nvidia-smi.log" nvidia-smi
    say "nvidia-smi: $(timeout 20 nvidia-smi -L 2>/dev/null | sed 's/ *(UUID.*//; s/^ *//' | paste -sd, | cut -c1-160)"
    say "$(timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader 2>/dev/null | head -n1)"
  else say 'nvidia-smi: missing'; fi
  [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || say "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
  [ -z "$too_new" ] || say "$too_new"
  for tool in nvcc compute-sanitizer ncu; do command -v $tool >/dev/null || say "$tool: missing"; done
  torch_is_here
  say "PyTorch: $torch"
}

section_conformance() { tests conformance "$(left)" 1 'Conformance*' test_gpu "${stray[@]}"; }

# A step of GPT-2 124M, T 1024, compiled. A batch that the device has no memory for is halved.
step_rows=(bf16.B4.own bf16.B4.cudnn bf16.B16.own bf16.B16.cudnn tf32.B4.own f32.B4.own)
section_steps() {
  local row dtype batch way flags rest=${#step_rows[@]} log
  ! lacks bench_gpt || return
  for row in "${step_rows[@]}"; do
    IFS=. read -r dtype batch way <<<"${row/B/}"
    flags=(--dtype="$dtype")
    [ "$dtype" != tf32 ] || flags=(--dtype=f32 --tf32)
    log=$logs/steps.$row.log
    while :; do
      : >"$log"
      limited $(($(left) * 2 / (rest + 1))) "$log" env RONDO_CUDA_ATTENTION="$way" "$bin/bench_gpt" --device=cuda --compile=regions --zipf \
        "${flags[@]}" "${gpt2[@]}" --batch_size="$batch" "${step_count[@]}"
      case $? in
        0) if grep -q '^{.*"step_ms_median"' "$log"; then worse passed; else failed "$row: it says nothing, logs/${log##*/}"; fi ;;
        124 | 137) say "$row: out of time" && worse incomplete ;;
        *) if grep -q 'out of memory' "$log" && [ "$batch" -gt 1 ]; then say "$row: out of memory with B $batch" && batch=$((batch / 2)) && continue; fi
          if [ "$way" = cudnn ] && grep -qi 'cudnn' "$log"; then say "$row: $(short_of "$log")" && worse incomplete
          else say "$row: $(short_of "$log")" && failed "$row: logs/${log##*/}"; fi ;;
      esac
      break
    done
    rest=$((rest - 1))
  done
}
# A line of each row: what it measured, or that it is missing.
steps_table() {
  local row
  for row in "${step_rows[@]}"; do
    sed -nE 's/^\{.*"step_ms_median":([0-9.]+).*"tokens_per_s":([0-9.]+).*"host_ms":([0-9.]+),"peak_device_mib":([0-9.]+).*"cudnn_runs":([0-9]+),"runs_without_plan":([0-9]+).*/\1 ms a step, \2 tokens\/s, host \3 ms, \4 MiB, attention by cuDNN \5 times, refused \6 times/p' \
      "$logs/steps.$row.log" 2>/dev/null | grep . || echo 'missing'
  done | paste -d' ' <(printf '%-14s\n' "${step_rows[@]}") -
}

# What kernels reach, beside a copy of the device; the kernels of a step by name.
figure_parts=(step.B4 step.B16 products.B4 attention.B4 attention.B16 memory.B4 compile.B4)
section_figures() {
  local each rest=${#figure_parts[@]} small=()
  ! lacks bench_device || return
  [ "$is_fake" = 0 ] || small=(--small --batch=2)
  for each in "${figure_parts[@]}"; do
    part "$each" $(($(left) * 2 / (rest + 1))) env "RONDO_CACHE=$([ "${each%.B*}" = compile ] && echo off || echo on)" \
      "$bin/bench_device" --only="${each%.B*}" --batch="${each#*.B}" "${small[@]}" --json="$logs/figures.$each.json"
    rest=$((rest - 1))
  done
  ! grep -q '^launches a step' "$logs/figures.step.B4.log" || say "$(grep -m1 '^launches a step' "$logs/figures.step.B4.log")"
}

# Rondo and PyTorch in turns, and PyTorch's attention.
section_pytorch() {
  local compile=(--pytorch-compile whole) rc
  ! lacks bench_gpt || return
  torch_is_here || { say "not run: $torch" && worse skipped && return; }
  pair bf16.B4 $(($(left) * 3 / 5)) bf16 4 "${compile[@]}"
  rc=$?
  # To compile PyTorch takes most of a minute. If there is no time for that, its eager mode stands alone.
  if [ $rc = 124 ] || [ $rc = 137 ]; then pair bf16.B4 $(($(left) / 2)) bf16 4; fi
  for batch in 4 16; do part sdpa.B$batch $(($(left) / 3)) python3 "$peers/sdpa.py" --device cuda --shape $batch 12 1024 64 --json "$logs/pytorch.sdpa.B$batch.json"; done
  pair bf16.B16 $(($(left) / 2)) bf16 16
  pair tf32.B4 "$(left)" f32 4 --tf32
}
pair() { # pair NAME SECONDS DTYPE BATCH FLAGS...
  local name=$1 limit=$2 dtype=$3 batch=$4
  shift 4
  [ "$limit" -ge 10 ] || [ "$is_fake" = 1 ] || { say "$name: no time was left" && worse incomplete && return; }
  part "$name" "$limit" env TORCHINDUCTOR_CACHE_DIR="$work/inductor" python3 "$peers/paired_gpt.py" --rondo-bin "$bin/bench_gpt" --rondo-modes=regions \
    --device=cuda --python "$(command -v python3)" --pytorch-args=--warm_cache --threads="$(nproc)" --timeout="$limit" --warmup=5 --zipf \
    --dtype="$dtype" "${gpt2[@]}" --batch_size="$batch" "${pair_count[@]}" --json "$logs/pytorch.$name.json" "$@" || return
  # No compiler of C for Triton, a GPU that it does not know: its eager mode was measured all the same.
  ! grep -q '^left out: ' "$logs/pytorch.$name.log" || say "$name: $(grep '^left out: ' "$logs/pytorch.$name.log" | tail -n1)"
}

# ---- Call 2

# What needs nothing of the fake's Control, or skips where it does. Tests of the fake itself and of how libraries are
# found are left out, and those that compile for devices that are not here. The tests that say most come first.
section_suite() {
  local n first='CudaCopies.*:CudaErrors.ALaunchThatIsRefused:CudaKernels.AProgramOfOps:CudaKernels.SortsLongLines:CudaProduct.*:CudaAttention.ShapesAndDTypes:CudaHead.*:CudaModules.*:CudaRegions.*:CudaTraining.*:CudaTables.*:OutOfMemoryOfABatch.*:TwoDevices.*:CompileFor.TheFirstStepCompilesNothing'
  local host_only='*Death*:Planted*:CudaLibraries.*:RealNvrtc.*:*WithoutNvrtc*:CublasLtFake.*:CudaHeaders.*:*TheRealNvrtc*:*Damaged*:CudaErrors.AForkedChildIsRefused:*Gates*:StepLaunches.*:ByHandOnDisk.*:JitAvailable.*'
  n=$(shards)
  if [ "$is_fake" = 1 ]; then
    tests first "$(left)" 1 'CudaCopies.*:CudaErrors.ALaunchThatIsRefused:CudaProduct.Batches:CudaKernels.SortsLongLines:CudaEager.SizesDecideTheSchedule' \
      test_cuda "${answering[@]}"
    return
  fi
  tests first $(($(left) / 2)) "$n" "$first:-$host_only" test_cuda
  of_samples=1 test_limit=$(left) tests ops $(($(left) / 2)) "$n" 'OpSweep.*:-OpSweep.*Strided*:OpSweep.OneThread*' test_runtime RONDO_TEST_DEVICE=cuda
  tests cuda $(($(left) / 2)) "$n" "*:-$first:$host_only" test_cuda
  tests modules $(($(left) / 2)) "$n" '-Lora.FrozenOperandsTakeNoMemory:Lora.AFrozenWeightKeepsNoInput:PretrainedMemory.*:KVCache.GPT2AtEveryLength:KVCache.StaleSlotsAreNeverRead:KVCache.DecodingIsTheSameForAnyThreadsAndBatch' \
    test_modules RONDO_TEST_DEVICE=cuda
  tests optim $(($(left) * 2 / 3)) "$n" '-*DeviceStep.*:CApi*:Guest.*:*TwoModels*:MemoryLimit.*:ThreadCap.*:TrainerKill.*:TrainerFullDisk.*:*Fake*:Compiled.TheInterpreterAgrees' \
    test_optim RONDO_TEST_DEVICE=cuda
  # The longest: each layout of each operand is another kernel.
  of_samples=1 test_limit=$(left) tests layouts "$(left)" "$n" 'OpSweep.*Strided*' test_runtime RONDO_TEST_DEVICE=cuda
}

section_sanitizer() {
  local tool rest=4 log summary
  local filter='CudaCopies.ThereAndBack:CudaKernels.SortsLongLines:CudaKernels.AProgramOfOps:CudaEager.SizesDecideTheSchedule:CudaRegions.ForwardAndBackward:CudaProduct.Batches:CudaAttention.Masks:CudaTables.ALaunchForAllItems'
  [ "$is_fake" = 0 ] || filter='CudaCopies.ThereAndBack:CudaProduct.Batches'
  if ! command -v compute-sanitizer >/dev/null; then say 'compute-sanitizer is not installed' && worse skipped && return; fi
  for tool in memcheck racecheck synccheck initcheck; do
    log=$logs/sanitizer.$tool.log
    part $tool $(($(left) / rest)) env RONDO_CUDA_CACHE=0 "${answering[@]}" compute-sanitizer --tool $tool --error-exitcode 99 \
      "$bin/test_cuda" --gtest_color=no "--gtest_filter=$filter"
    rest=$((rest - 1))
    summary=$(sed -nE 's/^=+ ((ERROR|RACECHECK) SUMMARY: .*)$/\1/p' "$log" | tail -n1)
    [ -n "$summary" ] || worse incomplete
    say "$tool: ${summary:-no summary}, $(grep -c '^\[       OK \]' "$log") tests passed"
  done
}
# "========= Invalid __global__ read of size 4 bytes", and the line behind it: at which kernel.
sanitizer_words() {
  grep -h -A1 -E '^=+ +(Error|Invalid|Race|Potential|Barrier|Divergent|Uninitialized|Program hit|Device not|Unable|Internal)' "$logs"/sanitizer.*.log 2>/dev/null |
    grep -v '^--' | sed -E 's/^=+ +//' | cut -c1-150 | head -n 16
}

# How busy each kernel of a step keeps the device.
section_ncu() {
  if ! command -v ncu >/dev/null; then say 'ncu is not installed' && worse skipped && return; fi
  part step "$(left)" ncu --csv --log-file "$logs/ncu.csv" --section SpeedOfLight --launch-skip 700 --launch-count 320 \
    "$bin/bench_gpt" --device=cuda --compile=regions --zipf --dtype=bf16 "${gpt2[@]}" --batch_size=4 --warmup=3 --steps=1
  # ERR_NVGPUCTRPERM: an administrator has to allow counters.
  grep -q '^"[0-9]' "$logs/ncu.csv" 2>/dev/null || { say "no kernel was profiled: $(grep -h -m1 ERR_ "$logs/ncu.csv" "$logs/ncu.step.log" 2>/dev/null | cut -c1-160)" && worse incomplete; }
}
ncu_table() { # of the kernels that take longest, all launches of a name together
  sed 's/","/\t/g; s/^"//; s/"$//' "$logs/ncu.csv" 2>/dev/null | awk -F'\t' '
    /Kernel Name/ && !name { for (i = 1; i <= NF; ++i) { if ($i == "Kernel Name") name = i; if ($i == "Metric Name") metric = i; if ($i == "Metric Unit") unit = i; if ($i == "Metric Value") value = i } next }
    !name { next }
    { gsub(",", "", $value) }
    $metric == "Duration" { ++n[$name]; us[$name] += $value * ($unit ~ /^n/ ? 0.001 : $unit ~ /^m/ ? 1000 : 1) }
    $metric == "Compute (SM) Throughput" { sm[$name] += $value }
    $metric == "Memory Throughput" && $unit == "%" { memory[$name] += $value }
    END { for (k in n) printf "%9.1f us %4d x  SM %5.1f%%  memory %5.1f%%  %s\n", us[k], n[k], sm[k] / n[k], memory[k] / n[k], substr(k, 1, 70) }' | sort -rn | head -n 16
}

# ---- Call 3

# train_gpt on the device beside the CPU: losses as near to those of f64 as the CPU's; and a second run: the same bits.
section_train() {
  ! lacks train_gpt || return
  local size=(--n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=12) steps=50 rest=7 run name on compile dtype again
  [ "$is_fake" = 0 ] || { size=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2) && steps=4; }
  awk 'BEGIN { srand(7); for (i = 0; i < 6000; ++i) { w = ""; n = 1 + int(rand() * 6);
               for (k = 0; k < n; ++k) w = w substr("aeioustrnl", 1 + int(rand() * 10), 1);
               printf "%s%s", w, i % 9 == 8 ? ".\n" : " " } }' >"$work/text"
  for run in cpu,none,float64 cpu,none,float32 cuda,regions,float32 cuda,regions,float32,again cpu,none,bfloat16 cuda,regions,bfloat16 cuda,none,float32; do
    [ "$is_fake" = 1 ] && [ $run = cpu,none,bfloat16 ] && break
    IFS=, read -r on compile dtype again <<<"$run"
    name=$on.$compile.$dtype${again:+.$again}
    part "$name" $(($(left) * 2 / (rest-- + 1))) "$bin/train_gpt" --data="$work/text" --out_dir="$work/train.$name" \
      --device="$on" --compile="$compile" --dtype="$dtype" "${size[@]}" --max_iters=$steps --eval_interval=$steps --eval_iters=2 \
      --warmup_iters=2 --log_interval=1 --sample_tokens=0 || continue
    sed -nE 's/.*"loss": ?([0-9.eE+-]+).*/\1/p' "$work/train.$name/metrics.jsonl" >"$logs/train.$name.losses"
    [ "$on" = cpu ] && continue
    if [ -n "$again" ]; then
      if [ "$(cat "$logs/train.$name.losses")" = "$(cat "$logs/train.${name%.again}.losses")" ]; then say 'a second run: the same losses'
      else say 'a second run has other losses' && failed "two runs differ, logs/train.$name.losses"; fi
    else near_f64 "$name" "$compile" "$dtype"; fi
  done
}
# The CPU in the same dtype says how far rounding leads from f64 in so many steps: other orders of sums lead as far, give or take. What
# is 8 times as far off, and more than some last bits of f32, is no rounding.
near_f64() { # near_f64 NAME COMPILE DTYPE
  local far cpu
  far=$(distance "$1") cpu=$(distance "cpu.none.$3")
  if [ -z "$far" ] || [ -z "$cpu" ]; then failed "$2 $3: no losses to compare" && return; fi
  say "$2 $3: within ${far% *} of f64 over ${far#* } steps (the CPU: ${cpu% *})"
  if awk -v far="${far% *}" -v cpu="${cpu% *}" 'BEGIN { exit !(far > 8 * cpu + 1e-6) }'; then failed "$2 $3 is ${far% *} off, and the CPU ${cpu% *}"; fi
}
# "1.2e-06 50": the largest relative difference to the losses of f64, and of how many steps.
distance() {
  paste "$logs/train.cpu.none.float64.losses" "$logs/train.$1.losses" 2>/dev/null |
    awk 'NF == 2 { d = $1 - $2; d = (d < 0 ? -d : d) / $1; if (d > w) w = d; ++n } END { if (n) printf "%.1e %d", w, n }'
}

# Training steps of six networks for images at the sizes of their recipes, in bf16 and channels last, in turns with PyTorch's.
section_networks() {
  ! lacks bench_cnn || return
  local model mode modes=(none regions) models=(resnet50 segformer stdc pp_liteseg regseg ddrnet) rest size=(--full --warmup=5 --steps=20)
  [ "$is_fake" = 0 ] || { models=(regseg) && modes=(regions) && size=(--batch=2 --height=32 --width=32 --warmup=0 --steps=1); }
  rest=${#models[@]}
  for model in "${models[@]}"; do
    if [ "$is_fake" = 0 ] && torch_is_here; then
      part "$model" $(($(left) / rest)) python3 "$peers/cnn_study.py" --rondo-bin "$bin/bench_cnn" --python "$(command -v python3)" --device cuda --full \
        --models "$model" --dtypes bf16 --layouts last --rounds 3 --steps 10 --json "$logs/networks.$model.json"
    else
      for mode in "${modes[@]}"; do
        part "$model.$mode" $(($(left) / rest / ${#modes[@]})) "$bin/bench_cnn" --device=cuda --model="$model" --dtype=bf16 --layout=last --compile="$mode" "${size[@]}"
      done
    fi
    rest=$((rest - 1))
  done
  torch_is_here || say "beside PyTorch: not run: $torch"
}
networks_table() {
  cat "$logs"/networks.*.log 2>/dev/null | sed -E 's/.*"model":"([a-z0-9_]+)","mode":"([a-z]+)","step_ms_median":([0-9.]+).*"host_ms":([0-9.]+),"peak_device_mib":([0-9.]+).*/\1 rondo \2: \3 ms a step, host \4 ms, \5 MiB/' | cut -c1-118
}

# ---- The report

# Replaces all three files. In a process of its own, so that signals find the script
# waiting: bash 5.2 cannot read a trap's text while it expands a $(command), and would go on.
refreshed=0
refresh() {
  [ -z "$section" ] || [ $((SECONDS - refreshed)) -lt "$refresh_every" ] || { keep_result running && write_report; }
}
write_report() {
  refreshed=$SECONDS
  {
    outcomes
    for name in "${all_sections[@]}"; do result_line "$name"; done >"$work/results"
    for list in missing failures claims; do $list >"$work/$list"; done
    write_json | iconv -c -f UTF-8 -t UTF-8 >"$work/report.json" # words that were cut within a letter
    write_markdown >"$work/report.md"
    [ "$(wc -l <"$work/report.md")" -le 200 ] || { sed -i '199,$d' "$work/report.md"; printf '\n(more than 200 lines; the rest is in logs.tar.gz)\n' >>"$work/report.md"; }
    tar -czf "$work/logs.tar.gz" -C "$work" logs 2>/dev/null
    for file in logs.tar.gz report.json report.md; do cp "$work/$file" "$out/.$file" && mv "$out/.$file" "$out/$file"; done
  } &
  wait $!
}
read -ra all_sections <<<"${calls[*]}"
is_chosen() { [[ " ${chosen[*]} " = *" $1 "* ]]; }
# "steps|running|12|words": what a section has come to.
result_line() {
  local call name status='' seconds=0 words=''
  if [ -f "$logs/$1.section" ]; then { read -r status; read -r seconds; read -r words; } <"$logs/$1.section"
  elif is_chosen "$1"; then status='not yet'
  else for call in 1 2 3; do [[ " ${calls[$call]} " != *" $1 "* ]] || status="not run: run.sh $call"; done; fi
  if [ -f "$logs/$1.tests" ]; then
    while read -r name; do words="$words${words:+; }$(count_tests "$name")"; done <"$logs/$1.tests"
  fi
  echo "$1|$status|$seconds|${words//|/,}"
}
words_of_section() { sed -nE "s/^$1\|(passed|failed|incomplete|running|cut off)\|[0-9]+\|//p" "$work/results" | grep . || echo 'not run'; }
missing() { # what no call has finished
  local row
  sed -nE '/^[a-z]+\|(passed|failed|skipped|incomplete)\|/!s/^([a-z]+)\|([^|]*)\|.*/\1: \2/p' "$work/results"
  [ ! -f "$logs/steps.section" ] || steps_table | grep ' missing$' | sed -E 's/^(\S+) .*/steps: \1/'
  [ ! -f "$logs/figures.section" ] || for row in "${figure_parts[@]}"; do [ -s "$logs/figures.$row.json" ] || echo "figures: $row"; done
}
claims() {
  echo "every refusal of the fake driver is the driver's|$(result_of 'Conformance')"
  echo "every op computes what the CPU does: kernels by hand, generated ones, products, attention|$(result_of 'OpSweep|CudaKernels|ByHand|CudaEager|CudaProduct|CudaAttention|CudaHead')"
  echo "compiled modules and regions have eager's bits|$(result_of 'CudaRegions|CudaModules|CudaTraining|CudaTables')"
  echo "training has the CPU's losses, and the same bits twice|$(words_of_section train)"
  echo "modules, optimizers, checkpoints and resuming work on the device|$(result_of . modules optim)"
  echo "a step of GPT-2 124M in bf16 is at most 310 launches|$(figures_of <(grep -h -m1 '^launches a step' "$logs/figures.step.B4.log" 2>/dev/null || echo 'not run'))"
  echo "two devices work beside each other|$(result_of 'TwoDevices|Modes/TwoModels|ConformanceDevices')"
  echo "out of memory is a typed error, and training goes on|$(result_of 'OutOfMemory|CudaAllocator')"
  echo "the first step with artifacts compiles nothing|$(result_of 'CompileFor')"
  echo "compute-sanitizer finds nothing|$(words_of_section sanitizer)"
}
# Figures of the fake say nothing: "#" stands for each.
figures_of() { # figures_of FILE...
  if [ "$is_fake" = 0 ]; then cat "$@"; else sed -E ':a; s/(^|[^A-Za-z0-9_#.])[0-9]+(\.[0-9]+)?(e-?[0-9]+)?(x?([^A-Za-z0-9_.]|$))/\1#\4/; ta' "$@"; fi
}
# Google Test's words about a failed test: the first lines behind its name; and the launch that lost the device.
words_of() { # words_of NAME TEST
  log_of "$1" | awk -v test="${2%% (*}" '
    $0 == "[ RUN      ] " test { on = 1; n = 0; next }
    on && (/^\[/ || n >= 4) { exit }
    on && NF { print "      " substr($0, 1, 150); ++n }'
  awk -v test="${2%% (*}" '$0 == "[ RUN      ] " test { on = 1 }
    on && match($0, /reported by the wait for [^(;]*/) { print "      " substr($0, RSTART, RLENGTH); exit }' "$logs/$1.launch.log" 2>/dev/null
}
block() { # block TITLE: a table from stdin, if there is one
  local text
  text=$(cat)
  [ -z "$text" ] || printf '\n## %s\n\n```\n%s\n```\n' "$1" "$text"
}
list() { # list TITLE MOST: lines of stdin
  local lines
  mapfile -t lines
  [ ${#lines[@]} -gt 0 ] || return
  printf '\n## %s (%d)\n\n' "$1" ${#lines[@]}
  printf -- '- %s\n' "${lines[@]}" | head -n "$2"
  [ ${#lines[@]} -le "$2" ] || printf -- '- and %d more\n' $((${#lines[@]} - $2))
}
failures() {
  local name test
  while read -r name test; do
    echo "- $name $test"
    words_of "${name%:}" "$test"
  done < <(each_test failed)
  for name in "${all_sections[@]}"; do sed "s/^/- $name: /" "$logs/$name.failed" 2>/dev/null; done
}
write_markdown() {
  local failed each
  printf '# Rondo on %s\n\n' "$device"
  if [ "$is_fake" = 1 ]; then printf '**This ran on the fake driver of tests/fake_cuda, not on a GPU. It holds no figure of a GPU.**\n\n'; fi
  printf '%s, commit %s, %d of %d seconds. A section that is "running" was cut off there, if the call has ended.\n\n' \
    "$(date -u +%Y-%m-%dT%H:%MZ)" "$version" $((SECONDS - started)) "$budget"
  printf '| section | result | seconds | what |\n|---|---|---|---|\n'
  sed 's/|/ | /g; s/^/| /; s/$/ |/' "$work/results"
  list 'Missing' 20 <"$work/missing"
  block Libraries <"$logs/libraries"
  printf '\n## What was claimed without a GPU, and what was seen here\n\n| claim | seen |\n|---|---|\n'
  sed 's/|/ | /; s/^/| /; s/$/ |/' "$work/claims"
  failed=$(head -n 60 "$work/failures")
  [ -z "$failed" ] || printf '\n## Failed (%d)\n\n%s\n' "$(grep -c '^- ' <<<"$failed")" "$failed"
  each_test endless | list 'Did not end: hangs, or slow' 10
  # By suite: names would fill the report.
  sed -nE 's/^(.+: [^.]+)\..*/\1/p' <(each_test unreached) | sort | uniq -c | sed -E 's/^ *([0-9]+) (.*)/\2: \1/' | list 'Tests that were not reached' 10
  sanitizer_words | block compute-sanitizer
  [ ! -f "$logs/steps.section" ] || figures_of <(steps_table) | block 'Steps of GPT-2 124M (dtype, B, attention)'
  figures_of <(cat "$logs"/pytorch.*.log 2>/dev/null | grep -vE '^warning|^left out|^\{' | cut -c1-118) | block 'Beside PyTorch'
  figures_of <(for each in step.B4 step.B16 memory.B4 products.B4 attention.B4 attention.B16 compile.B4; do head -n "$([ "${each%.*}" = step ] && echo 18 || echo 40)" "$logs/figures.$each.log" 2>/dev/null; done | cut -c1-118) |
    block Figures
  figures_of <(ncu_table) | block 'ncu: kernels of a step'
  figures_of <(networks_table) | block Networks
}
string() { # a JSON string
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"} text=${text//$'\n'/\\n} text=${text//$'\t'/\\t}
  printf '"%s"' "${text//[[:cntrl:]]/}"
}
strings() { # of the lines of stdin
  local comma='' line
  while IFS= read -r line; do printf '%s%s' "$comma" "$(string "$line")" && comma=', '; done
}
whole() { # the JSON texts that are whole, of files and lines; none of the fake
  [ "$is_fake" = 1 ] || cat "$@" 2>/dev/null | awk '
    function count(c, line) { return gsub(c, "", line) }
    NF && count("[{]", $0) == count("[}]", $0) && count("[[]", $0) == count("[]]", $0) { text = text (text ? ",\n" : "") $0 }
    END { print text }'
}
write_json() {
  local name status seconds words comma=''
  printf '{"rondo": %s, "device": %s, "fake": %s, "seconds": %d, "budget": %d,\n "libraries": [%s],\n "sections": [' "$(string "$version")" \
    "$(string "$device")" "$([ "$is_fake" = 1 ] && echo true || echo false)" $((SECONDS - started)) "$budget" "$(strings <"$logs/libraries")"
  while IFS='|' read -r name status seconds words; do
    printf '%s\n  {"name": "%s", "result": "%s", "seconds": %d, "what": %s}' "$comma" "$name" "$status" "$seconds" "$(string "$words")"
    comma=,
  done <"$work/results"
  printf '],\n "missing": [%s],\n "claims": [%s],\n "failed": [%s],\n "endless": [%s],\n "not_reached": [%s],\n' "$(strings <"$work/missing")" "$(strings <"$work/claims")" \
    "$(sed -n 's/^- //p' "$work/failures" | strings)" "$(each_test endless | strings)" "$(each_test unreached | strings)"
  printf ' "steps": [%s],\n "figures": [%s],\n "pytorch": [%s]}\n' "$(whole <(grep -hs '^{.*}$' "$logs"/steps.*.log))" \
    "$(whole "$logs"/figures.*.json)" "$(whole <(for each in "$logs"/pytorch.*.json; do tr -d '\n' <"$each"; echo; done 2>/dev/null))"
}

# ---- Start-up, before the clock runs

# The device in words, or why there is none; and "NAME VERSION, FILE" of each library.
find_device() {
  : >"$logs/device.log"
  limited 120 "$logs/device.log" "$bin/test_gpu" --gtest_filter=Device.IsHere
  device=$(grep -m1 -E '^(device: |no CUDA device: )' "$logs/device.log")
  sed -nE 's/^library: //p' "$logs/device.log" >"$logs/libraries"
  # NVRTC and cuBLASLt of a later CUDA than the driver's do not work with it.
  too_new=$(awk '$1 == "driver" { driver = int($2) } ($1 == "NVRTC" && int($2) > driver) || ($1 == "cuBLASLt" && int($2 / 10000) > driver) {
    print $1 " is of a later CUDA than the driver: expect failures, and name older ones in RONDO_CUDA_PATH" }' "$logs/libraries" | paste -sd';')
}
# PyTorch's wheels bring libraries that fit each other: they are searched in any case, behind the folders that the user names.
is_fake=$([ -z "$fake" ] && echo 0 || echo 1) device='a device that is not known yet' too_new=''
: >"$logs/libraries"
version=$(cat "$here/VERSION" 2>/dev/null || git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)
total=0
for section in "${chosen[@]}"; do total=$((total + ${seconds_of[$section]})) && rm -f "$logs/$section".{section,tests,failed}; done
section='' budget=${budget:-$total} started=$SECONDS
write_report
named=${RONDO_CUDA_PATH:-}
wheels=$(command -v python3 >/dev/null && timeout 20 python3 -c '
import os, sys
try:
    import nvidia
    print(":".join(os.path.dirname(path) for path in nvidia.__path__))
except ImportError:
    print(sys.prefix)' 2>/dev/null)
search() { # search FOLDERS
  export RONDO_CUDA_PATH=$1
  [ -n "$1" ] || unset RONDO_CUDA_PATH
  find_device
}
both=$named${named:+${wheels:+:}}$wheels
search "$both"
if [ -n "$too_new" ] && [ "$both" != "$named" ]; then # the system may have older ones
  search "$named"
  if [ -n "$too_new" ] || grep -qE '^(NVRTC|cuBLASLt): missing' "$logs/libraries"; then search "$both"; fi
fi
case $device in
  'device: '*) device=${device#device: } ;;
  'no CUDA device: '*) echo "$device"; exit 3 ;;
  *) echo "no CUDA device: test_gpu says: $(tail -n1 "$logs/device.log")"; exit 3 ;;
esac
case $device in 'fake GPU'*) is_fake=1 ;; *) is_fake=0 ;; esac
# Libraries of hundreds of megabytes: a cold disk takes its time here, not from the first section.
sed -nE 's/.*, (\/.*)/\1/p' "$logs/libraries" | while read -r file; do timeout 60 cat "$file" >/dev/null 2>&1; done

torch='' # its version, or why there is none; asked once, and the clock stands still: to import it takes seconds
torch_is_here() {
  local since=$SECONDS
  if [ -z "$torch" ]; then
    if ! command -v python3 >/dev/null; then torch='no python3'
    else torch=$(timeout -k 5 90 python3 -c '
try: import torch
except ImportError: print("python3 has no torch")
else: print(torch.__version__ if torch.cuda.is_available() else "torch sees no GPU")' 2>&1 </dev/null | tail -n1); fi
    torch=${torch:-python3 did not answer}
    started=$((started + SECONDS - since)) end=$((end + SECONDS - since))
  fi
  case $torch in [0-9]*) return 0 ;; *) return 1 ;; esac
}
# What the fake needs beside its seed and memory: it answers misuse, as a driver does.
answering=() stray=()
gpt2=(--n_layer=12 --n_head=12 --n_embd=768 --block_size=1024 --vocab_size=50257) step_count=(--warmup=5 --steps=20) pair_count=(--rounds=5 --steps=10)
if [ "$is_fake" = 1 ]; then
  base=${RONDO_FAKE_CUDA:-0}
  [[ $base = *:*:* ]] || base=${base%%:*}:2:2048
  answering=(RONDO_FAKE_CUDA="$base:answers") stray=(RONDO_FAKE_CUDA="$base:answers:faulty=stray")
  gpt2=(--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --vocab_size=65) step_count=(--warmup=1 --steps=1) pair_count=(--rounds=2 --steps=1)
fi

# ---- Run
started=$SECONDS until_here=0 all_passed=1
for section in "${chosen[@]}"; do
  status='' note='' begin=$SECONDS
  until_here=$((until_here + ${seconds_of[$section]}))
  end=$((started + budget * until_here / total))
  echo "$section: at most $(left) s"
  keep_result running
  write_report
  if [ "$(left)" -lt 2 ]; then say 'no time was left' && status=incomplete; else "section_$section"; fi
  keep_result "${status:-failed}"
  write_report
  sed -nE "s/^($section)\|([^|]*)\|[0-9]+\|/\1: \2: /p" "$work/results"
  case ${status:-failed} in failed | incomplete) all_passed=0 ;; esac
done
section=''
write_report
echo "$out/report.md"
[ $all_passed = 1 ]
