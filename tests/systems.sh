#!/usr/bin/env bash
# What a newcomer does on a system with nothing installed, in a root file system of its own.
#   tests/systems.sh NAME [STEP ...]     NAME: debian12, debian13, debian-testing or arm64
# Steps, one after the other; without names, all but the last:
#   quickstart  README's first command, in a fresh clone of the last commit
#   tests       README's second command
#   program     a program outside that finds what the quickstart's build has installed: with CMake, and with pkg-config
#   deb         cpack's Debian packages, installed in an empty root; a program that is built with them trains
#   archive     cpack's archive, unpacked in an empty root; a program that was built with it trains there
#   clang       everything is built with Clang, and passes the short tier
# arm64 is built on this machine, with cmake/aarch64-linux-gnu.cmake and this machine's Debian, and runs under qemu-user. Its root
# has libraries and headers only, and nothing runs in it. Its steps; without names, the first two (systems_arm64.sh):
#   build       build/arm64, and train_gpt of build/release to compare with
#   smoke       a tier of at most 90 seconds
#   tests       all but what emulation cannot do
# Each prints a line, and its output in build/systems/NAME/STEP.log. RONDO_SYSTEMS=FOLDER is another place for these.
# Roots are made by mmdebstrap from the mirror that this machine's apt uses, by root or in a user namespace. That of NAME is
# kept, with its packages and its ccache; delete build/systems/NAME to begin again.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "systems.sh: $*" >&2; exit 2; }
steps="quickstart tests program deb archive" more="clang"
name=${1:-}
case $name in
  debian12) suite=bookworm ;;
  debian13) suite=trixie ;;
  debian-testing) suite=testing ;;
  arm64) suite=$(. /etc/os-release && echo "$VERSION_CODENAME") steps="build smoke" more="tests" ;;
  *) sed -n '2,18s/^# //p' "$0" >&2; exit 2 ;;
esac
shift
for step in "$@"; do [[ " $steps $more " = *" $step "* ]] || fail "no step '$step'"; done
[ $# = 0 ] || steps=$*
place=${RONDO_SYSTEMS:-build/systems}/$name
mkdir -p "$place"
place=$(cd "$place" && pwd)

# ---- Root file systems
namespace=(--mount --pid --fork --kill-child)
mode=root
if [ "$(id -u)" != 0 ]; then namespace+=(--map-root-user --map-auto) mode=unshare; fi
# in_root ROOT COMMAND...: as its root, with this machine's network, devices and processors. What it starts ends with it.
in_root() {
  local root=$1
  shift
  # shellcheck disable=SC2016 # for the inner shell
  unshare "${namespace[@]}" sh -c 'root=$1 && shift && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" &&
    mount -t proc proc "$root/proc" && exec /usr/sbin/chroot "$root" "$@"' sh "$root" \
    /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb sh -euc 'cd && eval "$*"' sh "$@"
}
# unpacked ROOT: a system with nothing installed.
variant=(--variant=minbase)
unpacked() {
  local mirror proxy
  if [ ! -f "$place/base.tar" ]; then
    cmake/install_packages.sh systems
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n1)
    [ -n "$mirror" ] || { echo "this machine's apt knows no mirror of Debian (apt-get update?)"; return 1; }
    proxy=$(apt-config dump Acquire::http::Proxy)
    # The mirror's copy of testing may be older than its Release file wants.
    mmdebstrap --mode=$mode --format=tar "${variant[@]}" --aptopt='Acquire::Check-Valid-Until "false"' ${proxy:+--aptopt="$proxy"} \
      $suite "$place/base.tar.part" "deb $mirror $suite main"
    mv "$place/base.tar.part" "$place/base.tar"
  fi
  removed "$1"
  mkdir "$1"
  outside tar -C "$1" --exclude=./dev/* -xf "$place/base.tar"
  cat /etc/resolv.conf | outside tee "$1/etc/resolv.conf" >/dev/null
}
# What has the root's rights on its files, but is not in it.
outside() { if [ $mode = root ]; then "$@"; else unshare --map-root-user --map-auto "$@"; fi; }
removed() { if [ -e "$1" ]; then outside rm -rf --one-file-system "$1"; fi; }
# into ROOT: what comes in as a tar file lies in its /root. out_of ROOT FILE...: the other way.
into() { outside tar -C "$1/root" --no-same-owner -xf -; }
out_of() { local root=$1; shift; (cd "$root/root" && tar -cf - "$@"); }

root=$place/root
prepared() {
  if [ ! -f "$place/root.made" ]; then
    unpacked "$root"
    touch "$place/root.made"
  fi
  in_root "$root" '[ -d rondo ]' || cloned
}
cloned() {
  local clone
  clone=$(mktemp -d)
  git clone -q "$PWD" "$clone/rondo"
  outside rm -rf "$root/root/rondo"
  tar -C "$clone" -cf - rondo | into "$root"
  rm -rf "$clone"
}

# ---- Steps
quickstart() {
  prepared
  cloned
  in_root "$root" 'cd rondo && examples/quickstart.sh'
}
tests() {
  prepared
  in_root "$root" 'cd rondo && tests/run.sh'
}

# A user's program: that of the README. It learns the README.
app='mkdir -p app && cp rondo/examples/plain_loop.cc app/app.cc && cp rondo/README.md app/text
  printf "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\n" >app/CMakeLists.txt
  sed -n "/^find_package(rondo/,/^target_link/p" rondo/README.md >>app/CMakeLists.txt'
with_cmake='rm -rf app/build && cmake -G Ninja -S app -B app/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=$prefix && cmake --build app/build'
with_pkg_config='g++ -std=c++20 -O2 app/app.cc -o app/app $(pkg-config --cflags --libs rondo)'
# Half a minute is enough for its 500 steps.
trains() { echo "timeout 60 $1 app/text | tee app/losses && tail -n1 app/losses | grep -E '^step 450: loss [0-2]\\.'"; }
# starts FOLDER/ TEXT: the programs that come with a package, the code generator among what they need.
starts() {
  echo "${1}train_gpt --data=$2 --max_iters=20 --out_dir=out | tee log; grep 'compiled once' log; ${1}rondorun --nproc-per-node 2 true"
}

program() {
  prepared
  in_root "$root" "prefix=/root/installed; cd rondo; cmake/install_packages.sh build
    cmake -S . -B build/quickstart -G Ninja -DRONDO_BUILD_TESTS=OFF -DRONDO_BUILD_BENCHMARKS=OFF
    cmake --build build/quickstart; rm -rf \$prefix; cmake --install build/quickstart --prefix \$prefix; cd
    $app; $with_cmake; $(trains app/build/app)
    export PKG_CONFIG_PATH=\$prefix/lib/pkgconfig
    $with_pkg_config; $(trains app/app)"
}
# packaged PRESET
packaged() {
  prepared
  in_root "$root" "cd rondo; cmake/install_packages.sh build; cmake/install_packages.sh package
    cmake --preset $1; cmake --build --preset $1; cpack --preset $1; cd; $app"
}
deb() {
  local other=$place/empty
  packaged deb
  unpacked "$other"
  out_of "$root" rondo/build/deb/packages rondo/README.md rondo/examples/plain_loop.cc | into "$other"
  # The programs by themselves first: what they depend on is what the package says.
  in_root "$other" "apt-get -qq update; apt-get install -qq -y --no-install-recommends ./rondo/build/deb/packages/rondo_*.deb
    $(starts "" rondo/README.md)
    apt-get install -qq -y --no-install-recommends ./rondo/build/deb/packages/librondo-dev_*.deb g++ cmake ninja-build pkg-config
    prefix=; $app; $with_pkg_config; $(trains app/app); $with_cmake; $(trains app/build/app)"
  removed "$other"
}
archive() {
  local other=$place/empty
  packaged archive
  unpacked "$other"
  in_root "$root" "rm -rf node; mkdir node; tar -C node -xf rondo/build/archive/packages/*.tar.gz; mv node/rondo-* node/rondo
    prefix=/root/node/rondo; $with_cmake; cp app/build/app app/text node/"
  out_of "$root" node | into "$other"
  in_root "$other" "mkdir app; cp node/text app; $(starts node/rondo/bin/ app/text)
    LD_LIBRARY_PATH=node/rondo/lib; export LD_LIBRARY_PATH; $(trains node/app)"
  removed "$other"
}
clang() {
  prepared
  in_root "$root" 'cd rondo; cmake/install_packages.sh test; cmake/install_packages.sh clang
    compiler=$(ls /usr/bin/clang++-[0-9]* | sort -V | tail -n1)
    cmake --preset release -B build/clang -DCMAKE_CXX_COMPILER=$compiler; cmake --build build/clang
    ctest --test-dir build/clang -L "^short$" -j$(nproc) --output-on-failure'
}

if [ $name = arm64 ]; then . tests/systems_arm64.sh; fi
[ $name = arm64 ] || [ -z "$(git status --porcelain)" ] || echo "systems.sh: files have changed since the last commit, which is what is tried" >&2
for step in $steps; do
  SECONDS=0
  # Not in a condition, where -e means nothing.
  set +e
  (set -e && "$step") >"$place/$step.log" 2>&1
  code=$?
  set -e
  if [ $code != 0 ]; then
    tail -n 30 "$place/$step.log"
    echo "$name: $step: FAILED after $SECONDS s: $place/$step.log"
    exit 1
  fi
  echo "$name: $step: passed ($SECONDS s): $(grep -E '^(step .* loss|[0-9]+% tests passed)' "$place/$step.log" | tail -n1)"
done
