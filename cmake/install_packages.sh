# Installs the Debian packages that a build needs and this machine lacks. Sourced: install_packages.sh [test|curl]
# Without root and sudo it says what to install and stops.
rondo_packages="g++ cmake ninja-build pkg-config libabsl-dev libeigen3-dev libdnnl-dev libpcre2-dev libpng-dev libjpeg-dev
libgloo-dev llvm-19-dev mold ccache"
if [ "${1:-}" = test ]; then rondo_packages="$rondo_packages nlohmann-json3-dev libgtest-dev libbenchmark-dev clang-format-14 clang openmpi-bin"; fi
if [ "${1:-}" = curl ]; then rondo_packages="curl ca-certificates"; fi

rondo_missing=""
for package in $rondo_packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || rondo_missing="$rondo_missing $package"
done
if [ -n "$rondo_missing" ]; then
  rondo_sudo=""
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Please install these packages first:$rondo_missing" >&2
      exit 1
    fi
    rondo_sudo=sudo
  fi
  echo "Installing:$rondo_missing"
  $rondo_sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $rondo_sudo apt-get install -y -qq --no-install-recommends $rondo_missing >/dev/null
fi
