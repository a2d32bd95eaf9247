#!/usr/bin/env bash
# Follows "To add an elementwise op" in runtime/README.md: adds the op softsign to a copy of the sources, in the three files
# that the recipe names, and runs the sweeps on it, eager and compiled.   op.sh BUILD
# Two planted mistakes must then fail: no samples, and a wrong gradient.
# The copy compiles two files, because a declaration in ops.h changes no other object.
set -euo pipefail
. "$(dirname "$0")/copy.sh"
start "an op" runtime tests

# 1. The family: the op, its function, and its name in the list at the end.
insert runtime/ops/math.cc 'constexpr OpList kMathOps' <<'TEXT'
constexpr OpDef kSoftsign = elementwise<kFloatingOnly, 1, 0, [](auto x) {
  return x / (scalar::abs(x) + scalar::constant(x, 1.0));
}>("softsign", {.inputs = kFirst}, [](const GradContext& g) {
  const Tensor width = abs(g.input(0)) + 1.0;
  g.set(0, g.grad_out() / (width * width));
});
Tensor softsign(TensorArg x) { return call_floating(kSoftsign, x); }

TEXT
sed -i 's/^constexpr OpList kMathOps = {/&\&kSoftsign, /' "$tree/runtime/ops/math.cc"

# 2. The declaration.
insert runtime/ops/ops.h 'Tensor expm1(' <<'TEXT'
Tensor softsign(TensorArg x);  // x / (1 + |x|)
TEXT

# 3. The samples.
insert tests/op_samples.cc '    {.name = "expm1",' <<'TEXT'
    {.name = "softsign", .make = &unary<plain>},
TEXT

changes runtime/ops/math.cc runtime/ops/ops.h tests/op_samples.cc
says runtime/README.md 'To add an elementwise op' 'family file' ops/ops.h tests/op_samples.cc

# sweep PROGRAM FILTER: the sweep of the new op alone.
sweep() { RONDO_CACHE_DIR=$work/cache RONDO_TEST_OP=softsign "$work/$1" --gtest_brief=1 --gtest_filter="$2" >"$work/log" 2>&1; }

compile runtime/ops/math.cc &
compile tests/op_samples.cc &
wait -n && wait -n || exit 1

# Without samples, the sweep names the op.
link test_runtime math
! sweep test_runtime OpSweep.EveryOpHasSamplesAndEverySampleAnOp && grep -q "op 'softsign' has no line" "$work/log" ||
  fail "an op without samples passes: $(cat "$work/log")"
link test_runtime math op_samples
link test_compile math op_samples
for run in 'test_runtime OpSweep.*' 'test_compile CompiledOpSweep.*'; do
  case $run in *Compiled*) grep -q '^LLVM_DIR:PATH=/' "$build/CMakeCache.txt" || continue ;; esac  # built without a compiler
  sweep $run || { cat "$work/log"; fail "the sweep fails: $run"; }
  grep -qE '^\[  PASSED  \] ([5-9]|[1-9][0-9]+) tests' "$work/log" || { cat "$work/log"; fail "it ran too little: $run"; }
done

# A wrong gradient.
sed -i 's|g.grad_out() / (width \* width)|g.grad_out() / width|' "$tree/runtime/ops/math.cc"
compile runtime/ops/math.cc
link test_runtime math op_samples
! sweep test_runtime 'OpSweep.*' && grep -q softsign "$work/log" || fail "a wrong gradient passes: $(cat "$work/log")"
echo "recipe of an op: three files, and the sweeps see it"
