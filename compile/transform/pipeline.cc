// The pipeline, as a flat named list: this file is the table of contents.
#include <iterator>
#include <string_view>

#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

struct Pass {
  CompilerStage stage;
  std::optional<Graph> (*run)(const Graph&);
};
constexpr Pass kPipeline[] = {
    {CompilerStage::kDecompose, &decompose},                  // ops without a lowering -> their parts
    {CompilerStage::kSegments, &sort_scattered_rows},         // sums by index -> sums of sorted rows
    {CompilerStage::kCse, &eliminate_common_subexpressions},  // equal calls -> one
    {CompilerStage::kDce, &eliminate_dead_code},              // what no output needs -> nothing
    {CompilerStage::kJoin, &join_chains},                     // calls that continue each other -> one
    {CompilerStage::kAssemble, &assemble_in_place},           // copies side by side -> written in place
};
// pass_names() lists the same passes.
static_assert(std::size(kPipeline) == kPasses);
static_assert([] {
  for (size_t i = 0; i < std::size(kPipeline); ++i)
    if (static_cast<size_t>(kPipeline[i].stage) != i) return false;
  return true;
}());

std::optional<Graph> run_checked(const Pass& pass, const Graph& graph) {
  std::optional<Graph> result = pass.run(graph);
  if (misrewrite_for_tests != nullptr) {
    if (!result) result = graph;
    misrewrite_for_tests(name_of(pass.stage), *result);
  }
#ifndef NDEBUG
  if (result) verify(*result);
#endif
  return result;
}

}  // namespace

void (*misrewrite_for_tests)(std::string_view pass, Graph& graph) = nullptr;

Graph run_pass(std::string_view name, const Graph& graph) {
  verify(graph);
  if (name == "verify") return graph;
  for (const Pass& pass : kPipeline) {
    if (name != name_of(pass.stage)) continue;
    Graph result = run_checked(pass, graph).value_or(graph);
    verify(result);
    return result;
  }
  throw Error("no stage \"" + std::string(name) + "\"");
}

Graph simplify(Graph graph) {
  const auto text = [&] { return to_string(graph); };
  run_reproducible({.stage = "verify", .text = text}, [&] { verify(graph); });
  if (wants_dump("input")) dump("input", to_string(graph, Locations::kAsComments));
  for (const Pass& pass : kPipeline) {
    const std::string name(name_of(pass.stage));
    if (!enabled(pass.stage)) {
      if (wants_dump(name)) dump(name + " (disabled)", "");
      continue;
    }
    std::optional<Graph> result = reproducible({.stage = name, .text = text}, [&] { return run_checked(pass, graph); });
    if (wants_dump(name)) {
      const std::string after = to_string(result ? *result : graph, Locations::kAsComments);
      if (!result || after == to_string(graph, Locations::kAsComments)) dump(name + " (unchanged)", "");
      else dump(name, after);
    }
    if (result) graph = std::move(*result);
  }
  return graph;
}

}  // namespace rondo::compile
