#!/usr/bin/env bash
# Builds what tests/gpu/run.sh needs on a machine with a GPU: programs for any x86-64 of 2015 or later (x86-64-v3), the
# libraries that have no archive to link, data, PyTorch's part of the comparison.
#
#   tests/gpu/bundle.sh [FILE.tar.xz]       # default: build/gpu/rondo-gpu.tar.xz
#
# There: README.md says how it is unpacked, with or without xz; then rondo-gpu/run.sh. CUDA's libraries are found at run time (runtime/cuda/driver.h);
# kernels are compiled there, by NVRTC. Compiled code for the CPU (LLVM) is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/gpu
file=${1:-$build/rondo-gpu.tar.xz}
programs="test_gpu test_cuda test_runtime test_modules test_optim train_gpt bench_gpt bench_cnn bench_device"

# Abseil, GoogleTest, PCRE2 and the C++ library are linked from their archives. oneDNN is opened as a program runs; it comes
# as a library, with those that it needs but the C and C++ libraries and libgcc_s, which must not be older than a machine's own.
mkdir -p $build/cmake
absl=$(find /usr/lib /usr/local/lib -name abslConfig.cmake -print -quit)
pcre=$(find /usr/lib /usr/local/lib -name libpcre2-8.a -print -quit)
cat >$build/cmake/abslConfig.cmake <<EOF2
include($absl)
get_property(all DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(target IN LISTS all)
  get_target_property(file \${target} IMPORTED_LOCATION_NONE)
  string(REGEX REPLACE "[.]so[.0-9]*\$" ".a" archive "\${file}")
  if(target MATCHES "^absl::" AND EXISTS "\${archive}")
    set_target_properties(\${target} PROPERTIES IMPORTED_LOCATION_NONE \${archive})
  endif()
endforeach()
EOF2
# RPATH, not RUNPATH: it holds for the libraries of libraries, too, and before LD_LIBRARY_PATH. libgcc.a: conversions of
# 16-bit floats, which older libgcc_s.so have not. arc4random: glibc 2.36 has it, for a std::random_device that nobody makes.
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRONDO_CPU=x86-64-v3 -DRONDO_TEST_ROOT=. -DRONDO_INSTALL=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_LLVM=ON -Dabsl_DIR="$PWD/$build/cmake" \
  ${pcre:+-Dpkgcfg_lib_PCRE2_pcre2-8=$pcre} -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib" \
  -DCMAKE_EXE_LINKER_FLAGS='-Wl,--disable-new-dtags -static-libstdc++ -Wl,--exclude-libs,libstdc++.a -Wl,--defsym=arc4random=abort' \
  -DCMAKE_CXX_STANDARD_LIBRARIES='-Wl,-Bstatic -lgcc -Wl,-Bdynamic'
# shellcheck disable=SC2086 # a list
cmake --build $build -j"$(nproc)" --target $programs

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/rondo-gpu
mkdir -p "$root/bin" "$root/lib" "$root/peers" "$root/tests"
for program in $programs; do strip -o "$root/bin/$program" $build/bin/"$program"; done
machines_own='libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*|ld-linux*|libstdc++.so.*|libgcc_s.so.*'
onednn=$(sed -n 's/.*\.name = "\([^"]*\)".*/\1/p' $build/runtime/onednn_file.cc)
onednn=$(dirname "$(readlink -f "$(sed -n 's/^RONDO_DNNL_LIBRARY:[A-Z]*=//p' $build/CMakeCache.txt)")")/$onednn
{ for program in $programs; do ldd "$root/bin/$program"; done; ldd "$onednn"; echo "onednn => $onednn (opened)"; } | sed -nE 's/^.* => (\/[^ ]+) .*/\1/p' | sort -u | while read -r library; do
  # shellcheck disable=SC2254 # a pattern
  eval "case \${library##*/} in $machines_own) ;; *) strip -o \"\$root/lib/\${library##*/}\" \"\$library\" ;; esac"
done
cp -r tests/reference "$root/tests/"
cp tests/gpu/run.sh tests/gpu/README.md "$root/"
cp tests/bench/peers/{gpt_step,paired_gpt,sdpa,cnn,cnn_models,cnn_study}.py "$root/peers/"
git rev-parse HEAD >"$root/VERSION"
[ -z "$(git status --porcelain)" ] || echo 'with changes that are not committed' >>"$root/VERSION"
needs() { objdump -T "$root"/bin/* "$root"/lib/* | grep -oE "$1_[0-9.]+" | sed "s/$1_//" | sort -V | tail -n1; }
needs GLIBC >"$root/NEEDS_GLIBC"
echo "needs glibc $(needs GLIBC) and a libstdc++ with GLIBCXX_$(needs GLIBCXX); carries $(ls "$root/lib" | paste -sd' ')"

# It must run where nothing of this machine is but the C and C++ libraries: an empty root folder, no environment.
check=$work/check
mkdir -p "$check/lib" "$check/proc" && ln -s lib "$check/lib64"
cp -r "$root" "$check/"
for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 ld-linux-x86-64.so.2 libstdc++.so.6 libgcc_s.so.1; do
  found=$(ldconfig -p | sed -nE "s/^\s+${library//+/[+]} \(.*x86-64.*\) => (.*)/\1/p" | head -n1)
  [ -z "$found" ] || cp -L "$found" "$check/lib/"
done
chroot=$(command -v chroot || echo /usr/sbin/chroot)
# The loader finds the programs' folder through /proc.
in_empty_root() {
  # shellcheck disable=SC2016 # for the inner shell
  unshare -rm sh -c 'mount --rbind /proc "$1/proc" && root=$1 chroot=$2 && shift 2 && exec env -i "$chroot" "$root" "$@"' sh "$check" "$chroot" "$@"
}
if unshare -rm mount --rbind /proc "$check/proc" 2>/dev/null; then
  for program in $programs; do
    case $program in
      test_*) arguments=--gtest_list_tests ;;
      bench_gpt) arguments='--steps=1 --warmup=0 --n_layer=1' ;;
      bench_cnn) arguments=--sizes ;;
      bench_device) continue ;; # it needs a device
      *) arguments=--help ;;
    esac
    # shellcheck disable=SC2086 # a list
    in_empty_root /rondo-gpu/bin/"$program" $arguments >"$work/log" 2>&1 ||
      { echo "$program does not start by itself:" && cat "$work/log" && exit 1; }
  done
  # The whole script on the fake, from another folder, with a bundle that cannot be written to.
  fake=$PWD/$build/fake_cuda
  # shellcheck disable=SC2016 # for the inner shell
  (cd "$work" && unshare -rm sh -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec env RONDO_FAKE_CUDA_FOLDER="$2" "$1/run.sh" \
    machine conformance steps figures suite train --fake 1 --budget 200' sh "$root" "$fake") >"$work/log" 2>&1 ||
    { grep -qE '^[a-z]+: incomplete: ' "$work/log" && ! grep -qE '^[a-z]+: failed: ' "$work/log"; } || # out of time: this machine is busy
    { echo 'run.sh on the fake:' && cat "$work/log" "$work"/rondo-gpu-report/report.md && exit 1; }
  grep -E '^[a-z]+: (passed|incomplete)' "$work/log"
else echo 'not tried in an empty root folder: unshare is not allowed here'
fi

tar -C "$work" -cf - rondo-gpu | xz -T0 -6 >"$file.part" # takes minutes on a busy machine
mv "$file.part" "$file"
bytes=$(stat -c %s "$file")
echo "$file: $((bytes >> 20)) MiB"
[ "$bytes" -lt $((60 << 20)) ] || { echo "the bundle is not under 60 MiB"; exit 1; }
