# The steps of `tests/systems.sh arm64`, which includes this file.
# shellcheck shell=bash disable=SC2154 # variables of that script

variant=(--variant=extract --architectures=arm64)
build() {
  cmake/install_packages.sh arm64
  cmake/install_packages.sh test
  # Of what Rondo needs, the libraries: programs are this machine's.
  local names
  names=$(cmake/install_packages.sh --names test | tr ' ' '\n' | grep -e '-dev$' | tr '\n' ,)
  variant+=(--include="${names}libc6-dev")
  if [ ! -f "$place/root.made" ]; then
    unpacked "$root"
    touch "$place/root.made"
  fi
  cmake -B build/arm64 -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake -DCMAKE_SYSROOT="$root" -DRONDO_BUILD_BENCHMARKS=OFF
  cmake --build build/arm64 --target train_gpt test_runtime test_modules test_compile test_optim fuzz_compile
  cmake --preset release
  cmake --build build/release --target train_gpt
}

# arm PROGRAM ARGUMENT...: of build/arm64, as the toolchain file has it. RONDO_PAGE: another size of pages than this machine's.
arm() {
  local program=build/arm64/bin/$1
  shift
  "$(command -v qemu-aarch64-static || command -v qemu-aarch64)" ${RONDO_PAGE:+-p "$RONDO_PAGE"} "$root/lib/ld-linux-aarch64.so.1" \
    --library-path "$root/lib/aarch64-linux-gnu:$root/usr/lib/aarch64-linux-gnu" "$program" "$@"
}
natively() { "build/release/bin/$1" "${@:2}"; }
# suite PROGRAM FILTER
suite() { RONDO_CACHE_DIR=$place/cache arm "test_$1" --gtest_brief=1 --gtest_filter="$2"; }

# trained MACHINE NAME COMPILE: twenty steps, and their losses in train/MACHINE.NAME.losses.
trained() {
  local work=$place/train
  RONDO_CACHE_DIR=$work/cache $1 train_gpt --data=README.md --out_dir="$work/$1.$2" --compile="$3" --n_layer=2 --n_head=2 \
    --n_embd=32 --block_size=16 --batch_size=4 --max_iters=20 --warmup_iters=5 --log_interval=1 --eval_iters=2 \
    --sample_tokens=0 --threads=2 | tee "$work/log"
  sed -E 's/.*"loss":([^,]*),.*/\1/' "$work/$1.$2/metrics.jsonl" >"$work/$1.$2.losses"
}
# On this machine's processor and on ARM, eager, compiled, and with the kernels that this left on disk.
train() {
  local work=$place/train machine run
  rm -rf "$work"
  mkdir "$work"
  for machine in natively arm; do
    trained $machine none none
    trained $machine regions regions
    grep 'compiled once in' "$work/log"
    trained $machine warm regions
    grep 'found compiled in' "$work/log"
    cmp "$work/$machine.regions.losses" "$work/$machine.warm.losses"
    for run in none regions; do
      # Sums in another order round otherwise, and 20 steps amplify it.
      paste "$work/natively.none.losses" "$work/$machine.$run.losses" | awk -v run="$machine, $run" '
        { apart = ($1 - $2) / $1; if (apart < 0) apart = -apart; if (!(apart < 1e-5)) bad = 1; if (apart > most) most = apart }
        END { print run ": " NR " losses, at most " most + 0 " of their size apart"; exit bad || NR < 20 }'
    done
  done
}

smoke() {
  train
  suite runtime 'TiledProduct.*:CpuFeatures.*:ByteTokenizer.*:Checkpoint.DoublesRoundTrip'
  suite compile 'ObjectFile.*:Epilogues.SumsOfProductsChainInPlace:Epilogues.EachSumHasItsOwnOperand'
  suite optim 'Models/KnownLosses.*/GPT2'
}

# Emulation is slow, and compiling a kernel takes it a second: of the sweep of compiled ops it has these ops. What it cannot do at
# all:
# - tests that start their own program again, which the system does not know how to run: death tests, ThreadsVariable.*,
#   HostStates.BeforeThePoolStarts, CacheProcess*, PluginRace*, Symbols*, and what starts ranks or examples;
# - traps of floating-point exceptions, limits of the address space, and counts of pages that the system has read in;
# - to load LLVM where pages are larger than this machine's: a library's last page is missing behind the end of its file.
compiled_ops="add cast gelu_erf gelu_tanh exp where sum max softmax log_softmax layer_norm rms_norm matmul linear attention"
tests() {
  local op run
  smoke
  suite optim 'Models/KnownLosses.*'
  suite runtime '*Tokenizer*:Checkpoint.*:Convolution.*:Safetensors.*:DiskCacheTest.*:Storage.*:-*DeathTest*'
  suite modules 'Models/ModelReference.*'
  suite compile 'Epilogues.*:ObjectFile.*'
  for op in $compiled_ops; do
    RONDO_TEST_OP=$op suite compile 'CompiledOpSweep.Alone:CompiledOpSweep.BetweenElementwise*:CompiledOpSweep.IntegersAndBool'
  done
  arm fuzz_compile --count 200
  # Larger pages, as systems for ARM may have, with the kernels that train() has left on disk.
  for RONDO_PAGE in 16384 65536; do
    suite runtime 'Allocator.*:Storage.*:-*DeathTest*'
    for run in none regions; do
      trained arm paged.$run $run
      cmp "$place/train/arm.$run.losses" "$place/train/arm.paged.$run.losses"
    done
    grep 'found compiled in' "$place/train/log"
  done
}
