#!/usr/bin/env bash
# Builds what tests/gpu/run.sh needs on a machine with a GPU: programs for any x86-64 of 2015 or later (x86-64-v3), the
# libraries that they need beside the C library, data, PyTorch's part of the comparison.
#
#   tests/gpu/bundle.sh [FILE.tar.xz]       # default: build/gpu/rondo-gpu.tar.xz
#
# There: tar xf rondo-gpu.tar.xz && rondo-gpu/run.sh. CUDA's libraries are found at run time (runtime/cuda/driver.h);
# kernels are compiled there, by NVRTC. Compiled code for the CPU (LLVM) is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/gpu
file=${1:-$build/rondo-gpu.tar.xz}
programs="test_gpu test_cuda test_runtime test_modules test_optim train_gpt bench_gpt"

# RPATH, not RUNPATH: it holds for the libraries of libraries, too, and before LD_LIBRARY_PATH.
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRONDO_CPU=x86-64-v3 -DRONDO_TEST_ROOT=. -DRONDO_INSTALL=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_LLVM=ON -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
# shellcheck disable=SC2086 # a list
cmake --build $build -j"$(nproc)" --target $programs

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/rondo-gpu
mkdir -p "$root/bin" "$root/lib" "$root/peers" "$root/tests"
for program in $programs; do strip -o "$root/bin/$program" $build/bin/"$program"; done
# Everything but the C library and the loader, which belong to the machine.
ldd $build/bin/test_optim $build/bin/test_gpu $build/bin/bench_gpt $build/bin/train_gpt |
  sed -nE 's/^.* => (\/[^ ]+) .*/\1/p' | sort -u | while read -r library; do
  case ${library##*/} in libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
    *) strip -o "$root/lib/${library##*/}" "$library" ;;
  esac
done
cp -r tests/reference "$root/tests/"
cp tests/gpu/run.sh tests/gpu/README.md "$root/"
cp tests/bench/peers/gpt_step.py tests/bench/peers/paired_gpt.py "$root/peers/"
git rev-parse HEAD >"$root/VERSION"
[ -z "$(git status --porcelain)" ] || echo 'with changes that are not committed' >>"$root/VERSION"

# It must run where nothing of this machine is but the C library: an empty root folder, no environment.
check=$work/check
mkdir -p "$check/lib" "$check/proc" && ln -s lib "$check/lib64"
cp -r "$root" "$check/"
for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 ld-linux-x86-64.so.2; do
  found=$(ldconfig -p | sed -nE "s/^\s+$library \(.*x86-64.*\) => (.*)/\1/p" | head -n1)
  [ -z "$found" ] || cp -L "$found" "$check/lib/"
done
chroot=$(command -v chroot || echo /usr/sbin/chroot)
# The loader finds the programs' folder through /proc.
in_empty_root() {
  # shellcheck disable=SC2016 # for the inner shell
  unshare -rm sh -c 'mount --rbind /proc "$1/proc" && root=$1 chroot=$2 && shift 2 && exec env -i "$chroot" "$root" "$@"' sh "$check" "$chroot" "$@"
}
for program in $programs; do
  if ! unshare -rm mount --rbind /proc "$check/proc" 2>/dev/null; then echo 'not started in an empty root folder: unshare is not allowed here' && break; fi
  case $program in
    test_*) arguments=--gtest_list_tests ;;
    bench_gpt) arguments='--steps=1 --warmup=0 --n_layer=1' ;;
    *) arguments=--help ;;
  esac
  # shellcheck disable=SC2086 # a list
  in_empty_root /rondo-gpu/bin/"$program" $arguments >"$work/log" 2>&1 ||
    { echo "$program does not start by itself:" && cat "$work/log" && exit 1; }
done

tar -C "$work" -cf - rondo-gpu | xz -T0 -6 >"$file"
bytes=$(stat -c %s "$file")
echo "$file: $((bytes >> 20)) MiB"
[ "$bytes" -lt $((60 << 20)) ] || { echo "the bundle is not under 60 MiB"; exit 1; }
