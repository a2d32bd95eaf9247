#!/usr/bin/env bash
# tests/gpu/run.sh without a GPU: on the fake, without any driver, and with programs that hang and crash.
#   run_test.sh BIN FAKE_CUDA_FOLDER
set -euo pipefail
bin=$1 fake=$2
run=$(cd "$(dirname "$0")" && pwd)/run.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$1"; cat "$folder"/log "$folder"/*/report.md 2>/dev/null; exit 1; }
has() { grep -qF -- "$2" "$1" || fail "no \"$2\" in ${1##*/}"; }

# ---- Without a driver: one line, and its own exit code.
status=0
RONDO_CUDA=off "$run" --bin "$bin" --out "$folder/off" >"$folder/log" 2>&1 || status=$?
[ $status = 3 ] && [ "$(cat "$folder/log")" = 'no CUDA device: RONDO_CUDA=off' ] || fail "without CUDA: exit code $status"

# ---- On the fake: every section that can run does, and the report says what it ran on.
status=0
RONDO_FAKE_CUDA_FOLDER=$fake "$run" --bin "$bin" --out "$folder/short" --fake 1 --short --budget 250 >"$folder/log" 2>&1 || status=$?
report=$folder/short/report.md
[ $status = 0 ] || fail "on the fake: exit code $status"
has "$report" 'It holds no figure of a GPU'
for section in machine conformance suite steps; do has "$report" "| $section | passed |"; done
has "$report" '| sanitizer | skipped |'
if [ -x "$bin/train_gpt" ]; then has "$report" '| train | passed |'; fi
if grep -qE 'tokens/s|ms a step' "$report" "$folder/short/report.json"; then fail 'a figure of the fake is in the report'; fi
has "$folder/short/report.json" '"fake": true'
if command -v python3 >/dev/null; then python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$folder/short/report.json"; fi

# ---- Tests that fail, crash and hang are named, and hide no other.
mkdir "$folder/bin"
cat >"$folder/bin/test_gpu" <<'STUB'
#!/usr/bin/env bash
if [[ "$*" = *Device.IsHere* ]]; then echo "device: a stub"; exit; fi
ran=0
for test in Conformance.Passes Conformance.Fails Conformance.Crashes Conformance.Hangs Conformance.IsLast; do
  if [[ "$*" = *-*"$test"* ]]; then continue; fi
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
chmod +x "$folder/bin/test_gpu"
status=0
"$run" --bin "$folder/bin" --out "$folder/stub" --only conformance,suite --budget 45 >"$folder/log" 2>&1 || status=$?
report=$folder/stub/report.md
[ $status = 1 ] || fail "with a program that crashes: exit code $status"
has "$report" 'conformance: 2 passed, 0 skipped, 2 failed, 1 did not end'
for test in Fails Crashes Hangs; do has "$report" "- conformance: Conformance.$test"; done
has "$report" 'what "went" wrong'
has "$report" '| suite | skipped |'
has "$report" '(exit code 139)'
has "$report" '## Did not end'
[ "$(wc -l <"$report")" -le 200 ] || fail 'a report of more than 200 lines'
if command -v python3 >/dev/null; then python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$folder/stub/report.json"; fi
echo passed
