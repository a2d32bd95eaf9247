#!/usr/bin/env bash
# Follows "To add a layer" in modules/README.md: the README's own example becomes a header, with a test.
#   layer.sh BUILD
set -euo pipefail
. "$(dirname "$0")/copy.sh"
start "a layer" modules dist tests

# 1. The header.
{
  printf '// A learned factor for each channel.\n#pragma once\n\n#include "rondo/modules/module.h"\n\n'
  sed -n '/^```cpp/,/^```/p' "$source/modules/README.md" | sed '1d; $d'
} >"$tree/modules/layers/scale.h"
# 2. It is installed, and part of rondo.h.
sed -i 's|layers/rms_norm.h |&layers/scale.h |' "$tree/modules/CMakeLists.txt"
insert dist/rondo.h '#include "rondo/modules/layers/segmentation_loss.h"' <<<'#include "rondo/modules/layers/scale.h"'
# 3. Its test.
cat >"$tree/tests/modules/scale_test.cc" <<'TEXT'
#include "rondo/modules/layers/scale.h"

#include <gtest/gtest.h>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

TEST(Scale, IsItsEquation) {
  Scale scale(3);
  const rondo::Tensor x = rondo::Tensor::arange(6, rondo::kF32).reshape({2, 3});
  {
    const rondo::NoGrad off;
    scale.gain.copy_(rondo::Tensor::from({1, 2, 3}, {3}, rondo::kF32));
  }
  EXPECT_EQ(scale(x).to_vector<float>(), (std::vector<float>{0, 2, 6, 3, 8, 15}));
  scale(x).sum().backward();
  EXPECT_EQ(scale.gain.grad().to_vector<float>(), (std::vector<float>{3, 5, 7}));
  EXPECT_EQ(scale.state_dict().size(), 1u);
}
TEXT
changes modules/layers/scale.h modules/CMakeLists.txt dist/rondo.h tests/modules/scale_test.cc
says modules/README.md 'To add a layer' layers/ CMakeLists.txt dist/rondo.h tests/modules

compile tests/modules/scale_test.cc tests/modules/module_test.cc
link test_modules scale_test
run() { "$work/test_modules" --gtest_brief=1 --gtest_filter='Scale.*' >"$work/log" 2>&1; }
run || { cat "$work/log"; fail "its test fails"; }
grep -q '^\[  PASSED  \] 1 test' "$work/log" || fail "its test did not run"
# Its test sees a wrong equation.
sed -i 's/return x \* gain/return x + gain/' "$tree/modules/layers/scale.h"
compile tests/modules/scale_test.cc tests/modules/module_test.cc
link test_modules scale_test
! run || fail "its test passes with a wrong equation"
echo "recipe of a layer: a header, two lists, a test"
