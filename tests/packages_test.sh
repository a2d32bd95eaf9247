#!/usr/bin/env bash
# cmake/install_packages.sh with package managers that are scripts: on apt's it installs what is missing, else it says so.
set -euo pipefail
script=$(cd "$(dirname "$0")/.." && pwd)/cmake/install_packages.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "packages: $*"; cat log ran; exit 1; }
# machine MANAGER INSTALLED AVAILABLE UID [MORE PROGRAMS]: what PATH has.
machine() {
  rm -rf bin && mkdir bin && : >ran
  local program
  for program in bash sh env awk dirname grep printf; do ln -s "$(type -P $program)" bin; done
  stub() { printf '#!/bin/sh\n%s\n' "$2" >"bin/$1" && chmod +x "bin/$1"; }
  stub id "echo $4"
  # What asks for a package has its name last.
  stub query "for last; do :; done; case ' $2 ' in *\" \$last \"*) echo install ok installed ;; *) exit 1 ;; esac"
  ln -s query bin/dpkg-query && ln -s query bin/rpm && ln -s query bin/pacman
  stub apt-cache "case ' $3 ' in *\" \$2 \"*) echo \$2 ;; esac"
  [ "$1" = pacman ] || { rm bin/pacman && stub "$1" "echo $1 \$* >>'$work/ran'"; }
  for program in "${@:5}"; do stub "$program" 'exec "$@"'; done
}
run() { env -i PATH="$work/bin" bash "$script" "$@" >log 2>&1; }

# A newer LLVM where the first is not to be had; nothing where one of them is installed.
machine apt-get 'g++ pkgconf' 'cmake llvm-20-dev llvm-21-dev libabsl-dev' 0
run build || fail "it fails"
grep -qx 'apt-get update -qq' ran || fail "no update"
grep -q '^apt-get install .* cmake .* llvm-20-dev mold' ran || fail "it installs other packages"
! grep -qE ' g\+\+| pkg-config|libgtest|clang-format' ran || fail "it installs what is there, or for another kind"
machine apt-get 'llvm-21-dev' 'llvm-19-dev' 0
run test && ! grep -q llvm ran && grep -q libgtest-dev ran || fail "another LLVM, or no GoogleTest"
machine apt-get "$(awk -F' *[|] *' '$3 == "build" { sub(",.*", "", $4); print $4 }' "${script%/*}/PACKAGES.md" | paste -sd' ')" '' 1000
run build && [ ! -s ran ] && [ ! -s log ] || fail "it does more than nothing where all is there"
# Without root.
machine apt-get '' '' 1000
! run ci && grep -qx 'Please install these packages first: apt-get install clang-format-14' log || fail "it does not say what to install"
machine apt-get '' '' 1000 sudo
run ci && grep -q 'install .* clang-format-14' ran || fail "it does not use sudo"
# Others are never run.
machine dnf 'gcc-c++' '' 0
! run build && grep -q '^Please install these packages first: dnf install cmake ninja-build .* llvm-devel' log && [ ! -s ran ] || fail "dnf"
machine pacman gcc '' 0 cmake
run build && grep -q '^Please install these packages first: pacman -S cmake .* llvm mold' log || fail "pacman"
! grep -qE ' -( |$)' log || fail "it names a package that does not exist"
machine none '' '' 0
! run build && grep -q PACKAGES.md log || fail "no package manager"
echo "packages: installed, or said"
