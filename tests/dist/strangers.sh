#!/usr/bin/env bash
# 200 jobs of three ranks beside strangers who connect to every port: all finish with the same losses, and no byte
# reaches a stranger. Minutes; tests run four of them.
#   strangers.sh [TEST_DIST [JOBS]]
set -euo pipefail
test_dist=${1:-$(dirname "$0")/../../build/release/bin/test_dist}
RONDO_STRANGERS_JOBS=${2:-200} exec "$test_dist" --gtest_filter='Strangers.*'
