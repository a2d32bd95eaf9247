#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test:  tests/run.sh [preset]   (release, debug, asan-ubsan, tsan)
# The tests of the host code for CUDA alone:              tests/run.sh asan-ubsan cuda
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
label=${2:-}
. ./cmake/install_packages.sh test
cmake --preset "$preset" ${CI:+-DRONDO_WERROR=ON}  # in CI a warning is an error
cmake --build --preset "$preset" ${label:+--target "${label}_tests"}
ctest --preset "$preset" ${label:+-L "^$label\$"} --no-tests=error -j"$(nproc)"
