#!/usr/bin/env bash
# Follows "A pass" in compile/README.md: a pass that looks at every node and changes none. The stages' tests, RONDO_DISABLE
# and RONDO_DUMP then know it.   pass.sh BUILD
# Most of compile/ is compiled again, because it knows stages by number: a build of its own (nightly).
set -euo pipefail
. "$(dirname "$0")/copy.sh"
grep -q '^LLVM_DIR:PATH=/' "$build/CMakeCache.txt" || { echo "skipped: the build has no compiler"; exit 77; }
start "a pass" compile

# 1. The file and its declaration.
cat >"$tree/compile/transform/survey.cc" <<'TEXT'
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

std::optional<Graph> survey(const Graph& graph) {
  size_t with_inputs = 0;
  for (const GraphNode& node : graph.nodes) with_inputs += node.inputs.empty() ? 0 : 1;
  return with_inputs > graph.nodes.size() ? std::optional(graph) : std::nullopt;  // never
}

}  // namespace rondo::compile
TEXT
insert compile/transform/passes.h '}  // namespace rondo::compile' <<'TEXT'
// Looks at every node and changes none.
std::optional<Graph> survey(const Graph& graph);

TEXT
# 2. Its row.
sed -i 's|^    {CompilerStage::kWiden, When::kDefaultMode, &widen},|&\n    // Nothing changes.\n    {CompilerStage::kSurvey, When::kAlways, \&plain<survey>},|' "$tree/compile/transform/pipeline.cc"
# 3. Its stage.
sed -i 's|^  kWiden,|&\n  kSurvey,|; s|^//   fuse  |//   survey      nothing looks at all nodes\n&|' "$tree/compile/stages/stages.h"
sed -i 's|^    {"widen", kPass},|&\n    {"survey", kPass},|' "$tree/compile/stages/stages.cc"
changes compile/transform/survey.cc compile/transform/passes.h compile/transform/pipeline.cc compile/stages/stages.h compile/stages/stages.cc
says compile/README.md '**A pass**' transform/passes.h transform/pipeline.cc stages/stages.h stages/stages.cc

# ---- The build: the whole tree, with this compile/.
mkdir "$work/source"
for entry in "$source"/*; do
  case ${entry##*/} in build) ;; *) cp -r "$entry" "$work/source/" ;; esac
done
rm -r "$work/source/compile"
cp -r "$tree/compile" "$work/source/compile"
# With the developers' settings, so that a compiler's cache has what does not change.
(cd "$work/source" && cmake --preset release -DRONDO_BUILD_EXAMPLES=OFF) >"$work/log" 2>&1 || { cat "$work/log"; fail "it does not configure"; }
made=$work/source/build/release
program=test_compile
cmake --build "$made" --target $program >"$work/log" 2>&1 || { tail -40 "$work/log"; fail "it does not build"; }
run() { "$made/bin/$program" --gtest_brief=1 "--gtest_filter=$1" >"$work/log" 2>&1; }
# A test holds the list of all stages as text: it alone may fail, and names the new one.
run 'Stages.*:-Stages.UnknownNamesAreListed' || { tail -40 "$work/log"; fail "the tests of stages fail"; }
RONDO_DISABLE=survey run 'RegionTest.*' || { tail -40 "$work/log"; fail "RONDO_DISABLE does not know it"; }
RONDO_DUMP=survey run 'RegionTest.*' || { tail -40 "$work/log"; fail "regions fail with RONDO_DUMP"; }
grep -q -- '---- survey' "$work/log" || { tail -40 "$work/log"; fail "RONDO_DUMP does not show it"; }
echo "recipe of a pass: a file, a row and a stage, and what goes by stages knows it"
