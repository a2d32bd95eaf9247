// The pipeline, as a flat named list: this file is the table of contents.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "rondo/compile/passes/passes.h"

namespace rondo::compile {
namespace {

struct Pass {
  const char* name;
  Graph (*run)(const Graph&);
};
constexpr Pass kPipeline[] = {
    {"decompose", &decompose},
    {"cse", &eliminate_common_subexpressions},
    {"dce", &eliminate_dead_code},
    {"assemble", &assemble_in_place},
};

// RONDO_DUMP=decompose,cse or RONDO_DUMP=all
bool wants_dump(std::string_view name) {
  static const char* const list = std::getenv("RONDO_DUMP");
  return list != nullptr && (std::string_view(list) == "all" || std::string_view(list).find(name) != std::string_view::npos);
}

}  // namespace

Graph simplify(Graph graph) {
  verify(graph);
  if (wants_dump("input")) std::fprintf(stderr, "---- input\n%s", to_string(graph).c_str());
  for (const Pass& pass : kPipeline) {
    const std::string before = wants_dump(pass.name) ? to_string(graph) : "";
    graph = pass.run(graph);
#ifndef NDEBUG
    verify(graph);
#endif
    if (!wants_dump(pass.name)) continue;
    const std::string after = to_string(graph);
    std::fprintf(stderr, "---- %s%s\n%s", pass.name, after == before ? " (unchanged)" : "", after == before ? "" : after.c_str());
  }
  return graph;
}

}  // namespace rondo::compile
