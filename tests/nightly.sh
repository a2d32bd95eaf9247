#!/usr/bin/env bash
# What is too long for every run, one part after the other:  tests/nightly.sh [part ...]     (without a part: all)
#   repeats   tests of every run once more: other seeds of the fake device's order of work
#   fuzz      20,000 random programs compiled against eager, damaged tokenizers and chat templates, broken model folders
#   faults    a rank of a job fails in every way, at several steps, of 2 and of 4 ranks, on CPU and on fakes of CUDA and
#             NCCL; 4 x 40 jobs with random kills
#   gpus      train_gpt and LoRA on 2, 3 and 4 fake GPUs over the fake of NCCL, each mode in 8 orders of their work
#   attacks   200 jobs beside strangers on their ports, 200 races for the plug-in
#   includes  a build without precompiled headers: does each file include what it uses?
#   mutants   do tests fail for small planted bugs? (tests/mutants/README.md)
# Prints a line for each part. Ends with 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.."
. ./cmake/install_packages.sh test
parts=("$@")
[ $# -gt 0 ] || parts=(repeats fuzz faults gpus attacks includes mutants)
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
mutants() { tests/mutants/run.sh; }

for part in "${parts[@]}"; do
  [ "$(type -t "$part")" = function ] || { echo "nightly.sh: no part '$part'; see the top of this file" >&2; exit 2; }
done
cmake --preset release && cmake --build --preset release || exit 1
failed=0
for part in "${parts[@]}"; do
  if "$part"; then echo "nightly: $part: passed"; else echo "nightly: $part: FAILED"; failed=1; fi
done
exit $failed
