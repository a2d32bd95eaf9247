#!/usr/bin/env bash
# Installs the packages that this machine lacks, by their names in PACKAGES.md.
#   cmake/install_packages.sh build|test|text|ci|package|clang|systems|arm64      test: those of build, too
#   cmake/install_packages.sh --names KIND      prints the names of a kind, and installs nothing
# Only apt-get is run. Without root and sudo it says what to install and stops. For another package manager it says what to
# install and stops only if there is no cmake, which finds libraries that came in another way.
set -euo pipefail
names_only=""
if [ "${1:-}" = --names ]; then names_only=1 && shift; fi
kind=${1:?a kind of packages}
table=$(dirname "${BASH_SOURCE[0]}")/PACKAGES.md

manager=""
for name in apt-get dnf pacman zypper; do
  [ -n "$manager" ] || ! command -v $name >/dev/null || manager=$name
done
if [ -z "$manager" ]; then
  command -v cmake >/dev/null || { echo "no apt-get, dnf, pacman, zypper or cmake: $table says what is needed" >&2; exit 1; }
  exit
fi
is_installed() {
  case $manager in
    apt-get) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$' ;;
    pacman) pacman -Q "$1" >/dev/null 2>&1 ;;
    *) rpm -q "$1" >/dev/null 2>&1 ;;
  esac
}
is_available() { [ $manager != apt-get ] || [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

# The rows of this kind: a name, or several of which one is enough.
rows() {
  awk -F' *[|] *' -v kind="$kind" -v manager="${manager%-get}" '
    $2 == "what" { for (i = 4; i < NF; ++i) if ($i == manager) column = i }
    column && ($3 == kind || ($3 == "build" && kind == "test")) && $column != "-" { print $column }' "$table"
}
missing() {
  local names name
  while IFS= read -r names; do
    for name in ${names//,/ }; do
      if is_installed "$name"; then continue 2; fi
    done
    echo "$names"
  done
}
# One name for each row.
chosen() {
  local names name
  while IFS= read -r names; do
    for name in ${names//,/ }; do
      if [ "$name" = "$names" ] || is_available "$name"; then break; fi
      name=${names%%,*}
    done
    printf ' %s' "$name"
  done
}

if [ -n "$names_only" ]; then
  rows | chosen
  exit
fi
lines=$(rows | missing)
[ -n "$lines" ] || exit 0
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
if [ $manager = apt-get ] && { [ -z "$sudo" ] || command -v sudo >/dev/null; }; then
  $sudo apt-get update -qq
  packages=$(chosen <<<"$lines")
  echo "Installing:$packages"
  # shellcheck disable=SC2086 # a list
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $packages >/dev/null
  exit
fi
case $manager in
  pacman) install="pacman -S" ;;
  *) install="$manager install" ;;
esac
echo "Please install these packages first: $install$(chosen <<<"$lines")" >&2
[ $manager != apt-get ] && command -v cmake >/dev/null
