#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test.   tests/run.sh [preset]   (release, debug, asan-ubsan, tsan)
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
. ./cmake/install_packages.sh test
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset" --no-tests=error -j"$(nproc)"
