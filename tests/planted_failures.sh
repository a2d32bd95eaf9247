#!/usr/bin/env bash
# Plants a failure in each stage of the compiler in turn, and demands that all of a sample of the tests that compare compiled
# with eager execution fail: none may pass because what cannot be compiled runs eagerly (compiled_runs.h).
#   planted_failures.sh BIN
set -euo pipefail
bin=$1
export RONDO_CACHE=off RONDO_REPRODUCERS=off
failures=0

# expect_failures STAGE PROGRAM FILTER [NAME=VALUE...]
expect_failures() {
  local stage=$1 program=$2 filter=$3 log status=0 ran failed
  shift 3
  log=$(env RONDO_TEST_PLANT="$stage" "$@" "$bin/$program" --gtest_color=no --gtest_filter="$filter" 2>&1) || status=$?
  ran=$(grep -c '^\[ RUN  ' <<< "$log" || true)
  failed=$(grep -c '^\[  FAILED  \] .* ms)$' <<< "$log" || true)
  if [ "$status" != 1 ] || [ "$ran" = 0 ] || [ "$ran" != "$failed" ]; then
    echo "failure in stage $stage: $program $*: $failed of $ran tests fail, exit code $status"
    grep '^\[       OK \]' <<< "$log" || tail -5 <<< "$log"
    failures=$((failures + 1))
  fi
}

# All train, and all have a kernel: each stage has something to do.
regions=RegionParts.EachOutputIsFreedByItself:RegionWrites.AModuleChangesItsDtype:RegionEdges.HooksOnOutputsThatOtherOutputsAreMadeOf
regions+=:RegionLifetime.DoubleBackward:SecondOrder.TheSecondBackwardFreesTheTape:Overwritten.AViewOfIt/0
regions+=:Tape.GradientsOfARegionDoNotAlias:Accumulation.HappensInTheMemoryOfTheGradient:Soundness.HyperParametersChangeWithoutNewCode
regions+=:RegionTest.MlpStackEqualsEagerInEveryBit:FloatArguments.AnAnnealedFactorPlansNothing:CompiledDropout.RecomputesTheSameMasks
regions+=:Shapes.StaticShapesCompileEachTime:ReplayTest.RunsNoForward
stages=$(RONDO_TEST_PLANT=? "$bin/test_compile" 2>&1 || true)
stages=${stages##*Stages: }
[ "$(wc -w <<< "$stages")" -ge 16 ] || { echo "no list of stages: $stages"; exit 1; }
for stage in ${stages//,/}; do
  expect_failures "$stage" test_compile "$regions"
done
# Where a pass over every op, random programs, other devices and other programs compare, one early and one late stage.
for stage in compile run; do
  expect_failures $stage test_compile CompiledOpSweep.IntegersAndBool:CheckUnits.RandomProgramsPass
  expect_failures $stage test_compile "$regions" RONDO_TEST_DEVICE=fake:1
  expect_failures $stage test_optim EagerAndCompiled/AtSeams.GradientsOfOneBlockAtATime/regions:EagerAndCompiled/SeamTest.WhatGets*/compiled
  expect_failures $stage test_modules Cases/Pretrained.RegionsTrainTheSame/*_f32
  expect_failures $stage test_cuda CudaTraining.ACompiledBlockHasEagersBits
done
# A compiled optimizer has no graph.
for stage in emit place run; do
  expect_failures $stage test_optim Optimizers/CompiledStep.EqualsEagerToTheBit/adamw:Optimizers/CompiledStep.EqualsEagerToTheBit/sgd
done
[ $failures = 0 ] && echo "every planted failure is seen"
