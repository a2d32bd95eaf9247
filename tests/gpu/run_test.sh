#!/usr/bin/env bash
# tests/gpu/run.sh without a GPU: on the fake, found as a machine's own driver is; without any driver; and with programs
# that hang, crash, lose the device and run out of memory. Stand-ins on PATH are the machine's tools.
#   run_test.sh BIN FAKE_CUDA_FOLDER
set -euo pipefail
bin=$1 fake=$2
run=$(cd "$(dirname "$0")" && pwd)/run.sh
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
fail() { echo "$1"; cat "$folder"/log "$folder"/*/report.md 2>/dev/null; exit 1; }
has() { grep -qF -- "$2" "$1" || fail "no \"$2\" in ${1##*/}"; }
hasnt() { ! grep -qE -- "$2" "$1" || fail "\"$2\" is in ${1##*/}"; }
# runs EXPECTED-EXIT-CODE ARGUMENTS...: the script's words are in $folder/log.
runs() {
  local expected=$1 status=0
  shift
  "$run" "$@" >"$folder/log" 2>&1 || status=$?
  [ $status = "$expected" ] || fail "run.sh $*: exit code $status, not $expected"
}
# A folder's three files are whole, and say which sections there are.
is_whole() { # is_whole FOLDER
  local section
  [ "$(ls -A "$1" | grep -v '^\.' | paste -sd' ')" = 'logs.tar.gz report.json report.md' ] || fail "$1 has other files: $(ls -A "$1")"
  json "$1/report.json"
  tar -tzf "$1/logs.tar.gz" >"$folder/files" || fail 'a damaged archive'
  for section in machine conformance steps figures pytorch suite sanitizer ncu train networks; do
    grep -qE "^\\| $section \\| (passed|failed|skipped|incomplete|running|cut off|not yet|not run: run.sh [123]) \\|" "$1/report.md" || fail "no $section"
  done
  [ "$(wc -l <"$1/report.md")" -le 250 ] || fail 'a report of more than 250 lines'
}
real_python=$(command -v python3 || true)
json() { [ -z "$real_python" ] || "$real_python" -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" || fail "${1##*/} is no JSON"; }
unset RONDO_CUDA_PATH RONDO_FAKE_CUDA RONDO_TEST_CUDA CUDA_VISIBLE_DEVICES

# ---- The machine's tools
mkdir "$folder/tools"
cat >"$folder/tools/nvidia-smi" <<'STUB'
#!/usr/bin/env bash
case "$*" in
  -L) printf 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: 1,0)\n' ;;
  *--query-gpu*) echo 'NVIDIA H100 80GB HBM3, 580.65.06, 81559 MiB, 1980 MHz, 2619 MHz, 700.00 W' ;;
esac
STUB
# As NVIDIA's compute-sanitizer answers: racecheck sees something, and says it in its words.
cat >"$folder/tools/compute-sanitizer" <<'STUB'
#!/usr/bin/env bash
[ "$1 $3 $4" = '--tool --error-exitcode 99' ] && [ -x "$5" ] && [[ "$7" = --gtest_filter=* ]] && [ "$RONDO_CUDA_CACHE" = 0 ] ||
  { echo "wrong arguments: $*"; exit 1; }
printf '========= COMPUTE-SANITIZER\n[       OK ] CudaCopies.ThereAndBack (3 ms)\n'
case $2 in
  racecheck)
    printf '========= Error: Race reported between Write access at rondo_sort_rows+0x110 in sort.cu:12\n'
    printf '=========     and Read access at rondo_sort_rows+0x1f0 in sort.cu:14 [64 hazards]\n=========\n'
    printf '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n'
    exit 99 ;;
  synccheck) exit 0 ;;
esac
echo '========= ERROR SUMMARY: 0 errors'
STUB
# A python3 whose torch sees a GPU; PyTorch's contender answers as gpt_step.py does.
cat >"$folder/tools/python3" <<STUB
#!/usr/bin/env bash
case \$1 in
  -c) case \$2 in *torch*) echo 2.9.0 ;; *) exec $real_python "\$@" ;; esac ;;
  *gpt_step.py)
    if [ -e $folder/no-compiler ] && [[ "\$*" = *--compile=whole* ]]; then echo 'Failed to find C compiler' >&2; exit 1; fi
    while read -r n; do
      echo '{"peer": "pytorch", "mode": "none", "step_ms_median": 50.0, "step_ms_all": [50.0], "tokens_per_s": 81920.0, "compile_ms": 0.0, "peak_rss_mib": 1.0, "loss": 4.0, "host_ms": 1.0, "peak_device_mib": 1.0}'
    done ;;
  *sdpa.py) echo 'attention bf16  PyTorch  forward    0.100 ms   with backward    0.400 ms' ;;
  *) exec $real_python "\$@" ;;
esac
STUB
# As ncu writes CSV.
cat >"$folder/tools/ncu" <<'STUB'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do case $1 in --log-file) log=$2 && shift 2 ;; */bench_gpt) [[ "$*" = *--steps=1* ]] && break || exit 1 ;; *) shift ;; esac; done
cat >"$log" <<'CSV'
==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","rondo_head_rows","GPU Speed Of Light Throughput","Duration","us","1,250.50"
"0","7","rondo_head_rows","GPU Speed Of Light Throughput","Memory Throughput","%","41.25"
"0","7","rondo_head_rows","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","77.50"
"1","7","void gemm<1, 2>(float*)","GPU Speed Of Light Throughput","Duration","us","90.00"
"1","7","void gemm<1, 2>(float*)","GPU Speed Of Light Throughput","Memory Throughput","%","50.00"
"1","7","void gemm<1, 2>(float*)","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","60.00"
CSV
STUB
chmod +x "$folder"/tools/*

# PyTorch's part is Python that parses.
if [ -n "$real_python" ]; then
  for peer in gpt_step paired_gpt sdpa cnn_study; do
    "$real_python" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$(dirname "$run")/../bench/peers/$peer.py" || fail "$peer.py"
  done
fi

# ---- Without a driver, with one that is too old: one line, and its own exit code.
RONDO_CUDA=off runs 3 --bin "$bin" --out "$folder/off"
[ "$(cat "$folder/log")" = 'no CUDA device: RONDO_CUDA=off' ] || fail 'without CUDA'
has "$folder/off/report.md" '| steps | not yet |'
RONDO_FAKE_CUDA_FOLDER=$fake RONDO_FAKE_CUDA=1:1:64:driver=11080 runs 3 --bin "$bin" --out "$folder/old" --fake 1
[ "$(cat "$folder/log")" = 'no CUDA device: the driver is too old: it supports CUDA 11.8, and Rondo needs 12.0' ] || fail 'an old driver'
runs 2 --bin "$bin" conformance nothing
has "$folder/log" 'no section nothing'
# A bundle on a system that is too old for its programs.
mkdir -p "$folder/older/bin" && cp "$run" "$folder/older/" && echo 99.0 >"$folder/older/NEEDS_GLIBC"
run=$folder/older/run.sh runs 2
has "$folder/log" 'the programs need glibc 99.0 or later, and this machine has'

# ---- On the fake: every section that can run does, and the report says what it ran on. From another folder, on one of a MIG
# device's GPUs; the tools find something. Call by call, into one report.
cd "$folder"
export RONDO_FAKE_CUDA_FOLDER=$fake PATH=$folder/tools:$PATH
CUDA_VISIBLE_DEVICES=1,0 runs 0 --bin "$bin" --out calls --fake 1 --budget 900
report=$folder/calls/report.md
is_whole "$folder/calls"
has "$report" 'It holds no figure of a GPU'
for section in machine conformance steps figures; do has "$report" "| $section | passed |"; done
for section in suite sanitizer ncu; do has "$report" "| $section | not run: run.sh 2 |" && has "$report" "- $section: not run: run.sh 2"; done
for section in train networks; do has "$report" "| $section | not run: run.sh 3 |"; done
for library in driver NVRTC cuBLASLt cuDNN NCCL; do grep -qE "^$library [0-9.]+, $(realpath "$fake")/libcuda.so.1" "$report" || fail "$library is not named"; done
has "$report" 'MIG 1g.10gb'
has "$report" 'CUDA_VISIBLE_DEVICES=1,0'
has "$report" 'bf16.B4.own    # ms a step, # tokens/s, host # ms, # MiB, attention by cuDNN # times'
hasnt "$report" 'steps: '
has "$report" 'rondo_adamw'
has "$report" 'PyTorch' # its own section needs python3
hasnt "$report" '[0-9] (tokens/s|ms a step|GB/s|Tflop/s|ms )'
hasnt "$folder/calls/report.json" 'tokens_per_s|gb_per_s|tflops'
has "$folder/calls/report.json" '"fake": true'
has "$folder/calls/report.json" '"sanitizer: not run: run.sh 2"'
if [ -n "$real_python" ]; then
  has "$report" '| pytorch | passed |'
  has "$report" 'speed of rondo regions over pytorch whole'
fi
# What says most comes first.
[ "$(sed -nE 's/^\| ([a-z]+) \| (passed|failed|incomplete|skipped|not run.*) \|.*/\1/p' "$report" | paste -sd,)" = \
  machine,conformance,steps,figures,pytorch,suite,sanitizer,ncu,train,networks ] || fail 'the order of sections'
# The figures are those of a step: products have its lines (the logits' are padded from 65 to 128), cuDNN's attention ran.
mkdir unpacked && tar -xzf calls/logs.tar.gz -C unpacked
has unpacked/logs/figures.products.B4.log 'product 32x65, K 32, lines of 32, 32 and 128'
has unpacked/logs/figures.products.B4.log 'product 65x32, K 32, lines of 128, 32 and 32 in f32'
grep -qE '"cudnn_runs":[1-9][0-9]*,"runs_without_plan":0' unpacked/logs/steps.bf16.B4.cudnn.log || fail "cuDNN's attention"
grep -qE '"cudnn_runs":0,' unpacked/logs/steps.bf16.B4.own.log || fail 'our attention'

runs 1 2 --bin "$bin" --out calls --fake 1 --budget 600
is_whole "$folder/calls"
for section in machine conformance steps figures suite ncu; do has "$report" "| $section | passed |"; done
has "$report" 'bf16.B4.own    # ms a step' # call 1's is still there
has "$report" '| sanitizer | failed |'
has "$report" 'memcheck: ERROR SUMMARY: 0 errors, 1 tests passed'
has "$report" 'racecheck: RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'
has "$report" 'Race reported between Write access at rondo_sort_rows+0x110'
has "$report" 'and Read access at rondo_sort_rows+0x1f0'
has "$report" 'synccheck: no summary'
has "$report" '- sanitizer: racecheck: exit code 99'
has "$report" '# us    # x  SM  #%  memory  #%  rondo_head_rows'

runs 0 3 --bin "$bin" --out calls --fake 1 --budget 600
has "$report" '| train | passed |'
has "$report" 'a second run: the same losses'
has "$report" ' of f64 over '
has "$report" '| networks | passed |'
has "$report" 'regseg rondo regions: # ms a step'
has "$report" '| suite | passed |'

# ---- torch.compile finds no compiler: PyTorch's eager mode is measured.
if [ -n "$real_python" ]; then
  touch "$folder/no-compiler"
  runs 0 --bin "$bin" --out "$folder/eager" --fake 1 pytorch --budget 300
  has "$folder/eager/report.md" 'bf16.B4: left out: pytorch whole '
  has "$folder/eager/report.md" 'over pytorch eager'
  rm "$folder/no-compiler"
fi

# ---- NVRTC and the others of CUDA 12, in the wheels of a Python, beside a driver of CUDA 12: found although nothing is missing
# from the system. Those that the user names come first. Wheels of a later CUDA than the driver's are left aside.
mkdir -p "$folder/driver" "$folder/site/nvidia/cu12/lib" "$folder/own"
ln -s "$fake/libcuda.so.1" "$folder/driver/"
for library in libnvrtc.so.12 libcublasLt.so.12 libcudnn.so.9 libnccl.so.2; do cp "$fake/libcuda.so.1" "$folder/site/nvidia/cu12/lib/$library"; done
cp "$fake/libcuda.so.1" "$folder/own/libcudnn.so.9"
if [ -n "$real_python" ]; then
  for system in "$folder/driver" "$fake"; do
    RONDO_CUDA_PATH=$folder/own PYTHONPATH=$folder/site RONDO_FAKE_CUDA=1:1:256:driver=13000 RONDO_FAKE_CUDA_FOLDER=$system \
      runs 0 --bin "$bin" --out "$folder/wheels" --fake 1 machine
    for library in NVRTC:libnvrtc.so.12 cuBLASLt:libcublasLt.so.12 NCCL:libnccl.so.2; do
      grep -qE "^${library%:*} [0-9.]+, $folder/site/nvidia/cu12/lib/${library#*:}" "$folder/wheels/report.md" || fail "$library"
    done
    grep -qE "^cuDNN [0-9.]+, $folder/own/libcudnn.so.9" "$folder/wheels/report.md" || fail "cuDNN of the user's folder"
  done
fi

# ---- A device that is lost: the test and the launch are named, the next tests run in a new process. Memory that is short.
RONDO_FAKE_CUDA=1:1:2048:faulty=rondo_keys runs 1 --bin "$bin" --out "$folder/lost" --fake 1 suite --budget 300
report=$folder/lost/report.md
has "$report" ' skipped, 1 failed'
has "$report" '- first: CudaKernels.SortsLongLines'
has "$report" 'cuda:0 is lost: CUDA_ERROR_ILLEGAL_ADDRESS'
has "$report" 'reported by the wait for rondo_keys'

# ---- Tests that fail, crash and hang are named, and hide no other. Steps that find too little memory take a smaller batch.
mkdir "$folder/bin"
cat >"$folder/bin/test_gpu" <<'STUB'
#!/usr/bin/env bash
if [[ "$*" = *Device.IsHere* ]]; then printf 'device: a stub, sm_90, 8000 MiB\nlibrary: driver 12.8, /nowhere/libcuda.so.1\nlibrary: cuDNN: missing: not found\n'; exit; fi
all='Passes Fails Crashes Hangs IsAfterIt IsLast'
if [[ "$*" = *list_tests* ]]; then printf 'Conformance.\n'; printf '  %s\n' $all; exit; fi
for argument; do case $argument in --gtest_flagfile=*) filter=:$(sed 's/.*filter=//' "${argument#*=}"): ;; esac; done
ran=0
for test in $all; do
  test=Conformance.$test
  if [[ "$filter" != *":$test:"* ]]; then continue; fi
  echo "[ RUN      ] $test"
  case $test in
    *Fails) printf 'file.cc:7: Failure\nwhat "went" wrong: a\\b\n[  FAILED  ] %s (0 ms)\n' $test ;;
    *Crashes) kill -SEGV $$ ;;
    *Hangs) sleep 1000 ;;
    *) echo "[       OK ] $test (0 ms)" ;;
  esac
  ran=1
done
echo "[==========] $ran tests ran. (0 ms total)"
exit 1
STUB
cat >"$folder/bin/bench_gpt" <<'STUB'
#!/usr/bin/env bash
sleep "${RONDO_TEST_SLEEP:-0}"
if [[ "$*" = *--batch_size=4* ]]; then echo 'bench_gpt: out of memory on cuda:0 (a stub)'; exit 1; fi
if [ "$RONDO_CUDA_ATTENTION" = cudnn ]; then echo 'bench_gpt: libcudnn.so.9 is not found'; exit 1; fi
echo '{"peer":"rondo","mode":"regions","step_ms_median":12.5,"step_ms_all":[12.5],"tokens_per_s":1000.0,"loss":4,"peak_rss_mib":1.0,"device":"cuda:0","host_ms":0.5,"peak_device_mib":100.0,"cudnn_runs":0,"runs_without_plan":0}'
STUB
# It hangs, and cannot be asked to end.
printf '#!/usr/bin/env bash\ntrap "" TERM\nwhile [[ "$*" = *step* ]]; do sleep 1; done\n' >"$folder/bin/bench_device"
chmod +x "$folder"/bin/*
printf '#!/usr/bin/env bash\necho python3 has no torch\n' >"$folder/tools/python3" && chmod +x "$folder/tools/python3"
RONDO_GPU_TEST_LIMIT=3 runs 1 --bin "$folder/bin" --out "$folder/stub" conformance suite steps figures pytorch --budget 120
report=$folder/stub/report.md
is_whole "$folder/stub"
has "$report" 'conformance: 3 passed, 0 skipped, 2 failed, 1 did not end'
for test in Fails Crashes Hangs; do has "$report" "- conformance: Conformance.$test"; done
has "$report" 'what "went" wrong'
has "$report" '| suite | skipped |'
has "$report" '(exit code 139)'
has "$report" '## Did not end'
has "$report" '| figures | incomplete |'
has "$report" 'step.B4: out of time'
has "$report" '- figures: products.B4'
has "$report" 'bf16.B4.own: out of memory with B 4'
has "$report" 'bf16.B4.own    12.5 ms a step, 1000.0 tokens/s, host 0.5 ms, 100.0 MiB'
has "$report" 'bf16.B16.cudnn: bench_gpt: libcudnn.so.9 is not found'
has "$report" 'bf16.B16.cudnn missing'
has "$report" '- steps: bf16.B16.cudnn'
grep -qE '^\| pytorch \| skipped \| [0-9]+ \| not run: python3 has no torch \|' "$report" || fail 'PyTorch is not called missing'
has "$report" 'cuDNN: missing: not found'

# ---- Killed at any moment: three whole files, with what was measured until then, and the rest named as missing. A later call
# keeps it, and runs what it is asked for.
sed -i "s/^all=.*/all='A B C D'/; s/^  ran=1/  sleep 0.4; ran=1/; s/^exit 1/exit 0/" "$folder/bin/test_gpu"
sed -i '/batch_size=4/d; /RONDO_CUDA_ATTENTION/d' "$folder/bin/bench_gpt"
printf '#!/usr/bin/env bash\nsleep 0.4\nfor a; do case $a in --json=*) echo {} >"${a#*=}" ;; esac; done\necho figures\n' >"$folder/bin/bench_device"
started_at=$(date +%s%N)
RONDO_TEST_SLEEP=0.4 RONDO_GPU_REFRESH=1 runs 0 --bin "$folder/bin" --out "$folder/killed" machine conformance steps figures --budget 200
milliseconds=$((($(date +%s%N) - started_at) / 1000000))
has "$folder/killed/report.md" '| figures | passed |'
for ((i = 1; i <= ${RONDO_GPU_KILLS:-3}; ++i)); do
  rm -rf "$folder/killed"
  at=$((RANDOM % milliseconds))
  RONDO_TEST_SLEEP=0.4 RONDO_GPU_REFRESH=1 setsid "$run" --bin "$folder/bin" --out "$folder/killed" machine conformance steps figures --budget 200 >"$folder/log" 2>&1 &
  script=$!
  sleep "$((at / 1000)).$(printf %03d $((at % 1000)))"
  kill -9 -- -$script 2>/dev/null || kill -9 $script 2>/dev/null || true
  wait $script 2>/dev/null || true
  if [ ! -e "$folder/killed/report.md" ]; then # before the first second is over
    [ $at -lt 1500 ] || fail "no report after $at ms"
    echo "killed at $at of $milliseconds ms: nothing yet"
    continue
  fi
  is_whole "$folder/killed"
  said=$(sed -nE 's/^([a-z]+): (passed): .*/\1/p' "$folder/log")
  # What has ended is there (the last one's report may have been under way).
  for section in $(head -n -1 <<<"$said"); do has "$folder/killed/report.md" "| $section | passed |"; done
  missing=$(sed -n '/^## Missing/,/^## /s/^- //p' "$folder/killed/report.md")
  for section in conformance steps figures; do
    grep -q "^| $section | passed |" "$folder/killed/report.md" || grep -q "^$section: " <<<"$missing" || fail "$section is not missing: $missing"
  done
  rows=$(grep -c '^[a-z0-9]*\.B[0-9.a-z]* *12.5 ms a step' "$folder/killed/report.md" || true)
  echo "killed at $at of $milliseconds ms: $(paste -sd' ' <<<"$said"), $rows steps; missing: $(paste -sd, <<<"$missing")"
done
mkdir -p "$folder/unfinished"
RONDO_TEST_SLEEP=5 RONDO_GPU_REFRESH=1 setsid "$run" --bin "$folder/bin" --out "$folder/killed" machine steps --budget 200 >"$folder/log" 2>&1 &
script=$!
for ((i = 0; i < 300; ++i)); do grep -qF '| steps | running |' "$folder/killed/report.md" 2>/dev/null && break; sleep 0.1; done
kill -9 -- -$script && wait $script 2>/dev/null || true
runs 0 --bin "$folder/bin" --out "$folder/killed" conformance
has "$folder/killed/report.md" '| machine | passed |'
has "$folder/killed/report.md" '| steps | cut off |'
has "$folder/killed/report.md" '| conformance | passed |'
has "$folder/killed/report.md" '- steps: cut off'

# ---- Asked to end, it ends what it has started. Its clock began when the device was found.
sed -i 's/^if \[\[ "$\*" = \*Device/sleep 12\n&/' "$folder/bin/test_gpu"
RONDO_TEST_SLEEP=31 "$run" --bin "$folder/bin" --out "$folder/ended" machine steps --budget 200 >"$folder/log" 2>&1 &
script=$!
for ((i = 0; i < 300; ++i)); do grep -qF '| steps | running |' "$folder/ended/report.md" 2>/dev/null && break; sleep 0.1; done
kill -TERM $script && wait $script && fail 'it was ended, and says that all passed'
has "$folder/ended/report.md" '| machine | passed |'
! pgrep -f 'sleep 31' >/dev/null || fail 'a program goes on'
seconds=$(sed -nE 's/.*, ([0-9]+) of 200 seconds.*/\1/p' "$folder/ended/report.md")
[ "$seconds" -lt 12 ] || fail "a clock that runs during the search for the device: $seconds"
sed -i '/^sleep 12$/d' "$folder/bin/test_gpu"

# ---- A bundle unpacks where xz is absent: README.md's command.
if [ -n "$real_python" ]; then
  mkdir -p "$folder/there/bin" "$folder/rondo-gpu/bin"
  printf '#!/bin/sh\necho runs\n' >"$folder/rondo-gpu/run.sh" && chmod 755 "$folder/rondo-gpu/run.sh"
  (cd "$folder" && "$real_python" -c 'import tarfile; tarfile.open("there/rondo-gpu.tar.xz", "w:xz").add("rondo-gpu")')
  for tool in tar gzip; do ln -s "$(command -v $tool)" "$folder/there/bin/"; done
  ln -s "$("$real_python" -c 'import sys; print(sys.executable)')" "$folder/there/bin/python3" # not a script that finds it
  command=$(sed -nE 's/^    (tar xf .*[^ ])   # there.*/\1/p' "$(dirname "$run")/README.md")
  [ -n "$command" ] || fail 'README.md does not say how a bundle is unpacked'
  (cd "$folder/there" && PATH=$folder/there/bin && eval "$command") >"$folder/log" 2>&1 || fail "$command"
  [ "$("$folder/there/rondo-gpu/run.sh")" = runs ] || fail 'the bundle was not unpacked'
fi

# ---- Tests that the time does not reach are counted by suite.
sed -i 's/^all=.*/all="A B Hangs C D"/' "$folder/bin/test_gpu"
runs 1 --bin "$folder/bin" --out "$folder/late" conformance --budget 6
has "$folder/late/report.md" 'conformance: 2 passed, 0 skipped, 0 failed, 3 not reached'
has "$folder/late/report.md" '- conformance: Conformance: 3'
echo passed
