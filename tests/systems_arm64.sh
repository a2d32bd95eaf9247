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
  # Gloo's package names its library by an absolute path, which is this machine's.
  cmake -B build/arm64 -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake -DCMAKE_SYSROOT="$root" \
    -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON -DRONDO_BUILD_BENCHMARKS=OFF
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

# Twenty steps on this machine's processor and on ARM, eager, compiled, and with the kernels that this left on disk.
train() {
  local work=$place/train machine run losses
  rm -rf "$work"
  mkdir "$work"
  for machine in natively arm; do
    for run in none regions warm; do
      RONDO_CACHE_DIR=$work/cache $machine train_gpt --data=README.md --out_dir="$work/$machine.$run" --compile="${run/warm/regions}" \
        --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --batch_size=4 --max_iters=20 --warmup_iters=5 --log_interval=1 \
        --eval_iters=2 --sample_tokens=0 --threads=2 | tee "$work/log"
      case $run in
        regions) grep 'compiled once in' "$work/log" ;;
        warm) grep 'found compiled in' "$work/log" ;;
      esac
    done
  done
  for machine in natively arm; do
    for run in none regions warm; do
      losses=$work/$machine.$run.losses
      sed -E 's/.*"loss":([^,]*),.*/\1/' "$work/$machine.$run/metrics.jsonl" >"$losses"
      # Sums in another order, which 20 steps amplify.
      paste "$work/natively.none.losses" "$losses" | awk -v run="$machine, $run" '
        { apart = ($1 - $2) / $1; if (apart < 0) apart = -apart; if (!(apart < 1e-5)) bad = 1; if (apart > most) most = apart }
        END { print run ": " NR " losses, at most " most " of their size apart"; exit bad || NR < 20 }'
    done
    cmp "$work/$machine.regions.losses" "$work/$machine.warm.losses"
  done
}

smoke() {
  train
  suite runtime 'TiledProduct.*:CpuFeatures.*:ByteTokenizer.*:Checkpoint.DoublesRoundTrip'
  suite compile 'ObjectFile.*:Epilogues.SumsOfProductsChainInPlace:Epilogues.EachSumHasItsOwnOperand'
  suite optim 'Models/KnownLosses.*/GPT2'
}

# Emulation is 15 times as slow, and compiling a kernel takes a second: of the sweep of compiled ops it has these ops. What it
# cannot do at all:
# - tests that start their own program again, which the system does not know how to run: death tests, ThreadsVariable.*,
#   HostStates.BeforeThePoolStarts, CacheProcess*, PluginRace*, Symbols*, and what starts ranks or examples;
# - traps of floating-point exceptions, limits of the address space, and the counts of pages that the system has read in.
compiled_ops="add cast gelu_erf gelu_tanh exp where sum max softmax layer_norm matmul linear attention cross_entropy conv2d dropout cat"
tests() {
  local op
  smoke
  suite optim 'Models/KnownLosses.*'
  suite runtime 'OpSweep.*:*Tokenizer*:Checkpoint.*:Convolution.*:DTypes/OpsReference.*:Safetensors.*:-*DeathTest*'
  suite modules 'Models/ModelReference.*:*Vision*Reference*'
  suite compile 'Epilogues.*:Emit.*'
  for op in $compiled_ops; do
    RONDO_TEST_OP=$op suite compile 'CompiledOpSweep.Alone:CompiledOpSweep.BetweenElementwise*:CompiledOpSweep.IntegersAndBool'
  done
  arm fuzz_compile --count 200
  # Pages of 16 and 64 KiB, as systems for ARM may have.
  for RONDO_PAGE in 16384 65536; do
    train
    suite runtime 'Allocator.*:Storage.*:PageHeap*:-*DeathTest*'
    suite compile 'ObjectFile.*'
  done
}
