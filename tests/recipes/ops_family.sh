#!/usr/bin/env bash
# Follows "To add a family of ops" in runtime/README.md: the op softsign in a file of its own, and the sweep on it.
#   ops_family.sh BUILD
set -euo pipefail
. "$(dirname "$0")/copy.sh"
start "a family of ops" runtime tests

# 1. The file: ops, functions, and the list at its end.
cat >"$tree/runtime/ops/soft.cc" <<'TEXT'
// Soft forms of hard functions.
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

constexpr OpDef kSoftsign = elementwise<kFloatingOnly, 1, 0, [](auto x) {
  return x / (scalar::abs(x) + scalar::constant(x, 1.0));
}>("softsign", {.inputs = kFirst}, [](const GradContext& g) {
  const Tensor width = abs(g.input(0)) + 1.0;
  g.set(0, g.grad_out() / (width * width));
});
Tensor softsign(TensorArg x) { return call_floating(kSoftsign, x); }

constexpr OpList kSoftOps = {&kSoftsign};

}  // namespace rondo::ops
TEXT
# 2. The list among all lists.
insert runtime/ops/table.h 'extern const OpList kElementwiseOps' <<'TEXT'
extern const OpList kSoftOps;
TEXT
insert runtime/ops/table.cc '    &kElementwiseOps,' <<'TEXT'
    &kSoftOps,
TEXT
# 3. The declaration, and samples.
insert runtime/ops/ops.h 'Tensor expm1(' <<'TEXT'
Tensor softsign(TensorArg x);  // x / (1 + |x|)
TEXT
insert tests/op_samples.cc '    {.name = "expm1",' <<'TEXT'
    {.name = "softsign", .make = &unary<plain>},
TEXT
changes runtime/ops/soft.cc runtime/ops/table.h runtime/ops/table.cc runtime/ops/ops.h tests/op_samples.cc
says runtime/README.md 'To add a family of ops' ops/table.h ops/table.cc 'list at its end'

compile runtime/ops/soft.cc runtime/ops/math.cc
compile runtime/ops/table.cc
compile tests/op_samples.cc
link test_runtime soft table op_samples
RONDO_TEST_OP=softsign "$work/test_runtime" --gtest_brief=1 --gtest_filter='OpSweep.*' >"$work/log" 2>&1 || { cat "$work/log"; fail "the sweep fails"; }
grep -qE '^\[  PASSED  \] ([5-9]|[1-9][0-9]+) tests' "$work/log" || { cat "$work/log"; fail "the sweep ran too little"; }
echo "recipe of a family of ops: a file, its list, declarations and samples, and the sweep sees it"
