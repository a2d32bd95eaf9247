// The pipeline, as a flat named list: this file is the table of contents.
#include <string_view>

#include "rondo/compile/report/dump.h"
#include "rondo/compile/report/reproducer.h"
#include "rondo/compile/report/stages.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

struct Pass {
  const char* name;
  std::optional<Graph> (*run)(const Graph&);
  CompilerStage stage;
};
constexpr Pass kPipeline[] = {
    {"decompose", &decompose, CompilerStage::kDecompose},
    {"cse", &eliminate_common_subexpressions, CompilerStage::kCse},
    {"dce", &eliminate_dead_code, CompilerStage::kDce},
    {"join", &join_chains, CompilerStage::kJoin},
    {"assemble", &assemble_in_place, CompilerStage::kAssemble},
};

std::optional<Graph> run_checked(const Pass& pass, const Graph& graph) {
  std::optional<Graph> result = pass.run(graph);
#ifndef NDEBUG
  if (result) verify(*result);
#endif
  return result;
}

}  // namespace

std::vector<const char*> pass_names() {
  std::vector<const char*> names;
  for (const Pass& pass : kPipeline) names.push_back(pass.name);
  return names;
}

Graph run_pass(std::string_view name, const Graph& graph) {
  verify(graph);
  if (name == "verify") return graph;
  for (const Pass& pass : kPipeline) {
    if (name != pass.name) continue;
    Graph result = pass.run(graph).value_or(graph);
    verify(result);
    return result;
  }
  throw Error("no stage \"" + std::string(name) + "\"");
}

Graph simplify(Graph graph) {
  run_reproducible({.stage = "verify", .graph = &graph}, [&] { verify(graph); });
  if (wants_dump("input")) dump("input", to_string(graph, Locations::kAsComments));
  for (const Pass& pass : kPipeline) {
    if (!enabled(pass.stage)) {
      if (wants_dump(pass.name)) dump(std::string(pass.name) + " (disabled)", "");
      continue;
    }
    std::optional<Graph> result = reproducible({.stage = pass.name, .graph = &graph},
                                               [&] { return run_checked(pass, graph); });
    if (wants_dump(pass.name)) {
      const std::string text = to_string(result ? *result : graph, Locations::kAsComments);
      if (!result || text == to_string(graph, Locations::kAsComments))
        dump(std::string(pass.name) + " (unchanged)", "");
      else dump(pass.name, text);
    }
    if (result) graph = std::move(*result);
  }
  return graph;
}

}  // namespace rondo::compile
