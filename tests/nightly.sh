#!/usr/bin/env bash
# What is too long for every run, one part after the other.
#   tests/nightly.sh            every part that has not passed yet on this commit and CPU: a run that was cut off goes on
#   tests/nightly.sh PART ...   these parts, whether they have passed or not
#   tests/nightly.sh --table    what ran last on which commit and CPU, here or, by NIGHTLY.md, elsewhere: the new NIGHTLY.md
# Parts:
#   repeats     tests of every run once more: other seeds of the fake device's order of work
#   fuzz        20,000 random programs compiled against eager, damaged tokenizers and chat templates, broken model folders
#   faults      a rank of a job fails in every way, at several steps, of 2 and of 4 ranks, on CPU and on fakes of CUDA and
#               NCCL; 4 x 40 jobs with random kills
#   gpus        train_gpt and LoRA on 2, 3 and 4 fake GPUs over the fake of NCCL, each mode in 8 orders of their work
#   attacks     200 jobs beside strangers on their ports, 200 races for the plug-in
#   includes    a build without precompiled headers: does each file include what it uses?
#   avx2        every test, built for a processor without AVX-512, and oneDNN as it computes on one
#   asan-ubsan  every test with AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan        every test with ThreadSanitizer
#   systems     what a newcomer does on Debian 12, 13 and testing, packages in empty roots, and 64-bit ARM under emulation
#               (tests/systems.sh)
#   mutants     do tests fail for small planted bugs? (tests/mutants/README.md)
# Prints a line for each part, and its output in build/nightly/PART.log, too. Ends with 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.."
all=$(sed -nE '/^# Parts:/,/^# Prints/s/^#   ([a-z0-9-]+) .*/\1/p' tests/nightly.sh)
bin=build/release/bin

repeats() { ctest --preset release -C nightly -L '^nightly$' --no-tests=error -j"$(nproc)"; }
fuzz() { tests/fuzz/run.sh 20000 && $bin/fuzz_tokenizer --count 20000 && $bin/fuzz_chat_template --count 20000 && $bin/fuzz_config 600; }
faults() {
  local device ranks
  for device in cpu build/release/fake_cuda; do
    for ranks in 2 4; do
      tests/dist/faults.sh $bin/rondorun $bin/dist_faults $device $ranks "1 2 5 8 11" &&
        tests/dist/restarts.sh $bin/rondorun $bin/train_gpt $device 40 $ranks || return 1
    done
  done
}
gpus() { tests/dist/cuda_ranks.sh $bin/rondorun $bin/train_gpt build/release/fake_cuda long $bin/finetune $bin/make_model; }
attacks() { tests/dist/strangers.sh && tests/compile/plugin_races.sh; }
includes() { cmake --preset release -B build/includes -DRONDO_PRECOMPILED_HEADERS=OFF -DRONDO_UNITY_BUILD=OFF && cmake --build build/includes; }
avx2() { tests/run.sh x86-64-v3; }
asan-ubsan() { tests/run.sh asan-ubsan; }
tsan() { tests/run.sh tsan; }
systems() {
  local name failed=0
  for name in debian12 debian13 debian-testing; do tests/systems.sh $name || failed=1; done
  tests/systems.sh debian13 clang || failed=1
  tests/systems.sh arm64 build tests || failed=1
  return $failed
}
mutants() { tests/mutants/run.sh; }

# ---- What ran: a line for each part, with its last run: part, result, date, commit, seconds, CPU.
state=build/nightly/state.tsv
mkdir -p build/nightly && touch $state
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit+="+"  # files have changed since
cpu=$(lscpu | sed -n 's/^Model name: *//p' | head -1)
# note PART RESULT SECONDS
note() {
  { grep -v "^$1	" $state; printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$(date -u '+%F %H:%M')" "$commit" "$3" "$cpu"; } >$state.new
  mv $state.new $state
}
passed_here() { [[ $commit != unknown && $commit != *+ ]] && awk -F'\t' -v part="$1" -v commit="$commit" -v cpu="$cpu" \
  '$1 == part && $2 == "passed" && $4 == commit && $6 == cpu { found = 1 } END { exit !found }' $state; }
table() {
  echo '# The last nightly run'
  echo
  echo 'Written by `tests/nightly.sh --table`. A commit with a + had changes that were not committed.'
  echo
  echo '| part | result | when (UTC) | commit | seconds | CPU |'
  echo '|---|---|---|---|---|---|'
  local part line
  for part in $all; do
    line=$(awk -F'\t' -v part="$part" '$1 == part { print "| " $1 " | " $2 " | " $3 " | " $4 " | " $5 " | " $6 " |" }' $state)
    [ -n "$line" ] || line=$(grep "^| $part |" tests/NIGHTLY.md)  # as it ran last, on another machine
    echo "${line:-| $part | not run | | | | |}"
  done
}

if [ "${1:-}" = --table ]; then table; exit; fi
parts=("$@")
for part in "${parts[@]}"; do
  grep -qx -- "$part" <<<"$all" || { echo "nightly.sh: no part '$part'; see the top of this file" >&2; exit 2; }
done
if [ $# = 0 ]; then
  for part in $all; do
    if passed_here "$part"; then echo "nightly: $part: passed before on this commit"; else parts+=("$part"); fi
  done
fi
[ ${#parts[@]} != 0 ] || exit 0
cmake/install_packages.sh test || exit 1
failed=0
built=no
for part in "${parts[@]}"; do
  case $part in
    repeats | fuzz | faults | gpus | attacks)  # the others make builds of their own
      if [ $built = no ]; then cmake --preset release && cmake --build --preset release || exit 1; fi
      built=yes ;;
  esac
  note "$part" "cut off" ""  # if this script does not come to the next line
  SECONDS=0
  if "$part" 2>&1 | tee "build/nightly/$part.log"; then result=passed; else result=FAILED failed=1; fi
  note "$part" $result $SECONDS
  echo "nightly: $part: $result ($SECONDS s)"
done
exit $failed
