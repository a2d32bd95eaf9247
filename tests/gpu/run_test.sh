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
chmod +x "$folder"/tools/*

# PyTorch's part is Python that parses.
if [ -n "$real_python" ]; then
  for peer in gpt_step paired_gpt sdpa; do
    "$real_python" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$(dirname "$run")/../bench/peers/$peer.py" || fail "$peer.py"
  done
fi

# ---- Without a driver, with one that is too old: one line, and its own exit code.
RONDO_CUDA=off runs 3 --bin "$bin" --out "$folder/off"
[ "$(cat "$folder/log")" = 'no CUDA device: RONDO_CUDA=off' ] || fail 'without CUDA'
RONDO_FAKE_CUDA_FOLDER=$fake RONDO_FAKE_CUDA=1:1:64:driver=11080 runs 3 --bin "$bin" --out "$folder/old" --fake 1
[ "$(cat "$folder/log")" = 'no CUDA device: the driver is too old: it supports CUDA 11.8, and Rondo needs 12.0' ] || fail 'an old driver'
runs 2 --bin "$bin" --only conformance,nothing
has "$folder/log" 'no section nothing'
# A bundle on a system that is too old for its programs.
mkdir -p "$folder/older/bin" && cp "$run" "$folder/older/" && echo 99.0 >"$folder/older/NEEDS_GLIBC"
run=$folder/older/run.sh runs 2
has "$folder/log" 'the programs need glibc 99.0 or later, and this machine has'

# ---- On the fake: every section that can run does, and the report says what it ran on. From another folder, on one of a MIG
# device's GPUs; the tools find something.
cd "$folder"
export RONDO_FAKE_CUDA_FOLDER=$fake PATH=$folder/tools:$PATH
CUDA_VISIBLE_DEVICES=1,0 runs 1 --bin "$bin" --out short --fake 1 --short --budget 200
report=$folder/short/report.md
has "$report" 'It holds no figure of a GPU'
for section in machine conformance suite; do has "$report" "| $section | passed |"; done
if [ -x "$bin/train_gpt" ]; then
  has "$report" '| train | passed |'
  has "$report" 'a second run: the same losses'
  has "$report" ' of f64 over '
fi
if [ -x "$bin/bench_device" ]; then has "$report" '| figures | passed |' && has "$report" '## Figures' && has "$report" 'rondo_adam'; fi
if [ -x "$bin/bench_cnn" ]; then has "$report" '| networks | passed |' && has "$report" 'regseg rondo regions: # ms a step'; fi
has "$report" 'MIG 1g.10gb'
has "$report" 'CUDA_VISIBLE_DEVICES=1,0'
has "$report" '| sanitizer | failed |'
has "$report" 'memcheck: ERROR SUMMARY: 0 errors, 1 tests passed; racecheck: RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'
has "$report" 'Race reported between Write access at rondo_sort_rows+0x110'
has "$report" 'and Read access at rondo_sort_rows+0x1f0'
has "$report" 'synccheck: no summary'
has "$report" '- racecheck: exit code 99'
if [ -n "$real_python" ] && [ -x "$bin/bench_gpt" ]; then
  has "$report" '| steps | passed |'
  has "$report" 'speed of rondo'
  has "$report" 'pytorch whole'
fi
# What says most comes first.
[ "$(sed -nE 's/^\| ([a-z]+) \| (passed|failed|incomplete|skipped) .*/\1/p' "$report" | paste -sd,)" = \
  machine,conformance,steps,figures,train,networks,suite,sanitizer ] || fail 'the order of sections'
hasnt "$report" '[0-9] (tokens/s|ms a step|GB/s|ms )'
hasnt "$folder/short/report.json" 'tokens_per_s|gb_per_s'
has "$folder/short/report.json" '"fake": true'
[ "$(wc -l <"$report")" -le 200 ] || fail 'a report of more than 200 lines'
json "$folder/short/report.json"

# ---- torch.compile finds no compiler: PyTorch's eager mode is measured.
if [ -n "$real_python" ] && [ -x "$bin/bench_gpt" ]; then
  touch "$folder/no-compiler"
  runs 0 --bin "$bin" --out "$folder/eager" --fake 1 --short --budget 100 --only steps
  has "$folder/eager/report.md" 'bf16: left out: pytorch whole '
  has "$folder/eager/report.md" 'over pytorch eager'
  rm "$folder/no-compiler"
fi

# ---- NVRTC and cuBLASLt of CUDA 12, in the wheels of a Python; a driver of CUDA 12.
mkdir -p "$folder/driver" "$folder/site/nvidia/cuda_nvrtc/lib" "$folder/site/nvidia/cublas/lib"
ln -s "$fake/libcuda.so.1" "$folder/driver/"
ln -s "$fake/libcuda.so.1" "$folder/site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
ln -s "$fake/libcuda.so.1" "$folder/site/nvidia/cublas/lib/libcublasLt.so.12"
if [ -n "$real_python" ]; then
  PYTHONPATH=$folder/site RONDO_FAKE_CUDA=1:1:256:driver=12080 RONDO_FAKE_CUDA_FOLDER=$folder/driver \
    runs 0 --bin "$bin" --out "$folder/wheels" --fake 1 --only machine,figures --short --budget 60
  has "$folder/wheels/report.md" 'driver 12.8, NVRTC 13.999, cuBLASLt'
  has "$folder/wheels/report.md" "RONDO_CUDA_PATH=$folder/site"
fi

# ---- A device that is lost: the test and the launch are named, the next tests run in a new process. Memory that is short.
rm "$folder/tools/compute-sanitizer"
RONDO_FAKE_CUDA=1:1:2048:faulty=rondo_keys runs 1 --bin "$bin" --out "$folder/lost" --fake 1 --short --only suite --budget 60
report=$folder/lost/report.md
has "$report" ' skipped, 1 failed |'
has "$report" '- first: CudaKernels.SortsLongLines'
has "$report" 'cuda:0 is lost: CUDA_ERROR_ILLEGAL_ADDRESS'
has "$report" 'reported by the wait for rondo_keys'

# ---- Tests that fail, crash and hang are named, and hide no other. Steps that find too little memory take a smaller batch.
# A second run in the same folder leaves nothing of the first in its report.
mkdir "$folder/bin"
cat >"$folder/bin/test_gpu" <<'STUB'
#!/usr/bin/env bash
if [[ "$*" = *Device.IsHere* ]]; then echo "device: a stub, sm_90, 8000 MiB"; exit; fi
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
if [[ "$*" = *--batch_size=4* ]]; then echo 'bench_gpt: out of memory on cuda:0 (a stub)'; exit 1; fi
echo '{"peer":"rondo","mode":"none","step_ms_median":12.5,"step_ms_all":[12.5],"tokens_per_s":1000.0,"loss":4,"peak_rss_mib":1.0,"device":"cuda:0","host_ms":0.5,"peak_device_mib":100.0}'
STUB
# It hangs, and cannot be asked to end.
printf '#!/usr/bin/env bash\ntrap "" TERM\nwhile true; do sleep 1; done\n' >"$folder/bin/bench_device"
chmod +x "$folder"/bin/*
rm "$folder/tools/python3"
printf '#!/usr/bin/env bash\necho python3 has no torch\n' >"$folder/tools/python3" && chmod +x "$folder/tools/python3"
mkdir -p "$folder/stub/logs" && echo '- conformance: Old.Test' >"$folder/stub/logs/conformance.0.log"
RONDO_GPU_TEST_LIMIT=3 runs 1 --bin "$folder/bin" --out "$folder/stub" --only figures,conformance,suite,steps --budget 40
report=$folder/stub/report.md
has "$report" 'conformance: 3 passed, 0 skipped, 2 failed, 1 did not end'
for test in Fails Crashes Hangs; do has "$report" "- conformance: Conformance.$test"; done
has "$report" 'what "went" wrong'
has "$report" '| suite | skipped |'
has "$report" '(exit code 139)'
has "$report" '## Did not end'
has "$report" '| figures | incomplete |'
has "$report" 'step: out of time'
has "$report" 'bf16: out of memory with B 4'
has "$report" 'bf16 rondo none: 12.5 ms a step, 1000.0 tokens/s, host 0.5 ms, 100.0 MiB'
has "$report" 'B 2, T 1024'
hasnt "$report" 'Old.Test'
[ "$(wc -l <"$report")" -le 200 ] || fail 'a report of more than 200 lines'
json "$folder/stub/report.json"

# ---- The report is there while the script runs, and stays when something ends it. Its clock began before it looked for the device.
sed -i 's/^if \[\[ "$\*" = \*Device/sleep 2\n&/' "$folder/bin/test_gpu"
RONDO_GPU_TEST_LIMIT=60 "$run" --bin "$folder/bin" --out "$folder/ended" --only machine,conformance --budget 90 >"$folder/log" 2>&1 &
script=$!
for ((i = 0; i < 300; ++i)); do
  grep -qF '| machine | passed |' "$folder/ended/report.md" 2>/dev/null && break
  sleep 0.1
done
has "$folder/ended/report.md" '| machine | passed |'
has "$folder/ended/report.md" '| conformance | not yet |'
json "$folder/ended/report.json"
kill -TERM $script && wait $script && fail 'it was ended, and says that all passed'
has "$folder/ended/report.md" '| machine | passed |'
seconds=$(sed -nE 's/.*, ([0-9]+) of 90 seconds.*/\1/p' "$folder/ended/report.md")
[ "$seconds" -ge 2 ] || fail "a clock that leaves out the search for the device: $seconds"
sed -i '/^sleep 2$/d' "$folder/bin/test_gpu"

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
sed -i 's/all=.*/all="A B Hangs C D"/' "$folder/bin/test_gpu"
RONDO_GPU_TEST_LIMIT=60 runs 1 --bin "$folder/bin" --out "$folder/late" --only conformance --budget 6
has "$folder/late/report.md" 'conformance: 2 passed, 0 skipped, 0 failed, 3 not reached'
has "$folder/late/report.md" '- conformance: Conformance: 3'
echo passed
