#!/usr/bin/env bash
# Writes tests/gpu/STATIC.md: registers, spills, occupancy, width of accesses, sectors and launches of every kernel, without
# a GPU. Takes minutes. Needs NVRTC (a toolkit, or RONDO_CUDA_PATH).
#
#   tests/gpu/static.sh [NVDISASM]       # else in PATH, else in RONDO_PEERS_VENV; without it one comparison is left out
#                                        # (pip: nvidia-cuda-nvdisasm, in a venv outside this repository)
set -euo pipefail
cd "$(dirname "$0")/../.."
nvdisasm=${1:-$(command -v nvdisasm || true)}
if [ -z "$nvdisasm" ] && [ -n "${RONDO_PEERS_VENV:-}" ]; then
  nvdisasm=$(find "$RONDO_PEERS_VENV" -name nvdisasm -perm -u+x | head -n1)
fi
cmake --preset release >/dev/null
cmake --build --preset release -j"$(nproc)" --target static_report
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
export RONDO_CACHE_DIR=$PWD/build/release/test_cache RONDO_TEST_FOLDER=$parts RONDO_TEST_NVDISASM=$nvdisasm
export RONDO_TEST_OUTPUT=tests/gpu/STATIC.md
for part in Parts Report; do build/release/bin/static_report --gtest_brief=1 --gtest_filter=Static.$part; done
