#!/usr/bin/env bash
# From a fresh Debian to a trained GPT: installs what is missing, builds train_gpt, gets a text, trains, samples.
#   examples/quickstart.sh [--data FILE] [any option of train_gpt, e.g. --max_iters=500 --out_dir=runs/a]
# The text: FILE, else tiny Shakespeare from the network, else the C++ headers that the build has just used.
# Paths are relative to where you call it from; the build and downloads go to build/quickstart in the repository.
set -euo pipefail
say() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$repository/build/quickstart
data="" resume="" help="" options=()
while [ $# -gt 0 ]; do
  case $1 in
    --data=*) data=${1#*=} ;;
    --data) [ $# -gt 1 ] || fail "--data needs a file"; data=$2; shift ;;
    --init_from=resume) resume=yes; options+=("$1") ;;
    --init_from) [ "${2:-}" != resume ] || resume=yes; options+=("$1") ;;
    --help|-h) help=yes; options+=("$1") ;;
    *) options+=("$1") ;;
  esac
  shift
done
[ -z "$data" ] || [ -r "$data" ] || fail "cannot read the text $data"

say "Packages"
"$repository/cmake/install_packages.sh" build || fail "the packages could not be installed"

say "Build"
mkdir -p "$repository/build"
cmake -S "$repository" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRONDO_BUILD_TESTS=OFF \
  -DRONDO_BUILD_BENCHMARKS=OFF >"$repository/build/quickstart.log" 2>&1 ||
  { cat "$repository/build/quickstart.log" >&2; fail "cmake found something missing, see above"; }
cmake --build "$build" --target train_gpt || fail "the build failed, see above"
train_gpt=$build/bin/train_gpt
[ -z "$help" ] || exec "$train_gpt" "${options[@]}"

# ---- The text
shakespeare=$build/tinyshakespeare.txt
shakespeare_url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
shakespeare_sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
is_shakespeare() { [ "$(sha256sum <"$1" | cut -d' ' -f1)" = $shakespeare_sha256 ]; }

download_shakespeare() {
  if [ -f "$shakespeare" ] && is_shakespeare "$shakespeare"; then return 0; fi
  command -v curl >/dev/null || "$repository/cmake/install_packages.sh" text || return 1
  curl -fsSL --connect-timeout 10 --max-time 120 -o "$shakespeare.part" $shakespeare_url || return 1
  is_shakespeare "$shakespeare.part" || { echo "The downloaded text has another checksum: not used."; return 1; }
  mv "$shakespeare.part" "$shakespeare"
}

# 8 MB of plain ASCII. Shuffled, so that the last tenth is like the rest; the same files give the same order.
collect_headers() {
  find -L /usr/include/c++ /usr/include/eigen3 /usr/include/absl -type f -print0 2>/dev/null | LC_ALL=C sort -z |
    shuf -z --random-source=<(yes) | xargs -0 cat | LC_ALL=C tr -cd '\11\12\40-\176' >"$1.all"
  head -c 8000000 "$1.all" >"$1"
  rm "$1.all"
  [ "$(wc -c <"$1")" -gt 1000000 ]
}

if [ -z "$data" ] && [ -z "$resume" ]; then
  say "Text"
  if download_shakespeare; then
    data=$shakespeare
    echo "Tiny Shakespeare: $data"
  else
    data=$build/headers.txt
    collect_headers "$data" || fail "no network, and no C++ headers to learn from: give a text with --data FILE"
    options=(--eval_iters=150 "${options[@]}")  # the whole validation split is 800,000 characters
    echo "No network: C++ headers, $(wc -c <"$data") characters: $data"
  fi
fi
[ -z "$data" ] || options=("--data=$data" "${options[@]}")

say "Training"
exec "$train_gpt" "${options[@]}"
