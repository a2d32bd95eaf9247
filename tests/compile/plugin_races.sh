#!/usr/bin/env bash
# 200 processes load the plug-in while its file is swapped: none runs foreign code. A minute; tests run six of them.
#   plugin_races.sh [TEST_COMPILE [RACES]]
set -euo pipefail
test_compile=${1:-$(dirname "$0")/../../build/release/bin/test_compile}
RONDO_PLUGIN_RACES=${2:-200} exec "$test_compile" --gtest_filter='PluginRace.*'
